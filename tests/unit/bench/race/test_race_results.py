"""What follows from the heats of a race, and how it is told."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.race import command
from bench.race.contestants import Role
from bench.race.heat import Finish, crossed_ns
from bench.race.meeting import measured, thinned
from bench.race.results import comparisons, fastest, figures, noise, order, report, spread_of_floor, table
from reactor.cli import main

MIB = 1 << 20
MS = 1_000_000


def heats(contestant: str, *kill_ms: float | None, course: str = "step") -> list[dict[str, Any]]:
    return [
        {
            "contestant": contestant,
            "course": course,
            "round": number,
            "kill_ms": ms,
            "early": False,
            "back_ms": None if ms is None else ms + 50,
            "overshoot_mib": 1.0,
        }
        for number, ms in enumerate(kill_ms, 1)
    ]


def contestant(role: Role, *problems: str) -> dict[str, Any]:
    return {
        "role": role,
        "settings": "as shipped",
        "rss_mib": None,
        "at_rest_cpu_percent": 0.5,
        "problems": list(problems),
    }


@pytest.fixture
def found() -> dict[str, Any]:
    return {
        "about": {
            "date": "2026-01-01T00:00:00+00:00",
            "kernel": "6.1",
            "cgroup": "v1",
            "cpu": "a processor",
            "cpus": 2,
            "level_mib": 524,
        },
        "courses": {"step": "one allocator at full speed", "ramp-100-cache": "another"},
        "contestants": {
            "earlyoom": contestant(Role.PEER, "ended (1): it said why"),
            "reactor-ebpf": contestant(Role.REACTOR),
            "c-floor": contestant(Role.FLOOR),
            "nohang": contestant(Role.PEER),
        },
        "left_out": {"oomd": "not found"},
        "heats": [
            *heats("earlyoom", 100.0, 300.0, 200.0),
            *heats("reactor-ebpf", 1.0, 2.0, 4.0),
            *heats("c-floor", 0.5, 0.5, 0.5, 0.6),
            *heats("nohang", None, None),
        ],
        "traces": {"step": {"earlyoom": [[-1.0, 500.0], [2.0, 530.0]]}},
    }


def test_figures_are_those_of_one_contestant_on_one_course(found: dict[str, Any]) -> None:
    own = figures(found, "step", "reactor-ebpf")
    assert own
    assert (2.0, 4.0, 3, 0) == (own.kill_ms["p50"], own.kill_ms["max"], own.n, own.missed)
    assert 52.0 == own.back_ms["p50"]
    assert figures(found, "ramp-100-cache", "reactor-ebpf") is None


def test_who_never_killed_has_misses_and_no_latency(found: dict[str, Any]) -> None:
    missed = figures(found, "step", "nohang")
    assert missed
    assert ({}, 2, 2) == (missed.kill_ms, missed.missed, missed.n)
    assert ["c-floor", "reactor-ebpf", "earlyoom", "nohang"] == order(found)
    assert ("earlyoom", 200.0) == fastest(found, "step", Role.PEER)


def test_the_reactor_is_compared_with_the_fastest_peer_and_with_the_floor(found: dict[str, Any]) -> None:
    (line,) = comparisons(found)
    assert "4.0 times the floor's 0.5 ms" in line
    assert "the fastest peer, earlyoom, 200 ms, 100.0 times as long" in line


def test_a_floor_that_is_wide_is_reported_as_noise_and_a_narrow_one_is_not(found: dict[str, Any]) -> None:
    assert [] == noise(found)
    found["heats"] = heats("c-floor", 0.2, 0.5, 3.0, 9.0)
    assert "noisy: on step" in noise(found)[0]


def test_from_too_few_heats_no_noise_is_reported(found: dict[str, Any]) -> None:
    found["heats"] = heats("c-floor", 0.2, 9.0)
    assert spread_of_floor(found, "step") is None
    assert [] == noise(found)


def test_the_table_reports_everybody_and_every_reason(found: dict[str, Any]) -> None:
    text = "\n".join(table(found))
    assert "| earlyoom | 3 | 200 / 300 / 300 | 250 / 350 / 350 | 1 / 1 / 1 |" in text
    assert "| nohang | 2, 2 never | - | - | 1 / 1 / 1 |" in text
    assert "| contestant | step | ramp-100-cache |" in text
    assert "| reactor-ebpf | 2 / 4 | - |" in text
    assert "| nohang | -, 2 never | - |" in text
    assert "left out: oomd: not found" in text
    assert "failed: earlyoom: ended (1): it said why" in text


@pytest.mark.slow
def test_a_stored_result_can_be_rendered_elsewhere(
    found: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra: pip install '.[report]'")
    stored = tmp_path / "race.json"
    stored.write_text(json.dumps(found))
    assert 0 == command.render(stored, tmp_path / "plot.svg", usage=tmp_path / "usage.svg")
    assert "one allocator at full speed" in (tmp_path / "plot.svg").read_text()
    usage = (tmp_path / "usage.svg").read_text()
    assert all(word in usage for word in ("memory in use, MiB", "threshold", "kernel 6.1, cgroup v1"))
    page = (tmp_path / "race.html").read_text()
    assert "100.0 times as long" in page
    assert 3 < page.count("<svg")
    assert "| earlyoom |" in capsys.readouterr().out


def test_without_what_draws_the_table_comes_all_the_same(
    found: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    stored = tmp_path / "race.json"
    stored.write_text(json.dumps(found))
    assert 2 == command.render(stored)
    told = capsys.readouterr()
    assert ".[report]" in told.err
    assert "| earlyoom |" in told.out


def test_only_what_was_measured_is_drawn(found: dict[str, Any]) -> None:
    drawn = report(found)
    cached = next(section for section in drawn.sections if section.heading == "ramp-100-cache")
    assert all(not figure.series for figure in cached.figures)


@pytest.mark.parametrize(
    ("text", "problem"),
    [("not JSON", "not JSON"), ("[]", "no about"), ('{"about": {}}', "no courses, contestants")],
)
def test_a_file_that_is_no_result_is_named(
    text: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = tmp_path / "other.json"
    stored.write_text(text)
    assert 2 == command.render(stored)
    told = capsys.readouterr().err
    assert str(stored) in told
    assert problem in told


def test_a_result_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == command.render(tmp_path / "none.json")
    assert "none.json" in capsys.readouterr().err


def words(before_ns: int, crossed_usage: int) -> tuple[int, ...]:
    return (1, before_ns, crossed_usage, 0, 0, crossed_usage, 1, 0)


def test_the_allocator_that_saw_the_least_past_the_level_reports_the_crossing() -> None:
    assert 700 == crossed_ns([words(100, 9000), words(700, 5000)], dead_ns=900)


def test_an_allocator_killed_at_the_very_page_reports_the_crossing_by_its_last_instant() -> None:
    assert 700 == crossed_ns([words(700, 0)], dead_ns=900)
    assert 700 == crossed_ns([words(700, 0), words(1000, 5000)], dead_ns=900)
    assert crossed_ns([words(0, 0)], dead_ns=0) is None


def finish(crossed: int | None, dead: int | None, back: int | None) -> Finish:
    return Finish(
        crossed_ns=crossed,
        dead_ns=dead,
        back_ns=back,
        level_bytes=500 * MIB,
        peak_bytes=510 * MIB,
        samples=(),
    )


def test_latencies_count_from_the_crossing() -> None:
    expected = {"kill_ms": 2.0, "early": False, "back_ms": 90.0, "overshoot_mib": 10.0}
    assert expected == measured(finish(10 * MS, 12 * MS, 100 * MS))


@pytest.mark.parametrize(
    ("crossed", "dead", "back"),
    [(10, None, None), (None, 5, 9), (10, 5, 20)],
    ids=["nobody", "none", "early"],
)
def test_a_kill_that_no_crossing_led_to_is_none(
    crossed: int | None, dead: int | None, back: int | None
) -> None:
    result = measured(finish(crossed, dead, back))
    assert (None, None) == (result["kill_ms"], result["back_ms"])
    assert (dead is not None) == result["early"]


def test_an_early_kill_is_reported_as_such_and_is_no_miss(found: dict[str, Any]) -> None:
    found["heats"][0] |= {"kill_ms": None, "early": True}
    assert "| earlyoom | 200 / 300, 1 early | - |" in "\n".join(table(found))


def test_a_trace_keeps_what_changes_and_leaves_out_what_does_not() -> None:
    flat = [(at * MS, 500 * MIB) for at in range(1000)]
    steep = [(1000 * MS + at * MS, (500 + 5 * at) * MIB) for at in range(10)]
    trace = thinned([*flat, *steep, (9000 * MS, 0)], crossed_ns=1000 * MS)
    assert len([point for point in trace if point[0] < 0]) == 5  # every 20 ms of the last 100
    assert (9.0, 545.0) == trace[-1]


def test_a_rendered_report_goes_where_the_results_are_wanted(found: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra: pip install '.[report]'")
    stored = tmp_path / "stored" / "race.json"
    stored.parent.mkdir()
    stored.write_text(json.dumps(found))
    results = tmp_path / "elsewhere"
    assert 0 == main(["bench", "race", "--render", str(stored), "--results", str(results)])
    assert ["race.html"] == [path.name for path in results.iterdir()]
    assert ["race.json"] == [path.name for path in stored.parent.iterdir()]


def test_facts_have_names_for_people(found: dict[str, Any]) -> None:
    found["about"]["load_average"] = [0.5, 1.0, 2.25]
    facts = report(found).facts
    assert not [name for name in facts if "_" in name]
    assert facts["load average over 1, 5 and 15 minutes"] == "0.5, 1, 2.25"


def test_a_race_that_was_interrupted_says_so(found: dict[str, Any]) -> None:
    found["about"]["interrupted"] = "after 3 of 12 heats"
    assert "interrupted after 3 of 12 heats" in list(table(found))
