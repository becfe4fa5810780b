"""Warrants are given where the decision is certain, withdrawn before anything else, followed where served."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from reactor.errors import BpfError
from reactor.kernel.bpf.records import CounterAddresses, WarrantOutcome, WarrantRecord
from reactor.kernel.bpf.warrants import ClaimState, PageCache, Result, Terms
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.model.decisions import Inputs, PolicyState, Snapshot
from reactor.model.kills import WarrantEnd
from reactor.model.pods import Pod, PodUsage
from reactor.model.settings import EvictionSettings
from reactor.model.signals import NodeCondition, Signal
from reactor.model.thresholds import Observation
from reactor.model.wakes import Wake
from reactor.policy.events import PodEmptied
from reactor.policy.forecast import Forecast
from reactor.sources.levels import MemoryLevel
from reactor.sources.wakes import Wakes
from reactor.warrants.warrants import (
    EXPIRY_SECONDS,
    RENEWAL_SECONDS,
    RETRIAL_SECONDS,
    NoWarrantError,
    Reads,
    Warrants,
)
from tests.support.builders import make_pod, make_threshold
from tests.unit.guard.conftest import WAKE, FakeUsages

MIB = 1 << 20
PAGES = MIB // 4096
HARD = make_threshold(100 * MIB)
CAPACITY = 1000 * MIB


class FakeProbe:
    """The kernel's side as bpf/warrant.bpf.c has it, without a kernel: `charge` is what it sees."""

    made_by = ""

    def __init__(self) -> None:
        self.fd = os.eventfd(0)
        self.claim: tuple[int, ClaimState] | None = None
        self.terms: Terms | None = None
        self.places: dict[int, int] = {}
        self.bounds: dict[int, int] = {}
        self.come = 0
        self.active_pages = 400
        self.active_most = 0
        self.found = _nothing()
        self.fails: Exception | None = None
        self.meanwhile: Callable[[], None] = lambda: None
        self.closed = False
        self.moved: dict[int, int] = {}
        self.records: list[WarrantRecord] = []

    def counters(self, directory: Path) -> CounterAddresses:
        inode = directory.stat().st_ino
        memory = self.moved.get(inode, inode * 16)
        return CounterAddresses(cgroup_id=inode, memory=memory, tasks=0, level=len(directory.parts))

    def place(self, address: int, place: int) -> None:
        if self.fails is not None:
            raise self.fails
        self.places[address] = place

    def displace(self, address: int) -> bool:
        return self.places.pop(address, None) is not None

    def bound(self, place: int, pages: int) -> None:
        self.bounds[place] = pages

    def arrivals(self) -> int:
        return self.come

    def page_cache(self) -> PageCache:
        return PageCache(pages=1000, active=self.active_pages, on_its_way=0)

    def is_claimed(self) -> bool:
        return self.claim is not None

    def is_live(self) -> bool:
        return self.claim is not None and self.claim[1] is ClaimState.LIVE

    def draft(self, generation: int, terms: Terms) -> bool:
        if self.claim is not None:
            return False
        self.claim, self.terms, self.found = (generation, ClaimState.DRAFT), terms, _nothing()
        self.meanwhile()
        return True

    def arm(self, generation: int, arrivals: int, *, active_most: int = 0) -> bool:
        self.active_most = active_most
        if self.claim != (generation, ClaimState.DRAFT):
            return False
        self.claim = (generation, ClaimState.LIVE)
        if arrivals != self.come:
            self.void(WarrantOutcome.NEW_CGROUP)
        return self.claim is not None

    def withdraw(self) -> ClaimState | None:
        claim, self.claim = self.claim, None
        return None if claim is None else claim[1]

    def result(self) -> Result:
        return self.found

    def take(self) -> Sequence[WarrantRecord]:
        os.eventfd_read(self.fd)
        taken, self.records = self.records, []
        return taken

    def lost(self) -> int:
        return 0

    def close(self) -> None:
        self.closed = True

    def void(self, outcome: WarrantOutcome) -> None:
        self.claim, self.found = None, replace(self.found, outcome=outcome)

    def serve(self, *, error: int = 0) -> None:
        """Kill as the program does."""
        assert self.claim is not None
        assert self.claim[1] is ClaimState.LIVE
        outcome = WarrantOutcome.REFUSED if error else WarrantOutcome.SERVED
        self.claim = (self.claim[0], ClaimState.SERVED)
        self.found = Result(
            outcome=outcome,
            crossed_ns=100,
            signalled_ns=150,
            value_pages=915 * PAGES,
            inactive_pages=14 * PAGES,
            pid=42,
            error=error,
            comm="hog",
        )

    @property
    def armed_for(self) -> int | None:
        """Return the cgroup that may be killed now."""
        if self.claim is None or self.claim[1] is not ClaimState.LIVE or self.terms is None:
            return None
        return self.terms.victim


def _nothing() -> Result:
    return Result(
        outcome=WarrantOutcome.OPEN,
        crossed_ns=None,
        signalled_ns=None,
        value_pages=0,
        inactive_pages=0,
        pid=0,
        error=0,
        comm="",
    )


