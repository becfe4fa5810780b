"""The parts of the bench on this machine's cgroups, as short as they can be."""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench import parts
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
from reactor.testbed.crossing import cpu_ns
from tests.support.waiting import eventually

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


class UntilEachIsWoken:
    """What the bench sleeps by: until each process that it has looked at has run, however seldom."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, Mapping[str, int]]] = {}
        self._look = parts._switches

    def switches(self, pid: int) -> Mapping[str, int]:
        self._seen[pid] = cpu_ns(pid), self._look(pid)
        return self._seen[pid][1]

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
        for pid in self._seen:
            with suppress(OSError):  # the daemon of another turn
                eventually(lambda pid=pid: self._was_woken(pid), f"process {pid} is woken")
        self._seen.clear()

    def _was_woken(self, pid: int) -> bool:
        used_ns, before = self._seen[pid]
        now = self._look(pid)
        return cpu_ns(pid) > used_ns and sum(now[task] - before.get(task, 0) for task in now) > 0


@pytest.mark.timeout(400)
def test_at_rest_both_processes_and_what_wakes_them_are_measured(
    tool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = UntilEachIsWoken()
    monkeypatch.setattr(parts, "_switches", rest.switches)
    monkeypatch.setattr(parts, "time", SimpleNamespace(sleep=rest.sleep, monotonic_ns=time.monotonic_ns))
    values = values_of("rest-110", tool, tmp_path, runs=1)["reactor"]
    for when in ("at rest", "under MemoryPressure"):
        for process in ("guard", "steward"):
            assert values[f"{process} {when}, % of a CPU"][0] > 0
            assert values[f"{process} {when}, wakes a minute"][0] > 0
        assert f"wakes by ticker {when}, a minute" in values
    for process in ("guard", "steward"):
        assert 1 < values[f"{process}, PSS, MiB"][0] < values[f"{process}, RSS, MiB"][0]
