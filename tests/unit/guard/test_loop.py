"""A loop that no source wakes: at the start and at each reload, and near a threshold."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from reactor.act.kill_path import KillPath
from reactor.guard import approach, build, observations
from reactor.guard.build import Joined, loop_of
from reactor.guard.evictor import Evictor
from reactor.guard.loop import HOUSEKEEPING, Loop
from reactor.guard.node import Node
from reactor.guard.record import PassRecord
from reactor.kernel.cgroup import CgroupTree, CgroupVersion
from reactor.link.documents import what_was_done
from reactor.model.pods import Pod
from reactor.model.rules import Condition, Measure, Metric, Rule, RuleAction
from reactor.model.settings import EvictionSettings, Settings, SourceSettings
from reactor.model.signals import Signal
from reactor.model.thresholds import Observed
from reactor.model.wakes import Wake, WakeKind
from reactor.sources.catalogue import TICKER
from reactor.sources.chain import Chain
from reactor.workloads.cgroups import PodList
from tests.support.builders import make_pod, make_threshold
from tests.unit.guard.conftest import Nothing, lasting

if TYPE_CHECKING:
    from tests.unit.conftest import FakeTree

MIB = 1 << 20
HARD = make_threshold(100 * MIB)
NEVER_SECONDS = 3600.0  # of a test, however busy the machine is
# Nothing can be armed: what a loop waits for at first never comes. The ticker comes once, at the start: it
# would find what something else is to find.
SETTINGS = Settings(
    eviction=EvictionSettings(thresholds=(HARD,)),
    node_cgroup="/node",
    pod_parents=("/node",),
    sources=SourceSettings(ebpf=False, memcg=False, memory_high=False, psi=False, processes=False),
    housekeeping_interval_seconds=NEVER_SECONDS,
    dry_run=True,
)
TICKING = replace(SETTINGS, housekeeping_interval_seconds=10.0)


async def guard(
    fake: FakeTree,
    *,
    from_bytes: int,
    arming_seconds: float,
    cached_bytes: int = 0,
    first: Collection[str] = (TICKER, HOUSEKEEPING),
) -> list[PassRecord]:
    """Return the passes over a node of 512 MiB that none of its sources watches, until it has crossed.

    It uses `from_bytes` at first, `cached_bytes` of them as page cache. Once the loop has made the passes of
    its start, those for the `first`, and has nothing more to do, it uses nearly all.
    """
    fake.add("/node", usage_bytes=from_bytes)
    fake.counters("/node", usage_bytes=from_bytes, inactive_file_bytes=cached_bytes)
    fake.tree.set_memory_limit("/node", 512 * MIB)
    fake.add("/node/hog", usage_bytes=100 * MIB)
    kills = KillPath(fake.tree, SETTINGS.pod_parents)
    records: list[PassRecord] = []
    async with trio.open_nursery() as nursery:
        kept = lasting(fake.tree, SETTINGS, kills)
        evictor = Evictor(kills, nursery, kept.known, Nothing, deadline_seconds=10.0, dry_run=True)
        loop = loop_of(SETTINGS, kept, evictor, arming_seconds=arming_seconds)

        async def cross_once_it_is_quiet() -> None:
            seen = -1
            while seen < len(records) or not {wake.source for one in records for wake in one.wakes} >= {
                *first
            }:
                seen = len(records)
                await trio.sleep(0.1)
            fake.counters("/node", usage_bytes=500 * MIB, inactive_file_bytes=0)
            while not any(record.decision.evictions for record in records):  # noqa: ASYNC110 - a plain list
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()

        nursery.start_soon(cross_once_it_is_quiet)
        await nursery.start(loop.run, records.append)
        await trio.sleep_forever()
    loop.close()
    kills.close()
    return records


async def test_memory_is_observed_while_its_sources_are_being_armed(fake: FakeTree) -> None:
    records = await guard(fake, from_bytes=100 * MIB, arming_seconds=NEVER_SECONDS)
    crossed, *_ = [record for record in records if record.decision.evictions]
    assert [wake.source for wake in crossed.wakes] == ["arming"]
    assert [eviction.pod.name for eviction in crossed.decision.evictions] == ["hog"]


async def test_memory_that_is_near_its_threshold_is_observed_where_no_source_tells(fake: FakeTree) -> None:
    records = await guard(fake, from_bytes=400 * MIB, arming_seconds=0.0)
    crossed, *_ = [record for record in records if record.decision.evictions]
    assert [wake.source for wake in crossed.wakes] == ["glance"]
    assert [eviction.pod.name for eviction in crossed.decision.evictions] == ["hog"]


async def test_page_cache_that_lifted_a_level_is_observed_again_for_a_while(
    fake: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may count it for two seconds after it has gone, and no source reports that it has."""
    monkeypatch.setattr(observations, "OLD_CACHE_SECONDS", NEVER_SECONDS)  # its end: test_pass.py
    records = await guard(fake, from_bytes=450 * MIB, cached_bytes=300 * MIB, arming_seconds=0.0)
    crossed, *_ = [record for record in records if record.decision.evictions]
    assert [wake.source for wake in crossed.wakes] == ["glance"]