class Setting:
    """A node of two pods with a hog, 2 MiB before its threshold, on directories as cgroups."""

    def __init__(self, root: Path, tree: CgroupTree) -> None:
        self.root = root
        self.probe = FakeProbe()
        self.woken: list[Wake] = []
        self.usages = FakeUsages()
        self.pods: tuple[Pod, ...] = ()
        self.asleep: tuple[Pod, ...] = ()
        for name, held in (("other", 100), ("hog", 600)):
            self.add(name, held)
        self.warrants = Warrants(tree, open_probe=lambda: self.probe)
        self.warrants.reads = self.reads()
        self.holds = lambda _: True
        self.capacity = CAPACITY
        self.available = 102 * MIB
        self.inactive_file_bytes = 10 * MIB
        self.outside_bytes = 0
        self.settings = EvictionSettings(thresholds=(HARD,))
        self.state = PolicyState()
        self.now_seconds = 1000.0

    def add(self, name: str, held_mib: int) -> None:
        directory = self.root / "node" / name
        directory.mkdir(parents=True)
        pod = replace(make_pod(name), cgroup=f"/node/{name}", cgroup_inode=directory.stat().st_ino)
        self.pods = (*self.pods, pod)
        self.usages.seen[pod.uid] = PodUsage(memory_working_set_bytes=held_mib * MIB)
        self.usages.cached[pod.uid] = 0

    @property
    def hog(self) -> Pod:
        return self.pods[1]

    @property
    def seen_again(self) -> Observation:
        """Return what is observed after the draft: what is in the pods is used, and `outside_bytes`."""
        held = sum(one.memory_working_set_bytes or 0 for one in self.usages.seen.values())
        return self.seen._replace(available=self.capacity - held - self.outside_bytes)

    @property
    def seen(self) -> Observation:
        return Observation(
            available=self.available, capacity=self.capacity, inactive_file_bytes=self.inactive_file_bytes
        )

    def level(self, **given: object) -> MemoryLevel:
        level = MemoryLevel(
            signal=HARD.signal,
            cgroup="/node",
            level_bytes=910 * MIB,
            threshold=HARD,
            working_set_bytes=900 * MIB,
        )
        return replace(level, **given)  # type: ignore[arg-type]

    def forecast(self, **seen: Mapping[Signal, Observation] | Mapping[str, PodUsage]) -> Forecast:
        """Return it by what is observed, but for what of a snapshot is given."""
        snapshot = Snapshot(signals={Signal.MEMORY_AVAILABLE: self.seen}, pods=dict(self.usages.seen))
        snapshot = snapshot._replace(**seen)  # type: ignore[arg-type]
        pods = tuple(pod for pod in self.pods if pod not in self.asleep)
        inputs = Inputs(self.settings, self.state, snapshot, pods, self.now_seconds)
        return Forecast(inputs=inputs, asleep=self.asleep, first=(self.hog,), prepared=(self.hog,))

    def reads(self, **given: object) -> Reads:
        none = {"holds": lambda _: False, "memory": dict, "refresh_pods": lambda: None, "parents": ()}
        wakes = {"notify": self.woken.append, "leave": self.woken.append}
        return Reads(**{"usages": FakeUsages(), **none, **wakes, **given})  # type: ignore[arg-type]

    def give(self) -> None:
        self.warrants.begin()
        self.give_by(self.forecast(), lambda: {Signal.MEMORY_AVAILABLE: self.seen_again})

    def give_by(self, forecast: Forecast, memory: Callable[[], Mapping[Signal, Observation]] = dict) -> None:
        """Give a warrant by this forecast; `memory` is observed after the draft."""
        self.warrants.reads = replace(
            self.warrants.reads, usages=self.usages, holds=self.holds, memory=memory
        )
        self.warrants.give(forecast)

    def knows_the_node(self) -> bool:
        """Return whether the node's cgroup has been looked up."""
        with suppress(NoWarrantError):
            return self.warrants._counter_of("/node") > 0
        return False

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait for the thread that looks cgroups up."""
        for _ in range(6000):
            if is_so():
                return
            await trio.sleep(0.005)
        raise AssertionError(self.warrants.document())

    async def start(self, nursery: trio.Nursery) -> None:
        self.warrants.pods(self.pods)
        self.warrants.levels([self.level()])
        await nursery.start(self.warrants.run)
        await self.until(lambda: len(self.probe.places) == len(self.pods))


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    found = Setting(tmp_path, CgroupTree(version=CgroupVersion.V2, memory_root=tmp_path))
    try:
        yield found
    finally:
        os.close(found.probe.fd)


@pytest.fixture
async def started(setting: Setting, nursery: trio.Nursery) -> Setting:
    await setting.start(nursery)
    return setting


async def test_certain_victim_is_armed_with_its_conditions(started: Setting) -> None:
    started.give()
    assert started.probe.armed_for == started.hog.cgroup_inode
    terms = started.probe.terms
    assert terms is not None
    assert (900 * PAGES + 1, 598 * PAGES, 1000 + 2 * PAGES) == (
        terms.level,
        terms.victim_least,
        terms.cache_most,
    )
    assert terms.watched_counter == (started.root / "node").stat().st_ino * 16
    places = {pod.name: started.probe.places[(pod.cgroup_inode or 0) * 16] for pod in started.pods}
    assert started.probe.bounds[places["other"]] == 102 * PAGES
    assert started.probe.bounds[places["hog"]] > 1 << 60
    assert started.warrants.why_none is None


async def test_pod_that_may_be_overtaken_gets_none(started: Setting) -> None:
    started.usages.seen[started.pods[0].uid] = PodUsage(memory_working_set_bytes=598 * MIB)
    started.give()
    assert started.probe.claim is None
    assert started.warrants.why_none == "cgroup/hog may come before cgroup/other by then"


async def test_pod_that_an_eviction_has_emptied_may_live_again_where_it_does_not_go_first(
    started: Setting,
) -> None:
    """The kernel holds it to what is charged to it still."""
    for held_mib, is_given in ((1, True), (700, False)):
        started.pods = started.pods[:2]
        started.add(f"emptied-{held_mib}", held_mib)
        started.asleep = started.pods[2:]
        started.warrants.pods(started.pods)
        address = (started.asleep[0].cgroup_inode or 0) * 16
        await started.until(lambda: address in started.probe.places)  # noqa: B023 - awaited here
        started.give()
        assert (started.probe.armed_for is not None) is is_given
        assert started.probe.bounds[started.probe.places[address]] == held_mib * PAGES
    assert started.warrants.why_none == "cgroup/hog may come before cgroup/emptied-700 by then"


async def test_page_cache_of_the_victim_counts_as_if_it_were_old(started: Setting) -> None:
    started.usages.cached[started.hog.uid] = 500 * MIB
    started.give()
    assert started.probe.claim is None


async def test_victim_far_ahead_of_all_others_is_armed_at_the_farther_early_level_already(
    started: Setting,
) -> None:
    """Others may take all that is left until the crossing; the victim's bounds are as narrow as ever."""
    started.available = 125 * MIB
    started.give()
    assert started.probe.armed_for == started.hog.cgroup_inode
    terms = started.probe.terms
    assert terms is not None
    assert (597 * PAGES, 1000 + 3 * PAGES) == (terms.victim_least, terms.cache_most)
    place = started.probe.places[(started.pods[0].cgroup_inode or 0) * 16]
    assert started.probe.bounds[place] == 125 * PAGES
    assert started.now_seconds + RENEWAL_SECONDS >= started.warrants.retry_seconds()


