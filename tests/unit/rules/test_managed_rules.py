"""What systemd's units say, as rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from reactor.link.managed_oom import ManagedOomKind, ManagedOomUnit
from reactor.model.name_patterns import PodParent
from reactor.model.rules import Acted, Acts, Rule, RuleAction
from reactor.policy.rules import hit_by
from reactor.rules.managed import managed_rules, missing_because, named_rules, refused_because
from reactor.rules.oomd_conf import OomAction, OomdDefaults, OomRuleset
from reactor.rules.policy import RuleState, cooldown_left_seconds, due, why_not
from tests.support.builders import make_pod

SWAP, PRESSURE, RULES = ManagedOomKind
DEFAULTS = OomdDefaults()
STANDS = RuleState(at_seconds=0.0, samples=((), ()), since_seconds=0.0)


def unit(kind: ManagedOomKind, cgroup: str, **others: Any) -> ManagedOomUnit:
    return ManagedOomUnit(kind=kind, cgroup=cgroup, **others)


def told(rule: Rule) -> tuple[str, tuple[str, ...], list[str], float]:
    return rule.name, rule.cgroups, list(map(str, rule.conditions)), rule.for_seconds


def test_without_units_there_is_no_rule() -> None:
    assert () == managed_rules([], DEFAULTS)


def test_units_of_one_limit_and_time_are_one_rule_that_kills_the_most_scanned() -> None:
    (rule,) = managed_rules([unit(PRESSURE, "/a"), unit(PRESSURE, "/b"), unit(PRESSURE, "/a")], DEFAULTS)
    assert (
        "systemd-oomd:pressure-60%-30s",
        ("/a", "/b"),
        ["pressure memory full avg10 >= 60 %", "pages scanned >= 1 within 30 s"],
        30.0,
    ) == told(rule)
    assert (RuleAction.EVICT_WORST, "pgscan", 15.0, None) == (
        rule.action,
        rule.by,
        rule.cooldown_seconds,
        rule.below,
    )
    assert rule.holders_go


def test_a_limit_and_a_time_of_ones_own_are_another_rule_and_so_are_those_of_users() -> None:
    own = unit(PRESSURE, "/a", limit_percent=12.5, duration_seconds=1.0)
    of_user = unit(PRESSURE, "/user.slice/user-1.slice/a", uid=1, limit_percent=12.5, duration_seconds=1.0)
    rules = managed_rules([own, of_user, unit(PRESSURE, "/b")], OomdDefaults(pressure_percent=40.0))
    assert [
        ("systemd-oomd:pressure-12.5%-2s", ("/a",), 2.0),
        ("systemd-oomd:user-pressure-12.5%-2s", ("/user.slice/user-1.slice/a",), 2.0),
        ("systemd-oomd:pressure-40%-30s", ("/b",), 30.0),
    ] == [(one.name, one.cgroups, one.for_seconds) for one in rules]
    assert [rules[0].name] == [name for name, _ in named_rules(own, DEFAULTS)]


def test_swap_is_one_rule_on_the_machine_that_hits_below_the_units_alone() -> None:
    units = [unit(SWAP, "/a.slice"), unit(SWAP, "/b.slice")]
    (rule,) = managed_rules(units, OomdDefaults(swap_used_percent=80.0))
    assert ("systemd-oomd:swap", ("/",), ["swap used >= 80 %", "usage of the limit >= 80 %"], 0.0) == told(
        rule
    )
    assert ("swap", ("/a.slice", "/b.slice")) == (rule.by, rule.below)
    assert [rule.name] == [name for name, _ in named_rules(units[0], DEFAULTS)]

    cgroups = {"1": "/a.slice/x", "2": "/b.slice", "3": "/c.slice/x", "4": "/a.slicer"}
    pods = [replace(make_pod(uid), cgroup=cgroup) for uid, cgroup in cgroups.items()]
    assert ["/a.slice/x", "/b.slice"] == [pod.cgroup for pod in hit_by(rule, "/", pods)]


RULESETS = OomdDefaults(
    rulesets={
        "stall": OomRuleset(action=OomAction.KILL_BY_PGSCAN, pressure_percent=50, swap_percent=80, seconds=1),
        "full": OomRuleset(action=OomAction.KILL_BY_SWAP, swap_percent=90),
        "all": OomRuleset(action=OomAction.KILL_ALL, pressure_percent=70, seconds=9),
    }
)


def test_a_rule_file_is_one_rule_for_all_units_that_name_it_and_another_for_users_units() -> None:
    units = [
        unit(RULES, "/a", rules=("stall", "full")),
        unit(RULES, "/b", rules=("stall", "all")),
        unit(RULES, "/user.slice/user-1.slice/a", uid=1, rules=("full",)),
    ]
    found = managed_rules(units, RULESETS)
    both = ["pressure memory full avg10 >= 50 %", "swap used machine >= 80 %"]
    assert [
        ("systemd-oomd:rule-stall", ("/a", "/b"), both, 2.0),  # what was scanned takes two observations
        ("systemd-oomd:rule-full", ("/a",), ["swap used machine >= 90 %"], 0.0),
        ("systemd-oomd:rule-all", ("/b",), ["pressure memory full avg10 >= 70 %"], 9.0),
        ("systemd-oomd:user-rule-full", ("/user.slice/user-1.slice/a",), ["swap used machine >= 90 %"], 0.0),
    ] == list(map(told, found))
    assert ["pgscan", "swap", "memory", "swap"] == [rule.by for rule in found]
    assert [True, False, False, False] == [rule.holders_go for rule in found]
    assert {RuleAction.EVICT_WORST} == {rule.action for rule in found}
    assert [False, False, False, True] == [rule.cooldown_per_user_slice for rule in found]


def test_a_rule_file_that_is_missing_is_named_and_the_others_count() -> None:
    one = unit(RULES, "/a", rules=("gone", "all"))
    assert ["systemd-oomd:rule-all"] == [rule.name for rule in managed_rules([one], RULESETS)]
    why = missing_because(one, RULESETS)
    assert why is not None
    assert "gone" in why
    assert missing_because(unit(PRESSURE, "/a"), RULESETS) is None


def test_the_root_slice_s_swap_hits_every_pod() -> None:
    (rule,) = managed_rules([unit(SWAP, "/")], DEFAULTS)
    pods = [replace(make_pod("1"), cgroup="/a.slice/x")]
    assert tuple(pods) == hit_by(rule, "/", pods)


@pytest.mark.parametrize("cgroup", ["/", "/system.slice", "/system.slice/a.service", "/user.slice"])
def test_a_unit_above_or_below_a_parent_counts(cgroup: str) -> None:
    parents = [PodParent("/system.slice"), PodParent("/user.slice/user-*.slice")]
    assert refused_because(unit(SWAP, cgroup), parents) is None


@pytest.mark.parametrize("cgroup", ["/machine.slice", "/system.slicer", "/init.scope"])
def test_a_unit_beside_the_parents_does_not_count(cgroup: str) -> None:
    because = refused_because(unit(PRESSURE, cgroup), [PodParent("/system.slice")])
    assert because is not None
    assert "reactor.pods.parents" in because


def test_a_users_rule_rests_in_all_of_his_cgroups_and_in_those_of_no_other_user() -> None:
    """He can make cgroups without end: the first cool-down of each would be none."""
    cgroups = [f"/user.slice/user-{uid}.slice/{name}" for uid, name in ((1, "a"), (1, "b"), (2, "a"))]
    units = [unit(PRESSURE, cgroup, uid=int(cgroup[17])) for cgroup in cgroups]
    (rule,) = managed_rules(units, DEFAULTS)
    held = dict.fromkeys(cgroups, STANDS)
    acted = {f"/user.slice/user-{uid}.slice/gone": Acted(100.0) for uid in (1, 3)}

    def due_at(at_seconds: float) -> tuple[str, int] | None:
        firing = due(rule, held, acted, at_seconds)
        return None if firing is None else (firing.cgroup, firing.others)

    assert (cgroups[2], 0) == due_at(114.0)
    assert (cgroups[0], 2) == due_at(115.0)
    del held[cgroups[2]]
    assert due_at(114.0) is None
    rests = "it acted for a cgroup of /user.slice/user-1.slice, and rests there for 1 s more"
    assert rests == why_not(rule, held, acted, 114.0)


def test_a_rule_rests_in_the_cgroup_alone_that_it_acted_for() -> None:
    (rule,) = managed_rules([unit(PRESSURE, "/a"), unit(PRESSURE, "/b")], DEFAULTS)
    (swap,) = managed_rules([unit(SWAP, "/a")], DEFAULTS)
    held = {"/a": STANDS, "/b": STANDS}

    def due_in(rule: Rule, acted: Acts, at_seconds: float) -> tuple[str, int] | None:
        firing = due(rule, held, acted, at_seconds)
        return None if firing is None else (firing.cgroup, firing.others)

    acted = {"/a": Acted(100.0, unhelpful=1)}
    assert ("/b", 0) == due_in(rule, acted, 129.0)
    assert ("/a", 1) == due_in(rule, acted, 130.0)
    assert 0 == cooldown_left_seconds(rule, acted, held, 101.0)
    assert due_in(swap, {"/": Acted(100.0)}, 114.0) is None
    assert ("/a", 1) == due_in(swap, {"/": Acted(100.0)}, 115.0)
