"""Configurations one after the other, each with its loop: a node in files, under a clock that runs faster.

The clock is Trio's and that of all that is known, so that what takes a minute is over in three seconds.
"""

from __future__ import annotations

import errno
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio

from reactor.act.kill_path import KillPath
from reactor.guard.daemon import Reloads
from reactor.guard.endings import resumed_eviction
from reactor.guard.node import Node
from reactor.guard.record import EvictionAttempt, PassRecord
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.model.decisions import PolicyState
from reactor.model.pod_lists import PodEntry, PodLists
from reactor.model.rules import Condition, Measure, Metric, RuleAction
from reactor.model.settings import EvictionSettings, Settings, SourceSettings
from reactor.model.signals import Layout, NodeCondition, Resource, Signal
from reactor.model.thresholds import Observed, Threshold, ThresholdValue
from reactor.policy.events import PodEmptied
from reactor.supervisor import Nursery
from tests.support.builders import make_claim, make_pod, make_threshold
from tests.support.node_in_files import NODE, NodeInFiles
from tests.support.processes import MIB
from tests.support.rules import make_rule
from tests.support.waiting import until as until_by_the_clock
from tests.unit.act.test_errno_injection import Faults
from tests.unit.guard.conftest import lasting

if TYPE_CHECKING:
    from tests.unit.conftest import FakeTreeMaker

# By the fast clock.
until = partial(until_by_the_clock, seconds=2400.0, pause_seconds=0.2)


def below(mib: int, grace_period_seconds: float = 0.0) -> Threshold:
    return make_threshold(mib * MIB, grace_period_seconds=grace_period_seconds)


def guarding(*thresholds: Threshold, dry_run: bool = False) -> Settings:
    """Return settings by which nothing but the ticker wakes the loop, each second.

    What an evicted pod gives back is waited for without an end: half a second in which this process has no
    CPU is ten of the fast clock's, and another pod would have gone by then.
    """
    return Settings(
        eviction=EvictionSettings(
            thresholds=thresholds,
            pressure_transition_period_seconds=5.0,
            in_flight_deadline_seconds=3600.0,
        ),
        node_cgroup=NODE,
        pod_parents=(NODE,),
        sources=SourceSettings(ebpf=False, memcg=False, memory_high=False, psi=False, processes=False),
        housekeeping_interval_seconds=1.0,
        dry_run=dry_run,
    )


class Unexercised(KillPath):
    exercises = 0

    def exercise(self) -> str | None:
        """Return what went wrong: cgroups of files can't be removed, as the exercise does with its own."""
        self.exercises += 1
        return "a test process survived SIGKILL"