async def test_victim_that_may_be_overtaken_over_the_farther_distance_waits_for_the_nearer(
    started: Setting,
) -> None:
    started.usages.seen[started.pods[0].uid] = PodUsage(memory_working_set_bytes=580 * MIB)
    started.available = 125 * MIB
    started.give()
    assert started.probe.claim is None
    assert started.warrants.why_none == "cgroup/hog may come before cgroup/other by then"
    assert started.now_seconds + RENEWAL_SECONDS < started.warrants.retry_seconds()
    assert started.now_seconds + RETRIAL_SECONDS >= started.warrants.retry_seconds()
    started.available = 102 * MIB
    started.give()
    assert started.probe.armed_for == started.hog.cgroup_inode


async def test_no_warrant_is_given_from_afar_where_another_crossing_may_come_first(started: Setting) -> None:
    started.available = 125 * MIB
    started.warrants.levels([started.level(), started.level(cgroup="/node/other")])
    started.give()
    assert started.probe.claim is None
    assert started.warrants.why_none == "no crossing is near"


async def test_pod_that_outgrows_its_bound_while_it_is_read_gets_none(started: Setting) -> None:
    """Bounds are heeded from the draft on; what has grown before that is found by the second reading."""

    def grow() -> None:
        started.usages.seen[started.pods[0].uid] = PodUsage(memory_working_set_bytes=103 * MIB)

    started.probe.meanwhile = grow
    started.give()
    assert started.probe.claim is None
    assert started.warrants.why_none is not None
    assert "grows too fast" in started.warrants.why_none


async def test_pod_that_outgrows_its_bound_after_it_was_read_gets_none(started: Setting) -> None:
    started.probe.meanwhile = lambda: started.probe.void(WarrantOutcome.OTHER_GREW)
    started.give()
    assert started.probe.armed_for is None
    assert started.warrants.counted == {WarrantEnd.OTHER_GREW: 1}


async def test_cgroup_that_comes_after_the_pods_were_listed_leaves_no_warrant(started: Setting) -> None:
    started.warrants.begin()
    started.probe.come += 1
    started.give_by(started.forecast())
    assert started.probe.armed_for is None
    assert started.warrants.counted == {WarrantEnd.NEW_CGROUP: 1}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda at: setattr(at, "available", 99 * MIB), "memory.available<104857600 is crossed already"),
        (
            lambda at: at.warrants.levels([at.level(), at.level(cgroup="/node/other")]),
            "more than one crossing is near",
        ),
        (lambda at: setattr(at, "available", 400 * MIB), "no crossing is near"),
        (lambda at: setattr(at, "holds", lambda _: False), "is not prepared to be killed"),
        (lambda at: at.warrants.levels([]), "no crossing is near"),
        (
            lambda at: at.warrants.levels([at.level(working_set_bytes=None)]),
            "no one counter tells of the crossing",
        ),
        (lambda at: at.warrants.levels([at.level(cgroup="/gone")]), "/gone is not known to the kernel"),
        (lambda at: at.add("newcomer", 1), "is not known to the kernel yet"),
        (
            lambda at: setattr(at, "pods", (at.pods[0], replace(at.hog, cgroup_inode=1))),
            "cgroup/hog is not known to the kernel yet",
        ),
        (lambda at: setattr(at, "settings", EvictionSettings()), "may come before cgroup/hog"),
    ],
)
async def test_no_warrant_is_given_and_it_is_told_why(
    started: Setting, change: Callable[[Setting], None], why: str
) -> None:
    change(started)
    started.give()
    assert started.probe.claim is None
    assert started.warrants.why_none is not None
    assert why in started.warrants.why_none


async def test_withdrawal_comes_first_and_costs_nothing_without_a_warrant(started: Setting) -> None:
    assert started.warrants.withdraw() is None
    started.give()
    assert started.warrants.withdraw() is None
    assert started.probe.claim is None
    assert started.warrants.counted == {WarrantEnd.WITHDRAWN: 1}
    assert started.warrants.withdraw() is None
    assert started.warrants.counted == {WarrantEnd.WITHDRAWN: 1}


async def test_served_warrant_is_given_back_once_with_what_it_was_decided_on(started: Setting) -> None:
    started.give()
    started.probe.serve()
    served = started.warrants.withdraw()
    assert served is not None
    assert served.signalled_ns() == 150
    decision = served.decision()
    assert ["hog"] == [eviction.pod.name for eviction in decision.evictions]
    assert ["hog", "other"] == [place.pod.name for place in decision.ranking]
    document = served.document()
    assert (1, 100, 150, 42, "hog", None) == tuple(
        document[key] for key in ("generation", "crossed_ns", "signalled_ns", "pid", "comm", "refused")
    )
    assert (900 * MIB, 901 * MIB) == (document["level_bytes"], document["working_set_bytes"])
    assert started.warrants.counted == {WarrantEnd.SERVED: 1}
    assert started.warrants.withdraw() is None


async def test_served_warrant_that_nobody_followed_in_time_is_forgotten(started: Setting) -> None:
    """By then the pod may have been restarted in its cgroup."""
    started.give()
    started.probe.serve()
    started.warrants.far()
    started.warrants.clock_ns = lambda: time.monotonic_ns() + 6_000_000_000
    assert started.warrants.withdraw() is None
    assert started.warrants.counted == {WarrantEnd.SERVED: 1}


async def test_guard_that_was_stopped_for_long_follows_no_warrant(started: Setting) -> None:
    started.give()
    started.probe.serve()
    started.warrants.clock_ns = lambda: time.monotonic_ns() + 6_000_000_000
    assert started.warrants.withdraw() is None
    assert started.probe.claim is None
    assert started.warrants.counted == {WarrantEnd.SERVED: 1}


