from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.figures import comparable, is_noisy, kind_of, moved, report, update
from reactor.errors import RefusedError


def summed(p50: float, p99: float | None = None) -> dict[str, float]:
    return {"p50": p50, "p99": 2 * p50 if p99 is None else p99, "max": 10 * p50, "n": 30}


def a_run(
    *,
    kill_ms: float = 0.9,
    floor_ms: float = 0.3,
    rss_mib: float = 32.0,
    idle: float = 0.2,
    spread: float = 5.0,
) -> dict[str, Any]:
    def crossings(kill: float) -> dict[str, Any]:
        return {
            "crossing_to_wake_ms": {"max": summed(kill / 3)},
            "crossing_to_kill_ms": {"max": summed(kill)},
            "crossing_to_freed_ms": {"max": summed(50 * kill)},
        }

    return {
        "about": {"date": "2026-11-21T08:00:00+00:00", "cgroup": "v1", "cpus": 2},
        **crossings(kill_ms),
        "floor": {**crossings(floor_ms), "spread_percent": spread},
        "pass_ms": {"110": summed(2.0 * floor_ms / 0.3)},
        "rss_mib": rss_mib,
        "idle_cpu_percent": idle,
        "fork_storm_cpu_percent": 2.0,
    }


def test_times_are_multiples_of_the_floors_and_the_rest_is_as_it_is() -> None:
    figures = comparable(a_run())
    assert 3.0 == pytest.approx(figures["crossing_to_kill_ms/max/p50"])
    assert 2.0 / 0.3 == pytest.approx(figures["pass_ms/110/p50"])
    assert 32.0 == figures["rss_mib"]


def test_a_machine_that_is_slower_altogether_has_moved_nothing() -> None:
    fast, slow = comparable(a_run()), comparable(a_run(kill_ms=9.0, floor_ms=3.0))
    assert [] == list(moved(fast, slow, 5.0))


def test_a_daemon_that_is_slower_on_the_same_machine_has_moved() -> None:
    found = {one.name: one for one in moved(comparable(a_run()), comparable(a_run(kill_ms=1.5)), 5.0)}
    assert "crossing_to_kill_ms/max/p50" in found
    assert "pass_ms/110/p50" not in found
    assert "crossing_to_kill_ms/max/p50: 3 -> 5, +67 %, worse" == str(found["crossing_to_kill_ms/max/p50"])


def test_one_that_is_faster_has_moved_for_the_better() -> None:
    found = [str(one) for one in moved(comparable(a_run()), comparable(a_run(kill_ms=0.6)), 5.0)]
    assert any(line.startswith("crossing_to_kill_ms/max/p50") and line.endswith("better") for line in found)


def test_what_the_machine_itself_did_is_not_the_daemons_doing() -> None:
    before, now = comparable(a_run()), comparable(a_run(kill_ms=1.5))
    assert [] == list(moved(before, now, 40.0))


def test_memory_moves_by_a_tenth_and_a_share_that_is_hardly_there_does_not() -> None:
    before = comparable(a_run(idle=0.04))
    assert ["rss_mib"] == [one.name for one in moved(before, comparable(a_run(rss_mib=36.0, idle=0.08)), 5.0)]
    assert [] == list(moved(before, comparable(a_run(rss_mib=34.0, idle=0.01)), 5.0))


def test_a_run_becomes_the_baseline_of_its_kind_and_others_keep_theirs(tmp_path: Path) -> None:
    path = tmp_path / "figures" / "baseline.json"
    update(a_run(), path)
    other = a_run(rss_mib=40.0)
    other["about"]["cgroup"] = "v2"
    update(other, path)
    assert ["cgroup v1, 2 CPUs", "cgroup v2, 2 CPUs"] == sorted(json.loads(path.read_text()))
    lines = report(a_run(), path)
    assert "nothing moved" == lines[1]
    assert "2026-11-21" in lines[0]
    worse = report(a_run(kill_ms=1.5, rss_mib=60.0), path)
    assert any("rss_mib: 32 -> 60" in line for line in worse)
    assert any("others did not move" in line for line in worse)


def test_without_a_baseline_of_its_kind_it_says_how_to_have_one(tmp_path: Path) -> None:
    line, noise = report(a_run(), tmp_path / "none.json")
    assert "cgroup v1, 2 CPUs" in line
    assert "--update-baseline" in line
    assert "5 %" in noise


def test_a_noisy_machine_is_reported(tmp_path: Path) -> None:
    assert is_noisy(a_run(spread=31.0))
    assert not is_noisy(a_run(spread=29.0))
    assert "shows only large differences" in report(a_run(spread=31.0), tmp_path / "none.json")[-1]


@pytest.mark.parametrize("text", ["no json", "[]"])
def test_a_file_that_is_no_baseline_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "baseline.json"
    path.write_text(text)
    with pytest.raises(RefusedError, match="accepted: what --update-baseline wrote"):
        report(a_run(), path)


def test_kinds_of_machine_are_distinguished_by_cgroup_and_cpus() -> None:
    assert "cgroup v1, 2 CPUs" == kind_of(a_run())
