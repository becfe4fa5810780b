"""`reactor simulate --sweep`: what becomes of each crossing, what comes out."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.simulate import recording
from reactor.cli import main
from reactor.config.documents import load_document
from reactor.errors import ConfigError
from reactor.simulate.replay import replay
from reactor.simulate.scenario import Scenario, eviction_settings, scenario_from_text
from reactor.simulate.sweep import Outcome, Speed, sweep, totals
from reactor.simulate.sweep_axes import axes_of, combinations, configured

MIB = 1 << 20
NODE_MIB = 1000
PODS = [
    {"metadata": {"name": name, "uid": name}, "spec": {"containers": [{"name": "c"}]}}
    for name in ("big", "small")
]
FIXTURES = sorted((Path(__file__).parents[2] / "fixtures" / "scenarios").glob("*.yaml"))


def _summary(available_mib: int) -> dict[str, Any]:
    used = NODE_MIB - available_mib
    return {
        "node": {"memory": {"availableBytes": available_mib * MIB, "workingSetBytes": used * MIB}},
        "pods": [
            {"podRef": {"uid": "big"}, "memory": {"workingSetBytes": used * MIB // 2}},
            {"podRef": {"uid": "small"}, "memory": {"workingSetBytes": used * MIB // 4}},
        ],
    }


def _document(
    *available_mib: int | None, pods: list[Any] | None = None, **configuration: Any
) -> dict[str, Any]:
    """A scenario with so much available every ten seconds; None can't be read."""
    return {
        "apiVersion": "reactor/v1alpha1",
        "kind": "Scenario",
        "kubeletConfiguration": {"evictionPressureTransitionPeriod": "30s", **configuration},
        "pods": PODS if pods is None else pods,
        "steps": [
            {"at": f"{10 * number}s", **({"statsError": True} if mib is None else {"summary": _summary(mib)})}
            for number, mib in enumerate(available_mib)
        ],
    }


def _scenario(*available_mib: int | None, **more: Any) -> Scenario:
    return scenario_from_text(json.dumps(_document(*available_mib, **more)), "test")


def _outcomes(scenario: Scenario, *sweeps: str) -> list[Outcome]:
    return [row.outcome for row in sweep([("test", scenario)], axes_of(sweeps), Speed())]


def _outcome(scenario: Scenario, *sweeps: str) -> Outcome:
    (outcome,) = _outcomes(scenario, *sweeps)
    return outcome


def test_the_other_thresholds_stay_in_force_the_defaults_too():
    scenario = _scenario(
        900, evictionSoft={"nodefs.available": "20%"}, evictionSoftGracePeriod={"nodefs.available": "1m"}
    )
    (combination,) = combinations(axes_of(["memory.available<300Mi", "memory.available<500Mi@45s"]))

    settings = eviction_settings(configured(scenario.configuration, combination), scenario.layout)

    found = {(str(one), one.grace_period_seconds) for one in settings.thresholds}
    assert {
        ("memory.available<300Mi", 0.0),
        ("allocatableMemory.available<300Mi", 0.0),
        ("memory.available<500Mi", 45.0),
        ("nodefs.available<20%", 60.0),
        ("nodefs.available<10%", 0.0),
        ("imagefs.available<15%", 0.0),
    } <= found
    assert "memory.available<100Mi" not in {text for text, _ in found}


def _fixtures_with_thresholds() -> Iterator[Any]:
    """Yield each fixture's scenario and the axes of its own hard thresholds, where it has some."""
    for path in FIXTURES:
        document = load_document(path.read_text(), path.name)
        own = (document.get("kubeletConfiguration") or {}).get("evictionHard") or {}
        with suppress(ConfigError):
            scenario = scenario_from_text(json.dumps(document), path.name)
            axes = axes_of([f"{signal}<{value}" for signal, value in own.items()])
            if axes:
                yield pytest.param(scenario, axes, id=path.stem)


@pytest.mark.parametrize(("scenario", "axes"), list(_fixtures_with_thresholds()))
def test_with_a_scenarios_own_thresholds_its_own_evictions_come_out(scenario, axes):
    swept = {str(axis.settings[0].signal) for axis in axes}
    lines = list(replay(scenario))
    evicted = [one for line in lines for one in line["evicted"] if one["signal"] in swept]

    (row,) = sweep([("fixture", scenario)], axes, Speed())

    assert row.outcome.passes == len(lines)
    assert bool(evicted) is bool(row.outcome.evictions)


def test_a_crossing_is_answered_where_a_pod_is_evicted_in_time():
    outcome = _outcome(_scenario(900, 90, 50, 0, 900), "memory.available<100Mi")

    assert (outcome.crossings, outcome.answered, outcome.missed, outcome.recovered) == (1, 1, 0, 0)
    assert outcome.evictions == 1  # the same pod three times over
    assert (outcome.first_eviction_seconds, outcome.lead_seconds) == (10.0, 20.0)


