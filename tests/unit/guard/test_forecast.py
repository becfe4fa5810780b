"""Before a crossing: which pods are prepared, and that none is killed for having been prepared."""

from __future__ import annotations

import time
from dataclasses import replace

from reactor.model.kills import Slowdown, SlowReason
from reactor.model.pods import PodUsage
from reactor.model.signals import NodeCondition, Signal
from reactor.model.wakes import Wake, WakeKind

MIB = 1 << 20


def wake() -> Wake:
    return Wake(source="test", kind=WakeKind.MEMORY, at_ns=time.monotonic_ns())


async def test_near_a_threshold_the_next_victim_is_prepared_and_no_pod_is_killed(
    make_loop, make_pod, observation
):
    loop = make_loop()
    loop.have(make_pod("within", request_bytes=64 * MIB), make_pod("small"), make_pod("hog"))
    loop.usages.seen["uid-hog"] = PodUsage(memory_working_set_bytes=200 * MIB)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(131 * MIB)}

    record = loop.passes.make([wake()])

    assert loop.kills.ready == ["hog", "small"]
    assert loop.kills.killed == []
    assert record.decision.ranking == ()
    assert loop.known.state.thresholds_met == ()


async def test_the_next_hog_is_prepared_too_a_moment_after_the_first_was_killed(
    make_loop, make_pod, observation
):
    loop = make_loop(unhelpful_eviction_pause_seconds=10.0, reclaims_memory=True)
    loop.have(make_pod("first"), make_pod("next", priority=10))
    used = {"uid-first": 160 * MIB, "uid-next": 240 * MIB}
    loop.usages.seen |= {uid: PodUsage(memory_working_set_bytes=held) for uid, held in used.items()}
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(99 * MIB, capacity=500 * MIB)}
    loop.passes.make([wake()])
    assert loop.kills.killed == ["first"]
    loop.have(make_pod("next", priority=10))
    loop.passes.results.pod_ended("uid-first")
    loop.usages.seen = {"uid-next": PodUsage(memory_working_set_bytes=370 * MIB)}
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(129 * MIB, capacity=500 * MIB)}

    loop.now_seconds += 1.0
    loop.passes.make([wake()])

    assert loop.kills.ready == ["next"]


async def test_for_an_absurd_threshold_no_pod_is_observed_nor_prepared(
    make_loop, make_pod, make_threshold, observation
):
    loop = make_loop(make_threshold(512 * MIB))
    loop.have(make_pod("hog"))
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(131 * MIB)}

    record = loop.passes.make([wake()])

    assert (record.decision.thresholds_met, record.attempts) == ((), ())
    assert (loop.kills.ready, loop.usages.memory_reads, loop.usages.full_reads) == ([], 0, 0)


async def test_far_from_a_threshold_no_pod_is_prepared_any_more(make_loop, make_pod, observation):
    loop = make_loop()
    loop.have(make_pod("hog"))
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(131 * MIB)}
    loop.passes.make([wake()])
    assert loop.kills.ready == ["hog"]
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(133 * MIB)}

    loop.passes.make([wake()])

    assert loop.kills.ready == []
    assert loop.usages.memory_reads == 1


async def test_who_is_ready_and_was_overtaken_is_not_killed_for_it(make_loop, make_pod, observation):
    loop = make_loop()
    loop.have(make_pod("a"), make_pod("b"), make_pod("c"), make_pod("d"))
    loop.usages.seen["uid-a"] = PodUsage(memory_working_set_bytes=90 * MIB)
    loop.usages.seen["uid-b"] = PodUsage(memory_working_set_bytes=80 * MIB)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(131 * MIB)}
    loop.passes.make([wake()])
    assert loop.kills.ready == ["a", "b"]
    loop.usages.seen["uid-d"] = PodUsage(memory_working_set_bytes=150 * MIB)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(99 * MIB)}

    loop.now_seconds += 0.01
    loop.passes.make([wake()])

    assert loop.kills.killed == ["d"]


async def test_who_is_ready_and_has_shrunk_or_vanished_is_not_killed_for_it(make_loop, make_pod, observation):
    loop = make_loop()
    loop.have(make_pod("vanishes"), make_pod("shrinks"), make_pod("stays"))
    loop.usages.seen["uid-vanishes"] = PodUsage(memory_working_set_bytes=100 * MIB)
    loop.usages.seen["uid-shrinks"] = PodUsage(memory_working_set_bytes=90 * MIB)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(131 * MIB)}
    loop.passes.make([wake()])
    assert loop.kills.ready == ["vanishes", "shrinks"]
    del loop.usages.seen["uid-vanishes"]
    loop.usages.vanished = frozenset({"uid-vanishes"})
    loop.pods.present = loop.pods.present[1:]
    loop.usages.seen["uid-shrinks"] = PodUsage(memory_working_set_bytes=10 * MIB)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(99 * MIB)}

    loop.now_seconds += 0.01
    loop.passes.make([wake()])

    assert loop.kills.killed == ["stays"]


