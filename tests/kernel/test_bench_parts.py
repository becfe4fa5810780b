"""The parts of the bench on this machine's cgroups, as short as they can be."""

from dataclasses import replace
from pathlib import Path

import pytest

from bench.parts import (
    FLOOR,
    HERE,
    PARTS,
    TO_KILL,
    UNMET,
    WAKE_TO_KILL,
    Effort,
    Turn,
    Values,
    measured,
    tree_at,
)
from reactor.kernel.cgroup import CgroupTree

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.nightly  # whole measurements, of a program that no node has


def test_contestants_take_turns_there_and_back_and_share_the_effort(tool: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []

    def note(turn: Turn) -> Values:
        seen.append((turn.contestant.name, turn.runs, len(turn.node.tree.children(turn.node.cgroup))))
        return {}

    part = replace(PARTS["kill-max"], measure=note, pods=2, turns=3)
    for _ in measured(part, [HERE, FLOOR], Effort(runs=4), CgroupTree.discover(), tool, tmp_path):
        pass
    there, back = [("reactor", 2, 2), ("floor", 2, 2)], [("floor", 1, 2), ("reactor", 1, 2)]
    assert [*there, *back, ("reactor", 1, 2), ("floor", 1, 2)] == seen


def values_of(name: str, tool: Path, directory: Path, runs: int, pods: int = 2) -> dict[str, Values]:
    """Return what one turn of each contestant measures, of which one is this tree once more."""
    part = replace(PARTS[name], turns=1, pods=pods)
    with tree_at(str(ROOT), ROOT, directory) as other:
        contestants = [replace(other, name="other"), HERE, FLOOR]
        effort = Effort(runs=runs, idle_seconds=2.0)
        return dict(measured(part, contestants, effort, CgroupTree.discover(), tool, directory))


def test_kills_of_two_trees_and_of_the_floor_are_measured_alike(tool: Path, tmp_path: Path) -> None:
    found = values_of("kill-max", tool, tmp_path, runs=1)
    assert ["other", "reactor", "floor"] == list(found)
    for values in found.values():
        ((to_kill,), (wake_to_kill,)) = values[TO_KILL], values[WAKE_TO_KILL]
        assert to_kill > 0
        assert wake_to_kill > 0


def test_a_pass_in_which_nothing_is_met_takes_time(tool: Path, tmp_path: Path) -> None:
    found = values_of("pass-110", tool, tmp_path, runs=1)
    assert ["other", "reactor"] == list(found)
    assert all(values[UNMET][0] > 0 for values in found.values())


@pytest.mark.timeout(180)
def test_at_rest_both_processes_and_what_wakes_them_are_measured(tool: Path, tmp_path: Path) -> None:
    values = values_of("rest-110", tool, tmp_path, runs=1)["reactor"]
    for when in ("at rest", "under MemoryPressure"):
        for process in ("guard", "steward"):
            assert values[f"{process} {when}, % of a CPU"][0] > 0
            assert values[f"{process} {when}, wakes a minute"][0] > 0
        assert f"wakes by ticker {when}, a minute" in values
    for process in ("guard", "steward"):
        assert 1 < values[f"{process}, PSS, MiB"][0] < values[f"{process}, RSS, MiB"][0]