def test_a_crossing_is_missed_where_nothing_was_left_at_once():
    outcome = _outcome(_scenario(900, 0, 0, 900), "memory.available<100Mi")

    assert (outcome.crossings, outcome.answered, outcome.missed) == (1, 0, 1)
    assert (outcome.evictions, outcome.lead_seconds) == (1, None)


def test_a_crossing_is_missed_where_the_grace_period_was_too_long():
    short, long = _outcomes(
        _scenario(900, 90, 80, 0, 900), "memory.available<100Mi@10s,1m", "memory.available<1Mi"
    )

    assert (short.missed, short.answered) == (0, 1)
    assert (long.missed, long.answered) == (1, 0)


def test_a_crossing_recovers_where_it_is_over_before_anybody_is_due():
    outcome = _outcome(_scenario(900, 90, 900, 90, 900), "memory.available<100Mi@1m", "memory.available<10Mi")

    assert (outcome.crossings, outcome.recovered, outcome.missed, outcome.evictions) == (2, 2, 0, 0)


def test_a_crossing_is_missed_where_no_pod_may_be_evicted():
    critical = [{**PODS[0], "spec": {"priority": 2_000_000_000, "containers": []}}]

    outcome = _outcome(_scenario(900, 90, 900, pods=critical), "memory.available<100Mi")

    assert (outcome.crossings, outcome.missed, outcome.evictions) == (1, 1, 0)


def test_what_no_threshold_saw_is_missed_all_the_same():
    outcome = _outcome(_scenario(900, 0, 900), "memory.available<0%")

    assert (outcome.crossings, outcome.missed, outcome.evictions) == (1, 1, 0)


def test_nothing_crossed_is_nothing_counted():
    outcome = _outcome(_scenario(900, 800, 700), "memory.available<100Mi")

    assert (outcome.crossings, outcome.evictions, outcome.below_seconds, outcome.pressure_seconds) == (
        0,
        0,
        0,
        0,
    )
    assert outcome.first_eviction_seconds is None


def test_time_below_and_time_under_pressure_are_distinguished():
    outcome = _outcome(_scenario(900, 90, 90, 900, 900, 900, 900, 900), "memory.available<100Mi")

    assert outcome.below_seconds == 20
    assert outcome.pressure_seconds == 40  # the transition period goes on after it, to the pass that ends it


def test_a_crossing_lasts_until_its_minimum_reclaim_is_there():
    scenario = _scenario(900, 90, 150, 150, 900, evictionMinimumReclaim={"memory.available": "100Mi"})

    outcome = _outcome(scenario, "memory.available<100Mi")

    assert (outcome.crossings, outcome.below_seconds) == (1, 10)


def test_a_step_that_can_not_be_read_leaves_everything_as_it_is():
    outcome = _outcome(_scenario(900, 90, None, 90, 900), "memory.available<100Mi")

    assert (outcome.crossings, outcome.passes, outcome.below_seconds) == (1, 5, 30)


def _with_oom_kill(at: int, *available_mib: int) -> Scenario:
    """A scenario in which the kernel's OOM killer comes five seconds after a step."""
    document = _document(*available_mib)
    document["steps"].insert(at + 1, {"at": f"{10 * at + 5}s", "oomKills": 1})
    return scenario_from_text(json.dumps(document), "test")


def test_the_kernels_oom_killer_is_a_crossing_that_was_missed_where_it_came_first():
    unseen = _outcome(_with_oom_kill(0, 900, 800), "memory.available<100Mi")
    waiting = _outcome(
        _with_oom_kill(1, 900, 90, 80, 70, 900), "memory.available<100Mi@20s", "memory.available<1Mi"
    )

    assert (unseen.crossings, unseen.missed) == (1, 1)
    assert (waiting.crossings, waiting.missed, waiting.evictions) == (1, 1, 1)


def test_the_kernels_oom_killer_after_an_eviction_is_a_lead():
    outcome = _outcome(_with_oom_kill(2, 900, 90, 80, 900), "memory.available<100Mi")

    assert (outcome.answered, outcome.missed, outcome.lead_seconds) == (1, 0, 15.0)


def test_the_kernels_oom_killer_says_nothing_of_disks():
    outcome = _outcome(_with_oom_kill(0, 900, 800), "nodefs.available<10%")

    assert outcome.crossings == 0


def test_reclaim_that_was_enough_is_an_answer():
    filesystem = {"capacityBytes": 100 * MIB}
    low = {"node": {"fs": {**filesystem, "availableBytes": 5 * MIB}}}
    high = {"node": {"fs": {**filesystem, "availableBytes": 50 * MIB}}}
    document = _document(900)
    document["steps"] = [
        {"at": "0s", "summary": low, "afterReclaim": {"images": high}},
        {"at": "10s", "summary": high},
    ]

    outcome = _outcome(scenario_from_text(json.dumps(document), "test"), "nodefs.available<10%")

    assert (outcome.answered, outcome.missed, outcome.evictions) == (1, 0, 0)


