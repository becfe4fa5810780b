"""Rules over cgroups in files: what is observed when, and what is done once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio

from reactor.guard.build import RuleFirings
from reactor.guard.record import PassRecord
from reactor.guard.recorder import Tally
from reactor.kernel.cgroup import CgroupVersion
from reactor.model.kills import Slowdown, SlowReason
from reactor.model.pods import PodUsage
from reactor.model.rules import (
    Acted,
    Acts,
    Condition,
    Mark,
    Marked,
    Marks,
    Measure,
    Metric,
    RankedBy,
    Rule,
    RuleAction,
)
from reactor.model.signals import Signal
from reactor.model.wakes import SourceHealth
from reactor.reclaim.memory import MemoryReclaim
from reactor.rules.observe import RuleObserver
from reactor.rules.pressure import Fired, RulePressure
from reactor.rules.watch import RuleWatch
from reactor.sources.catalogue import RULE_PRESSURE, SourceBoard
from tests.support.builders import make_observation, make_pod
from tests.support.pressure_triggers import Kernel

if TYPE_CHECKING:
    from tests.unit.conftest import FakeTree, FakeTreeMaker
    from tests.unit.guard.conftest import FakeLoop

MIB = 1 << 20
FULL = Condition(Metric(Measure.PRESSURE, "memory full avg10"), 60.0)
USAGE = Condition(Metric(Measure.USAGE), 80.0)
MAX = Condition(Metric(Measure.EVENTS, "max"), 10.0, within_seconds=30.0)
STALL = Condition(Metric(Measure.STALL, "memory some"), 0.5, within_seconds=2.0)


def pressure(avg10: float, total_seconds: float) -> str:
    averages = f"avg10={avg10:.2f} avg60=0.00 avg300=0.00 total={int(total_seconds * 1e6)}"
    return f"some {averages}\nfull {averages}\n"


def make_rule(*conditions: Condition, **others: Any) -> Rule:
    named = {"name": "r", "cgroups": ("/node/*",), "for_seconds": 3.0, "action": RuleAction.EVICT, **others}
    return Rule(conditions=conditions, **named)


class Watched:
    """A node of the cgroups /node/hog and /node/small, of 100 MiB at most each, and rules for it."""

    def __init__(self, fake: FakeTree, loop: FakeLoop, machine: Path) -> None:
        self.fake, self.loop, self.machine = fake, loop, machine
        self.reads: list[str] = []
        self.acted: dict[str, Acts] = {}  # of all watches
        self.marked: dict[str, Marked] = {}  # likewise
        self.shown: list[Marks] = []
        self.worked_seconds = self.cost_seconds = 0.0
        self.records: list[PassRecord] = []
        for name in ("hog", "small"):
            fake.add(f"/node/{name}", usage_bytes=10 * MIB)
            fake.tree.set_memory_limit(f"/node/{name}", 100 * MIB)
        loop.have(*map(make_pod, ("hog", "small")))
        self.stall(0.0)

    def stall(self, total_seconds: float) -> None:
        """Have tasks of the machine have stalled for so long."""
        (self.machine / "memory").write_text(pressure(0.0, total_seconds))

    def fall_short(self) -> None:
        """Have the node short of memory, for which no pod is evicted: what the pods hold is not known."""
        self.loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: make_observation(50 * MIB)}
        self.seen, self.loop.usages.seen = self.loop.usages.seen, {}
        slowdown = Slowdown(
            signal=Signal.MEMORY_AVAILABLE,
            reason=SlowReason.OUTSIDE_PODS,
            since_seconds=0.0,
            until_seconds=1e9,
            message="it does not help",
        )
        self.loop.known.state = self.loop.known.state._replace(slowdowns=(slowdown,))

    def recover(self) -> None:
        """Have memory again, and no slowdown; the next pass shows it."""
        self.loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: make_observation(400 * MIB)}
        self.loop.usages.seen = self.seen
        self.loop.known.state = self.loop.known.state._replace(slowdowns=())
        self.loop.passes.make(())

    def use(self, name: str, mib: int) -> None:
        self.fake.counters(f"/node/{name}", usage_bytes=mib * MIB, inactive_file_bytes=0)

    def watch(self, *rules: Rule, triggers: RulePressure | None = None) -> RuleWatch:
        def now() -> float:
            return self.loop.now_seconds

        observer = RuleObserver(self.fake.tree, pressure=self.machine, clock_seconds=now)
        read = observer.read

        def noted(cgroup: str, *others: Any) -> Any:
            self.reads.append(cgroup)
            self.worked_seconds += self.cost_seconds
            return read(cgroup, *others)

        observer.read = noted  # type: ignore[method-assign]
        self.loop.on_pass = self.records.append
        self.loop.memory_reclaim = MemoryReclaim(self.fake.tree, counts_cache=True)
        return RuleWatch(
            self.fake.tree,
            rules,
            RuleFirings(self.loop),
            self.acted,
            observer=observer,
            clock_seconds=now,
            worked_seconds=lambda: self.worked_seconds,
            triggers=triggers,
            marked=self.marked,
            on_marks=self.shown.append,
        )

    async def ticks(self, watch: RuleWatch, count: int, then: Callable[[int], None] = lambda _: None) -> None:
        for number in range(count):
            then(number)
            await watch.tick()
            self.loop.now_seconds += 1.0


@pytest.fixture
def watched(fake: FakeTree, make_loop: Callable[..., FakeLoop], tmp_path: Path) -> Watched:
    machine = tmp_path / "pressure"
    machine.mkdir()
    return Watched(fake, make_loop(unhelpful_eviction_pause_seconds=10.0), machine)


@pytest.fixture
def on_v2(make_tree: FakeTreeMaker, make_loop: Callable[..., FakeLoop], tmp_path: Path) -> Watched:
    machine = tmp_path / "pressure"
    machine.mkdir()
    return Watched(make_tree(CgroupVersion.V2), make_loop(unhelpful_eviction_pause_seconds=10.0), machine)


async def test_a_rule_that_has_held_evicts_its_pod_once_and_rests(watched: Watched) -> None:
    watch = watched.watch(make_rule(USAGE))
    watched.use("hog", 90)

    await watched.ticks(watch, 3)
    assert [] == watched.loop.kills.killed
    (status,) = watch.document()
    assert (2, 1, [{"cgroup": "/node/hog", "for_seconds": 3.0, "values": {str(USAGE): 90.0}}]) == (
        status["matched"],
        status["held_in"],
        status["holds"],
    )
    assert 90.0 == status["conditions"][0]["highest"]

    await watched.ticks(watch, 30)
    assert ["hog"] == watched.loop.kills.killed
    (record,) = watched.records
    document = record.document()
    assert ("decision", "r", "/node/hog") == (
        document["kind"],
        document["rule"]["name"],
        document["rule"]["cgroup"],
    )
    assert {"lowest": 90.0, "highest": 90.0, "value": 90.0} == {
        key: document["rule"]["inputs"][0][key] for key in ("lowest", "highest", "value")
    }
    (status,) = watch.document()
    assert status["acted_seconds_ago"] == 30.0
    assert status["cooldown_left_seconds"] == 30.0


async def test_a_cool_down_outlives_a_reload(watched: Watched) -> None:
    watched.use("hog", 90)
    await watched.ticks(watched.watch(make_rule(USAGE, action=RuleAction.REPORT)), 5)
    await watched.ticks(watched.watch(make_rule(USAGE, action=RuleAction.REPORT)), 20)
    assert 1 == len(watched.records)
    await watched.ticks(watched.watch(make_rule(USAGE, action=RuleAction.REPORT)), 50)
    assert 2 == len(watched.records)


async def test_what_waits_is_reported_once_and_done_when_it_may(watched: Watched) -> None:
    watch = watched.watch(make_rule(USAGE))
    watched.use("hog", 90)
    watched.fall_short()

    await watched.ticks(watch, 10)
    assert [] == watched.loop.kills.killed
    assert 1 == len(watched.records)
    assert "thresholds evict first" in str(watched.records[0].decision.deferred_because)

    watched.recover()
    await watched.ticks(watch, 1)
    assert ["hog"] == watched.loop.kills.killed


async def test_a_rule_that_does_not_help_acts_ever_less_often(watched: Watched) -> None:
    watched.fake.add("/node", usage_bytes=90 * MIB)
    watched.fake.tree.set_memory_limit("/node", 100 * MIB)
    pods = tuple(make_pod(f"p{number}") for number in range(20))
    watched.loop.have(*pods)
    watched.loop.kills.is_gone = True
    rule = make_rule(USAGE, cgroups=("/node",), action=RuleAction.EVICT_WORST, cooldown_seconds=10.0)
    watch = watched.watch(rule)
    at_seconds = []

    def note(number: int) -> None:
        watched.loop.known.state = watched.loop.known.state._replace(claims=())
        if len(watched.records) > len(at_seconds):
            at_seconds.append(number - 1)

    tally = Tally()
    await watched.ticks(watch, 400, note)
    for record in watched.records:
        tally.observe_pass(record)
    document = tally.document()
    assert [("r", "evictWorst", len(watched.records))] == document["rules"]
    assert [("r", "evictWorst", len(watched.records) - 1)] == document["rules_unhelpful"]
    assert 2 == watched.records[2].document()["rule"]["unhelpful"]
    assert [10, 20, 40, 80, 160] == [b - a for a, b in pairwise(at_seconds)][:5]
    assert 5 == watch.document()[0]["unhelpful"]


async def test_a_cgroup_that_is_not_helped_holds_up_no_other(watched: Watched) -> None:
    """The pod of the one comes back each time, as a unit that systemd restarts; then another is full, too."""
    watched.loop.kills.is_gone = True
    watch = watched.watch(make_rule(USAGE, cooldown_seconds=10.0))
    watched.use("hog", 90)

    def go_on(_: int) -> None:
        watched.loop.known.state = watched.loop.known.state._replace(claims=())

    await watched.ticks(watch, 130, go_on)
    assert ["hog"] * 4 == watched.loop.kills.killed
    watched.use("small", 90)
    await watched.ticks(watch, 5, go_on)
    assert ["hog"] * 4 + ["small"] == watched.loop.kills.killed
    (status,) = watch.document()
    assert (0, 8.0) == (status["unhelpful"], status["cooldown_left_seconds"])

    watched.use("small", 10)
    await watched.ticks(watch, 10, go_on)
    (status,) = watch.document()
    assert 0 == status["cooldown_left_seconds"]
    why = "it acted for /node/hog 72 s ago, and rests there for 8 s more: 3 times in a row it did not help"
    assert why == status["why_not"]


async def test_a_cgroup_that_was_made_anew_or_is_gone_is_not_acted_on(watched: Watched) -> None:
    watch = watched.watch(make_rule(USAGE))
    watched.use("hog", 90)
    await watched.ticks(watch, 3)
    directory = watched.fake.directory("/node/hog")
    shutil.move(directory, directory.parent.parent / "another")
    watched.fake.add("/node/hog", usage_bytes=90 * MIB)
    watched.fake.tree.set_memory_limit("/node/hog", 100 * MIB)

    await watched.ticks(watch, 6)
    assert [] == watched.loop.kills.killed
    shutil.rmtree(watched.fake.directory("/node/hog"))
    await watched.ticks(watch, 20)
    assert [] == watched.loop.kills.killed
    assert 1 == watch.document()[0]["matched"]


async def test_nothing_is_read_of_cgroups_while_no_task_of_the_machine_stalls(on_v2: Watched) -> None:
    watch = on_v2.watch(make_rule(FULL, for_seconds=2.0))
    on_v2.fake.file("/node/hog", "memory.pressure", pressure(90.0, 50.0))
    on_v2.fake.file("/node/small", "memory.pressure", pressure(1.0, 5.0))

    await on_v2.ticks(watch, 10)
    assert [] == on_v2.reads
    assert watch.document()[0]["every_seconds"] is None

    await on_v2.ticks(watch, 6, lambda number: on_v2.stall(0.5 * number))
    assert ["hog"] == on_v2.loop.kills.killed
    assert on_v2.reads.count("/node/small") < on_v2.reads.count("/node/hog") + 3


async def test_a_new_cgroup_is_found_at_once_while_tasks_stall_and_later_else(on_v2: Watched) -> None:
    found_after = {}
    for rule, is_stalling in ((make_rule(FULL), True), (make_rule(USAGE), False)):
        name = f"new-{is_stalling}"
        watch = on_v2.watch(rule)
        await on_v2.ticks(watch, 3, lambda number: on_v2.stall(0.5 * number))
        on_v2.fake.add(f"/node/{name}", usage_bytes=MIB)
        on_v2.fake.file(f"/node/{name}", "memory.pressure", pressure(90.0, 50.0))
        before = watch.document()[0]["matched"]
        ticks = 0
        while watch.document()[0]["matched"] == before:
            on_v2.stall(1.5 + 0.5 * ticks)
            await on_v2.ticks(watch, 1)
            ticks += 1
        found_after[is_stalling] = ticks
    assert {True: 1, False: 8} == found_after


async def test_stall_and_events_count_by_their_growth(on_v2: Watched) -> None:
    watch = on_v2.watch(
        make_rule(STALL, name="stalls", for_seconds=0.0, action=RuleAction.REPORT),
        make_rule(MAX, name="throttled", for_seconds=0.0, action=RuleAction.REPORT),
    )

    def grow(number: int) -> None:
        on_v2.stall(0.4 * number)
        for name in ("hog", "small"):
            share = 1 if name == "hog" else 0
            on_v2.fake.file(f"/node/{name}", "memory.pressure", pressure(0.0, 100 + share * 0.4 * number))
            on_v2.fake.file(
                f"/node/{name}", "memory.events", f"high 0\nmax {1000 + share * 4 * number}\noom 0\n"
            )

    await on_v2.ticks(watch, 20, grow)
    found = [record.decision.rule for record in on_v2.records]
    assert {("stalls", "/node/hog"), ("throttled", "/node/hog")} == {
        (one.rule.name, one.cgroup) for one in found if one is not None
    }
    assert 2 == len(found)


async def test_what_the_kernel_does_not_have_is_never_true(watched: Watched) -> None:
    if watched.fake.tree.version is CgroupVersion.V2:
        for name in ("hog", "small"):
            watched.fake.file(f"/node/{name}", "memory.pressure", "garbage\n")
    watch = watched.watch(make_rule(FULL, for_seconds=0.0), make_rule(MAX, for_seconds=0.0, name="other"))
    await watched.ticks(watch, 20, lambda number: watched.stall(float(number)))
    assert [] == watched.records
    (watched.machine / "memory").unlink()
    await watched.ticks(watch, 5)
    assert [] == watched.records


async def test_a_rule_says_why_it_does_not_act(on_v2: Watched) -> None:
    watch = on_v2.watch(
        make_rule(USAGE, name="usage"),
        make_rule(FULL, name="stalls"),
        make_rule(Condition(Metric(Measure.PRESSURE, "io full avg10"), 60.0), name="unaccounted"),
        make_rule(USAGE, name="nowhere", cgroups=("/none/*",)),
    )

    def why() -> dict[str, str]:
        return {one["name"]: one["why_not"] for one in watch.document()}

    await on_v2.ticks(watch, 3)
    assert {
        "usage": "its conditions hold in none of its cgroups",
        "stalls": "tasks of this machine stall for memory too little, or not at all",
        "unaccounted": "pressure of this machine (io) can't be observed",
        "nowhere": "no cgroup is or matches /none/*",
    } == why()

    on_v2.use("hog", 90)
    await on_v2.ticks(watch, 2)
    assert "it has held in /node/hog for 2 of 3 s" == why()["usage"]

    on_v2.fall_short()
    await on_v2.ticks(watch, 4)
    assert "a hard memory threshold is met: thresholds evict first" == why()["usage"]

    on_v2.recover()
    await on_v2.ticks(watch, 5)
    assert ["hog"] == on_v2.loop.kills.killed
    assert "it acted 5 s ago, and rests for 55 s more" == why()["usage"]


def stalled(watched: Watched, watch: RuleWatch, name: str, *, is_exact: bool) -> Fired:
    """Return the triggers of a cgroup among those that the watch wants, as having fired."""
    wanted, _ = watch._wanted_triggers()
    return {one: is_exact for one in wanted if one.cgroup == f"/node/{name}"}


@pytest.mark.parametrize("victims", [["hog"], []], ids=["exact", "in another window"])
async def test_a_stall_that_the_kernel_has_seen_in_the_rules_window_is_acted_on_then(
    on_v2: Watched, victims: list[str]
) -> None:
    board, is_exact = SourceBoard(), bool(victims)
    for name in ("hog", "small"):
        on_v2.fake.file(f"/node/{name}", "memory.pressure", pressure(0.0, 10.0))
    watch = on_v2.watch(make_rule(STALL, for_seconds=0.0), triggers=RulePressure(board))
    await on_v2.ticks(watch, 2)
    wanted, left_out = watch._wanted_triggers()
    assert 0 == left_out
    assert [("/", "some", 2.0), ("/node/hog", "some", 2.0), ("/node/small", "some", 2.0)] == [
        (one.cgroup, one.kind, one.window_seconds) for one in wanted
    ]
    assert (0.5, f"{on_v2.fake.directory('/node/hog')}/memory.pressure") == next(
        (one.stall_seconds, one.path) for one in wanted if one.cgroup == "/node/hog"
    )
    assert [] == on_v2.reads

    on_v2.fake.file("/node/hog", "memory.pressure", pressure(0.0, 10.6))
    await watch.act_on_stalls(stalled(on_v2, watch, "hog", is_exact=is_exact))
    assert victims == on_v2.loop.kills.killed
    assert {"/node/hog"} == set(on_v2.reads)
    if victims:
        (record,) = on_v2.records
        assert record.decision.rule is not None
        assert 0.5 == round(record.decision.rule.inputs[0].value, 2)


async def test_a_stall_wakes_the_watch_and_its_triggers_are_shown_as_a_source(
    on_v2: Watched, nursery: trio.Nursery
) -> None:
    kernel, board = Kernel(), SourceBoard()
    for name in ("hog", "small"):
        on_v2.fake.file(f"/node/{name}", "memory.pressure", pressure(0.0, 10.0))
    triggers = RulePressure(board, open_one=kernel.open)
    watch = on_v2.watch(make_rule(STALL, for_seconds=0.0), triggers=triggers)
    await nursery.start(watch.run)
    with trio.fail_after(90):
        while len(triggers.armed) < 3:  # noqa: ASYNC110 - of the machine and of two cgroups
            await trio.sleep(0.01)
        paths = {one.cgroup: Path(one.path) for one in triggers.armed}
        kernel.stall(kernel.name_of(paths["/node/small"]))
        while not on_v2.records:  # noqa: ASYNC110
            await trio.sleep(0.01)
    assert ["small"] == on_v2.loop.kills.killed
    state = board.state(RULE_PRESSURE)
    assert (SourceHealth.ARMED, "3 triggers", 1) == (state.health, state.detail, state.wakes)
    nursery.cancel_scope.cancel()
    kernel.close()


async def test_a_stall_of_the_machine_opens_what_is_for_it_without_waiting_for_the_second(
    on_v2: Watched,
) -> None:
    on_v2.fake.file("/node/hog", "memory.pressure", pressure(90.0, 10.0))
    watch = on_v2.watch(make_rule(FULL, for_seconds=0.0), triggers=RulePressure(SourceBoard()))
    await on_v2.ticks(watch, 1)
    on_v2.loop.now_seconds -= 0.8
    on_v2.stall(0.1)
    (of_machine,) = watch._of_machine
    await watch.act_on_stalls({of_machine: True})
    assert ["hog"] == on_v2.loop.kills.killed


async def test_a_trigger_of_a_cgroup_that_is_another_one_by_now_says_nothing(on_v2: Watched) -> None:
    on_v2.fake.file("/node/hog", "memory.pressure", pressure(0.0, 10.0))
    watch = on_v2.watch(make_rule(STALL, for_seconds=0.0), triggers=RulePressure(SourceBoard()))
    await on_v2.ticks(watch, 1)
    (fired,) = stalled(on_v2, watch, "hog", is_exact=True)
    await watch.act_on_stalls({fired._replace(inode=fired.inode + 1): True})
    await watch.act_on_stalls({fired._replace(resource="io"): True})
    assert [] == on_v2.reads


async def test_on_v1_the_machine_alone_has_triggers(
    make_tree: FakeTreeMaker, make_loop: Callable[..., FakeLoop], tmp_path: Path
) -> None:
    machine = tmp_path / "pressure"
    machine.mkdir()
    watched = Watched(make_tree(CgroupVersion.V1), make_loop(), machine)
    rules = (make_rule(FULL), make_rule(FULL, name="m", cgroups=("/",)))
    watch = watched.watch(*rules, triggers=RulePressure(SourceBoard()))
    await watched.ticks(watch, 1)
    wanted, _ = watch._wanted_triggers()
    assert [("/", "some"), ("/", "full")] == [(one.cgroup, one.kind) for one in wanted]


async def test_the_machine_itself_is_a_cgroup_of_a_rule(watched: Watched) -> None:
    rule = make_rule(FULL, cgroups=("/",), for_seconds=2.0, action=RuleAction.EVICT_WORST)
    watched.loop.usages.seen = {"uid-hog": PodUsage(memory_working_set_bytes=90 * MIB)}

    def stall(number: int) -> None:
        (watched.machine / "memory").write_text(pressure(70.0, 0.9 * number))

    await watched.ticks(watched.watch(rule), 5, stall)
    assert ["hog"] == watched.loop.kills.killed


async def test_growth_is_counted_from_when_the_conditions_hold(watched: Watched) -> None:
    node = make_rule(USAGE, cgroups=("/node/small",), action=RuleAction.REPORT, for_seconds=2.0, name="small")
    rule = make_rule(USAGE, cgroups=("/node",), action=RuleAction.EVICT_WORST, by=RankedBy.GROWTH)
    watched.fake.add("/node", usage_bytes=90 * MIB)
    watched.fake.tree.set_memory_limit("/node", 100 * MIB)
    usages = watched.loop.usages

    def grow(number: int) -> None:
        usages.seen = {
            "uid-hog": PodUsage(memory_working_set_bytes=70 * MIB),
            "uid-small": PodUsage(memory_working_set_bytes=(5 + number) * MIB),
        }

    await watched.ticks(watched.watch(node, rule), 6, grow)
    assert ["small"] == watched.loop.kills.killed
    ranking = watched.records[0].document()["ranking"]
    assert (3 * MIB, "grew by 3Mi; priority 0, BestEffort") == (ranking[0]["usage"], ranking[0]["because"])


async def test_what_costs_more_is_observed_less_often_and_at_the_least_once_in_a_minute(
    watched: Watched,
) -> None:
    for cost_seconds, every_seconds in ((0.0, 1.0), (0.003, 10.0), (1.0, 60.0)):
        watched.cost_seconds = cost_seconds
        watch = watched.watch(make_rule(USAGE))
        watched.reads.clear()
        await watched.ticks(watch, 121)
        assert every_seconds == watch.document()[0]["every_seconds"]
        assert abs(watched.reads.count("/node/hog") - 121 / every_seconds) <= 5


async def test_a_cgroup_in_which_conditions_hold_is_observed_more_often_than_a_round_is_made(
    watched: Watched,
) -> None:
    watched.cost_seconds = 0.01
    watch = watched.watch(make_rule(USAGE, for_seconds=99.0))
    watched.use("hog", 90)
    await watched.ticks(watch, 31)
    assert watch.document()[0]["every_seconds"] > 30.0
    # Past the limit, the other metrics are read as well.
    assert (2 * 31, 1) == (watched.reads.count("/node/hog"), watched.reads.count("/node/small"))
    assert 30.0 == watch.document()[0]["holds"][0]["for_seconds"] - 1.0


async def test_what_a_rule_did_is_kept_for_an_hour_after_it_is_gone(watched: Watched) -> None:
    watch = watched.watch(make_rule(USAGE))
    for name, ago_seconds in (("gone", 3599.0), ("long-gone", 3601.0)):
        watched.acted[name] = {"/node/hog": Acted(watched.loop.now_seconds - ago_seconds)}
    await watch.add(())
    await watch.tick()
    assert {"gone"} == watched.acted.keys()


async def test_rules_of_users_have_all_others_observed_no_less_often_however_many_they_are(
    watched: Watched,
) -> None:
    watched.cost_seconds = 0.003
    for count in (1, 3):
        cgroups = ("/node/hog", "/node/small", "/node")[:count]
        of_users = [
            make_rule(USAGE, cgroups=(one,), name=one, cooldown_per_cgroup=True, cooldown_per_user_slice=True)
            for one in cgroups
        ]
        watch = watched.watch(make_rule(USAGE))
        await watch.add(of_users)
        await watched.ticks(watch, 3)
        assert [20.0] + [10.0 * count] * count == [one["every_seconds"] for one in watch.document()]


async def test_what_was_observed_some_time_ago_is_observed_afresh_before_it_is_acted_on(
    watched: Watched,
) -> None:
    watch = watched.watch(make_rule(USAGE))
    watched.use("hog", 90)
    await watched.ticks(watch, 2)
    (group,) = watch._groups
    group.due_seconds = group.active_due_seconds = 9999.0  # as where thousands of cgroups stir
    watched.use("hog", 10)
    await watched.ticks(watch, 5)
    assert [] == watched.loop.kills.killed
    assert 0 == watch.document()[0]["held_in"]


async def test_a_counter_counts_only_where_the_gauges_beside_it_hold(watched: Watched) -> None:
    name = "memory.failcnt" if watched.fake.tree.version is CgroupVersion.V1 else "memory.events"
    watch = watched.watch(
        make_rule(USAGE, MAX, action=RuleAction.REPORT, for_seconds=1.0), make_rule(MAX, name="other")
    )

    def grow(number: int) -> None:
        count = 5 * number
        text = f"{count}\n" if name == "memory.failcnt" else f"max {count}\n"
        watched.fake.file("/node/hog", name, text)
        watched.use("hog", 90 if number > 10 else 10)

    await watched.ticks(watch, 30, grow)
    (record,) = [one for one in watched.records if one.decision.rule and one.decision.rule.rule.name == "r"]
    assert record.decision.rule is not None
    assert 11 <= record.decision.rule.since_seconds - watched.loop.now_seconds + 30 <= 14


async def test_a_tenant_with_thousands_of_cgroups_has_so_many_observed(watched: Watched) -> None:
    delegated = watched.fake.directory("/node/user.service")
    for number in range(300):
        (delegated / f"c{number}").mkdir(parents=True)
    watch = watched.watch(make_rule(USAGE, cgroups=("/node/user.service/*",)))
    await watched.ticks(watch, 2)
    assert 257 == watch.document()[0]["matched"]
    assert "not root's alone" in watch.problems["rules: /node/user.service"]


async def test_a_rule_in_a_dry_run_kills_nobody(
    fake: FakeTree, make_loop: Callable[..., FakeLoop], tmp_path: Path
) -> None:
    watched = Watched(fake, make_loop(dry_run=True), tmp_path)
    watched.use("hog", 90)
    await watched.ticks(watched.watch(make_rule(USAGE)), 10)
    assert [] == watched.loop.kills.killed
    assert ["dry-run"] == [one.outcome for record in watched.records for one in record.attempts]


async def test_the_record_says_what_came_back(watched: Watched) -> None:
    watched.use("hog", 90)
    watched.loop.usages.seen = {"uid-hog": PodUsage(memory_working_set_bytes=90 * MIB)}
    watched.loop.passes.make(())  # what the node has
    await watched.ticks(watched.watch(make_rule(USAGE)), 5)
    (attempt,) = watched.records[0].attempts
    watched.loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: make_observation(480 * MIB)}
    watched.loop.passes.results.measure_result(attempt)
    assert (90 * MIB, 80 * MIB) == (attempt.credited_bytes, attempt.returned_bytes)


@pytest.mark.parametrize(
    ("condition", "why"),
    [
        (FULL, "cgroup v1 has pressure of / alone"),
        (STALL, "cgroup v1 has pressure of / alone"),
        (Condition(Metric(Measure.PAGES_SCANNED), 1.0, within_seconds=1.0), "cgroup v1 does not count it"),
        (Condition(Metric(Measure.EVENTS, "high"), 1.0, within_seconds=1.0), "cgroup v1 does not count it"),
        (USAGE, None),
        (MAX, None),
    ],
)
async def test_a_rule_that_can_never_act_on_this_machine_is_a_problem_and_says_so(
    make_tree: FakeTreeMaker,
    make_loop: Callable[..., FakeLoop],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    condition: Condition,
    why: str | None,
) -> None:
    machine = tmp_path / "pressure"
    machine.mkdir()
    watched = Watched(make_tree(CgroupVersion.V1), make_loop(), machine)
    watch = watched.watch(make_rule(USAGE, condition))
    await watched.ticks(watch, 1)
    expected = None
    if why is not None:
        expected = f"never acts on this machine: {condition} can't be observed: {why}"
        assert f"rules: r: {expected}" in caplog.text
        assert expected == watch.document()[0]["why_not"]
    assert expected == watch.problems.get("rules: r")


async def test_a_rule_that_v2_or_the_root_can_observe_is_no_problem(on_v2: Watched) -> None:
    assert {} == on_v2.watch(make_rule(FULL, MAX), make_rule(FULL, name="of all", cgroups=("/",))).problems
    (on_v2.machine / "memory").unlink()
    (why,) = on_v2.watch(make_rule(FULL)).problems.values()
    assert "this kernel has no" in why
    events = on_v2.watch(make_rule(MAX, cgroups=("/",))).problems
    assert ["/ does not count it"] == [one.rpartition(": ")[2] for one in events.values()]


CONTENTION = Mark("MemoryContention", "example.com/contention:NoSchedule", "rule r: usage")
MARKS = {"action": RuleAction.TAINT, "mark": CONTENTION, "transition_seconds": 20.0}


async def test_the_node_shows_a_rule_while_it_holds_and_for_its_transition_period_after(
    watched: Watched,
) -> None:
    watch = watched.watch(make_rule(USAGE, **MARKS))
    await watched.ticks(watch, 21)  # what an earlier run may have left is settled
    assert [Marks(left=(CONTENTION,)), Marks()] == watched.shown

    watched.use("hog", 90)
    await watched.ticks(watch, 3)
    assert [] == watched.shown[2:]  # it has not held for its time
    await watched.ticks(watch, 60)
    assert [Marks(shown=(CONTENTION,))] == watched.shown[2:]
    (record,) = watched.records  # of when it began, and no other while it holds
    assert ("taint", []) == (record.document()["rule"]["action"], record.document()["evictions"])
    assert [] == watched.loop.kills.killed
    (status,) = watch.document()
    assert ("MemoryContention", "the Node shows it") == (status["condition"], status["why_not"])

    watched.use("hog", 10)
    await watched.ticks(watch, 19)
    assert [] == watched.shown[3:]
    await watched.ticks(watch, 2)
    assert [Marks()] == watched.shown[3:]
    (status,) = watch.document()
    assert 0.0 == status["shown_seconds_left"]


async def test_a_rule_that_holds_again_within_its_transition_period_changes_nothing(watched: Watched) -> None:
    watch = watched.watch(make_rule(USAGE, **MARKS))
    for _ in range(6):  # a tenant that goes up and down
        watched.use("hog", 90)
        await watched.ticks(watch, 8)
        watched.use("hog", 10)
        await watched.ticks(watch, 8)
    assert [Marks(left=(CONTENTION,)), Marks(shown=(CONTENTION,))] == watched.shown
    assert 1 == len(watched.records)


async def test_a_reload_keeps_the_marks_of_rules_that_stay_and_no_others(watched: Watched) -> None:
    watched.use("hog", 90)
    other = Mark("Other", "", "rule s: usage")
    both = (make_rule(USAGE, **MARKS), make_rule(USAGE, **{**MARKS, "mark": other, "name": "s"}))
    await watched.ticks(watched.watch(*both), 8)
    assert {CONTENTION, other} == set(watched.shown[-1].shown)

    watched.shown.clear()
    await watched.ticks(watched.watch(both[0]), 1)
    assert [Marks(shown=(CONTENTION,))] == watched.shown

    watched.shown.clear()
    renamed = CONTENTION._replace(condition="Renamed")
    await watched.ticks(watched.watch(make_rule(USAGE, **{**MARKS, "mark": renamed})), 2)
    assert [Marks(left=(renamed,))] == watched.shown  # it has to hold for its time under another name

    watched.shown.clear()
    await watched.ticks(watched.watch(), 1)
    assert [Marks()] == watched.shown


async def test_a_condition_that_holds_in_a_cgroup_that_is_gone_is_over(watched: Watched) -> None:
    watch = watched.watch(make_rule(USAGE, **MARKS))
    watched.use("hog", 90)
    await watched.ticks(watch, 8)
    shutil.rmtree(watched.fake.directory("/node/hog"))
    await watched.ticks(watch, 60)
    assert Marks() == watched.shown[-1]
