"""The file of what systemd's units say, as rules of the loop."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio

from reactor.guard.build import RuleFirings
from reactor.guard.record import PassRecord
from reactor.kernel.cgroup import CgroupVersion
from reactor.link.managed_oom import (
    LONGEST_BYTES,
    MOST_UNITS,
    ManagedOomKind,
    ManagedOomReport,
    ManagedOomUnit,
    write_report,
)
from reactor.model.pod_lists import Preference
from reactor.model.pods import PodUsage
from reactor.model.rules import Rule
from reactor.reclaim.memory import MemoryReclaim
from reactor.rules.managed import ManagedOomRules, managed_rules
from reactor.rules.observe import RuleObserver
from reactor.rules.oomd_conf import OomdDefaults
from reactor.rules.watch import RuleWatch
from tests.support.builders import make_pod
from tests.support.waiting import until

if TYPE_CHECKING:
    from tests.unit.conftest import FakeTree, FakeTreeMaker
    from tests.unit.guard.conftest import FakeLoop

MIB = 1 << 20
SWAP, PRESSURE, RULES = ManagedOomKind


def averages(avg10: float, total_seconds: float) -> str:
    text = f"avg10={avg10:.2f} avg60=0.00 avg300=0.00 total={int(total_seconds * 1e6)}"
    return f"some {text}\nfull {text}\n"


def pressure(cgroup: str, **others: Any) -> ManagedOomUnit:
    return ManagedOomUnit(kind=PRESSURE, cgroup=cgroup, **others)


class Node:
    """Pods `hog` and `small` below /node, a file of units, and what goes by it."""

    def __init__(self, fake: FakeTree, loop: FakeLoop, directory: Path) -> None:
        self.fake, self.loop, self.path = fake, loop, directory / "units"
        self.machine = directory / "machine"
        self.machine.mkdir()
        self.records: list[PassRecord] = []
        self.stalled_seconds = 0.0
        for name in ("hog", "small"):
            fake.add(f"/node/{name}", usage_bytes=10 * MIB)
            self.set(name, avg10=0.0, scanned=100)
        loop.have(*map(make_pod, ("hog", "small")))
        self.stall()
        self.meminfo(available=900, swap_free=1000)

        def now() -> float:
            return loop.now_seconds

        observer = RuleObserver(fake.tree, proc=self.machine, pressure=self.machine, clock_seconds=now)
        loop.on_pass = self.records.append
        loop.memory_reclaim = MemoryReclaim(fake.tree, counts_cache=True)
        self.firings = RuleFirings(loop)
        self.rules = RuleWatch(fake.tree, (), self.firings, {}, observer=observer, clock_seconds=now)
        self.managed = ManagedOomRules(
            self.rules.add, ("/node",), path=self.path, root=directory, clock_seconds=now
        )

    def stall(self) -> None:
        (self.machine / "memory").write_text(averages(0.0, self.stalled_seconds))

    def set(self, name: str, *, avg10: float, scanned: int) -> None:
        self.fake.file(f"/node/{name}", "memory.pressure", averages(avg10, 1.0))
        self.fake.file(f"/node/{name}", "memory.stat", f"inactive_file 0\npgscan {scanned}\n")

    def meminfo(self, *, available: int, swap_free: int) -> None:
        (self.machine / "meminfo").write_text(
            f"MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: {available} kB\n"
            f"SwapTotal: 1000 kB\nSwapFree: {swap_free} kB\n"
        )

    def report(self, *units: ManagedOomUnit, **others: Any) -> None:
        self.put(write_report(ManagedOomReport(units=units, **others)))

    def put(self, raw: bytes) -> None:
        beside = self.path.with_suffix(".new")
        beside.write_bytes(raw)
        beside.replace(self.path)

    async def ticks(self, count: int, then: Callable[[int], None] = lambda _: None) -> None:
        for number in range(count):
            then(number)
            self.stalled_seconds += 0.9
            self.stall()
            await self.managed.tick()
            await self.rules.tick()
            self.loop.now_seconds += 1.0

    @property
    def names(self) -> list[str]:
        return [one["name"] for one in self.rules.document()]


@pytest.fixture
def node(make_tree: FakeTreeMaker, make_loop: Callable[..., FakeLoop], tmp_path: Path) -> Node:
    return Node(make_tree(CgroupVersion.V2), make_loop(), tmp_path)


async def test_a_unit_under_pressure_has_the_most_scanned_pod_below_it_killed_once(node: Node) -> None:
    node.fake.file("/node", "memory.pressure", averages(70.0, 1.0))
    node.fake.file("/node", "memory.stat", "inactive_file 0\npgscan 0\n")
    node.report(pressure("/node", limit_percent=50.0, duration_seconds=5.0))

    def scan(number: int) -> None:
        node.fake.file("/node", "memory.stat", f"inactive_file 0\npgscan {100 * number}\n")
        node.set("hog", avg10=0.0, scanned=100 * number)
        node.set("small", avg10=0.0, scanned=10_000 + number)

    await node.ticks(5, scan)
    assert [] == node.loop.kills.killed
    await node.ticks(10, lambda number: scan(number + 5))
    assert ["hog"] == node.loop.kills.killed
    (record,) = [one for one in node.records if one.attempts]
    assert record.decision.rule is not None
    assert "systemd-oomd:pressure-50%-5s" == record.decision.rule.rule.name


async def test_an_avoided_unit_stays_while_another_one_holds_memory_that_is_not_scanned(node: Node) -> None:
    avoided = replace(make_pod("hog"), preference=Preference.AVOID)
    node.loop.have(avoided, make_pod("small"))
    node.fake.file("/node", "memory.pressure", averages(70.0, 1.0))
    node.report(pressure("/node", limit_percent=50.0, duration_seconds=2.0))

    def scan(number: int) -> None:
        node.fake.file("/node", "memory.stat", f"inactive_file 0\npgscan {100 * number}\n")
        node.set("hog", avg10=0.0, scanned=100 * number)

    await node.ticks(10, scan)
    assert ["small"] == node.loop.kills.killed
    ranking = node.records[-1].document()["ranking"]
    assert [("small", 0), ("hog", 200)] == [(one["pod"].split("/")[-1], one["usage"]) for one in ranking]


async def test_a_pod_that_came_while_the_conditions_hold_counts_with_all_that_was_scanned(node: Node) -> None:
    node.fake.file("/node", "memory.pressure", averages(70.0, 1.0))
    node.report(pressure("/node", limit_percent=50.0, duration_seconds=2.0))

    def scan(number: int) -> None:
        node.fake.file("/node", "memory.stat", f"inactive_file 0\npgscan {100 * number}\n")
        node.set("small", avg10=0.0, scanned=10 * number)
        if number == 3:  # no housekeeping has listed it before the rule is due
            node.fake.add("/node/late", usage_bytes=10 * MIB)
            node.set("late", avg10=0.0, scanned=5_000)
            node.loop.pods.present = (*node.loop.pods.present, make_pod("late"))
            node.loop.usages.seen["uid-late"] = PodUsage(memory_working_set_bytes=50 * MIB)

    await node.ticks(10, scan)
    assert ["late"] == node.loop.kills.killed[:1]


async def test_a_unit_under_pressure_without_reclaim_is_left_alone(node: Node) -> None:
    node.set("hog", avg10=90.0, scanned=100)
    node.report(pressure("/node/hog", duration_seconds=3.0))
    await node.ticks(40)
    assert [] == node.loop.kills.killed


async def test_a_rule_file_counts_for_the_units_that_name_it_and_is_read_again_when_that_is_asked_for(
    node: Node, tmp_path: Path
) -> None:
    rules = tmp_path / "etc/systemd/oomd/rules.d"
    rules.mkdir(parents=True)
    (rules / "full.oomrule").write_text("[Rule]\nSwapUsageMax=70%\nAction=kill-by-swap\n")
    node.loop.usages.seen = {"uid-hog": PodUsage(memory_working_set_bytes=MIB, swap_bytes=90 * MIB)}
    named = ManagedOomUnit(kind=RULES, cgroup="/node", rules=("full", "later"))
    node.report(named)
    await node.ticks(3)
    assert ["systemd-oomd:rule-full"] == node.names
    assert ["OOMRules=later: no such rule file is in force"] == list(
        node.managed.document()["such_as"].values()
    )
    assert [] == node.loop.kills.killed

    (rules / "later.oomrule").write_text("[Rule]\nSwapUsageMax=95%\nAction=kill-by-swap\n")
    (rules / "full.oomrule").unlink()
    node.report(named, reloads=1)
    await node.ticks(10)
    node.meminfo(available=900, swap_free=100)  # of the machine, as systemd-oomd has it: memory is there
    await node.ticks(5)
    assert ["systemd-oomd:rule-later"] == node.names
    assert [] == node.loop.kills.killed

    node.meminfo(available=900, swap_free=10)
    await node.ticks(5)
    assert ["hog"] == node.loop.kills.killed


async def test_full_swap_hits_below_the_units_alone(node: Node) -> None:
    node.loop.usages.seen = {
        "uid-hog": PodUsage(memory_working_set_bytes=MIB, swap_bytes=90 * MIB),
        "uid-small": PodUsage(memory_working_set_bytes=MIB, swap_bytes=5 * MIB),
    }
    node.report(ManagedOomUnit(kind=SWAP, cgroup="/node/small"))
    node.meminfo(available=50, swap_free=200)
    await node.ticks(5)
    assert [] == node.loop.kills.killed
    node.meminfo(available=50, swap_free=50)
    await node.ticks(10)
    assert ["small"] == node.loop.kills.killed
    assert 1 == node.loop.usages.swap_notes  # read for the kill, and by no pass before


async def test_oomd_conf_says_the_limits(
    make_tree: FakeTreeMaker, make_loop: Callable[..., FakeLoop], tmp_path: Path
) -> None:
    conf = tmp_path / "etc/systemd/oomd.conf"
    conf.parent.mkdir(parents=True)
    conf.write_text("[OOM]\nDefaultMemoryPressureLimit=25%\nSwapUsedLimit=x\n")
    node = Node(make_tree(CgroupVersion.V2), make_loop(), tmp_path)
    node.report(pressure("/node/hog"))
    await node.ticks(2)
    assert ["systemd-oomd:pressure-25%-30s"] == node.names
    assert f"systemdOomd: {conf}" in node.managed.problems
    assert (90.0, 25.0) == (
        node.managed.document()["swap_used_limit_percent"],
        node.managed.document()["pressure_limit_percent"],
    )


async def test_an_oomd_conf_that_hangs_on_its_disk_holds_up_nothing_and_is_named(
    make_tree: FakeTreeMaker,
    make_loop: Callable[..., FakeLoop],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    nursery: trio.Nursery,
) -> None:
    answers = threading.Event()

    def hanging(_: dict[str, str], *, root: Path) -> OomdDefaults:
        assert answers.wait(60)
        return OomdDefaults(pressure_percent=25.0)

    monkeypatch.setattr("reactor.rules.managed.oomd_defaults", hanging)
    node = Node(make_tree(CgroupVersion.V2), make_loop(), tmp_path)
    node.report(pressure("/node/hog"))
    await nursery.start(node.managed.run)
    assert {} == node.managed.problems
    node.loop.now_seconds += 6.0
    assert "its disk does not answer" in node.managed.problems["systemdOomd"]
    answers.set()
    await until(lambda: 1 == node.managed.document()["units"], "the report is gone by")
    assert {} == node.managed.problems
    await node.rules.tick()
    assert ["systemd-oomd:pressure-25%-30s"] == node.names
    nursery.cancel_scope.cancel()


async def test_a_unit_that_comes_or_goes_leaves_the_times_of_the_others_running(node: Node) -> None:
    hog, small = (pressure(f"/node/{name}", duration_seconds=10.0) for name in ("hog", "small"))
    node.report(hog)
    node.set("hog", avg10=90.0, scanned=0)

    def scan(number: int) -> None:
        node.set("hog", avg10=90.0, scanned=100 * number)
        if number % 3 == 0:
            node.report(*((hog, small) if number % 2 else (small, hog)))

    await node.ticks(11, scan)
    assert [] == node.loop.kills.killed
    await node.ticks(3, lambda number: scan(number + 11))
    assert ["hog"] == node.loop.kills.killed


async def test_a_unit_that_is_not_helped_holds_up_no_other(node: Node) -> None:
    """Its pods are never evicted, or come back: the rule rests ever longer for it, and for it alone."""
    omitted = replace(make_pod("hog"), critical_because="user.oomd_omit")
    node.loop.have(omitted, make_pod("small"))
    node.report(*(pressure(f"/node/{name}", duration_seconds=5.0) for name in ("hog", "small")))

    def scan(number: int) -> None:
        node.set("hog", avg10=90.0, scanned=100 * number)
        if number > 300:
            node.set("small", avg10=90.0, scanned=100 * number)

    await node.ticks(301, scan)
    acted = [one.decision.at_seconds for one in node.records]
    assert len(acted) < 8
    await node.ticks(12, lambda number: scan(number + 301))
    assert ["small"] == node.loop.kills.killed


async def test_a_unit_that_says_kill_no_more_is_left_alone(node: Node) -> None:
    hog, small = (pressure(f"/node/{name}", duration_seconds=10.0) for name in ("hog", "small"))
    node.report(hog, small)

    def scan(number: int) -> None:
        node.set("hog", avg10=90.0, scanned=100 * number)
        if number == 6:
            node.report(small)

    await node.ticks(40, scan)
    assert [] == node.loop.kills.killed
    (rule,) = node.rules.document()
    assert (["/node/small"], 0) == (rule["cgroups"], rule["held_in"])


async def test_a_file_that_is_gone_or_wrong_or_old_keeps_the_rules_and_is_reported(node: Node) -> None:
    await node.ticks(1)
    assert "is missing" in node.managed.problems["systemdOomd"]
    assert "in force" not in node.managed.problems["systemdOomd"]

    node.report(pressure("/node/hog"))
    await node.ticks(1)
    assert {} == node.managed.problems
    names = node.names

    node.loop.now_seconds += 100.0
    await node.ticks(1)
    assert "was not touched for 90 s" in node.managed.problems["systemdOomd"]
    os.utime(node.path, ns=(1, 1))
    await node.ticks(1)
    assert {} == node.managed.problems

    for raw, why in ((b"garbage", "accepted"), (b"x" * (LONGEST_BYTES + 1), "bytes")):
        node.loop.now_seconds += 10.0
        node.put(raw)
        await node.ticks(2)
        assert why in node.managed.problems["systemdOomd"]
        assert "the last known settings are in force" in node.managed.problems["systemdOomd"]
    node.path.unlink()
    await node.ticks(1)
    assert "is missing" in node.managed.problems["systemdOomd"]
    for make in (node.path.mkdir, lambda: os.mkfifo(node.path), lambda: node.path.symlink_to("/dev/zero")):
        make()
        await node.ticks(1)
        assert "can not be read" in node.managed.problems["systemdOomd"]
        node.path.rmdir() if node.path.is_dir() and not node.path.is_symlink() else node.path.unlink()
    assert names == node.names

    node.loop.now_seconds += 10.0
    node.report(pressure("/node/hog"), problem="systemd is away")
    await node.ticks(1)
    assert "systemd is away; the last known settings are in force" == node.managed.problems["systemdOomd"]
    node.loop.now_seconds += 10.0
    node.report(left_out=2)
    await node.ticks(2)
    assert "2 settings of units are left out" in node.managed.problems["systemdOomd"]
    assert [] == node.names


async def test_a_unit_beside_the_parents_has_no_rule_and_is_shown(node: Node) -> None:
    node.report(pressure("/node/hog"), pressure("/other.slice"))
    await node.ticks(2)
    document = node.managed.document()
    assert (2, 1, ["/other.slice"]) == (
        document["units"],
        document["not_honoured"],
        list(document["such_as"]),
    )
    assert [["/node/hog"]] == [one["cgroups"] for one in node.rules.document()]


async def test_changes_count_every_five_seconds_at_the_most(node: Node) -> None:
    node.report(pressure("/node/hog"))
    await node.ticks(1)
    node.report(pressure("/node/small"))
    await node.ticks(4)
    assert [["/node/hog"]] == [one["cgroups"] for one in node.rules.document()]
    await node.ticks(2)
    assert [["/node/small"]] == [one["cgroups"] for one in node.rules.document()]


async def test_a_user_brings_about_few_rules_whatever_he_says(
    make_tree: FakeTreeMaker, make_loop: Callable[..., FakeLoop], tmp_path: Path
) -> None:
    node = Node(make_tree(CgroupVersion.V2), make_loop(), tmp_path)
    node.managed = ManagedOomRules(
        node.rules.add,
        ("/user.slice",),
        path=node.path,
        root=tmp_path,
        clock_seconds=lambda: node.loop.now_seconds,
    )
    for start in (0, 20, 40):
        units = [
            pressure(f"/user.slice/user-7.slice/x{number}", uid=7, limit_percent=float(start + number))
            for number in range(1, 20)
        ]
        node.report(*units, pressure("/user.slice/user-8.slice", limit_percent=float(start + 50)))
        await node.ticks(6)
    assert ["systemd-oomd:pressure-90%-30s"] == node.names
    assert 19 == node.managed.document()["not_honoured"]
    node.report(pressure("/user.slice/user-9.slice/x", uid=9, limit_percent=1.0))
    await node.ticks(6)
    assert ["systemd-oomd:user-pressure-1%-30s"] == node.names


async def test_limits_that_users_no_longer_want_leave_room_for_those_of_others(
    make_tree: FakeTreeMaker, make_loop: Callable[..., FakeLoop], tmp_path: Path
) -> None:
    node = Node(make_tree(CgroupVersion.V2), make_loop(), tmp_path)
    node.managed = ManagedOomRules(
        node.rules.add,
        ("/user.slice",),
        path=node.path,
        root=tmp_path,
        clock_seconds=lambda: node.loop.now_seconds,
    )
    for uid in range(16):
        units = [
            pressure(f"/user.slice/user-{uid}.slice/x{n}", uid=uid, limit_percent=float(4 * uid + n + 1))
            for n in range(4)
        ]
        node.report(*units)
        await node.ticks(6)
    late = pressure("/user.slice/user-99.slice/x", uid=99, limit_percent=77.0)
    node.report(late)
    await node.ticks(6)
    assert [] == node.names
    assert 1 == node.managed.document()["not_honoured"]

    node.loop.now_seconds += 3600.0  # in which the others have had theirs
    node.report(late, pressure("/user.slice/user-0.slice/x0", uid=0, limit_percent=1.0))
    await node.ticks(6)
    assert {"systemd-oomd:user-pressure-77%-30s", "systemd-oomd:user-pressure-1%-30s"} == set(node.names)


async def test_as_many_units_as_there_may_be_are_read_in_turns(node: Node) -> None:
    units = [pressure(f"/node/u{number}") for number in range(MOST_UNITS - 1)]
    node.report(*units, pressure("/node/hog"))
    await node.ticks(2)
    (rule,) = node.rules.document()
    assert MOST_UNITS == node.managed.document()["units"]
    assert (32, 1) == (len(rule["cgroups"]), rule["matched"])


async def test_rules_of_the_operator_s_own_are_left_as_they_are(
    make_tree: FakeTreeMaker, make_loop: Callable[..., FakeLoop], tmp_path: Path
) -> None:
    node = Node(make_tree(CgroupVersion.V2), make_loop(), tmp_path)
    own = replace(_rule(), name="own")
    rules = RuleWatch(node.fake.tree, (own,), node.firings, {})
    await rules.add((_rule(),))
    await rules.tick()
    await rules.add(())
    await rules.tick()
    assert ["own"] == [one["name"] for one in rules.document()]


def _rule() -> Rule:
    return managed_rules([pressure("/node/hog")], OomdDefaults())[0]