async def test_signal_that_the_kernel_refused_is_left_to_user_space(started: Setting) -> None:
    started.give()
    started.probe.serve(error=-errno.EPERM)
    served = started.warrants.withdraw()
    assert served is not None
    assert served.signalled_ns() is None
    assert served.document()["refused"] == "Operation not permitted"
    assert started.warrants.counted == {WarrantEnd.REFUSED: 1}


async def test_warrant_is_renewed_before_it_expires(started: Setting) -> None:
    started.give()
    assert started.now_seconds < started.warrants.retry_seconds()
    started.now_seconds += RENEWAL_SECONDS
    assert started.now_seconds >= started.warrants.retry_seconds()
    started.give()
    assert started.probe.armed_for == started.hog.cgroup_inode
    assert started.warrants.counted == {WarrantEnd.RENEWED: 1}


async def test_rehearsal_leaves_a_warrant_that_stands_as_it_is(started: Setting) -> None:
    started.give()
    before = started.probe.claim
    started.give()
    assert started.probe.claim == before
    assert started.warrants.counted == {}
    started.probe.void(WarrantOutcome.OTHER_GREW)
    started.give()
    assert started.probe.armed_for == started.hog.cgroup_inode
    assert started.warrants.counted == {WarrantEnd.OTHER_GREW: 1}


async def test_rehearsal_that_finds_it_crossed_leaves_the_warrant_to_the_victims_next_charge(
    started: Setting,
) -> None:
    started.give()
    before = started.probe.claim
    started.available = 100 * MIB - 1
    started.give()
    started.now_seconds += RENEWAL_SECONDS
    started.give()
    assert started.probe.claim == before
    assert started.warrants.counted == {}
    started.probe.serve()
    started.give()
    assert started.woken
    assert started.warrants.served() is not None


async def test_warrant_is_renewed_where_the_node_has_another_capacity(started: Setting) -> None:
    started.give()
    started.capacity -= MIB
    started.give()
    assert started.probe.terms is not None
    assert started.probe.terms.level == 899 * PAGES + 1
    assert started.warrants.counted == {WarrantEnd.RENEWED: 1}


async def test_warrant_that_was_served_before_its_renewal_wakes_the_loop(started: Setting) -> None:
    started.give()
    started.probe.serve()
    started.now_seconds += RENEWAL_SECONDS
    started.give()
    assert started.probe.armed_for is None
    assert ["warrant"] == [wake.source for wake in started.woken]
    assert started.warrants.withdraw() is not None


async def test_after_an_eviction_one_is_given_where_next_to_nothing_lies_outside_the_pods(
    started: Setting,
) -> None:
    started.give()
    assert started.probe.terms is not None
    assert started.probe.terms.outside_counter == 0
    started.warrants.far()
    started.settings = replace(started.settings, reclaims_memory=True)
    started.state = PolicyState(evicted_at=(started.now_seconds - 5,))
    started.outside_bytes = MIB - 1
    started.give()
    assert started.warrants.why_none is None
    assert started.probe.armed_for == started.hog.cgroup_inode
    assert started.probe.terms.outside_counter == started.probe.terms.watched_counter
    assert started.probe.active_most == 400
    started.warrants.far()
    started.outside_bytes = MIB // 4
    started.give()
    assert started.probe.active_most == 400 + PAGES * 3 // 4
    started.warrants.far()
    started.outside_bytes = MIB
    started.give()
    assert started.probe.armed_for is None
    assert started.warrants.why_none == "memory that no pod holds may be reclaimed first"


async def test_idle_page_cache_outside_the_pods_is_no_reason_for_a_reclaim(started: Setting) -> None:
    """It counts as available, and the policy would evict at once; the kernel is told how much may be used."""
    started.settings = replace(started.settings, reclaims_memory=True)
    started.state = PolicyState(evicted_at=(started.now_seconds - 5,))
    started.inactive_file_bytes = 50 * MIB
    started.warrants.levels([started.level(level_bytes=950 * MIB)])
    started.give()
    assert started.probe.armed_for == started.hog.cgroup_inode
    assert started.probe.active_most == 400 + PAGES


async def test_warrant_ends_with_the_grace_period_of_a_soft_threshold(started: Setting) -> None:
    """The eviction for that comes first from then on; until then the crossing has its own."""
    started.warrants.clock_ns = lambda: int(started.now_seconds * 1e9)
    soft = replace(make_threshold(150 * MIB), grace_period_seconds=30.0)
    started.settings = EvictionSettings(thresholds=(HARD, soft))
    for left_seconds, lasting_seconds in ((10.0, EXPIRY_SECONDS), (0.125, 0.124)):
        started.warrants.far()
        started.state = PolicyState(first_observed={soft: started.now_seconds - 30.0 + left_seconds})
        started.give()
        assert started.probe.armed_for == started.hog.cgroup_inode
        assert started.probe.terms is not None
        assert started.probe.terms.expires_ns == int((started.now_seconds + lasting_seconds) * 1e9)
    started.warrants.far()
    started.state = PolicyState(first_observed={soft: started.now_seconds - 30.0})
    started.give()
    assert started.probe.armed_for is None
    assert started.warrants.why_none == "the grace period of memory.available<157286400 ends"