async def test_a_dry_run_prepares_no_pod(make_loop, make_pod, observation):
    loop = make_loop(dry_run=True)
    loop.have(make_pod("hog"))
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(131 * MIB)}

    loop.passes.make([wake()])

    assert loop.kills.ready == []


async def test_getting_ready_leaves_no_trace_in_what_is_known(make_loop, make_pod, observation):
    loop = make_loop()
    loop.have(make_pod("hog"))
    loop.passes.make([wake()])
    before = loop.known.state
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(131 * MIB)}

    loop.passes.make([wake()])

    assert loop.known.state._replace(observed_at=before.observed_at, calm=before.calm) == before


async def test_who_goes_first_is_said_from_the_far_early_level_on_and_not_any_more_at_recovery(
    make_loop, make_pod, observation
):
    loop = make_loop()
    loop.have(make_pod("small"), make_pod("hog"))
    loop.usages.seen["uid-hog"] = PodUsage(memory_working_set_bytes=200 * MIB)
    for available_mib in (133, 131, 101, 140):
        loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(available_mib * MIB)}
        loop.passes.make([wake()])
    assert loop.ordered == [None, "hog", "hog", None]
    assert loop.kills.killed == []


async def test_there_is_no_order_under_pressure_once_memory_is_not_near_any_more(
    make_loop, make_pod, make_threshold, observation
):
    loop = make_loop(make_threshold(100 * MIB), make_threshold(200 * MIB, grace_period_seconds=600))
    loop.have(make_pod("one"), make_pod("other"))
    for available_mib in (110, 190):
        loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(available_mib * MIB)}
        loop.passes.make([wake()])
        loop.passes.make([replace(wake(), kind=WakeKind.HOUSEKEEPING)])
    assert NodeCondition.MEMORY_PRESSURE in loop.known.state.conditions
    assert loop.ordered == ["one", "one", None, None]


async def test_there_is_no_order_while_evictions_are_slowed_down(make_loop, make_pod, observation):
    loop = make_loop()
    loop.have(make_pod("one"), make_pod("other"))
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(110 * MIB)}
    loop.passes.make([wake()])
    slowdown = Slowdown(
        signal=Signal.MEMORY_AVAILABLE,
        reason=SlowReason.OUTSIDE_PODS,
        since_seconds=loop.now_seconds,
        until_seconds=loop.now_seconds + 30,
        message="",
    )
    loop.known.state = loop.known.state._replace(slowdowns=(slowdown,))
    loop.passes.make([wake()])
    assert loop.ordered == ["one", None]


async def test_order_stays_while_an_eviction_is_waited_for(make_loop, make_pod, observation):
    loop = make_loop()
    loop.have(make_pod("hog"), make_pod("other"))
    loop.usages.seen["uid-hog"] = PodUsage(memory_working_set_bytes=200 * MIB)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(110 * MIB)}
    loop.passes.make([wake()])
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(90 * MIB)}
    for _ in range(2):
        loop.now_seconds += 0.02
        loop.passes.make([wake()])
    assert loop.kills.killed == ["hog"]
    assert None not in loop.ordered


async def test_pod_that_may_not_be_evicted_is_never_to_go_first(make_loop, make_pod, observation):
    loop = make_loop()
    loop.have(replace(make_pod("vital"), critical_because="user.oomd_omit"))
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(110 * MIB)}
    loop.passes.make([wake()])
    assert loop.ordered == []


async def test_victim_of_the_crossing_is_prepared_where_all_pods_hold_less_than_the_threshold(
    make_loop, make_pod, observation
):
    loop = make_loop(unhelpful_eviction_pause_seconds=10.0)
    loop.have(make_pod("small"), make_pod("larger"))
    loop.usages.seen["uid-small"] = PodUsage(memory_working_set_bytes=1 * MIB)
    loop.usages.seen["uid-larger"] = PodUsage(memory_working_set_bytes=9 * MIB)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(131 * MIB)}
    loop.passes.make([wake()])
    assert loop.kills.ready == ["larger", "small"]
    # A shortage that the pods can't explain: whom the kernel's OOM killer takes is left to the kernel.
    assert loop.ordered == []

    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(99 * MIB)}
    loop.now_seconds += 0.01
    loop.passes.make([wake()])

    assert loop.kills.killed == ["larger"]
