import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from bench import figures as module
from bench.figures import Wanted, bench, collected, figures
from bench.parts import (
    FLOOR,
    HERE,
    PARTS,
    TO_KILL,
    Contestant,
    Effort,
    Part,
    parts_named,
    runs_by_turn,
    tree_at,
)
from bench.rows import Turns, against
from reactor.errors import RefusedError

ROOT = Path(__file__).parents[3]
OTHER = Contestant(name="main (abc)")
TWO = {name: PARTS[name] for name in ("kill-max", "pass-110")}


class Rehearsal:
    """Measures nothing: every turn has the values 1, 2, 3, ..., this tree's half of it."""

    def __init__(self, turns: int = 100, error: BaseException | None = None) -> None:
        self.left = turns
        self.error = error

    def __call__(
        self, part: Part, contestants: Sequence[Contestant], *_: object
    ) -> Iterator[tuple[str, Mapping[str, Sequence[float]]]]:
        for _number in range(2):
            for one in contestants:
                if part.has_floor or not one.is_floor:
                    if not self.left and self.error is not None:
                        raise self.error
                    self.left -= 1
                    half = 0.5 if one is HERE else 1.0
                    yield one.name, {TO_KILL: [half * value for value in range(1, 11)]}


def measured(rehearsal: Rehearsal, contestants: Sequence[Contestant] = (HERE, FLOOR)) -> dict[str, Any]:
    nowhere: Any = None
    found = figures(TWO, contestants, Effort(), nowhere, nowhere, nowhere, measure=rehearsal)
    return collected({"kernel": "6"}, found)


def test_the_rows_have_each_contestants_figures_and_the_median_of_each_turn() -> None:
    rows = measured(Rehearsal())["rows"]
    assert ["kill-max", "pass-110"] == list(rows)
    kill = rows["kill-max"][TO_KILL]
    assert {"p50": 5, "p99": 10, "max": 10, "n": 20, "turns": [5.5, 5.5]} == kill["floor"]
    assert {"p50": 2.5, "p99": 5, "max": 5, "n": 20, "turns": [2.75, 2.75]} == kill["reactor"]
    assert ["reactor"] == list(rows["pass-110"][TO_KILL])


def test_two_trees_of_one_run_are_compared_by_the_ratio_of_their_figures() -> None:
    head, *lines, noise = against(measured(Rehearsal(), (OTHER, HERE, FLOOR))["rows"], OTHER.name)
    assert head.split() == ["floor", "main", "(abc)", "this", "tree", "this", "tree", "/", "main", "(abc)"]
    assert 4 == len(lines)
    assert noise.startswith("the floor's own medians differed by up to 0 % from turn to turn")
    assert lines[0].split() == [
        *f"kill at full speed, 3 pods: {TO_KILL}, p50".split(),
        *("5", "5", "2.5", "0.50", "(0.50", "to", "0.50)"),
    ]


def test_a_row_in_which_nothing_was_counted_is_not_shown() -> None:
    turns = Turns()
    for name in (HERE.name, OTHER.name):
        turns.add(name, {"wakes": [0.0], "seconds": [1.0]})
    assert 2 == len(against({"forks": turns.rows()}, OTHER.name))


def test_an_interrupted_run_has_the_figures_of_the_turns_until_then() -> None:
    found = measured(Rehearsal(3, KeyboardInterrupt()))
    assert {"kernel": "6", "interrupted": "after 0 s"} == found["about"]
    assert (20, 10) == tuple(found["rows"]["kill-max"][TO_KILL][name]["n"] for name in ("reactor", "floor"))
    assert ["kill-max", "pass-110"] == list(measured(Rehearsal(5, KeyboardInterrupt()))["rows"])


def test_a_run_that_fails_keeps_the_figures_of_the_turns_until_then_and_says_why() -> None:
    found = measured(Rehearsal(5, RefusedError("no pod was evicted")))
    assert "after 0 s: no pod was evicted" == found["about"]["failed"]
    assert ["kill-max", "pass-110"] == list(found["rows"])


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RefusedError("no")])
def test_a_run_that_is_broken_off_before_its_first_figure_has_none(error: BaseException) -> None:
    with pytest.raises(type(error)):
        measured(Rehearsal(0, error))