@pytest.mark.parametrize("crossing", ["/node", "/"])
async def test_after_an_eviction_what_lies_beside_the_pods_in_their_parent_is_told_by_the_kernel(
    started: Setting, crossing: str
) -> None:
    """The parents' signal is observed beside the node's or the machine's, and the policy goes by it."""
    started.settings = replace(started.settings, reclaims_memory=True)
    started.state = PolicyState(evicted_at=(started.now_seconds - 5,))
    started.warrants.levels([started.level(cgroup=crossing)])
    started.warrants.connect(started.reads(parents=["/node"]))
    await started.until(started.knows_the_node)
    signals = {Signal.MEMORY_AVAILABLE: started.seen, Signal.ALLOCATABLE_MEMORY_AVAILABLE: started.seen}
    forecast = started.forecast(signals=signals)
    for outside_bytes, active_most in ((MIB // 2, 400 + PAGES // 2), (MIB, 0)):
        started.outside_bytes = outside_bytes
        there = {**signals, Signal.ALLOCATABLE_MEMORY_AVAILABLE: started.seen_again}
        started.warrants.far()
        started.warrants.begin()
        started.give_by(forecast, lambda: there)  # noqa: B023 - called at once
        assert (started.probe.armed_for is not None) == bool(active_most)
        assert started.probe.terms is not None
        assert started.probe.terms.outside_counter == (started.root / "node").stat().st_ino * 16
        assert started.probe.active_most == (active_most or 400 + PAGES // 2)


@pytest.mark.parametrize(
    "what", ["the machine", "several parents", "parents elsewhere", "the root", "can't be read"]
)
async def test_after_an_eviction_none_is_given_where_the_kernel_can_not_tell_what_lies_outside_the_pods(
    started: Setting, what: str
) -> None:
    started.settings = replace(started.settings, reclaims_memory=True)
    started.state = PolicyState(evicted_at=(started.now_seconds - 5,))
    forecast = started.forecast()
    memory = {Signal.MEMORY_AVAILABLE: started.seen_again}
    parents = {
        "several parents": ["/node/a", "/node/b"],
        "parents elsewhere": ["/elsewhere"],
        "the root": ["/"],
    }
    if what == "the machine":
        started.warrants.levels([started.level(cgroup="/")])
    elif what == "can't be read":
        memory = {}
    else:
        started.warrants.connect(started.reads(parents=parents[what]))
        memory = {
            Signal.MEMORY_AVAILABLE: started.seen,
            Signal.ALLOCATABLE_MEMORY_AVAILABLE: started.seen_again,
        }
        forecast = started.forecast(signals=memory)
    started.warrants.begin()
    started.give_by(forecast, lambda: memory)
    assert started.probe.armed_for is None
    assert started.warrants.why_none == "memory that no pod holds may be reclaimed first"


@pytest.mark.parametrize("in_what", ["rest", "renewal"])
async def test_warrant_that_a_pass_finds_served_makes_no_pass_inside_that_pass(
    started: Setting, in_what: str
) -> None:
    wakes, attended = Wakes(), []
    wakes.run_memory_pass_inline(attended.append)
    started.warrants.connect(started.reads(parents=["/node"], notify=wakes.notify, leave=wakes.leave))
    started.give()
    started.probe.serve()

    if in_what == "rest":
        started.warrants.far()
    else:
        started.now_seconds += RENEWAL_SECONDS
        started.give()

    assert [] == attended
    (left,) = await wakes.wait()
    assert "warrant" == left.source
    assert started.warrants.served() is not None


async def test_nothing_stays_armed_where_no_crossing_is_near_any_more(started: Setting) -> None:
    started.give()
    started.warrants.far()
    assert started.probe.claim is None
    assert started.now_seconds + 10 < started.warrants.retry_seconds()
    started.give()
    started.probe.serve()
    started.warrants.far()
    assert len(started.woken) == 1
    assert started.warrants.withdraw() is not None


@pytest.mark.parametrize(
    ("outcome", "end"),
    [
        (WarrantOutcome.EXPIRED, WarrantEnd.EXPIRED),
        (WarrantOutcome.SHRANK, WarrantEnd.SHRANK),
        (WarrantOutcome.OTHER_GREW, WarrantEnd.OTHER_GREW),
        (WarrantOutcome.CACHE_GREW, WarrantEnd.CACHE_GREW),
        (WarrantOutcome.OUTSIDE_GREW, WarrantEnd.OUTSIDE_GREW),
        (WarrantOutcome.NEW_CGROUP, WarrantEnd.NEW_CGROUP),
        (WarrantOutcome.REMOVED, WarrantEnd.REMOVED),
        (WarrantOutcome.OPEN, WarrantEnd.UNKNOWN),
    ],
)
async def test_warrant_that_the_kernel_voided_is_counted_by_its_reason(
    started: Setting, outcome: WarrantOutcome, end: WarrantEnd
) -> None:
    started.give()
    started.probe.void(outcome)
    assert started.warrants.withdraw() is None
    assert started.warrants.counted == {end: 1}


async def test_crossing_of_another_pod_is_counted_as_such(started: Setting) -> None:
    started.give()
    started.probe.found = replace(started.probe.found, crossed_ns=5)
    assert started.warrants.withdraw() is None
    assert started.warrants.counted == {WarrantEnd.OTHER_CROSSED: 1}


async def test_loop_is_woken_where_a_warrant_waited_for_a_pod_to_be_known(started: Setting) -> None:
    """A pod that has just come: nothing else would have one given before the nearer early level."""
    started.add("newcomer", 1)
    started.warrants.pods(started.pods)
    started.available = 125 * MIB
    started.give()
    assert started.warrants.why_none == "cgroup/newcomer is not known to the kernel yet"
    await started.until(lambda: bool(started.woken))
    started.give()
    assert started.probe.armed_for == started.hog.cgroup_inode
    started.warrants.pods(started.pods[:2])
    await started.until(lambda: len(started.probe.places) == 2)
    assert len(started.woken) == 1


async def test_pods_are_listed_soon_after_cgroups_have_come(setting: Setting, nursery: trio.Nursery) -> None:
    """Far from a crossing passes are rare, and a pod may take all memory within seconds of its start."""
    glances = []
    setting.warrants.reads = setting.reads(refresh_pods=lambda: glances.append(setting.probe.come))
    setting.warrants.newcomer_seconds = 0.01
    setting.probe.come = 3
    await setting.start(nursery)
    await trio.sleep(0.05)
    assert glances == []
    setting.probe.come = 5
    await setting.until(lambda: bool(glances))
    await trio.sleep(0.05)
    assert glances == [5]


async def test_pods_that_go_are_forgotten_by_the_kernel_too(started: Setting) -> None:
    address = (started.pods[0].cgroup_inode or 0) * 16
    started.warrants.pods(started.pods[1:])
    await started.until(lambda: address not in started.probe.places)
    assert len(started.probe.places) == 1


async def test_record_of_a_kill_wakes_the_loop_and_that_of_a_void_warrant_does_not(started: Setting) -> None:
    for outcome in (WarrantOutcome.OTHER_GREW, WarrantOutcome.SERVED):
        started.probe.records.append(WarrantRecord(outcome=outcome, at_ns=1, generation=1))
        os.eventfd_write(started.probe.fd, 1)
        await started.until(lambda: not started.probe.records)
        assert len(started.woken) == (outcome is WarrantOutcome.SERVED)


async def test_pod_that_is_another_cgroup_by_now_is_looked_up_again(started: Setting) -> None:
    """A warrant may name the place that moves: it goes first."""
    started.give()
    before = (started.hog.cgroup_inode or 0) * 16
    (started.root / "node" / "hog").rename(started.root / "node" / "gone")
    (started.root / "node" / "hog").mkdir()
    inode = (started.root / "node" / "hog").stat().st_ino
    started.pods = (started.pods[0], replace(started.hog, cgroup_inode=inode))
    started.warrants.pods(started.pods)
    await started.until(lambda: inode * 16 in started.probe.places)
    assert before not in started.probe.places
    assert started.probe.claim is None
    started.give()
    assert started.probe.armed_for == inode


async def test_address_that_came_back_is_the_new_pods(started: Setting) -> None:
    """The kernel has forgotten the pod that is gone; its place must not take the new one's away."""
    gone = started.pods[0]
    started.probe.moved[started.hog.cgroup_inode or 0] = (gone.cgroup_inode or 0) * 16
    started.pods = (gone, replace(started.hog, spared_cgroups=("/node/hog/pause",)))
    (started.root / "node" / "hog" / "pause").mkdir()
    started.warrants.pods(started.pods)
    await started.until(lambda: len(started.probe.places) == 1)
    started.warrants.pods(started.pods[1:])
    known = "1 of 1 pods known to the kernel"
    await started.until(lambda: started.warrants.document()["detail"] == known)
    assert list(started.probe.places) == [(gone.cgroup_inode or 0) * 16]


async def test_pod_whose_spared_cgroups_are_not_known_to_the_kernel_yet_gets_none(started: Setting) -> None:
    """The runtime has just told which container is the sandbox: the kernel would kill in it still."""
    (started.root / "node" / "hog" / "pause").mkdir()
    started.pods = (started.pods[0], replace(started.hog, spared_cgroups=("/node/hog/pause",)))
    started.give()
    assert started.probe.claim is None
    assert started.warrants.why_none == "cgroup/hog is not known to the kernel yet"


async def test_spared_cgroup_that_is_another_by_now_is_looked_up_before_a_warrant_is_given(
    started: Setting,
) -> None:
    pause = started.root / "node" / "hog" / "pause"
    pause.mkdir()
    started.pods = (started.pods[0], replace(started.hog, spared_cgroups=("/node/hog/pause",)))
    started.warrants.pods(started.pods)

    def is_armed() -> bool:
        started.warrants.withdraw()
        started.give()
        return started.probe.armed_for is not None

    await started.until(is_armed)
    pause.rename(pause.with_name("before"))  # its inode number is not to be given out again
    pause.mkdir()
    started.warrants.withdraw()
    started.give()
    assert started.probe.claim is None
    await started.until(is_armed)
    assert started.probe.terms is not None
    assert ((pause.stat().st_ino, len(pause.parts)),) == started.probe.terms.spared


async def test_victim_of_which_it_can_not_be_read_what_is_charged_gets_none(started: Setting) -> None:
    """The kernel would be told that it may shrink to nothing."""
    uid = started.hog.uid
    seen = started.usages.seen.pop(uid)
    started.probe.meanwhile = lambda: started.usages.seen.update({uid: seen})
    forecast = started.forecast(pods={uid: seen})
    started.warrants.begin()
    started.give_by(forecast)
    assert started.probe.claim is None
    assert started.warrants.why_none == "what is charged to cgroup/hog can't be read"


async def test_what_a_victim_takes_while_its_warrant_is_written_is_not_counted_on(started: Setting) -> None:
    """It could shrink by as much again without voiding the warrant, and be overtaken."""
    hog, other = started.hog.uid, started.pods[0].uid
    for uid, held in ((hog, 200), (other, 195)):
        started.usages.seen[uid] = PodUsage(memory_working_set_bytes=held * MIB)
    grown = {hog: PodUsage(memory_working_set_bytes=300 * MIB)}
    started.probe.meanwhile = lambda: started.usages.seen.update(grown)
    started.give()
    assert started.probe.claim is None
    assert started.warrants.why_none == "cgroup/hog may come before cgroup/other by then"


async def test_spared_cgroups_are_named_with_their_levels(started: Setting) -> None:
    pause = started.root / "node" / "hog" / "pause"
    pause.mkdir()
    started.pods = (started.pods[0], replace(started.hog, spared_cgroups=("/node/hog/pause",)))
    started.warrants.pods(started.pods)

    def is_spared() -> bool:
        started.warrants.withdraw()
        started.give()
        terms = started.probe.terms
        return terms is not None and terms.spared == ((pause.stat().st_ino, len(pause.parts)),)

    await started.until(is_spared)


async def test_pod_that_finds_the_map_full_stays_unknown(setting: Setting, nursery: trio.Nursery) -> None:
    setting.probe.fails = OSError(errno.E2BIG, "Argument list too long", "eBPF map warrant_places")
    setting.warrants.pods(setting.pods)
    setting.warrants.levels([setting.level()])
    await nursery.start(setting.warrants.run)
    await setting.until(lambda: setting.warrants.document()["state"] == "armed")
    setting.give()
    assert setting.probe.claim is None
    assert setting.warrants.why_none == "cgroup/hog is not known to the kernel yet"


@pytest.mark.parametrize("why", ["refused by the verifier", "the kernel is locked down"])
async def test_programs_that_are_refused_cost_one_line_and_no_kill(
    setting: Setting, nursery: trio.Nursery, why: str
) -> None:
    def refuse() -> FakeProbe:
        raise BpfError("eBPF object warrant", why)

    setting.warrants.open_probe = refuse
    await nursery.start(setting.warrants.run)
    assert setting.warrants.problem == f"eBPF object warrant: {why}"
    setting.give()
    assert setting.warrants.withdraw() is None
    setting.warrants.far()
    assert setting.warrants.document()["state"] == "failed"


async def test_cgroup_v1_has_no_warrants(setting: Setting, nursery: trio.Nursery) -> None:
    setting.warrants.tree = replace(setting.warrants.tree, version=CgroupVersion.V1)
    await nursery.start(setting.warrants.run)
    assert setting.warrants.problem is not None
    assert "cgroup v1" in setting.warrants.problem


async def test_end_of_a_generation_withdraws_and_leaves_what_was_served_to_the_next(
    setting: Setting,
) -> None:
    for is_served in (False, True):
        async with trio.open_nursery() as nursery:
            await setting.start(nursery)
            setting.give()
            if is_served:
                setting.probe.serve()
            nursery.cancel_scope.cancel()
        assert setting.probe.claim is None
        assert setting.probe.closed
        setting.probe.places.clear()
        served = setting.warrants.withdraw()
        assert (served is not None) is is_served
    assert setting.warrants.document()["state"] == "off"


# --- passes ---


async def test_pass_follows_what_the_kernel_has_killed(started: Setting, make_loop) -> None:
    """The pod of the warrant is evicted, whichever would be chosen now that its memory is coming back."""
    loop = make_loop(HARD, warrants=started.warrants)
    loop.have(*started.pods)
    loop.usages.seen = dict(started.usages.seen)
    started.give()
    started.probe.serve()
    loop.kills.empty = {"hog"}  # the only process has exited by now
    loop.usages.seen[started.hog.uid] = PodUsage(memory_working_set_bytes=0)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: started.seen._replace(available=700 * MIB)}
    ordinary = loop.passes.make([WAKE])
    (record,) = loop.passes.take_earlier()
    assert ordinary.attempts == ()
    assert loop.kills.killed == ["hog"]
    (attempt,) = record.attempts
    assert ("killed", 150, 600 * MIB) == (attempt.outcome, attempt.killed_ns, attempt.credited_bytes)
    assert attempt.served is not None
    assert attempt.served()["generation"] == 1
    assert not loop.passes.is_unfinished
    assert [started.hog.uid] == [flight.uid for flight in loop.known.state.in_flight]
    assert record.document()["evictions"][0]["warrant"]["signalled_ns"] == 150
    assert ["cgroup/hog", "cgroup/other"] == [one["pod"] for one in record.document()["ranking"]]


async def test_signal_that_is_sent_after_the_guard_has_followed_is_in_the_record(
    started: Setting, make_loop
) -> None:
    """The program takes the claim, and its CPU is taken away before it sends the signal."""
    loop = make_loop(HARD, warrants=started.warrants)
    loop.have(*started.pods)
    loop.usages.seen = dict(started.usages.seen)
    started.give()
    started.probe.serve()
    written = started.probe.found
    started.probe.found = replace(written, outcome=WarrantOutcome.OPEN, signalled_ns=None, pid=0, comm="")
    before_ns = time.monotonic_ns()
    ordinary = loop.passes.make([WAKE])
    (record,) = loop.passes.take_earlier()
    assert ordinary.attempts == ()
    (attempt,) = record.attempts
    assert attempt.killed_ns >= before_ns  # by the guard, which was the first then
    assert record.document()["evictions"][0]["warrant"]["signalled_ns"] is None
    started.probe.found = written
    assert record.document()["evictions"][0]["warrant"]["signalled_ns"] == 150
    started.give()
    assert started.probe.armed_for is not None
    told = record.document()["evictions"][0]["warrant"]
    assert (150, 42, "hog") == (told["signalled_ns"], told["pid"], told["comm"])


async def test_crossing_counts_though_its_memory_is_back_when_the_pass_comes(
    started: Setting, make_loop
) -> None:
    """The node was under pressure, and the kill is judged by what lay outside the pods at the crossing."""
    loop = make_loop(HARD, warrants=started.warrants)
    loop.have(*started.pods)
    loop.usages.seen = dict(started.usages.seen)
    started.give()
    started.probe.serve()
    loop.usages.seen[started.hog.uid] = PodUsage(memory_working_set_bytes=0)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: started.seen._replace(available=700 * MIB)}
    ordinary = loop.passes.make([WAKE])
    (record,) = loop.passes.take_earlier()
    assert ordinary.attempts == ()
    assert record.decision.conditions == (NodeCondition.MEMORY_PRESSURE,)
    (kill,) = loop.known.state.hard_memory_kills
    assert (600 * MIB, 200 * MIB + 1, 100 * MIB) == (
        kill.credited_bytes,
        kill.outside_bytes,
        kill.pods_bytes,
    )
    assert record.attempts[0].available_bytes == 100 * MIB - 1
    document = record.document()
    assert document["threshold"]["available"] < document["threshold"]["value"]


async def test_pass_without_a_served_warrant_decides_as_ever(started: Setting, make_loop) -> None:
    loop = make_loop(HARD, warrants=started.warrants)
    loop.have(*started.pods)
    loop.usages.seen = dict(started.usages.seen)
    started.give()
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: started.seen._replace(available=90 * MIB)}
    record = loop.passes.make([WAKE])
    assert started.probe.claim is None
    assert loop.kills.killed == ["hog"]
    assert record.attempts[0].served is None
    assert started.warrants.counted == {WarrantEnd.WITHDRAWN: 1}
    assert record.document()["evictions"][0]["no_warrant_because"] == "a warrant was given: withdrawn"


