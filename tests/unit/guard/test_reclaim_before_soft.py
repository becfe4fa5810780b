"""The reclaim before a soft eviction, beside the loop: how far it goes, when it stops, what it delays."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import trio

from reactor.guard.recorder import Tally
from reactor.model.decisions import Hold, PolicyState
from reactor.model.signals import Reclaim, Signal
from reactor.model.wakes import Wake, WakeKind
from reactor.policy.attention import next_pass_seconds
from reactor.policy.holds import goes_on
from reactor.reclaim.memory import PIECE_BYTES, MemoryReclaim, Reclaimable
from reactor.reclaim.runner import ReclaimJob, ReclaimRunner
from tests.support.builders import make_observation, make_pod, make_threshold

MIB = 1 << 20
PIECE_MIB = PIECE_BYTES // MIB
SOFT = make_threshold(160 * MIB, grace_period_seconds=30)
WAKE = Wake(source="test", kind=WakeKind.MEMORY, at_ns=1)
ASKED = Hold(
    kind=Reclaim.POD_MEMORY,
    reason="reclaim: it is",
    threshold=SOFT,
    began_seconds=100.0,
    until_seconds=105.0,
    wanted_bytes=40 * MIB,
)


class Reclaims(MemoryReclaim):
    """Gives what is asked for, up to what there is; `node` has so much more then."""

    def __init__(self, node, *found: Reclaimable, gives_mib: int = 10_000) -> None:
        self.node = node
        self.found = found
        self.left_bytes = gives_mib * MIB
        self.asked: list[tuple[str, int, bool]] = []
        self.cgroups: Sequence[str] = ()
        self.fails: dict[str, Exception] = {}
        self.helps = True
        self.meanwhile: Callable[[], None] = lambda: None

    def available_bytes(self) -> int | None:
        seen = self.node.memory_seen.get(Signal.MEMORY_AVAILABLE)
        return None if seen is None else seen.available

    def job(self, asked: Hold, *cgroups: str) -> ReclaimJob:
        return self.before_soft(asked, cgroups, self.available_bytes)

    def most_first(self, cgroups: Sequence[str]) -> Sequence[Reclaimable]:
        self.cgroups = cgroups
        return self.found

    def take(self, cgroup: str, wanted_bytes: int, *, to_swap: bool) -> int:
        self.asked.append((cgroup, wanted_bytes // MIB, to_swap))
        self.meanwhile()
        if cgroup in self.fails:
            raise self.fails[cgroup]
        freed_bytes = min(wanted_bytes, self.left_bytes)
        self.left_bytes -= freed_bytes
        if self.helps:
            available = self.node.memory_seen[Signal.MEMORY_AVAILABLE].available
            self.node.memory_seen = {Signal.MEMORY_AVAILABLE: make_observation(available + freed_bytes)}
        return freed_bytes


def reclaimable(name: str, swap_mib: int = 0, cache_mib: int = 0, idle_mib: int = 0) -> Reclaimable:
    return Reclaimable(
        cgroup=name,
        swap_bytes=swap_mib * MIB,
        cache_bytes=cache_mib * MIB,
        idle_cache_bytes=idle_mib * MIB,
    )


@pytest.fixture
def node(make_loop):
    node = make_loop().node
    node.memory_seen = {Signal.MEMORY_AVAILABLE: make_observation(140 * MIB)}
    return node


async def run(reclaims: Reclaims, is_awaited: Callable[[], bool] = lambda: True, asked: Hold = ASKED):
    return await ReclaimRunner().run(reclaims.job(asked, "/a", "/b"), is_awaited)


async def test_it_goes_from_pod_to_pod_and_stops_when_there_is_enough(node) -> None:
    reclaims = Reclaims(node, reclaimable("/a", swap_mib=20), reclaimable("/b", swap_mib=200))
    reclaimed = await run(reclaims)
    assert reclaims.cgroups == ("/a", "/b")
    assert reclaims.asked == [
        ("/a", PIECE_MIB, True),
        ("/a", 20 - PIECE_MIB, True),
        ("/b", PIECE_MIB, True),
        ("/b", PIECE_MIB, True),
    ]
    assert (reclaimed.kind, reclaimed.signal) == (Reclaim.POD_MEMORY, Signal.MEMORY_AVAILABLE)
    assert (reclaimed.wanted, reclaimed.freed) == (40 * MIB, (20 + 2 * PIECE_MIB) * MIB)
    assert reclaimed.did == ("20Mi to swap from /a", f"{2 * PIECE_MIB}Mi to swap from /b")
    assert reclaimed.problems == ()


async def test_idle_page_cache_is_taken_along_and_counts_for_nothing(node) -> None:
    reclaims = Reclaims(node, reclaimable("/a", cache_mib=10, idle_mib=100), reclaimable("/b", swap_mib=100))
    reclaims.helps = False
    reclaimed = await run(reclaims)
    assert sum(amount for name, amount, _ in reclaims.asked if name == "/a") == 110
    assert reclaimed.did[0] == "110Mi of page cache from /a"
    assert sum(amount for name, amount, _ in reclaims.asked if name == "/b") == 2 * 40 - 10


async def test_it_takes_no_more_than_twice_what_is_wanted_where_others_take_it_back(node) -> None:
    reclaims = Reclaims(node, *(reclaimable(name, swap_mib=50, cache_mib=50) for name in ("/a", "/b")))
    reclaims.helps = False
    reclaimed = await run(reclaims)
    assert sum(amount for _, amount, _ in reclaims.asked) == 2 * 40
    assert reclaimed.freed == 0


async def test_pod_that_gives_no_more_is_left_and_one_that_can_not_be_asked_is_a_problem(node) -> None:
    reclaims = Reclaims(node, reclaimable("/a", swap_mib=100), reclaimable("/b", swap_mib=100), gives_mib=5)
    reclaims.fails = {"/a": OSError(5, "refused", "/a/memory.reclaim")}
    reclaimed = await run(reclaims)
    assert [name for name, *_ in reclaims.asked] == ["/a", "/b"]
    assert reclaimed.did == ("5Mi to swap from /b",)
    assert len(reclaimed.problems) == 1


async def test_it_ends_at_once_where_nothing_waits_for_it_any_more(node) -> None:
    reclaims = Reclaims(node, reclaimable("/a", swap_mib=100))
    reclaims.helps = False
    reclaimed = await run(reclaims, lambda: not reclaims.asked)
    assert len(reclaims.asked) == 1
    assert reclaimed.did == (f"{PIECE_MIB}Mi to swap from /a",)


async def test_it_ends_where_memory_can_not_be_observed_any_more(node) -> None:
    reclaims = Reclaims(node, reclaimable("/a", swap_mib=100))
    reclaims.helps = False

    def lose() -> None:
        node.memory_seen = {}

    reclaims.meanwhile = lose
    assert (await run(reclaims)).freed is None
    assert len(reclaims.asked) == 1
    assert (await run(reclaims)).did == ()


async def test_piece_that_hangs_is_left_to_its_thread_and_none_is_begun_beside_it(node) -> None:
    let = threading.Event()
    reclaims = Reclaims(node, reclaimable("/a", swap_mib=100))
    reclaims.meanwhile = lambda: let.wait(20) and None
    runner = ReclaimRunner()
    asked = replace(ASKED, until_seconds=100.2)
    try:
        first = await runner.run(reclaims.job(asked, "/a"))
        second = await runner.run(reclaims.job(asked, "/a"))
    finally:
        let.set()
    assert first.problems == ("not done within 0.2 s",)
    assert second.problems == ("an earlier reclaim is still under way",)
    assert len(reclaims.asked) == 1


@pytest.fixture
def soft_loop(make_loop):
    """A loop whose soft threshold's grace period is over at its next pass; two pods, a hard threshold."""
    loop = make_loop(make_threshold(100 * MIB), SOFT, reclaims_memory=True, soft_reclaim_seconds=5.0)
    loop.have(make_pod("one"), make_pod("two"))
    loop.known.state = PolicyState(first_observed={SOFT: loop.now_seconds - 30})
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: make_observation(140 * MIB)}
    return loop


