from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.baseline import kind_of, report, update
from bench.parts import TO_KILL
from bench.rows import moved
from reactor.errors import RefusedError

REST = "guard at rest, % of a CPU"
RSS = "guard, RSS, MiB"


def summed(p50: float, n: int = 30, turns: tuple[float, ...] = ()) -> dict[str, Any]:
    return {"p50": p50, "p99": 2 * p50, "max": 2 * p50, "n": n, "turns": list(turns or (p50, p50))}


def a_run(
    *,
    kill_ms: float = 0.9,
    floor_ms: float = 0.3,
    rss_mib: float = 32.0,
    rest: float = 0.2,
    floor_turns: tuple[float, ...] = (),
) -> dict[str, Any]:
    return {
        "about": {"date": "2026-11-21T08:00:00+00:00", "cgroup": "v1", "cpus": 2},
        "rows": {
            "kill-max": {TO_KILL: {"reactor": summed(kill_ms), "floor": summed(floor_ms, turns=floor_turns)}},
            "pass-110": {"a pass, ms": {"reactor": summed(2.0 * floor_ms / 0.3, n=4)}},
            "rest-110": {REST: {"reactor": summed(rest, n=2)}, RSS: {"reactor": summed(rss_mib, n=2)}},
        },
    }


def verdicts(then: dict[str, Any], now: dict[str, Any]) -> dict[str, str]:
    return {one.name: one.verdict for one in moved(then["rows"], now["rows"]) if not one.name.endswith("p99")}


def test_times_are_compared_in_multiples_of_the_floor_and_the_rest_as_it_is() -> None:
    found = {one.name: one for one in moved(a_run()["rows"], a_run(kill_ms=2.0, floor_ms=0.6)["rows"])}
    kill = found[f"kill at full speed, 3 pods: {TO_KILL}, p50"]
    assert (2.0, pytest.approx(3.0), pytest.approx(2.0 / 0.6)) == (kill.machine, kill.then, kill.now)
    assert pytest.approx(2.0 / 1.8) == kill.code
    rss = found[f"rest, 110 pods: {RSS}"]
    assert (1.0, 32.0, 32.0) == (rss.machine, rss.then, rss.now)


def test_a_machine_that_is_slower_altogether_has_moved_nothing() -> None:
    assert {"same"} == set(verdicts(a_run(), a_run(kill_ms=9.0, floor_ms=3.0)).values())


def test_code_that_is_slower_or_faster_on_the_same_machine_has_moved() -> None:
    kill, a_pass = f"kill at full speed, 3 pods: {TO_KILL}, p50", "pass, 110 pods: a pass, ms"
    slower, faster = verdicts(a_run(), a_run(kill_ms=1.5)), verdicts(a_run(), a_run(kill_ms=0.6))
    assert ("worse", "same") == (slower[kill], slower[a_pass])
    assert "better" == faster[kill]


def test_what_the_machine_itself_did_from_turn_to_turn_is_not_the_codes_doing() -> None:
    now = a_run(kill_ms=1.5, floor_turns=(0.25, 0.35))
    assert {"same"} == set(verdicts(a_run(), now).values())


def test_memory_moves_by_a_tenth_and_a_share_that_is_hardly_there_does_not() -> None:
    found = verdicts(a_run(rest=0.04), a_run(rss_mib=36.0, rest=0.08))
    assert ("worse", "same") == (found[f"rest, 110 pods: {RSS}"], found[f"rest, 110 pods: {REST}"])
    assert {"same"} == set(verdicts(a_run(), a_run(rss_mib=34.0)).values())


def test_the_report_says_first_what_is_the_machine_and_then_what_is_the_code(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    update(a_run(), path)
    first, second, head, *lines, last = report(a_run(kill_ms=3.0, floor_ms=0.6), path)
    assert first.startswith(
        "the machine: the C floor kills at full speed after 0.6 ms, then after 0.3 ms: 2.00"
    )
    assert second.startswith(f"the code: against {path}, 2026-11-21")
    assert ["machine", "then", "now", "now", "/", "then"] == head.split()
    assert [*f"kill at full speed, 3 pods: {TO_KILL}, p50".split(), "2.00", "3", "5", "1.67", "worse"] in [
        line.split() for line in lines
    ]
    assert "1 of 5 figures moved" == last


def test_a_run_becomes_the_baseline_of_its_kind_and_others_keep_theirs(tmp_path: Path) -> None:
    path = tmp_path / "figures" / "baseline.json"
    update(a_run(), path)
    other = a_run(rss_mib=40.0)
    other["about"]["cgroup"] = "v2"
    update(other, path)
    assert ["cgroup v1, 2 CPUs", "cgroup v2, 2 CPUs"] == sorted(json.loads(path.read_text()))
    assert "0 of 5 figures moved" == report(a_run(), path)[-1]


def test_without_a_baseline_of_its_kind_it_says_how_to_have_one(tmp_path: Path) -> None:
    (line,) = report(a_run(), tmp_path / "none.json")
    assert "cgroup v1, 2 CPUs" in line
    assert "--update-baseline" in line


@pytest.mark.parametrize("text", ["no json", "[]", '{"cgroup v1, 2 CPUs": {"figures": {}}}'])
def test_a_file_that_is_no_baseline_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "baseline.json"
    path.write_text(text)
    with pytest.raises(RefusedError, match="accepted: what --update-baseline wrote"):
        report(a_run(), path)


def test_kinds_of_machine_are_distinguished_by_cgroup_and_cpus() -> None:
    assert "cgroup v1, 2 CPUs" == kind_of(a_run())