@pytest.mark.parametrize(
    ("from_mib", "arming_seconds", "source"), [(100, NEVER_SECONDS, "arming"), (400, 0.0, "glance")]
)
async def test_a_part_that_is_slow_to_start_keeps_no_crossing_waiting(
    fake: FakeTree, monkeypatch: pytest.MonkeyPatch, from_mib: int, arming_seconds: float, source: str
) -> None:
    """The kernel checks the programs of warrants for a second and more where it is slow."""

    async def start(*, task_status: trio.TaskStatus[None]) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(build, "FEATURES", (lambda *_: Joined(parts={"slow": start}),))
    records = await guard(fake, from_bytes=from_mib * MIB, arming_seconds=arming_seconds, first=())
    crossed, *_ = [record for record in records if record.decision.evictions]
    assert [wake.source for wake in crossed.wakes] == [source]
    assert [eviction.pod.name for eviction in crossed.decision.evictions] == ["hog"]


class GrowingPod:
    """A list of one pod; once it `grows`, the second glance at it finds the node's threshold crossed."""

    problems: Mapping[str, str] = {}

    def __init__(self, fake: FakeTree) -> None:
        self.grows = False
        self._fake = fake
        self._glances = 0

    async def listed(self) -> tuple[Pod, ...]:
        return (make_pod("hog"),)

    def refresh(self) -> tuple[Pod, ...]:
        self._glances += self.grows
        if self._glances == 2:
            self._fake.counters("/node", usage_bytes=500 * MIB, inactive_file_bytes=0)
        return (make_pod("hog"),)


def problems_of(loop: Loop) -> dict[str, str]:
    return {what: why for one in loop.reports for what, why in one.problems().items()}


@asynccontextmanager
async def running(
    settings: Settings,
    tree: CgroupTree,
    pods: PodList | None = None,
    clock_seconds: Callable[[], float] = time.monotonic,
) -> AsyncIterator[tuple[Loop, list[PassRecord]]]:
    """Run a loop in the body, which has its records as they come; it evicts in a dry run alone."""
    kills = KillPath(tree, settings.pod_parents)
    records: list[PassRecord] = []
    known = Node(observed=Observed(stale_seconds=35.0), clock_seconds=clock_seconds)
    async with trio.open_nursery() as nursery:
        evictor = Evictor(kills, nursery, known, Nothing, deadline_seconds=10.0, dry_run=True)
        kept = lasting(tree, settings, kills, known=known)
        loop = loop_of(settings, kept, evictor, pods=pods, arming_seconds=0.0)
        await nursery.start(loop.run, records.append)
        yield loop, records
        nursery.cancel_scope.cancel()
    loop.close()
    kills.close()