@given(st.lists(st.sampled_from([0, 50, 90, 150, 900, None]), min_size=1, max_size=12))
def test_every_crossing_is_answered_missed_or_recovered_and_a_higher_threshold_sees_no_fewer_seconds(course):
    low, high = _outcomes(_scenario(*course), "memory.available<80Mi,200Mi")

    for outcome in (low, high):
        assert outcome.crossings == outcome.answered + outcome.missed + outcome.recovered
        assert outcome.below_seconds <= outcome.pressure_seconds
    assert low.below_seconds <= high.below_seconds
    assert low.pressure_seconds <= high.pressure_seconds


def test_several_scenarios_add_up():
    scenarios = [("one", _scenario(900, 90, 50, 0, 900)), ("two", _scenario(90, 90, 0, 900))]
    rows = list(sweep(scenarios, axes_of(["memory.available<100Mi"]), Speed()))

    ((_, total),) = totals(rows).items()

    assert [row.scenario for row in rows] == ["one", "two"]
    assert (total.passes, total.crossings, total.evictions) == (9, 2, 2)
    assert (total.first_eviction_seconds, total.lead_seconds) == (0.0, 20.0)


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "node.json"
    path.write_text(json.dumps(_document(900, 90, 50, 0, 900)))
    return path


SWEEPS = ["--sweep", "memory.available<60Mi,100Mi", "--sweep", "memory.available<500Mi@15s,30s"]


def test_a_line_of_json_for_each_scenario_and_combination(file, capsys):
    assert main(["simulate", str(file), str(file), *SWEEPS, "--output", "json"]) == 0

    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 8
    assert lines[0]["scenario"] == str(file)
    assert (lines[1]["hard memory.available"], lines[1]["soft memory.available grace_seconds"]) == (
        "60Mi",
        30.0,
    )
    assert lines[0]["missed"] == 0


def test_a_table_and_a_csv_with_the_same_counts(file, capsys, tmp_path):
    assert main(["simulate", str(file), *SWEEPS, "--csv", str(tmp_path / "out.csv")]) == 0

    streams = capsys.readouterr()
    with (tmp_path / "out.csv").open(newline="") as written:
        rows = list(csv.DictReader(written))
    assert [row["hard memory.available"] for row in rows] == ["60Mi", "60Mi", "100Mi", "100Mi"]
    table = [line for line in streams.out.splitlines() if "Mi @" in line]
    assert [line.split()[5] for line in table] == [row["crossings"] for row in rows]
    assert "passes in" in streams.err


def test_the_report_is_one_file_with_a_plot_of_each_count(file, tmp_path):
    pytest.importorskip("matplotlib", reason="the extra `report` draws it")

    assert main(["simulate", str(file), *SWEEPS, "--report", str(tmp_path / "out.html")]) == 0

    html = (tmp_path / "out.html").read_text()
    assert html.count("<svg") == 3
    assert "missed crossings" in html
    assert "memory.available&lt;500Mi@15s" in html


def test_shares_and_amounts_together_are_drawn_as_bars(file, tmp_path):
    pytest.importorskip("matplotlib", reason="the extra `report` draws it")
    path = tmp_path / "out.html"

    assert main(["simulate", str(file), "--sweep", "memory.available<5%,100Mi", "--report", str(path)]) == 0

    assert path.read_text().count("<svg") == 3


def test_wrong_axes_and_wrong_scenarios_exit_2_and_are_named(file, tmp_path, capsys):
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("kind: Scenario")

    assert main(["simulate", str(file), "--sweep", "fly<1"]) == 2
    assert "--sweep 'fly<1'" in capsys.readouterr().err
    assert main(["simulate", str(file), str(wrong), "--sweep", "memory.available<1Gi"]) == 2
    assert f"reactor: {wrong}: apiVersion: got nothing" in capsys.readouterr().err


def test_a_scenario_without_steps_is_refused_by_name(tmp_path, capsys):
    path = tmp_path / "empty.json"
    path.write_text(json.dumps({**_document(), "steps": []}))

    assert main(["simulate", str(path), "--sweep", "memory.available<1Gi"]) == 2

    assert "empty.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["a.yaml", "b.yaml"], ["a.yaml", "--csv", "c"], ["a.yaml", "--report", "r"]]
)
def test_what_goes_with_a_sweep_alone_is_refused_without_one(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        main(["simulate", *arguments])

    assert end.value.code == 2
    assert "only with --sweep" in capsys.readouterr().err


def test_the_benchmarks_recording_is_a_scenario_with_an_eviction_or_without_any():
    pressed, calm = (
        scenario_from_text(json.dumps(recording(5, 3, **low)), "recording")
        for low in ({}, {"low_bytes": 2 << 30})
    )

    assert all(line["evicted"] and len(line["ranking"]) == 5 for line in replay(pressed))
    assert not any(line["evicted"] for line in replay(calm))


def test_without_a_scenario_it_is_asked_for(capsys):
    with pytest.raises(SystemExit) as end:
        main(["simulate"])

    assert end.value.code == 2
    assert "SCENARIO" in capsys.readouterr().err
