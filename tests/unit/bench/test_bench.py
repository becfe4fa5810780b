import json
from pathlib import Path
from typing import Any

import pytest

from bench import figures as module
from bench.figures import Bench, bench, collected, figures, floor_figures
from reactor.testbed.allocator import MIB, HogTimes
from reactor.testbed.crossing import LEVEL_BYTES, Run


def a_run(kill_ms: float) -> Run:
    times = HogTimes(
        started_ns=0,
        crossed_ns=1_000_000,
        dead_ns=1_000_000 + int(kill_ms * 1e6),
        ended_ns=40_000_000,
        back_ns=41_000_000,
        peak_bytes=LEVEL_BYTES + 2 * MIB,
        before_bytes=0,
        back_bytes=0,
    )
    timing = {"woke_ns": 1_300_000, "started_ns": 1_400_000, "decided_ns": 2_000_000, "killed_ns": 2_400_000}
    return Run(times=times, timing=timing)


class Rehearsal(Bench):
    """Measures nothing: what the figures are made of is given."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, int]] = []
        self.floors: list[int] = []

    def crossings(self, rate_bytes: int, runs: int, pods: int = 3) -> list[Run]:
        self.asked.append((rate_bytes, runs, pods))
        before = sum(count for rate, count, _ in self.asked[:-1] if rate == rate_bytes and pods == 3)
        return [a_run(before + number) for number in range(1, runs + 1)]

    def floor_crossings(self, rate_bytes: int, runs: int, pods: int = 3) -> list[Run]:
        assert rate_bytes >= 0
        assert pods == 3
        self.floors.append(runs)
        return [a_run(0.1 * number) for number in range(1, runs + 1)]

    def at_rest(self, seconds: float, pods: int = 110) -> tuple[float, float]:
        return (seconds + pods - 110) / 1000, 31.5

    def fork_storm(self, seconds: float = 1.0) -> tuple[float, float]:
        return 2.5 * seconds, 19_999.6


def test_the_figures_have_their_names_and_are_made_of_the_runs() -> None:
    rehearsal = Rehearsal()
    found = collected({}, figures(rehearsal, 30, 60))
    goals = {"crossing_to_wake_ms", "crossing_to_kill_ms", "crossing_to_freed_ms", "overshoot_mib", "pass_ms"}
    assert goals | {"idle_cpu_percent", "rss_mib", "fork_storm_cpu_percent"} <= found.keys()
    assert {"100", "1000", "max"} == found["crossing_to_kill_ms"].keys()
    assert {"10", "110", "1000"} == found["pass_ms"].keys()
    assert {"p50": 15, "p99": 30, "max": 30, "n": 30} == found["crossing_to_kill_ms"]["max"]
    assert (0.3, 40.0, 2.0) == tuple(
        found[name]["100"]["p50"] for name in ("crossing_to_wake_ms", "crossing_to_freed_ms", "overshoot_mib")
    )
    assert 0.6 == found["pass_ms"]["1000"]["max"]
    assert {3, 10, 110, 1000} == {pods for _, _, pods in rehearsal.asked}


def test_the_floor_takes_turns_with_the_daemon_and_its_spread_is_reported() -> None:
    rehearsal = Rehearsal()
    found = collected({}, figures(rehearsal, 30, 60))
    assert [10] * 9 == rehearsal.floors
    assert 30 == found["floor"]["crossing_to_kill_ms"]["max"]["n"]
    assert 0.0 == found["floor"]["spread_percent"]
    turns = {"max": [[a_run(1.0)], [a_run(1.5)], []]}
    assert 50.0 == floor_figures(turns)["spread_percent"]


def test_two_runs_are_enough_for_figures() -> None:
    found = collected({}, figures(Rehearsal(), 2, 1))
    assert 2 == found["floor"]["crossing_to_kill_ms"]["100"]["n"]


class Interrupted(Rehearsal):
    """Is interrupted in the turn after so many."""

    def __init__(self, turns: int) -> None:
        super().__init__()
        self.left = turns

    def crossings(self, rate_bytes: int, runs: int, pods: int = 3) -> list[Run]:
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        return super().crossings(rate_bytes, runs, pods)


def test_an_interrupted_run_has_the_figures_of_the_turns_until_then() -> None:
    found = collected({"kernel": "6"}, figures(Interrupted(2), 30, 60))
    assert {"about", "floor"} | {
        *("crossing_to_wake_ms", "crossing_to_kill_ms", "crossing_to_freed_ms", "overshoot_mib")
    } == found.keys()
    assert {"100": 20} == {rate: one["n"] for rate, one in found["crossing_to_kill_ms"].items()}
    assert {"kernel": "6", "interrupted": "after 0 s"} == found["about"]
    with_passes = collected({}, figures(Interrupted(10), 30, 60))
    assert {"10"} == with_passes["pass_ms"].keys()
    assert "kill_call_ms" in with_passes


def test_a_run_that_is_interrupted_before_its_first_figure_has_none() -> None:
    with pytest.raises(KeyboardInterrupt):
        collected({}, figures(Interrupted(0), 30, 60))


def test_what_was_measured_is_stored_with_when_and_on_what(tmp_path: Path) -> None:
    found: dict[str, Any] = {"about": {"date": "2026-11-21T03:04:05+00:00", "kernel": "6"}, "rss_mib": 30}
    path = module._store(found, tmp_path / "new")
    assert tmp_path / "new" / "2026-11-21T030405.json" == path
    assert found == json.loads(path.read_text())


def test_without_root_it_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert 2 == bench(tmp_path)
    assert "needs root" in capsys.readouterr().err
    assert [] == list(tmp_path.iterdir())
