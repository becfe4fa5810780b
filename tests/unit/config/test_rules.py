from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.config.settings import settings_from_text
from reactor.errors import ConfigError
from reactor.model.rules import Condition, Mark, Measure, Metric, RankedBy, Rule, RuleAction
from reactor.model.settings import Settings, SystemdOomd

RULE = {
    "name": "thrash",
    "cgroups": ["/apps/*"],
    "when": [{"pressure": "memory full", "avg10": "60%"}],
    "for": "30s",
    "action": "evict",
}


def settings(*rules: Any, **section: Any) -> Settings:
    return settings_from_text(json.dumps({"reactor": {"rules": list(rules), **section}}), "file")


def problems(*rules: Any, **section: Any) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        settings(*rules, **section)
    return [str(problem).removeprefix("reactor.rules") for problem in raised.value.problems]


def test_there_are_no_rules_by_default() -> None:
    assert () == settings_from_text("{}", "file").rules
    assert not settings(RULE).eviction.counts_swap


def test_a_rule_is_read_as_it_is_written() -> None:
    written = {
        **RULE,
        "when": [
            {"pressure": "memory full", "avg10": "60%"},
            {"pressure": "io some", "avg60": "12.5%"},
            {"pressure": "cpu some", "stall": "500ms", "within": "2s"},
            {"events": "max", "within": "30s"},
            {"events": "high", "atLeast": 100, "within": "30s"},
            {"usage": "95%"},
            {"swapUsed": "90%"},
            {"pagesScanned": 10000, "within": "10s"},
            {"swapTraffic": "1Mi", "within": "10s"},
            {"refaults": 500, "within": "10s"},
        ],
        "action": "evictWorst",
        "by": "swap",
        "cooldown": "2m",
    }
    expected = Rule(
        name="thrash",
        cgroups=("/apps/*",),
        conditions=(
            Condition(Metric(Measure.PRESSURE, "memory full avg10"), 60.0),
            Condition(Metric(Measure.PRESSURE, "io some avg60"), 12.5),
            Condition(Metric(Measure.STALL, "cpu some"), 0.5, 2.0),
            Condition(Metric(Measure.EVENTS, "max"), 1, 30.0),
            Condition(Metric(Measure.EVENTS, "high"), 100, 30.0),
            Condition(Metric(Measure.USAGE), 95.0),
            Condition(Metric(Measure.SWAP_USED), 90.0),
            Condition(Metric(Measure.PAGES_SCANNED), 10000, 10.0),
            Condition(Metric(Measure.SWAP_TRAFFIC), 1 << 20, 10.0),
            Condition(Metric(Measure.REFAULTS), 5000, 10.0),
        ),
        for_seconds=30.0,
        action=RuleAction.EVICT_WORST,
        by=RankedBy.SWAP,
        cooldown_seconds=120.0,
    )
    assert (expected,) == settings(written).rules
    assert not settings(written).eviction.counts_swap  # in no pass: the rule asks when it acts


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ({}, "got 'none of them'"),
        ({"usage": "95%", "swapUsed": "5%"}, "got 'usage and swapUsed'"),
        ({"usage": "0%"}, "above 0%"),
        ({"usage": "101%"}, "above 0%"),
        ({"usage": 95}, "such as 60%"),
        ({"usage": "95%", "avg10": "5%"}, "only beside pressure"),
        ({"usage": "95%", "within": "5s"}, "only beside stall, events, pagesScanned, swapTraffic, refaults"),
        ({"pressure": "memory full"}, "neither avg10 nor avg60 nor stall"),
        ({"pressure": "memory full", "avg10": "5%", "avg60": "5%"}, "avg10 and avg60"),
        ({"pressure": "memory all", "avg10": "5%"}, "one of memory some, memory full"),
        ({"pressure": "memory full", "avg300": "5%"}, "an unknown key"),
        ({"pressure": "memory full", "avg10": "5%", "atLeast": 5}, "only beside events"),
        ({"pressure": "memory full", "stall": "1s"}, "a window such as 10s"),
        ({"pressure": "memory full", "stall": "0s", "within": "5s"}, "above 0s"),
        ({"pressure": "memory full", "stall": "6s", "within": "5s"}, "up to the window's"),
        ({"pressure": "memory full", "stall": "x", "within": "5s"}, "got 'x'"),
        ({"pressure": "memory full", "stall": "1s", "within": "500ms"}, "from 1s to 10m"),
        ({"events": "max"}, "a window such as 10s"),
        ({"events": "kill", "within": "5s"}, "one of high, max, oom"),
        ({"events": "max", "within": "5s", "atLeast": 0}, "a whole number from 1"),
        ({"pagesScanned": 5}, "a window such as 10s"),
        ({"swapTraffic": "5Mi"}, "a window such as 10s"),
        ({"refaults": 500}, "a window such as 10s"),
        ({"refaults": "500/s", "within": "5s"}, "a whole number from 1"),
        ({"swapTraffic": "0", "within": "5s"}, "above 0, such as 100Mi"),
    ],
)
def test_a_condition_that_is_wrong_is_named(condition: dict[str, Any], said: str) -> None:
    found = problems({**RULE, "when": [condition]})
    assert all(one.startswith("[0].when[0]") for one in found)
    assert any(said in one for one in found), found


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "a b"}, "[0].name: got 'a b'"),
        ({"name": None}, "the key is required"),
        ({"cgroups": []}, "[0].cgroups: got '0 of them'"),
        ({"cgroups": ["apps"]}, "[0].cgroups[0]"),
        ({"cgroups": ["/a/**"]}, "there is no **"),
        ({"when": []}, "[0].when: got '0 of them'"),
        ({"for": None}, "the key is required"),
        ({"for": "-1s"}, "not negative"),
        ({"action": "kill"}, "one of report, evict, evictWorst"),
        ({"by": "swap"}, "only with action: evictWorst"),
        ({"action": "evictWorst", "by": "size"}, "one of memory, swap, pgscan, growth"),
        ({"action": "evictWorst", "by": "growth", "for": "1s"}, "2s or more with by: growth"),
        ({"unit": "x"}, "an unknown key"),
        ({"amount": "64Mi"}, "only with action: reclaim"),
        ({"timeout": "5s"}, "only with action: reclaim"),
        ({"action": "reclaim", "amount": "0"}, "above 0 such as 64Mi"),
        ({"action": "reclaim", "amount": "0%"}, "above 0%"),
        ({"action": "reclaim", "amount": "101%"}, "up to 100%"),
        ({"action": "reclaim", "amount": "much"}, "such as 64Mi"),
        ({"action": "reclaim", "timeout": "0s"}, "above 0s and up to 1m"),
        ({"action": "reclaim", "timeout": "61s"}, "above 0s and up to 1m"),
        ({"action": "reclaim", "cgroups": ["/a", "/"]}, "[0].cgroups[1]: got '/'"),
        ({"action": "reclaim", "cgroups": "/"}, "a list"),
    ],
)
def test_a_rule_that_is_wrong_is_named(change: dict[str, Any], said: str) -> None:
    found = problems({**RULE, **change})
    assert any(said in one for one in found), found