async def test_a_crossing_right_after_an_early_wake_is_attended_to_before_any_event(
    fake: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approach, "_REST_SHARE", 0)  # it may have stayed a moment ago
    fake.add("/node", usage_bytes=409 * MIB)
    fake.tree.set_memory_limit("/node", 512 * MIB)
    fake.add("/node/hog", usage_bytes=100 * MIB)
    pods = GrowingPod(fake)
    async with running(SETTINGS, fake.tree, pods=pods) as (loop, records):
        await trio.testing.wait_all_tasks_blocked()
        records.clear()
        pods.grows = True
        for bound in ("_MOST_SECONDS", "_STILL_SECONDS"):  # a busy machine takes longer for a rehearsal
            monkeypatch.setattr(approach, bound, 30.0)

        loop.wakes.notify(Wake(source="early", kind=WakeKind.MEMORY, at_ns=1))

        early, crossed = records
        assert ((), ["hog"]) == (
            early.decision.evictions,
            [eviction.pod.name for eviction in crossed.decision.evictions],
        )
        (wake,) = crossed.wakes
        assert ("early", Signal.MEMORY_AVAILABLE) == (wake.source, wake.signal)
        assert wake.at_ns > 1


@contextmanager
def collections() -> Iterator[list[int]]:
    """Yield a list that grows by one for each whole collection that is asked for in the body."""
    found: list[int] = []

    def note(phase: str, info: Mapping[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2:
            found.append(info["collected"])

    was_enabled = gc.isenabled()
    gc.disable()
    gc.callbacks.append(note)
    try:
        yield found
    finally:
        gc.callbacks.remove(note)
        if was_enabled:
            gc.enable()


async def passed(loop: Loop, records: list[PassRecord], kind: WakeKind) -> None:
    """Wake the loop, and wait until the pass is made and all that follows it is done."""
    before = len(records)
    loop.wakes.notify(Wake(source="test", kind=kind, at_ns=1))
    while len(records) == before:  # noqa: ASYNC110 - a plain list
        await trio.sleep(0.001)
    await trio.testing.wait_all_tasks_blocked()


@pytest.mark.parametrize(
    ("used_mib", "kind", "collected"),
    [
        (200, WakeKind.HOUSEKEEPING, 1),
        (200, WakeKind.PROCESSES, 0),  # right after a kill, or while swap fills
        (409, WakeKind.HOUSEKEEPING, 0),  # a crossing is near
    ],
)
async def test_garbage_is_collected_by_the_housekeeping_alone_and_not_near_a_crossing(
    fake: FakeTree, used_mib: int, kind: WakeKind, collected: int
) -> None:
    fake.add("/node", usage_bytes=used_mib * MIB)
    fake.tree.set_memory_limit("/node", 512 * MIB)
    async with running(SETTINGS, fake.tree) as (loop, records):
        await passed(loop, records, WakeKind.HOUSEKEEPING)  # behind the one that the ticker began with
        with collections() as found:
            await passed(loop, records, kind)
    assert collected == len(found)


async def test_garbage_is_collected_once_a_turn_of_the_housekeeping(fake: FakeTree) -> None:
    fake.add("/node", usage_bytes=200 * MIB)
    fake.tree.set_memory_limit("/node", 512 * MIB)
    async with running(SETTINGS, fake.tree) as (loop, records):
        await passed(loop, records, WakeKind.HOUSEKEEPING)
        before = len(records)
        with collections() as found:
            loop.wakes.notify(Wake(source=TICKER, kind=WakeKind.HOUSEKEEPING, at_ns=1))
            while len(records) < before + 2:  # noqa: ASYNC110 - a plain list
                await trio.sleep(0.001)
            await trio.testing.wait_all_tasks_blocked()
    assert 1 == len(found)


@pytest.mark.parametrize(
    ("is_armed", "used_mib", "passes"), [(True, 200, 1), (False, 200, 2), (True, 409, 2)]
)
async def test_at_rest_a_turn_of_the_ticker_is_one_pass(
    fake: FakeTree, monkeypatch: pytest.MonkeyPatch, used_mib: int, passes: int, *, is_armed: bool
) -> None:
    """That of the housekeeping; two where nothing watches memory, and near a crossing."""
    fake.add("/node", usage_bytes=used_mib * MIB)
    fake.tree.set_memory_limit("/node", 512 * MIB)
    monkeypatch.setattr(Chain, "is_armed", is_armed)
    async with running(SETTINGS, fake.tree) as (loop, records):
        await passed(loop, records, WakeKind.HOUSEKEEPING)
        before = len(records)
        loop.wakes.notify(Wake(source=TICKER, kind=WakeKind.HOUSEKEEPING, at_ns=1))

        def woken_by() -> list[str]:
            return [wake.source for record in records[before:] for wake in record.wakes]

        while HOUSEKEEPING not in woken_by():  # noqa: ASYNC110 - a plain list
            await trio.sleep(0.001)
    assert passes - 1 == woken_by().count(TICKER)


async def test_garbage_is_collected_now_and_then_where_a_crossing_stays_near(fake: FakeTree) -> None:
    fake.add("/node", usage_bytes=409 * MIB)
    fake.tree.set_memory_limit("/node", 512 * MIB)
    async with running(SETTINGS, fake.tree) as (loop, records):
        with collections() as found:
            for _ in range(40):
                await passed(loop, records, WakeKind.HOUSEKEEPING)
    assert 1 == len(found)


async def soft_eviction(fake: FakeTree) -> tuple[list[PassRecord], dict[str, str]]:
    """Return the passes over a node until it evicts for a soft threshold, and the loop's problems."""
    fake.add("/node", usage_bytes=400 * MIB)
    fake.tree.set_memory_limit("/node", 512 * MIB)
    fake.add("/node/hog", usage_bytes=300 * MIB)
    if fake.tree.version is CgroupVersion.V2:
        stat = f"inactive_anon 0\nactive_anon 0\nactive_file {200 * MIB}\ninactive_file 0\n"
        fake.file("/node/hog", "memory.stat", stat)
        for cgroup in ("/", "/node/hog"):
            fake.file(cgroup, "memory.reclaim", "")
    soft = make_threshold(160 * MIB, grace_period_seconds=0.05)
    eviction = EvictionSettings(thresholds=(soft,), soft_reclaim_seconds=90.0)  # of a busy machine
    settings = replace(SETTINGS, eviction=eviction, dry_run=False)
    async with running(settings, fake.tree) as (loop, records):
        while not any(record.decision.evictions for record in records):  # noqa: ASYNC110 - a plain list
            await trio.sleep(0.01)
        problems = problems_of(loop)
    return records, problems


async def test_pods_are_asked_for_memory_before_one_is_evicted_for_a_soft_threshold(fake: FakeTree) -> None:
    records, problems = await soft_eviction(fake)
    (evicted,) = [record for record in records if record.decision.evictions]
    asked = [record for record in records if record.decision.soft_reclaim is not None]
    if fake.tree.version is CgroupVersion.V1:
        assert (asked, evicted.reclaimed) == ([], ())
        assert "cgroup v1" in problems["reclaimBeforeSoft"]
        return
    assert "reclaimBeforeSoft" not in problems
    assert len(asked) == 1
    assert fake.read("/node/hog", "memory.reclaim").isdecimal()
    (reclaimed,) = evicted.reclaimed
    assert reclaimed.freed == 0
    assert reclaimed.did[0].endswith("of page cache from /node/hog")
    assert asked[0].id < evicted.id


FULL_RECLAIM = Rule(
    name="full",
    cgroups=("/node/hog",),
    conditions=(Condition(Metric(Measure.USAGE), 50.0),),
    for_seconds=0.0,
    action=RuleAction.RECLAIM,
    reclaim_seconds=90.0,  # of a busy machine
)


async def reclaimed_by_rule(fake: FakeTree, *, dry_run: bool = False) -> tuple[PassRecord, dict[str, str]]:
    """Return the record of a rule that reclaims from a cgroup of 300 MiB, and the loop's problems."""
    fake.add("/node", usage_bytes=300 * MIB)
    fake.tree.set_memory_limit("/node", 512 * MIB)
    fake.add("/node/hog", usage_bytes=300 * MIB)
    fake.tree.set_memory_limit("/node/hog", 310 * MIB)
    if fake.tree.version is CgroupVersion.V2:
        for cgroup in ("/", "/node/hog"):
            fake.file(cgroup, "memory.reclaim", "")
    settings = replace(SETTINGS, rules=(FULL_RECLAIM,), dry_run=dry_run)
    async with running(settings, fake.tree) as (loop, records):
        while not any(record.decision.rule for record in records):  # noqa: ASYNC110 - a plain list
            await trio.sleep(0.01)
        problems = problems_of(loop)
        assert all(hold.is_over for hold in loop.passes.known.state.holds)
    (record,) = [record for record in records if record.decision.rule]
    return record, problems


async def test_a_rule_reclaims_from_its_cgroup_and_one_record_has_inputs_and_what_was_freed(
    fake: FakeTree,
) -> None:
    record, problems = await reclaimed_by_rule(fake)
    (reclaimed,) = record.reclaimed
    document = record.document()
    assert ("reclaim", "10%", 90.0) == tuple(
        document["rule"][key] for key in ("action", "amount", "most_seconds")
    )
    assert 96.774 == document["rule"]["inputs"][0]["value"]
    assert ("rule", "rule", "bytes") == tuple(
        document["reclaimed"][0][key] for key in ("kind", "signal", "unit")
    )
    assert [] == document["evictions"]
    if fake.tree.version is CgroupVersion.V1:
        assert "cgroup v1" in reclaimed.problems[0]
        assert "cgroup v1" in problems["rules: reclaim"]
        return
    assert "rules: reclaim" not in problems
    assert 30 * MIB == reclaimed.wanted
    assert ("30Mi from /node/hog",) == reclaimed.did
    assert fake.read("/node/hog", "memory.reclaim").isdecimal()
    assert "reclaimed 0 from /node/hog" == what_was_done(document)


async def test_a_rule_that_reclaims_does_not_in_a_dry_run(fake: FakeTree) -> None:
    record, _ = await reclaimed_by_rule(fake, dry_run=True)
    assert () == record.reclaimed
    assert record.dry_run
    assert "dry-run reclaim of 10% from /node/hog" == what_was_done(record.document())
    if fake.tree.version is CgroupVersion.V2:
        assert "" == fake.read("/node/hog", "memory.reclaim")


class ListedPods:
    """A list of pods that the test sets; `glances` counts how often it was asked for."""

    problems: Mapping[str, str] = {}

    def __init__(self, *present: Pod) -> None:
        self.present = present
        self.glances = 0
        self.fd = -1

    async def listed(self) -> tuple[Pod, ...]:
        return self.present

    def refresh(self) -> tuple[Pod, ...]:
        self.glances += 1
        if self.fd >= 0:
            with suppress(BlockingIOError):
                os.eventfd_read(self.fd)
        return self.present

    def changed_fd(self) -> int:
        return self.fd


@pytest.fixture
def standing_clock(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> trio.testing.MockClock:
    """Virtual time, which stands while anything is done: no thread works, for which it would not wait."""

    async def call_at_once(call: Callable[..., object], *arguments: object, **_: object) -> object:
        await trio.lowlevel.checkpoint()
        return call(*arguments)

    monkeypatch.setattr(trio.to_thread, "run_sync", call_at_once)
    return autojump_clock


@asynccontextmanager
async def shortage(fake: FakeTree, pods: ListedPods, *, dry_run: bool) -> AsyncIterator[list[PassRecord]]:
    """Yield the passes over a node of 512 MiB of which 12 MiB are available, in virtual time."""
    fake.add("/node", usage_bytes=500 * MIB)
    fake.tree.set_memory_limit("/node", 512 * MIB)
    for pod in ("hog", "newcomer", "database"):
        fake.add(f"/node/{pod}", usage_bytes=100 * MIB)
    settings = replace(TICKING, dry_run=dry_run)
    async with running(settings, fake.tree, pods=pods, clock_seconds=trio.current_time) as (_, records):
        yield records


NEVER = replace(make_pod("database"), critical_because="never list")
VIRTUAL_SECONDS = 55
FEW = 30  # a tick in ten seconds, and one for each source that is tried again


async def test_a_dry_run_makes_few_passes_while_its_threshold_stays_met_and_one_record_of_it(
    fake: FakeTree, standing_clock: trio.testing.MockClock
) -> None:
    async with shortage(fake, ListedPods(make_pod("hog")), dry_run=True) as records:
        await trio.sleep(VIRTUAL_SECONDS)
        assert len(records) <= FEW
        (reported,) = [record for record in records if record.attempts]
        assert ["dry-run"] == [attempt.outcome for attempt in reported.attempts]
        assert not any(record.decision.deferred_because for record in records)


async def test_few_passes_and_looks_are_made_while_no_pod_can_be_evicted_and_a_newcomer_goes_at_once(
    fake: FakeTree, standing_clock: trio.testing.MockClock
) -> None:
    pods = ListedPods(NEVER)
    async with shortage(fake, pods, dry_run=False) as records:
        await trio.sleep(VIRTUAL_SECONDS)
        assert len(records) <= FEW
        assert pods.glances <= 30 * VIRTUAL_SECONDS
        assert not any(record.attempts for record in records)

        pods.present = (NEVER, make_pod("newcomer"))
        await trio.sleep(1.5)  # before the next tick: it has to be seen by itself
        evicted = [one.eviction.pod.name for record in records for one in record.attempts]
        assert ["newcomer"] == evicted[:1]
        assert {"glance"} == {wake.source for wake in _first_with_attempts(records).wakes}


async def test_a_cgroup_that_comes_while_no_pod_can_be_evicted_wakes_the_guard(
    fake: FakeTree, standing_clock: trio.testing.MockClock
) -> None:
    """Its first process comes later, and no event reports it: it is looked for often for a second."""
    pods = ListedPods(NEVER)
    pods.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    try:
        async with shortage(fake, pods, dry_run=False) as records:
            await trio.sleep(VIRTUAL_SECONDS + 0.1)  # between two looks, of which each takes what has come
            assert len(records) <= FEW
            before = pods.glances
            os.eventfd_write(pods.fd, 1)
            await trio.sleep(0.5)
            assert pods.glances - before >= 40  # each 10 ms, and each 500 ms where nothing has come
            pods.present = (NEVER, make_pod("newcomer"))
            await trio.sleep(0.015)
            assert ["newcomer"] == [one.eviction.pod.name for one in _first_with_attempts(records).attempts]
    finally:
        os.close(pods.fd)


class Waits(trio.abc.Instrument):
    """Counts how often the loop has waited: each time the process was woken once."""

    def __init__(self) -> None:
        self.count = 0

    def after_io_wait(self, timeout: float) -> None:  # noqa: ARG002 - trio's own name
        self.count += 1


async def test_the_guard_is_seldom_woken_while_evictions_are_slowed_down_and_a_hog_goes_all_the_same(
    fake: FakeTree, standing_clock: trio.testing.MockClock
) -> None:
    unit = 40 * MIB  # with so much left no hog can take it before it is observed
    fake.add("/node", usage_bytes=420 * unit)
    fake.tree.set_memory_limit("/node", 512 * unit)
    fake.add("/node/first", usage_bytes=30 * unit)
    fake.add("/node/hog", usage_bytes=2 * unit)
    eviction = replace(
        SETTINGS.eviction,
        thresholds=(make_threshold(100 * unit),),
        unhelpful_eviction_pause_seconds=10 * VIRTUAL_SECONDS,
    )
    settings = replace(TICKING, eviction=eviction, dry_run=False)
    pods = ListedPods(make_pod("first"), make_pod("hog"))
    async with running(settings, fake.tree, pods=pods, clock_seconds=trio.current_time) as (passing, records):
        await trio.sleep(1.0)
        fake.counters("/node/first", usage_bytes=0, inactive_file_bytes=0)  # and a leak has taken it
        await trio.sleep(30.0)
        assert passing.passes.known.state.slowdowns
        before, waits = len(records), Waits()
        trio.lowlevel.add_instrument(waits)
        await trio.sleep(VIRTUAL_SECONDS)
        trio.lowlevel.remove_instrument(waits)
        assert waits.count <= 150 * VIRTUAL_SECONDS  # to observe each 5 ms takes 400 a second
        assert not any(record.attempts for record in records[before:])

        fake.counters("/node", usage_bytes=460 * unit, inactive_file_bytes=0)
        fake.counters("/node/hog", usage_bytes=42 * unit, inactive_file_bytes=0)
        await trio.sleep(1.5)  # the pause follows from the real cost, on a busy machine too
        attempts = _first_with_attempts(records[before:]).attempts
        assert ["hog"] == [one.eviction.pod.name for one in attempts]


def _first_with_attempts(records: list[PassRecord]) -> PassRecord:
    return next(record for record in records if record.attempts)
