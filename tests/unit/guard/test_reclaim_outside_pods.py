"""A reclaim of memory that belongs to no pod: what waits for it, and which cgroups give first."""

from __future__ import annotations

from reactor.model.decisions import PolicyState
from reactor.model.signals import Reclaim, Resource, Signal
from reactor.model.wakes import Wake, WakeKind
from reactor.policy.attention import next_pass_seconds
from reactor.reclaim.runner import Reclaimed

MIB = 1 << 20
WAKE = Wake(source="test", kind=WakeKind.MEMORY, at_ns=1)


async def test_eviction_waits_until_the_reclaim_is_over(make_loop, make_pod, observation) -> None:
    loop = make_loop(reclaims_memory=True)
    loop.have(make_pod("one"))
    loop.known.state = PolicyState(evicted_at=(loop.now_seconds,))
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(60 * MIB)}

    record = loop.passes.make([WAKE])
    assert (loop.kills.killed, (record.decision.memory_reclaim,)) == ([], loop.known.state.holds)
    assert next_pass_seconds(loop.known.settings, loop.known.state, loop.now_seconds) < 0.1

    loop.now_seconds += 0.1
    reclaimed = Reclaimed(
        kind=Reclaim.MEMORY,
        signal=Signal.MEMORY_AVAILABLE,
        resource=Resource.MEMORY,
        at_unix_seconds=1.0,
        wanted=40 * MIB,
        freed=0,
        took_seconds=0.1,
    )
    (hold,) = loop.known.state.holds
    loop.known.reclaim_ended(hold, reclaimed)
    loop.passes.make([WAKE])
    assert loop.kills.killed == ["one"]
    assert loop.known.reclaimed == (reclaimed,)
    assert loop.known.reclaimed[0].resource is Resource.MEMORY


async def test_only_cgroups_that_evictions_emptied_are_reclaimed_first(make_loop, make_pod, observation):
    loop = make_loop()
    loop.have(make_pod("one"), make_pod("two"))
    assert loop.passes.observations.ended_cgroups() == ()
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(60 * MIB)}
    loop.passes.make([WAKE])
    loop.passes.results.pod_ended("uid-one")
    assert loop.passes.observations.ended_cgroups() == ("/node/one",)