def test_what_was_measured_is_stored_with_when_and_on_what(tmp_path: Path) -> None:
    found: dict[str, Any] = {"about": {"date": "2026-11-21T03:04:05+00:00", "kernel": "6"}, "rows": {}}
    path = module._store(found, tmp_path)
    assert tmp_path / "2026-11-21T030405.json" == path
    assert found == json.loads(path.read_text())


def test_without_root_it_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert 2 == bench(Wanted(results=tmp_path))
    assert "needs root" in capsys.readouterr().err
    assert [] == list(tmp_path.iterdir())


def test_results_that_can_not_be_stored_are_not_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(module, "compiled_tool", lambda: tmp_path)
    (tmp_path / "file").touch()
    assert 2 == bench(Wanted(results=tmp_path / "file", parts=["pass-110"]))
    assert f"reactor bench: {tmp_path}/file: File exists\n" == capsys.readouterr().err


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (Wanted(parts=["kill-max", "kill"]), "--parts: got 'kill'; accepted: kill-1, "),
        (Wanted(parts=["kill-max"], is_update=True), "--update-baseline: not with --against or --parts"),
        (Wanted(against="main", is_update=True), "--update-baseline: not with --against or --parts"),
        (Wanted(against="no-such"), "--against: got 'no-such', which is no directory and no commit"),
        (
            Wanted(baseline=Path(__file__)),
            "test_bench.py: Expecting value: line 1 column 1 (char 0); accepted:",
        ),
    ],
)
def test_what_can_not_be_measured_is_refused_before_anything_is(
    wanted: Wanted, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 2 == bench(wanted)
    assert message in capsys.readouterr().err


def test_an_unknown_source_is_refused_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "_measured", lambda *_: 0)
    assert 0 == module.bench_by_source(skip=["psi"])
    assert 2 == module.bench_by_source(skip=["pis"])
    assert "--skip: 'pis' is none of " in capsys.readouterr().err


def test_parts_are_measured_in_their_order_and_the_default_ones_if_none_is_named() -> None:
    assert ["kill-10", "kill-100", "forks"] == list(parts_named(["forks", "kill-100", "kill-10"]))
    slow = {"kill-1", "kill-10", "kill-30", "kill-300"}
    assert slow == PARTS.keys() - parts_named([]).keys()


def where_reactor_is(contestant: Contestant) -> str:
    command = [sys.executable, "-P", "-c", "import reactor; print(reactor.__file__)"]
    environment = {**os.environ, **contestant.environment}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def test_a_commits_daemon_is_that_commits_and_a_directorys_that_of_the_directory(tmp_path: Path) -> None:
    git = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    head = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    with tree_at("HEAD", ROOT, tmp_path) as other:
        assert f"HEAD ({head})" == other.name
        assert f"{tmp_path}/tree-{head}/reactor/__init__.py\n" == where_reactor_is(other)
    with tree_at(str(ROOT), ROOT, tmp_path) as other:
        assert f"{ROOT}/reactor/__init__.py\n" == where_reactor_is(other)


def test_what_is_no_other_tree_is_refused_with_what_is_accepted(tmp_path: Path) -> None:
    with (
        pytest.raises(RefusedError, match=r"got 'no-such'.*accepted: a checkout's directory, or a commit"),
        tree_at("no-such", ROOT, tmp_path),
    ):
        pass
    with (
        pytest.raises(RefusedError, match=r"has no reactor/__main__.py"),
        tree_at(str(tmp_path), ROOT, tmp_path),
    ):
        pass


def test_crossings_are_shared_out_among_the_turns_that_are_wanted_at_most() -> None:
    part = Part(text="", pods=3, measure=lambda _: {}, turns=2)
    assert [4, 3] == runs_by_turn(part, Effort(runs=7))
    assert [7] == runs_by_turn(part, Effort(runs=7, turns=1))
    assert [1, 0] == runs_by_turn(part, Effort(runs=1, turns=3))