def test_a_reclaim_has_an_amount_and_a_time_and_both_have_a_default() -> None:
    reclaim = {**RULE, "action": "reclaim"}
    (rule,) = settings(reclaim).rules
    assert (RuleAction.RECLAIM, "10%", 5.0) == (rule.action, rule.amount.text, rule.reclaim_seconds)
    (rule,) = settings({**reclaim, "amount": "64Mi", "timeout": "20s"}).rules
    assert (64 << 20, 20.0) == (rule.amount.of(1 << 30), rule.reclaim_seconds)


CLUSTER: dict[str, Any] = {"kubernetes": {}}


def test_a_condition_and_a_taint_are_read_and_have_a_transition_period() -> None:
    contention = {**RULE, "action": "condition", "condition": "MemoryContention"}
    (rule,) = settings(contention, **CLUSTER).rules
    because = "rule thrash: pressure memory full avg10 >= 60 %"
    assert (Mark("MemoryContention", "", because), 300.0) == (rule.mark, rule.transition_seconds)
    tainted = {**RULE, "action": "taint", "taint": "node.kubernetes.io/memory-contention-pressure"}
    (rule,) = settings({**tainted, "transitionPeriod": "1m"}, **CLUSTER).rules
    taint = "node.kubernetes.io/memory-contention-pressure:NoSchedule"
    assert (Mark("", taint, because), 60.0) == (rule.mark, rule.transition_seconds)
    both = {**RULE, "action": "taint", "taint": "mine:PreferNoSchedule", "condition": "MemoryContention"}
    (rule,) = settings(both, **CLUSTER).rules
    assert Mark("MemoryContention", "mine:PreferNoSchedule", because) == rule.mark
    assert settings(RULE).rules[0].mark is None