async def test_eviction_without_a_warrant_has_the_reason(started: Setting, make_loop) -> None:
    loop = make_loop(HARD, warrants=started.warrants)
    loop.have(*started.pods)
    loop.usages.seen = {
        pod.uid: PodUsage(memory_working_set_bytes=held_mib * MIB)
        for pod, held_mib in zip(started.pods, (595, 600), strict=True)
    }
    for available_mib in (102, 90):
        seen = started.seen._replace(available=available_mib * MIB)
        loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: seen}
        loop.now_seconds += 1.0
        record = loop.passes.make([WAKE])
    assert loop.kills.killed == ["hog"]
    assert record.document()["evictions"][0]["no_warrant_because"] == (
        "cgroup/other may come before cgroup/hog by then"
    )
    assert started.warrants.why_not_served() == started.warrants.why_none
    started.warrants._probe = None
    assert started.warrants.why_not_served() is None


async def test_warrant_is_given_where_another_pod_is_empty_since_its_eviction(
    started: Setting, make_loop
) -> None:
    started.add("emptied", 1)
    started.warrants.pods(started.pods)
    await started.until(lambda: len(started.probe.places) == 3)
    loop = make_loop(HARD, warrants=started.warrants)
    loop.have(*started.pods)
    loop.usages.seen = dict(started.usages.seen)
    loop.usages.cached = dict(started.usages.cached)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: started.seen}
    loop.known.apply(PodEmptied(uid=started.pods[2].uid))
    loop.passes.make([WAKE])
    assert started.probe.armed_for == started.hog.cgroup_inode


