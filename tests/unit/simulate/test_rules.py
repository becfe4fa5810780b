"""Rules over a scenario: what they do in which step, why not, and a recording that has what they look at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reactor.config.settings import settings_from_text
from reactor.errors import ConfigError
from reactor.kernel.cgroup import CgroupVersion
from reactor.model.rules import Measure, Metric
from reactor.simulate import recording, run_scenario_file
from reactor.simulate.plain_node import RuleRecording
from reactor.simulate.recording import RecordOptions, record
from reactor.simulate.replay import replay
from reactor.simulate.scenario import metrics_to_record, numbers_document, scenario_from_text

MIB = 1 << 20
RULE = {
    "name": "thrash",
    "cgroups": ["/apps/*"],
    "when": [{"usage": "90%"}, {"events": "max", "atLeast": 10, "within": "30s"}],
    "for": "20s",
    "action": "evict",
}
PODS = [
    {"metadata": {"name": name, "uid": name}, "spec": {"containers": [{"name": "c"}]}} for name in ("a", "b")
]
WHERE = {"a": "/apps/a", "b": "/apps/b"}
SUMMARY = {
    "node": {"memory": {"availableBytes": 500 * MIB, "workingSetBytes": 500 * MIB}},
    "pods": [
        {"podRef": {"uid": "a"}, "memory": {"workingSetBytes": 300 * MIB}},
        {"podRef": {"uid": "b"}, "memory": {"workingSetBytes": 100 * MIB}},
    ],
}


def full(name: str = "b", percent: float = 95.0, count: int = 0) -> dict[str, Any]:
    return {f"/apps/{name}": {"usagePercent": percent, "events": {"max": count}}}


def scenario(*steps: dict[str, Any], rules: tuple[Any, ...] = (RULE,), **others: Any) -> str:
    first, *more = steps
    document = {
        "apiVersion": "reactor/v1alpha1",
        "kind": "Scenario",
        "kubeletConfiguration": {"evictionHard": {"memory.available": "100Mi"}},
        "rules": list(rules),
        "pods": PODS,
        "podCgroups": WHERE,
        "steps": [{"at": "0s", "summary": SUMMARY, **first}, *more],
        **others,
    }
    return json.dumps(document)


def lines(text: str) -> list[dict[str, Any]]:
    return list(replay(scenario_from_text(text, "scenario")))


def held_for(*counts: int, pause: int = 10, **others: Any) -> list[dict[str, Any]]:
    steps = [{"at": f"{pause * n}s", "cgroups": full(count=count)} for n, count in enumerate(counts)]
    return lines(scenario(*steps, **others))


def test_a_rule_acts_in_the_step_in_which_it_has_held_for_its_time_and_then_rests() -> None:
    found = held_for(0, 20, 40, 60, 80, 100)
    assert [[], [], [], ["default/b"], [], []] == [[one["pod"] for one in line["evicted"]] for line in found]
    (eviction,) = found[3]["evicted"]
    assert ("rule", 0) == (eviction["signal"], eviction["gracePeriodSeconds"])
    assert eviction["message"].startswith("Rule thrash has held in /apps/b for 20.0 s")
    (acted,) = found[3]["rules"]
    assert {"acted": True, "cgroup": "/apps/b", "heldSeconds": 20.0, "unhelpful": 0}.items() <= acted.items()
    assert ["usage of the limit >= 90 %", "memory.events max >= 10 within 30 s"] == [
        one["condition"] for one in acted["inputs"]
    ]
    because = [line["rules"][0]["because"] for line in found]
    assert because[0] == "its conditions hold in none of its cgroups"
    assert because[2] == "it has held in /apps/b for 10 of 20 s"
    assert because[5] == "it has held in /apps/b for 10 of 20 s"
    assert [["/apps/b"]] * 2 == [line["rules"][0]["holdsIn"] for line in found[1:3]]


def test_a_step_without_numbers_repeats_them_and_a_cgroup_that_is_gone_is_forgotten() -> None:
    gauge = {**RULE, "when": RULE["when"][:1]}
    held = {"at": "0s", "cgroups": full()}
    found = lines(scenario(held, {"at": "600s"}, rules=(gauge,)))
    assert ["default/b"] == [one["pod"] for one in found[1]["evicted"]]
    gone = [held, {"at": "10s", "cgroups": {}}, {"at": "20s", "cgroups": full()}, {"at": "30s"}]
    assert all(not line["evicted"] for line in lines(scenario(*gone, rules=(gauge,))))


def test_a_step_that_could_not_be_read_lets_no_rule_act() -> None:
    gauge = {**RULE, "when": RULE["when"][:1]}
    steps = [{"at": "0s", "cgroups": full()}, {"at": "30s", "statsError": True}, {"at": "31s"}]
    found = lines(scenario(*steps, rules=(gauge,)))
    assert [[], [], ["default/b"]] == [[one["pod"] for one in line["evicted"]] for line in found]
    assert [] == found[1]["rules"]


def test_a_rule_waits_for_a_hard_memory_threshold_and_says_so() -> None:
    gauge = {**RULE, "when": RULE["when"][:1]}
    short = {**SUMMARY, "node": {"memory": {"availableBytes": 50 * MIB, "workingSetBytes": 950 * MIB}}}
    found = lines(scenario({"cgroups": full()}, {"at": "30s", "summary": short}, rules=(gauge,)))
    assert ["memory.available"] == [one["signal"] for one in found[1]["evicted"]]
    assert "thresholds evict first" in found[1]["rules"][0]["because"]
    assert not found[1]["rules"][0]["acted"]


@pytest.mark.parametrize(
    ("by", "victim"), [("memory", "default/a"), ("growth", "default/b"), ("pgscan", "default/b")]
)
def test_the_worst_below_is_ranked_as_the_rule_says(by: str, victim: str) -> None:
    rule = {**RULE, "cgroups": ["/apps"], "when": [{"usage": "90%"}], "action": "evictWorst", "by": by}
    grown = json.loads(json.dumps(SUMMARY))
    grown["pods"][1]["memory"]["workingSetBytes"] += 50 * MIB

    def numbers(scanned: int) -> dict[str, Any]:
        return {
            "/apps": {"usagePercent": 95},
            "/apps/a": {"pagesScanned": 1000},
            "/apps/b": {"pagesScanned": scanned},
        }

    steps = [{"cgroups": numbers(10)}, {"at": "20s", "summary": grown, "cgroups": numbers(90)}]
    assert [victim] == [one["pod"] for one in lines(scenario(*steps, rules=(rule,)))[1]["evicted"]]


def test_a_report_and_a_reclaim_evict_no_pod() -> None:
    for action in ("report", "reclaim"):
        rule = {**RULE, "when": RULE["when"][:1], "action": action}
        found = lines(scenario({"cgroups": full()}, {"at": "20s"}, rules=(rule,)))
        assert [] == found[1]["evicted"]
        assert found[1]["rules"][0]["acted"]


def test_a_scenario_without_rules_says_nothing_of_them() -> None:
    assert "rules" not in lines(scenario({"cgroups": full()}, rules=()))[0]


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ({"rules": [RULE, RULE]}, "rules[1].name: got 'thrash'"),
        ({"rules": [{**RULE, "when": []}]}, "rules[0].when"),
        ({"pods": []}, "podCgroups: got"),
        ({"podCgroups": {"a": "apps"}}, "podCgroups.a: got 'apps'"),
        ({"steps": [{"at": "0s", "cgroups": {"apps": {}}}]}, "a cgroup's path"),
        ({"steps": [{"at": "0s", "cgroups": {"/a": {"usage": 1}}}]}, "unknown key"),
        ({"steps": [{"at": "0s", "cgroups": {"/a": {"usagePercent": -1}}}]}, "a number from 0"),
        ({"steps": [{"at": "0s", "cgroups": {"/a": {"usagePercent": "1"}}}]}, "a number from 0"),
        ({"steps": [{"at": "0s", "cgroups": {"/a": {"events": {"kill": 1}}}}]}, "one of high, max, oom"),
        ({"steps": [{"at": "0s", "cgroups": {"/a": {"pressure": {"disk": {}}}}}]}, "one of memory, io, cpu"),
    ],
)
def test_what_is_wrong_is_named_with_its_path(others: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        scenario_from_text(scenario({}, **others), "scenario")
    assert any(said in str(problem) for problem in raised.value.problems), raised.value


def test_the_table_says_what_a_rule_did_and_why_it_did_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rule = {**RULE, "when": RULE["when"][:1]}
    path = tmp_path / "scenario.json"
    path.write_text(scenario({"cgroups": full()}, {"at": "10s"}, {"at": "20s"}, rules=(rule,)))
    assert 0 == run_scenario_file(str(path), "table")
    printed = capsys.readouterr().out
    assert "rule           thrash: it has held in /apps/b for 10 of 20 s" in printed
    assert "thrash (evict): held in /apps/b for 20 s, usage of the limit >= 90 %: 95" in printed


def test_numbers_read_back_as_they_were_recorded() -> None:
    rules = settings_from_text(
        json.dumps(
            {
                "reactor": {
                    "rules": [{**RULE, "when": [{"pressure": "io some", "stall": "1s", "within": "2s"}]}]
                }
            }
        ),
        "f",
    ).rules
    metrics = metrics_to_record(rules)
    assert Metric(Measure.STALL, "io some") in metrics
    assert Metric(Measure.PRESSURE, "memory full avg60") in metrics
    values = {metric: float(number + 1) for number, metric in enumerate(metrics)}
    text = scenario({"cgroups": {"/apps/a[1]": numbers_document(values)}})
    (numbers,) = scenario_from_text(text, "f").numbers
    assert numbers is not None
    assert {"/apps/a[1]": values} == numbers
    assert {} == numbers_document(dict.fromkeys(metrics))


CONFIG = {
    "evictionHard": {"memory.available": "100Mi"},
    "reactor": {
        "nodeCgroup": "/node",
        "pods": {"parents": ["/node"]},
        "rules": [{**RULE, "cgroups": ["/node/*"], "when": RULE["when"][:1]}],
    },
}


@pytest.mark.parametrize("version", CgroupVersion)
def test_a_recording_of_a_plain_node_has_what_the_rules_look_at_and_replays(
    version: CgroupVersion, make_tree: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = make_tree(version)
    for cgroup, mib in {"/": 0, "/node": 500, "/node/web": 95, "/node/idle": 1}.items():
        fake.add(cgroup, usage_bytes=mib * MIB)
        fake.file(cgroup, "pids.current", "3\n", "pids")
        fake.tree.set_memory_limit(cgroup, (1024 if cgroup == "/node" else 100) * MIB)
    config = CONFIG | {"reactor": CONFIG["reactor"] | {"filesystems": {"nodefs": str(tmp_path)}}}  # type: ignore[operator]
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(recording.CgroupTree, "discover", lambda: fake.tree)
    out = tmp_path / "scenario.json"
    options = RecordOptions(
        config=tmp_path / "config.json", output=str(out), interval_seconds=0.05, seconds=0.5
    )
    assert 0 == record(options)
    document = json.loads(out.read_text())
    assert config["reactor"]["rules"] == document["rules"]
    first, *others = document["steps"]
    assert 95.0 == first["cgroups"]["/node/web"]["usagePercent"]
    assert {"/node/web", "/node/idle"} == set(first["podCgroups"].values())
    assert others, "while a condition holds each observation is a step"

    document["rules"][0]["for"] = "0s"
    found = lines(json.dumps(document))
    assert ["cgroup/web"] == [one["pod"] for line in found for one in line["evicted"]]


def test_what_stands_still_is_no_step_and_what_moves_is(make_tree: Any, tmp_path: Path) -> None:
    fake = make_tree(CgroupVersion.V2)
    fake.add("/apps/a", usage_bytes=10 * MIB)
    fake.tree.set_memory_limit("/apps/a", 100 * MIB)
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n")
    rules = settings_from_text(json.dumps({"reactor": {"rules": [RULE]}}), "f").rules
    rule_recording = RuleRecording(fake.tree, rules, proc=tmp_path, pressure=tmp_path)

    def is_step(*, used_mib: int = 10, count: int = 0) -> bool:
        fake.counters("/apps/a", usage_bytes=used_mib * MIB, inactive_file_bytes=0)
        fake.file("/apps/a", "memory.events", f"high 0\nmax {count}\noom 0\n")
        seen = rule_recording.observe(())
        wanted = rule_recording.is_step(seen)
        if wanted:
            rule_recording.written(seen)
        return wanted

    assert is_step()
    assert not is_step(used_mib=11)
    assert is_step(used_mib=13)
    assert is_step(used_mib=13, count=1)
    assert not is_step(used_mib=13, count=1)
    assert is_step(used_mib=90, count=1)
    assert not is_step(used_mib=91, count=1)
    assert is_step(used_mib=89, count=1)
    assert ["thrash: memory.events max >= 10 within 30 s"] == list(rule_recording.too_short(31.0))
    assert [] == list(rule_recording.too_short(30.0))


def test_swap_traffic_of_the_machine_is_recorded_where_it_has_swap(make_tree: Any, tmp_path: Path) -> None:
    fake = make_tree(CgroupVersion.V2)
    (tmp_path / "vmstat").write_text("pswpin 3\npswpout 5\n")
    for total_kb, expected in ((0, {}), (1000, {"/"})):
        (tmp_path / "meminfo").write_text(f"MemTotal: 9 kB\nSwapTotal: {total_kb} kB\nSwapFree: 500 kB\n")
        seen = RuleRecording(fake.tree, (), proc=tmp_path, pressure=tmp_path).observe(())
        assert set(expected) == set(seen)
    assert {"swapUsedPercent": 50.0, "swapTrafficBytes": 8 * 4096} == numbers_document(seen["/"])