_CONDITION = {"action": "condition", "condition": "MemoryContention"}
_TAINT = {"action": "taint", "taint": "example.com/contention"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"action": "condition"}, "[0].condition: got 'nothing'"),
        ({"action": "taint"}, "[0].taint: got 'nothing'"),
        ({**_CONDITION, "taint": "mine"}, "[0].taint: got 'mine'; accepted: only with action: taint"),
        ({"condition": "MemoryContention"}, "only with action: condition or taint"),
        ({"transitionPeriod": "1m"}, "only with action: condition or taint"),
        ({**_CONDITION, "cooldown": "1m"}, "transitionPeriod with action: condition"),
        ({**_CONDITION, "transitionPeriod": "9s"}, "from 10s on"),
        ({**_CONDITION, "by": "swap"}, "only with action: evictWorst"),
        ({**_CONDITION, "condition": "MemoryPressure"}, "none of reactor's own"),
        ({**_CONDITION, "condition": "NodeShutdown"}, "none of reactor's own"),
        ({**_CONDITION, "condition": "reactor/Contention"}, "63 letters and digits"),
        ({**_CONDITION, "condition": "C" * 64}, "63 letters and digits"),
        ({**_CONDITION, "condition": 5}, "63 letters and digits"),
        ({**_TAINT, "taint": "mine:NoExecute"}, "NoExecute would evict pods without a choice"),
        ({**_TAINT, "taint": "mine:"}, "a key, and an effect after a colon"),
        ({**_TAINT, "taint": "mine=value:NoSchedule"}, "a key, and an effect after a colon"),
        ({**_TAINT, "taint": "Example.com/contention"}, "a key, and an effect after a colon"),
        ({**_TAINT, "taint": f"{'a' * 64}:NoSchedule"}, "a key, and an effect after a colon"),
        ({**_TAINT, "taint": f"{'a.' * 200}b/c"}, "a key, and an effect after a colon"),
        ({**_TAINT, "taint": "node.kubernetes.io/memory-pressure"}, "neither Kubernetes' own nor reactor's"),
        ({**_TAINT, "taint": "node.kubernetes.io/out-of-service"}, "neither Kubernetes' own nor reactor's"),
        ({**_TAINT, "taint": "reactor/node-shutdown"}, "neither Kubernetes' own nor reactor's"),
    ],
)
def test_a_condition_or_taint_that_is_wrong_is_named(change: dict[str, Any], said: str) -> None:
    found = problems({**RULE, **change}, **CLUSTER)
    assert any(said in one for one in found), found


@given(
    st.text(max_size=400) | st.from_regex(r"[a-z./-]{0,40}/?[A-Za-z]{0,70}:?[A-Za-z]{0,20}", fullmatch=True)
)
def test_a_taint_that_is_accepted_is_one_that_the_api_server_accepts(text: str) -> None:
    try:
        (rule,) = settings({**RULE, **_TAINT, "taint": text}, **CLUSTER).rules
    except ConfigError:
        return
    assert rule.mark is not None
    key, _, effect = rule.mark.taint.partition(":")
    prefix, _, name = key.rpartition("/")
    assert effect in {"NoSchedule", "PreferNoSchedule"}
    assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?", name)
    assert len(name) <= 63
    assert len(prefix) <= 253
    assert not prefix or re.fullmatch(
        r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*", prefix
    )


def test_a_plain_node_has_neither_conditions_nor_taints() -> None:
    found = problems({**RULE, **_CONDITION})
    accepted = "with reactor.kubernetes: a plain node has neither conditions nor taints"
    assert [f"[0].action: got 'condition'; accepted: {accepted}"] == found


def test_two_rules_of_one_name_and_more_than_a_hundred_are_refused() -> None:
    assert ["[1].name: got 'thrash'; accepted: a name that no other rule has"] == problems(RULE, RULE)
    many = [{**RULE, "name": f"r{number}"} for number in range(101)]
    assert [": got 101 rules; accepted: 100 rules at most"] == problems(*many)


def test_on_a_virtual_node_a_rule_is_for_what_lies_in_it() -> None:
    assert 1 == len(settings({**RULE, "cgroups": ["/node", "/node/*"]}, nodeCgroup="/node").rules)
    found = problems({**RULE, "cgroups": ["/", "/nodes/*"]}, nodeCgroup="/node")
    assert ["[0].cgroups[0]", "[0].cgroups[1]"] == [one.partition(":")[0] for one in found]


def _examples() -> list[str]:
    page = Path(__file__).resolve().parents[3] / "docs/pressure.md"
    return re.findall(r"^```yaml\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("example", _examples())
def test_each_example_of_the_documentation_is_a_configuration_without_a_warning(example: str) -> None:
    found = settings_from_text(example, "file")
    assert found.rules or found.systemd_oomd is SystemdOomd.REPLACE
    assert () == found.warnings


def test_the_documentation_has_systemd_oomds_defaults_as_they_are() -> None:
    by_name = {rule.name: rule for example in _examples() for rule in settings_from_text(example, "f").rules}
    swap, user = by_name["swap-used-limit"], by_name["user-memory-pressure"]
    assert {"swap used >= 90 %", "usage of the limit >= 90 %"} == set(map(str, swap.conditions))
    assert (0.0, RankedBy.SWAP) == (swap.for_seconds, swap.by)
    assert ["pressure memory full avg10 >= 60 %"] == list(map(str, user.conditions))
    assert (30.0, RankedBy.PGSCAN) == (user.for_seconds, user.by)


def test_units_of_systemd_count_where_the_operator_says_so() -> None:
    assert SystemdOomd.IGNORE is settings().systemd_oomd
    assert SystemdOomd.REPLACE is settings(systemdOomd="replace").systemd_oomd


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"systemdOomd": "off"}, "accepted: one of ignore, replace"),
        ({"systemdOomd": "replace", "nodeCgroup": "/guarded.slice"}, "ignore with reactor.nodeCgroup"),
    ],
)
def test_what_systemd_can_not_be_replaced_by_is_refused(section: dict[str, Any], expected: str) -> None:
    (problem,) = problems(**section)
    assert "systemdOomd" in problem
    assert expected in problem