async def test_warrant_is_given_where_all_pods_hold_less_than_the_threshold(
    started: Setting, make_loop
) -> None:
    """With nothing left none would be evicted for that; the crossing itself evicts one."""
    loop = make_loop(HARD, warrants=started.warrants)
    loop.have(*started.pods)
    for pod, held_mib in zip(started.pods, (10, 60), strict=True):
        started.usages.seen[pod.uid] = PodUsage(memory_working_set_bytes=held_mib * MIB)
    loop.usages.seen = dict(started.usages.seen)
    loop.usages.cached = dict(started.usages.cached)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: started.seen}
    loop.passes.make([WAKE])
    assert started.probe.armed_for == started.hog.cgroup_inode


async def test_near_pass_gives_a_warrant_and_a_far_one_takes_it_back(started: Setting, make_loop) -> None:
    loop = make_loop(HARD, warrants=started.warrants)
    loop.have(*started.pods)
    loop.usages.seen = dict(started.usages.seen)
    loop.usages.cached = dict(started.usages.cached)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: started.seen}
    loop.passes.make([WAKE])
    assert started.probe.armed_for == started.hog.cgroup_inode
    assert loop.kills.killed == []
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: started.seen._replace(available=500 * MIB)}
    loop.passes.make([WAKE])
    assert started.probe.claim is None


