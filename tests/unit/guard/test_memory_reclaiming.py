"""A reclaim of nobody's memory beside the loop: measured, bounded, one at a time."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest

from reactor.guard.memory_reclaiming import MemoryReclaiming
from reactor.guard.passes import look_again_seconds
from reactor.model.decisions import MemoryReclaim, PolicyState
from reactor.model.signals import Reclaim, Resource, Signal
from reactor.model.wakes import Wake, WakeKind
from reactor.policy.memory_reclaim import MOST_SECONDS
from reactor.reclaim.reclaims import ReclaimReport

MIB = 1 << 20
WAKE = Wake(source="test", kind=WakeKind.MEMORY, at_ns=1)
ASKED = MemoryReclaim(
    signal=Signal.MEMORY_AVAILABLE,
    began_seconds=100.0,
    until_seconds=100.0 + MOST_SECONDS,
    available_bytes=60 * MIB,
    wanted_bytes=40 * MIB,
    outside_bytes=300 * MIB,
)


class Reclaims:
    """Gives back at once, or when `let` is set."""

    def __init__(self, then, let: threading.Event | None = None) -> None:
        self.then = then
        self.let = let
        self.asked: list[tuple[int, tuple[str, ...], float]] = []

    def run(self, wanted_bytes: int, dead: Sequence[str], most_seconds: float) -> ReclaimReport:
        self.asked.append((wanted_bytes, tuple(dead), most_seconds))
        if self.let is not None:
            self.let.wait(20)
        self.then()
        return ReclaimReport(did=("all of it",))


@pytest.fixture
def let():
    event = threading.Event()
    yield event
    event.set()


async def test_reclaim_is_measured_by_what_the_node_has_afterwards(make_loop, observation) -> None:
    loop = make_loop()
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(60 * MIB)}

    def then() -> None:
        loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(200 * MIB)}

    reclaims = Reclaims(then)
    reclaimed = await MemoryReclaiming(reclaims, loop.node).run(ASKED, ("/node/dead",))

    assert reclaims.asked == [(40 * MIB, ("/node/dead",), MOST_SECONDS)]
    assert (reclaimed.kind, reclaimed.wanted, reclaimed.freed) == (Reclaim.MEMORY, 40 * MIB, 140 * MIB)
    assert (reclaimed.did, reclaimed.problems) == (("all of it",), ())


async def test_reclaim_that_hangs_is_left_to_its_thread_and_none_is_begun_beside_it(make_loop, let) -> None:
    loop = make_loop()
    loop.node.memory_seen = {}
    reclaims = Reclaims(lambda: None, let)
    reclaiming = MemoryReclaiming(reclaims, loop.node)

    first = await reclaiming.run(replace(ASKED, until_seconds=100.5), ())
    second = await reclaiming.run(replace(ASKED, until_seconds=100.5), ())

    assert first.problems == ("not done within 0.5 s",)
    assert second.problems == ("an earlier reclaim is still under way",)
    assert first.freed is None
    assert len(reclaims.asked) == 1


async def test_eviction_waits_until_the_reclaim_is_over(make_loop, make_pod, observation) -> None:
    loop = make_loop(reclaims_memory=True)
    loop.have(make_pod("one"))
    loop.known.state = PolicyState(evicted_at=(loop.now_seconds,))
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(60 * MIB)}

    record = loop.passes.make([WAKE])
    assert (loop.kills.killed, record.decision.memory_reclaim) == ([], loop.known.state.memory_reclaim)
    assert look_again_seconds(loop.known.state, loop.now_seconds) < 0.1

    loop.now_seconds += 0.1
    reclaimed = await MemoryReclaiming(Reclaims(lambda: None), loop.node).run(ASKED, ())
    loop.passes.memory_reclaimed(reclaimed)
    loop.passes.make([WAKE])
    assert loop.kills.killed == ["one"]
    assert loop.known.reclaimed == (reclaimed,)
    assert loop.known.reclaimed[0].resource is Resource.MEMORY


async def test_only_cgroups_that_evictions_emptied_are_reclaimed_first(make_loop, make_pod, observation):
    loop = make_loop()
    loop.have(make_pod("one"), make_pod("two"))
    assert loop.passes.ended_cgroups() == ()
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(60 * MIB)}
    loop.passes.make([WAKE])
    loop.passes.gone("uid-one")
    assert loop.passes.ended_cgroups() == ("/node/one",)