async def test_soft_eviction_follows_a_reclaim_that_was_not_enough(soft_loop) -> None:
    record = soft_loop.passes.make([WAKE])
    asked = record.decision.soft_reclaim
    assert (soft_loop.kills.killed, soft_loop.kills.terminated) == ([], [])
    assert record.document()["soft_reclaim"] == {
        "threshold": str(SOFT),
        "wanted_bytes": 30 * MIB,
        "most_seconds": 5.0,
    }
    assert (
        4 < next_pass_seconds(soft_loop.known.settings, soft_loop.known.state, soft_loop.now_seconds) <= 5.001
    )

    reclaims = Reclaims(soft_loop.node, reclaimable("/node/one", swap_mib=5))
    awaited = []

    def is_awaited() -> bool:
        awaited.append(goes_on(soft_loop.known.state, asked, soft_loop.now_seconds))
        return awaited[-1]

    reclaimed = await ReclaimRunner().run(reclaims.job(asked, "/node/one"), is_awaited)
    assert set(awaited) == {True}
    soft_loop.now_seconds += 1
    soft_loop.known.reclaim_ended(asked, reclaimed)
    record = replace(soft_loop.passes.make([WAKE]), reclaimed=(reclaimed,))
    await trio.testing.wait_all_tasks_blocked()

    assert [one.eviction.pod.name for one in record.attempts] == ["one"]
    assert soft_loop.known.reclaimed == (reclaimed,)
    assert record.document()["reclaimed"][0]["freed"] == 5 * MIB
    tally = Tally()
    tally.observe_pass(record)
    assert tally.document()["reclaims"] == [(Reclaim.POD_MEMORY, "done", 1)]