class Guarded:
    """A node, the loops that guard it, and what they told."""

    def __init__(self, node: NodeInFiles, settings: Settings) -> None:
        self.node = node
        self.records: list[PassRecord] = []
        self.resumed: list[EvictionAttempt] = []
        self.refused: list[Exception] = []
        self.begun = 0
        self.known = Node(observed=Observed(stale_seconds=0.0), clock_seconds=trio.current_time)
        self.kills = Unexercised(node.tree, settings.pod_parents)
        self.supervisor = Reloads(
            settings,
            lasting(node.tree, settings, self.kills, known=self.known),
            on_resumed=self._resume,
            on_refused=self.refused.append,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Guard the node in the body, from the first loop's first pass on."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.supervisor.run, nursery, self.records.append, self._begin)
            await until(lambda: self.begun, "the first loop")
            yield
            nursery.cancel_scope.cancel()

    async def passes(self, count: int) -> None:
        """Wait until so many passes more have been made."""
        wanted = len(self.records) + count
        await until(lambda: len(self.records) >= wanted, f"{count} passes")

    async def evicted(self, *names: str) -> None:
        """Wait until these, and no others, have been evicted."""
        await until(lambda: len(self.evictions()) >= len(names), f"evictions of {names}")
        assert list(names) == self.evictions()

    def evictions(self) -> list[str]:
        return [attempt.eviction.pod.name for record in self.records for attempt in record.attempts]

    def close(self) -> None:
        self.kills.close()
        self.known.victims.close()

    def _begin(self) -> None:
        self.begun += 1

    def _resume(self, attempt: EvictionAttempt, _: Nursery) -> None:
        self.resumed.append(attempt)


@pytest.fixture
def version() -> CgroupVersion:
    return CgroupVersion.V2


@pytest.fixture
def node(
    make_tree: FakeTreeMaker, version: CgroupVersion, mock_clock: trio.testing.MockClock
) -> Iterator[NodeInFiles]:
    mock_clock.rate = 20
    with NodeInFiles(make_tree(version)) as made:
        made.add_pod("small", 20)
        made.add_pod("hog", 60)
        yield made


@pytest.fixture
def guard(node: NodeInFiles) -> Iterator[type[Guarded]]:
    """Return a maker of what guards the node; it is closed after the test."""
    made: list[Guarded] = []

    def make(settings: Settings) -> Guarded:
        made.append(Guarded(node, settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("version", list(CgroupVersion))
async def test_hog_is_killed_at_the_pass_that_sees_the_crossing_and_no_pod_before_or_beside(
    node: NodeInFiles, guard, mock_clock
) -> None:
    guarded = guard(guarding(below(100)))
    async with guarded.running():
        await guarded.passes(3)
        assert [] == guarded.evictions()
        node.use(450)
        await guarded.evicted("hog")
        (record,) = [record for record in guarded.records if record.attempts]
        assert [NodeCondition.MEMORY_PRESSURE] == list(record.decision.conditions)
        await until(lambda: node.alive() == {"small"}, "the kill")
        node.use(100)
        await until(record.attempts[0].ended.is_set, "the end of the eviction")
        await guarded.passes(3)
    assert -signal.SIGKILL == node.end_status("hog")
    assert ["hog"] == guarded.evictions()
    assert {"small"} == node.alive()


async def test_soft_threshold_evicts_after_its_grace_period_and_not_before(
    node: NodeInFiles, guard, mock_clock
) -> None:
    settings = guarding(below(100, grace_period_seconds=5.0))
    guarded = guard(replace(settings, housekeeping_interval_seconds=3600.0))
    node.use(450)
    async with guarded.running():
        await guarded.evicted("hog")
    (record,) = [record for record in guarded.records if record.attempts]
    first = next(one for one in guarded.records if one.decision.conditions)
    assert record.decision.at_seconds - first.decision.at_seconds >= 5
    # The loop woke itself at the end of the grace period; the ticker would have come later.
    assert ["grace-period"] == [wake.source for wake in record.wakes]


async def test_dry_run_decides_and_kills_no_pod(node: NodeInFiles, guard, mock_clock) -> None:
    guarded = guard(guarding(below(100), dry_run=True))
    async with guarded.running():
        node.use(450)
        await guarded.evicted("hog")
        await guarded.passes(3)
    assert {"small", "hog"} == node.alive()


async def test_evicted_pod_that_can_not_be_asked_whether_it_lives_again_keeps_no_other_alive(
    node: NodeInFiles, guard, mock_clock
) -> None:
    guarded = guard(guarding(below(100)))
    async with guarded.running():
        node.use(450)
        await guarded.evicted("hog")
        node.use(100)
        await until(lambda: "hog" not in node.alive() and not guarded.known.state.in_flight, "its end")
        (node.tree.path(f"{NODE}/hog") / "cgroup.procs").write_text("no process id")
        await guarded.passes(1)
        node.use(450)
        await guarded.evicted("hog", "small")


@pytest.mark.suite("errno injection")
@pytest.mark.parametrize("version", list(CgroupVersion))
async def test_whichever_call_of_a_pass_is_refused_it_raises_nothing_and_the_next_pass_is_whole(
    node: NodeInFiles, guard, mock_clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a pass raises ends the daemon. One pod has been evicted, and its cgroup stands."""
    node.add_pod("evicted", 10)
    guarded = guard(guarding(below(100), dry_run=True))
    faults = Faults(monkeypatch)
    async with guarded.running():
        passes = guarded.supervisor.present.passes
        (evicted,) = (pod for pod in guarded.known.pods if pod.name == "evicted")
        (node.tree.path(evicted.cgroup) / "cgroup.procs").write_text("")
        node.use(450)

        def make_pass() -> list[str]:
            guarded.known.state = PolicyState()
            guarded.known.apply(PodEmptied(uid=evicted.uid))
            with faults.injected():
                record = passes.make(())
            return [one.pod.name for one in record.decision.evictions]

        assert ["hog"] == make_pass()
        counts = dict(faults.counts)
        for name, count in counts.items():
            for nth in range(1, count + 1):
                for number in (errno.ENOMEM, errno.EMFILE, errno.EIO, errno.ENODEV):
                    faults.counts.clear()
                    faults.fails = partial(_fails, name, nth, number)
                    make_pass()
                    faults.fails = lambda *_: None
                    assert ["hog"] == make_pass(), (name, nth, number)


def _fails(name: str, nth: int, number: int, called: str, count: int, _: object) -> int | None:
    return number if (called, count) == (name, nth) else None


async def test_reload_to_a_dry_run_calls_off_a_soft_eviction_and_expects_nothing_of_it(
    node: NodeInFiles, guard, mock_clock
) -> None:
    node.add_pod("stubborn", 80, stubborn=True)
    soft = guarding(below(100, grace_period_seconds=2.0))
    policy = replace(soft.eviction, max_pod_grace_period_seconds=30)
    soft = replace(soft, eviction=policy)
    guarded = guard(soft)
    async with guarded.running():
        mock_clock.rate = 4
        node.use(450)
        await guarded.evicted("stubborn")
        mock_clock.rate = 1  # the grace period is not over before the reload, however busy the machine is
        assert guarded.known.state.in_flight
        node.use(100)  # so that the dry run does not decide it once more
        guarded.supervisor.begin(replace(soft, dry_run=True))
        await until(lambda: guarded.begun == 2, "the next loop")
        (attempt,) = (attempt for record in guarded.records for attempt in record.attempts)
        with trio.fail_after(15):  # half of what the pod had been given
            await attempt.ended.wait()
        assert "called off" == attempt.outcome
        assert () == guarded.known.state.in_flight
        mock_clock.jump(40)  # past what the pod had been given
        await guarded.passes(2)
    assert {"small", "hog", "stubborn"} == node.alive()


NEVER = PodLists(never=(PodEntry(unit="stubborn"),))


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        ({"pod_lists": NEVER}, "called off"),
        ({"pod_parents": ("/elsewhere",)}, "failed"),
        ({"eviction": guarding(below(10)).eviction}, "called off"),
    ],
    ids=["never", "parents", "threshold"],
)
async def test_pod_that_a_reload_has_spared_in_its_grace_period_lives_on(
    node: NodeInFiles, guard, change: dict[str, Any], outcome: str, mock_clock
) -> None:
    node.add_pod("stubborn", 80, stubborn=True)
    soft = guarding(below(100, grace_period_seconds=2.0))
    soft = replace(soft, eviction=replace(soft.eviction, max_pod_grace_period_seconds=30))
    guarded = guard(soft)
    async with guarded.running():
        node.use(450)
        await guarded.evicted("stubborn")
        mock_clock.rate = 1  # the grace period is not over before the reload, however busy the machine is
        guarded.supervisor.begin(replace(soft, **change))
        await until(lambda: guarded.begun == 2, "the next loop")
        attempt = next(attempt for record in guarded.records for attempt in record.attempts)
        assert "ordered" == attempt.outcome
        mock_clock.jump(40)
        await attempt.ended.wait()
        assert (outcome, "stubborn") == (attempt.outcome, attempt.eviction.pod.name)
        assert attempt.eviction.pod.uid not in {claim.uid for claim in guarded.known.state.claims}
    assert "stubborn" in node.alive()


async def test_reload_guards_by_other_thresholds_and_keeps_what_is_known(
    node: NodeInFiles, guard, mock_clock
) -> None:
    guarded = guard(guarding(below(1), below(450, grace_period_seconds=3600.0)))
    async with guarded.running():
        await until(lambda: guarded.known.state.conditions, "the pressure")
        since = dict(guarded.known.state.condition_since)
        first = guarded.supervisor.present
        guarded.supervisor.begin(guarding(below(100), below(450, grace_period_seconds=3600.0)))
        await until(lambda: guarded.begun == 2, "the next loop")
        assert first is not guarded.supervisor.present
        assert since == dict(guarded.known.state.condition_since)
        assert [] == guarded.evictions()
        node.use(450)
        await guarded.evicted("hog")


async def test_reload_amid_the_start_of_a_loop_begins_the_next_one_all_the_same(
    node: NodeInFiles, guard, mock_clock
) -> None:
    guarded = guard(guarding(below(1)))
    async with guarded.running():
        for mib in (2, 3, 100):
            guarded.supervisor.begin(guarding(below(mib)))
        await until(lambda: guarded.supervisor.settings == guarding(below(100)), "the last")
        node.use(450)
        await guarded.evicted("hog")


# One that can't be made, and one whose first pass fails. No document is decoded to either.
BROKEN = {
    "unbuildable": replace(guarding(), housekeeping_interval_seconds=None),
    "undecidable": replace(guarding(), eviction=EvictionSettings(thresholds=(None,))),
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
async def test_settings_that_no_loop_can_begin_with_are_refused_and_those_before_them_evict(
    node: NodeInFiles, guard, broken: Settings, mock_clock
) -> None:
    wanted = guarding(below(100))
    guarded = guard(wanted)
    async with guarded.running():
        guarded.supervisor.begin(broken)
        await until(lambda: guarded.begun == 2, "a loop after the refused one")
        (refused,) = guarded.refused
        assert isinstance(refused, AttributeError | TypeError)
        assert wanted == guarded.supervisor.settings
        node.use(450)
        await guarded.evicted("hog")


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
async def test_first_settings_that_no_loop_can_begin_with_end_the_daemon(
    guard, broken: Settings, mock_clock
) -> None:
    guarded = guard(broken)
    with pytest.RaisesGroup(pytest.RaisesExc((AttributeError, TypeError)), flatten_subgroups=True):
        async with guarded.running():
            await trio.sleep_forever()
    assert [] == guarded.refused


async def test_failure_in_a_pass_ends_the_daemon(node: NodeInFiles, guard, mock_clock) -> None:
    guarded = guard(guarding(below(100)))
    with pytest.RaisesGroup(pytest.RaisesExc(ZeroDivisionError), flatten_subgroups=True):
        async with guarded.running():
            guarded.supervisor.present.passes.make = lambda *_: 1 // 0
            await trio.sleep_forever()


async def test_eviction_that_an_earlier_run_ordered_is_taken_up_by_the_first_loop_alone(
    node: NodeInFiles, guard, mock_clock
) -> None:
    guarded = guard(guarding(below(1)))
    uid = "uid of nobody here"
    async with guarded.running():  # whose pods, by their uids, the next run finds again
        uid = next(pod.uid for pod in guarded.known.pods if pod.name == "hog")
    again = guard(guarding(below(1)))
    claim = make_claim(uid, kill_at_seconds=trio.current_time(), deadline_seconds=1e6)
    again.known.state = again.known.state._replace(claims=(claim,))
    async with again.running():
        await until(lambda: node.alive() == {"small"}, "the kill")
        again.supervisor.begin(guarding(below(2)))
        await until(lambda: again.begun == 2, "the next loop")
    assert ["hog"] == [attempt.eviction.pod.name for attempt in again.resumed]
    assert [] == again.evictions()


@pytest.mark.parametrize(
    ("used_mib", "left_seconds", "never", "alive"),
    [
        (100, 0.0, "stubborn", {"small", "hog"}),
        (450, 0.0, "stubborn", {"small"}),
        (450, 3600.0, "hog", {"small", "hog"}),
    ],
    ids=["over", "over and short", "spared"],
)
async def test_soft_eviction_of_an_earlier_run_is_resumed_only_if_it_is_wanted(
    node: NodeInFiles, guard, used_mib: int, left_seconds: float, never: str, alive: set[str], mock_clock
) -> None:
    soft = replace(
        guarding(below(100, grace_period_seconds=36000.0)),
        pod_lists=PodLists(never=(PodEntry(unit=never),)),
    )
    before = guard(guarding(below(1)))
    uid = ""
    async with before.running():
        uid = next(pod.uid for pod in before.known.pods if pod.name == "hog")
    guarded = guard(soft)
    claim = make_claim(
        uid,
        kill_at_seconds=trio.current_time() + left_seconds,
        deadline_seconds=1e6,
        threshold=soft.eviction.thresholds[0],
    )
    guarded.known.state = guarded.known.state._replace(claims=(claim,))
    node.use(used_mib)
    async with guarded.running():
        (attempt,) = guarded.resumed
        await until(lambda: node.alive() == alive, "who lives")
        await guarded.passes(2)
        assert (alive, []) == (node.alive(), guarded.evictions())
    assert ("killed" if alive == {"small"} else "called off") == attempt.outcome


def test_soft_eviction_that_is_taken_up_again_is_for_its_own_threshold() -> None:
    images = Threshold(
        signal=Signal.IMAGEFS_AVAILABLE,
        value=ThresholdValue(text="1", amount=Fraction(1)),
        grace_period_seconds=30.0,
    )
    claim = make_claim(resource=Resource.EPHEMERAL_STORAGE, kill_at_seconds=30.0, threshold=images)
    resumed = resumed_eviction(make_pod("a"), claim, 5)
    assert (images.signal, images) == (resumed.signal, resumed.threshold)
    unknown = resumed_eviction(make_pod("a"), replace(claim, threshold=None), 5)
    assert (Signal.NODEFS_AVAILABLE, None) == (unknown.signal, unknown.threshold)


async def test_killing_is_tried_once_when_the_daemon_may_kill_and_in_no_dry_run(
    node: NodeInFiles, guard, mock_clock
) -> None:
    guarded = guard(guarding(below(1), dry_run=True))
    async with guarded.running():
        reloads = guarded.supervisor
        assert (0, None) == (guarded.kills.exercises, reloads.kill_path_problem)
        for begun in (2, 3):
            reloads.begin(guarding(below(begun)))
            await until(lambda begun=begun: guarded.begun == begun, "the next loop")
            assert (1, "a test process survived SIGKILL") == (
                guarded.kills.exercises,
                reloads.kill_path_problem,
            )


async def test_rule_that_would_have_acted_in_a_dry_run_acts_when_that_is_over(
    node: NodeInFiles, guard, mock_clock
) -> None:
    node.tree.set_memory_limit(f"{NODE}/hog", 61 * MIB)
    rule = make_rule(
        Condition(Metric(Measure.USAGE), 90.0),
        cgroups=(f"{NODE}/hog",),
        action=RuleAction.EVICT,
        for_seconds=0.0,
        cooldown_seconds=3600.0,
    )
    settings = replace(guarding(below(1), dry_run=True), rules=(rule,))
    guarded = guard(settings)
    async with guarded.running():
        await guarded.evicted("hog")
        assert {"small", "hog"} == node.alive()
        guarded.supervisor.begin(replace(settings, dry_run=False))
        await guarded.evicted("hog", "hog")
        await until(lambda: node.alive() == {"small"}, "the kill")


async def test_other_layout_by_the_devices_begins_a_loop_by_that_layouts_settings(
    node: NodeInFiles, guard, mock_clock
) -> None:
    settings = guarding(below(1))
    for_split = replace(settings.eviction, thresholds=(below(100),))
    guarded = guard(replace(settings, by_layout={Layout.SPLIT: for_split}))
    async with guarded.running():
        guarded.supervisor._adopt_layout(Layout.SPLIT)
        await until(lambda: guarded.begun == 2, "the next loop")
        node.use(450)
        await guarded.evicted("hog")


async def test_pods_are_listed_again_when_that_is_asked_for(node: NodeInFiles, guard, mock_clock) -> None:
    settings = replace(guarding(below(1)), housekeeping_interval_seconds=3600.0)
    guarded = guard(settings)
    async with guarded.running():
        node.add_pod("late", 30)
        assert {"small", "hog"} == {pod.name for pod in guarded.known.pods}
        guarded.supervisor.list_pods()
        await until(lambda: len(guarded.known.pods) == 3, "the pod that came")
        node.add_pod("later", 30)
        guarded.supervisor.refresh_pods()
        assert {"small", "hog", "late", "later"} == {pod.name for pod in guarded.known.pods}