def at_work(started: Setting, make_loop):
    """Return a loop that has just given a warrant."""
    loop = make_loop(HARD, warrants=started.warrants)
    loop.have(*started.pods)
    loop.usages.seen = dict(started.usages.seen)
    loop.usages.cached = dict(started.usages.cached)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: started.seen._replace(available=125 * MIB)}
    loop.passes.make([WAKE])
    assert started.probe.armed_for == started.hog.cgroup_inode
    return loop


async def test_warrant_stands_while_a_pass_finds_nothing_to_do(started: Setting, make_loop) -> None:
    """An allocator at full speed would cross while none is armed: the nearer early level wakes the loop."""
    loop = at_work(started, make_loop)
    armed = []
    loop.usages.meanwhile = lambda: armed.append(started.probe.armed_for)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: started.seen}
    loop.passes.make([WAKE])
    assert armed
    assert {started.hog.cgroup_inode} == {*armed, started.probe.armed_for}
    assert not started.warrants.counted


async def test_warrant_is_renewed_by_a_pass_that_comes_late_enough(started: Setting, make_loop) -> None:
    loop = at_work(started, make_loop)
    loop.now_seconds += RENEWAL_SECONDS
    loop.passes.make([WAKE])
    assert started.probe.armed_for == started.hog.cgroup_inode
    assert started.warrants.counted == {WarrantEnd.RENEWED: 1}


async def test_warrant_that_is_served_while_a_pass_observes_is_followed_by_that_pass(
    started: Setting, make_loop
) -> None:
    """The victim's memory is gone when the pods are read, and another would be chosen for the crossing."""
    loop = at_work(started, make_loop)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: started.seen._replace(available=90 * MIB)}

    def die() -> None:
        loop.usages.meanwhile = lambda: None
        started.probe.serve()
        dead = {started.hog.uid: PodUsage(memory_working_set_bytes=0)}
        loop.usages.seen = {**loop.usages.seen, **dead}
        back = started.seen._replace(available=690 * MIB)
        loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: back}

    loop.usages.meanwhile = die
    ordinary = loop.passes.make([WAKE])
    (record,) = loop.passes.take_earlier()
    assert ordinary.attempts == ()
    assert loop.kills.killed == ["hog"]
    (attempt,) = record.attempts
    assert attempt.served is not None
    assert 600 * MIB == attempt.credited_bytes
    assert started.warrants.counted == {WarrantEnd.SERVED: 1}


async def test_warrant_is_withdrawn_by_a_pass_that_leaves_another_state(started: Setting, make_loop) -> None:
    """A victim of the kernel's is waited for: the next crossing evicts no pod."""
    loop = at_work(started, make_loop)
    loop.known.state = loop.known.state._replace(evicted_at=(loop.now_seconds,))
    loop.passes.make([WAKE])
    assert started.warrants.counted == {WarrantEnd.WITHDRAWN: 1}


async def test_warrant_of_another_configuration_is_withdrawn(started: Setting, make_loop) -> None:
    at_work(started, make_loop)
    other = make_loop(HARD, make_threshold(50 * MIB, signal=Signal.PID_AVAILABLE), warrants=started.warrants)
    other.have(*started.pods)
    other.node.memory_seen = {Signal.MEMORY_AVAILABLE: started.seen}
    other.passes.make([WAKE])
    assert started.warrants.counted == {WarrantEnd.WITHDRAWN: 1}


async def test_warrant_is_withdrawn_where_other_pods_are_there(started: Setting, make_loop) -> None:
    loop = at_work(started, make_loop)
    loop.have(started.pods[0], replace(started.hog, priority=5))
    loop.passes.make([WAKE])
    assert WarrantEnd.WITHDRAWN in started.warrants.counted