async def test_nobody_is_evicted_after_a_reclaim_that_was_enough(soft_loop) -> None:
    asked = soft_loop.passes.make([WAKE]).decision.soft_reclaim
    reclaims = Reclaims(soft_loop.node, reclaimable("/node/one", swap_mib=500))
    job = reclaims.job(asked, "/node/one")
    reclaimed = await ReclaimRunner().run(
        job, lambda: goes_on(soft_loop.known.state, asked, soft_loop.now_seconds)
    )
    soft_loop.known.reclaim_ended(asked, reclaimed)
    soft_loop.now_seconds += 1
    record = soft_loop.passes.make([WAKE])
    assert (record.attempts, record.decision.thresholds_met) == ((), ())


async def test_hard_crossing_kills_while_a_piece_is_being_reclaimed_and_no_further_piece_is(
    soft_loop,
) -> None:
    asked = soft_loop.passes.make([WAKE]).decision.soft_reclaim
    reclaims = Reclaims(soft_loop.node, reclaimable("/node/one", swap_mib=500))
    reclaims.helps = False
    began, let = threading.Event(), threading.Event()

    def meanwhile() -> None:
        began.set()
        let.wait(20)

    reclaims.meanwhile = meanwhile
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            ReclaimRunner().run,
            reclaims.job(asked, "/node/one"),
            lambda: goes_on(soft_loop.known.state, asked, soft_loop.now_seconds),
        )
        assert await trio.to_thread.run_sync(began.wait, 20)
        soft_loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: make_observation(90 * MIB)}
        soft_loop.now_seconds += 0.1
        soft_loop.passes.make([WAKE])
        killed = list(soft_loop.kills.killed)
        let.set()
    assert killed == ["one"]
    assert len(reclaims.asked) == 1


async def test_reclaim_of_another_shortage_is_not_the_one_that_is_over(soft_loop) -> None:
    asked = soft_loop.passes.make([WAKE]).decision.soft_reclaim
    later = replace(asked, began_seconds=asked.began_seconds + 100)
    assert not goes_on(soft_loop.known.state, later, soft_loop.now_seconds)
    soft_loop.known.reclaim_ended(later)
    assert goes_on(soft_loop.known.state, asked, soft_loop.now_seconds)
    soft_loop.known.reclaim_ended(asked)
    assert not goes_on(soft_loop.known.state, asked, soft_loop.now_seconds)


async def test_only_pods_that_may_be_evicted_are_asked_those_that_use_most_first(make_loop) -> None:
    loop = make_loop()
    critical = replace(make_pod("critical"), critical_because="sshd")
    nowhere = replace(make_pod("nowhere"), cgroup=None)
    loop.have(make_pod("small"), make_pod("large"), critical, nowhere)
    seen = dict(loop.usages.seen)
    seen["uid-large"] = seen["uid-large"]._replace(memory_working_set_bytes=90 * MIB)
    assert loop.passes.observations.evictable_cgroups(seen) == ("/node/large", "/node/small")
