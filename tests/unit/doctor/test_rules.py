"""What `config check` says of rules that can't act here, or would act at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from reactor.doctor.rules import managed_oom_findings, rule_findings
from reactor.kernel.cgroup import CgroupVersion
from reactor.link.managed_oom import ManagedOomKind, ManagedOomReport, ManagedOomUnit, write_report
from reactor.model.rules import Condition, Measure, Metric, RankedBy, Rule, RuleAction
from reactor.model.settings import Settings, SystemdOomd

if TYPE_CHECKING:
    from tests.unit.conftest import FakeTree, FakeTreeMaker


MIB = 1 << 20
USAGE = Condition(Metric(Measure.USAGE), 80.0)
SWAP = Condition(Metric(Measure.SWAP_USED), 90.0)
FULL = Condition(Metric(Measure.PRESSURE, "memory full avg10"), 60.0)
CPU_FULL = Condition(Metric(Measure.PRESSURE, "cpu full avg10"), 10.0)
MAX = Condition(Metric(Measure.EVENTS, "max"), 10.0, within_seconds=30.0)

Find = Callable[..., list[str]]


def make_rule(*conditions: Condition, **others: Any) -> Rule:
    named = {"name": "r", "cgroups": ("/apps/*",), "for_seconds": 3.0, "action": RuleAction.EVICT, **others}
    return Rule(conditions=conditions, **named)


@pytest.fixture
def findings(tmp_path: Path):
    (tmp_path / "meminfo").write_text(
        "MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 150 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n"
    )
    line = "avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
    for name in ("memory", "cpu", "io"):
        (tmp_path / name).write_text(f"some {line}full {line}")

    def find(fake: FakeTree, *rules: Rule) -> list[str]:
        settings = Settings(pod_parents=("/apps",), rules=rules)
        return [why for _, why in rule_findings(settings, fake.tree, proc=tmp_path, pressure=tmp_path)]

    return find


def add(fake: FakeTree, name: str, used_mib: int) -> None:
    fake.add(f"/apps/{name}", usage_bytes=used_mib * MIB)
    fake.tree.set_memory_limit(f"/apps/{name}", 100 * MIB)


def test_a_rule_that_could_act_and_would_not_at_once_is_not_named(fake: FakeTree, findings: Any) -> None:
    add(fake, "a", 50)
    machine = make_rule(FULL, cgroups=("/",), action=RuleAction.EVICT_WORST, name="m")
    assert [] == findings(fake, make_rule(USAGE), machine)


def test_a_rule_that_would_act_at_the_start_is_named_with_the_present_values(
    fake: FakeTree, findings: Any
) -> None:
    add(fake, "a", 50)
    add(fake, "b", 90)
    (said,) = findings(fake, make_rule(USAGE))
    assert (
        "r: holds now: it would evict 3 s after the start: /apps/b (usage of the limit >= 80 %: 90 %)" == said
    )
    if fake.tree.version is CgroupVersion.V1:
        fake.file("/apps/a", "memory.failcnt", "5\n")
    else:
        fake.file("/apps/a", "memory.events", "max 5\n")
    (said,) = findings(fake, make_rule(USAGE, MAX, action=RuleAction.REPORT))
    assert "it would report 3 s after the start, if its counters grow as much: /apps/b" in said


@pytest.mark.parametrize(
    ("action", "would"),
    [
        (RuleAction.CONDITION, "show a condition"),
        (RuleAction.TAINT, "taint the node"),
        (RuleAction.REPORT, "report"),
    ],
)
def test_what_a_rule_that_ends_no_pod_would_do_is_said(
    fake: FakeTree, findings: Any, action: RuleAction, would: str
) -> None:
    add(fake, "b", 90)
    (said,) = findings(fake, make_rule(USAGE, action=action))
    assert f"r: holds now: it would {would} 3 s after the start: /apps/b" in said


def test_many_that_would_be_hit_are_counted(fake: FakeTree, findings: Any) -> None:
    for name in "abcde":
        add(fake, name, 90)
    (said,) = findings(fake, make_rule(USAGE))
    assert said.endswith(" and 2 more")


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (make_rule(USAGE, cgroups=("/none/*",)), "no cgroup is or matches /none/*"),
        (make_rule(SWAP), "never acts on this machine: swap used >= 90 % can't be observed"),
        (make_rule(SWAP, cgroups=("/",), action=RuleAction.REPORT), "no swap (/proc/swaps)"),
        (make_rule(CPU_FULL, cgroups=("/",), action=RuleAction.REPORT), "it is always 0"),
        (make_rule(USAGE, cgroups=("/other",)), "evicts no pod: none of its cgroups is a pod"),
        (make_rule(USAGE, cgroups=("/apps",)), "evicts no pod: none of its cgroups is a pod"),
        (
            make_rule(USAGE, cgroups=("/other",), action=RuleAction.EVICT_WORST),
            "evicts no pod: there are no pods below its cgroups",
        ),
    ],
)
def test_a_rule_that_can_not_act_here_is_named(fake: FakeTree, findings: Any, rule: Rule, said: str) -> None:
    add(fake, "a", 50)
    fake.add("/other")
    assert any(said in one for one in findings(fake, rule)), findings(fake, rule)


def test_on_v1_pressure_of_a_cgroup_and_ranking_by_scans_are_named(
    make_tree: FakeTreeMaker, findings: Any
) -> None:
    fake = make_tree(CgroupVersion.V1)
    add(fake, "a", 50)
    rule = make_rule(FULL, action=RuleAction.EVICT_WORST, by=RankedBy.PGSCAN)
    never, ranked = findings(fake, rule)
    assert "cgroup v1 has it of / alone" in never
    assert "cgroup v1 does not count what reclaim scans" in ranked


def test_a_reclaim_that_this_machine_does_not_have_is_named(fake: FakeTree, findings: Any) -> None:
    add(fake, "a", 90)
    rule = make_rule(USAGE, cgroups=("/apps/*",), action=RuleAction.RECLAIM)
    at_once, never = findings(fake, rule)
    assert "it would reclaim 3 s after the start" in at_once
    why = "cgroup v1, which has no" if fake.tree.version is CgroupVersion.V1 else "has no"
    assert never.startswith("r: reclaims nothing on this machine: ")
    assert f"{why} memory.reclaim" in never

    if fake.tree.version is CgroupVersion.V2:
        (fake.tree.memory_root / "memory.reclaim").touch()
        assert [at_once] == findings(fake, rule)


def test_a_rule_that_an_evicting_one_comes_before_is_named(fake: FakeTree, findings: Any) -> None:
    add(fake, "a", 50)
    evicts = make_rule(USAGE, name="evicts", for_seconds=3.0)
    higher = USAGE._replace(limit=90.0)
    late = make_rule(higher, name="late", action=RuleAction.REPORT, for_seconds=5.0)
    said = "late: evicts (evict) is for the same cgroups and acts wherever it would, as soon or sooner"
    assert [True] == [one.startswith(said) for one in findings(fake, evicts, late)]
    assert [True] == [one.startswith(said) for one in findings(fake, late, evicts)]
    for other in (
        replace(late, for_seconds=2.0),
        replace(late, conditions=(USAGE._replace(limit=70.0),)),
        replace(late, cgroups=("/apps/a",)),
        replace(late, action=RuleAction.EVICT_WORST, cgroups=("/apps",)),
    ):
        assert not any("too late" in one for one in findings(fake, evicts, other))
    assert not any(
        "too late" in one for one in findings(fake, replace(evicts, action=RuleAction.REPORT), late)
    )


def test_a_condition_that_another_one_of_the_rule_contains_is_named(fake: FakeTree, findings: Any) -> None:
    add(fake, "a", 50)
    wider = MAX._replace(limit=5.0, within_seconds=60.0)
    low = USAGE._replace(limit=70.0)
    fake.file(
        "/apps/a",
        "memory.failcnt" if fake.tree.version is CgroupVersion.V1 else "memory.events",
        ("5\n" if fake.tree.version is CgroupVersion.V1 else "max 5\n"),
    )
    said = findings(fake, make_rule(USAGE, low, MAX, wider))
    assert [
        f"r: {low} says nothing beside {USAGE}",
        f"r: {wider} says nothing beside {MAX}",
    ] == [one for one in said if "nothing beside" in one]
    assert [f"r: {USAGE} says nothing beside {USAGE}"] == findings(fake, make_rule(USAGE, USAGE))
    shorter = MAX._replace(within_seconds=10.0)  # so much in less time, and so much in more, or else
    assert [f"r: {MAX} says nothing beside {shorter}"] == findings(fake, make_rule(MAX, shorter))
    assert [] == findings(fake, make_rule(USAGE, MAX))


def test_rules_for_the_same_are_named_and_without_cgroups_all(fake: FakeTree, findings: Any) -> None:
    add(fake, "a", 50)
    (said,) = findings(fake, make_rule(USAGE, name="a"), make_rule(USAGE, name="b", action=RuleAction.REPORT))
    assert "b: for the same cgroups and conditions as a: both act" == said
    settings = Settings(rules=(make_rule(USAGE),))
    assert ["reactor.rules"] == [path for path, _ in rule_findings(settings, None)]
    assert [] == list(rule_findings(Settings(), None))


@pytest.fixture
def on_v2(make_tree: FakeTreeMaker) -> FakeTree:
    return make_tree(CgroupVersion.V2)


@pytest.fixture
def find(tmp_path: Path) -> Find:
    def found(fake: FakeTree | None, mode: SystemdOomd = SystemdOomd.REPLACE) -> list[str]:
        settings = Settings(pod_parents=("/system.slice",), systemd_oomd=mode)
        tree = None if fake is None else fake.tree
        findings = managed_oom_findings(
            settings, tree, proc=tmp_path / "proc", path=tmp_path / "units", root=tmp_path
        )
        return [f"{where}: {why}" for where, why in findings]

    return found


def report(directory: Path, *cgroups: str, problem: str = "") -> None:
    units = tuple(ManagedOomUnit(kind=ManagedOomKind.SWAP, cgroup=one) for one in cgroups)
    (directory / "units").write_bytes(write_report(ManagedOomReport(units=units, problem=problem)))


def test_nothing_is_said_where_all_is_well_or_it_is_not_asked_for(
    on_v2: FakeTree, find: Find, tmp_path: Path
) -> None:
    assert [] == find(on_v2, SystemdOomd.IGNORE)
    assert [] == find(None)
    report(tmp_path, "/", "/system.slice")
    assert [] == find(on_v2)


def test_a_process_that_is_not_there_or_can_not_hear_systemd_is_reported(
    on_v2: FakeTree, find: Find, tmp_path: Path
) -> None:
    (missing,) = find(on_v2)
    assert "reactor.systemdOomd: has no effect on this machine now" in missing
    assert "systemd-oomd.service does not run reactor" in missing
    (tmp_path / "units").write_bytes(b"garbage")
    (wrong,) = find(on_v2)
    assert "accepted" in wrong
    report(tmp_path, "/", problem="systemd is away")
    (away,) = find(on_v2)
    assert away.endswith("units: systemd is away")


def test_systemd_oomd_itself_is_reported_and_what_to_do(on_v2: FakeTree, find: Find, tmp_path: Path) -> None:
    report(tmp_path, "/")
    unit = on_v2.directory("/system.slice/systemd-oomd.service")
    unit.mkdir(parents=True)
    (unit / "cgroup.procs").write_text("11\n12\n")
    for pid, comm in (("11", "reactor"), ("12", "reactor")):
        (tmp_path / "proc" / pid).mkdir(parents=True)
        (tmp_path / "proc" / pid / "comm").write_text(f"{comm}\n")
    assert [] == find(on_v2)
    (tmp_path / "proc/12/comm").write_text("systemd-oomd\n")
    (running,) = find(on_v2)
    assert "systemctl disable --now systemd-oomd" in running


def test_units_beside_the_parents_and_a_wrong_oomd_conf_are_reported(
    on_v2: FakeTree, find: Find, tmp_path: Path
) -> None:
    report(tmp_path, "/system.slice", *(f"/machine{number}.slice" for number in range(5)))
    conf = tmp_path / "etc/systemd/oomd.conf"
    conf.parent.mkdir(parents=True)
    conf.write_text("[OOM]\nSwapUsedLimit=x\n")
    found = find(on_v2)
    assert "SwapUsedLimit: got 'x'" in found[0]
    assert "does not count: /machine0.slice" in found[1]
    assert "does not count: 2 more units" in found[-1]
    assert 5 == len(found)


def test_on_cgroup_v1_swap_alone_counts(make_tree: FakeTreeMaker, find: Find, tmp_path: Path) -> None:
    report(tmp_path, "/")
    (only,) = find(make_tree(CgroupVersion.V1))
    assert "only ManagedOOMSwap= counts" in only
