from __future__ import annotations

import logging
import time

import trio
import trio.testing

from reactor.guard.incidents import Slowdowns
from reactor.guard.outbox import SLOWED_DOWN
from reactor.guard.record import slowdown_document
from reactor.model.kills import Slowdown, SlowReason
from reactor.model.pods import PodUsage
from reactor.model.signals import Signal
from reactor.model.wakes import Wake, WakeKind

MIB = 1 << 20
WAKE = Wake(source="test", kind=WakeKind.MEMORY, at_ns=1)
OUTSIDE = Slowdown(
    signal=Signal.MEMORY_AVAILABLE,
    reason=SlowReason.OUTSIDE_PODS,
    since_seconds=10.0,
    until_seconds=20.0,
    message="545 MiB are used outside the pods",
)


def test_what_is_slowed_down_is_reported_once_and_a_problem_meanwhile(caplog):
    told = []
    slowdowns = Slowdowns(lambda *one: told.append(one))
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            slowdowns.passed([OUTSIDE])
    assert [(SLOWED_DOWN, OUTSIDE.message)] == told
    assert slowdowns.problem == OUTSIDE.message
    slowdowns.passed([])
    assert slowdowns.problem is None
    assert [logging.WARNING] == [record.levelno for record in caplog.records]


def test_a_slowdown_as_json():
    assert slowdown_document(OUTSIDE, 12.5) == {
        "signal": "memory.available",
        "reason": "outside-pods",
        "message": "545 MiB are used outside the pods",
        "for_seconds": 2.5,
        "left_seconds": 7.5,
        "held_by": None,
        "held_by_bytes": None,
    }


async def test_shortage_that_the_pods_can_not_explain_kills_no_pod(make_loop, make_pod, observation):
    loop = make_loop(unhelpful_eviction_pause_seconds=10.0)
    loop.have(make_pod("calm"), working_set_bytes=4 * MIB)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(20 * MIB)}

    record = loop.passes.make([WAKE])

    assert loop.kills.killed == []
    assert [SlowReason.OUTSIDE_PODS] == [one.reason for one in record.decision.slowdowns]
    document = record.document()
    assert ["outside-pods"] == [one["reason"] for one in document["slowdowns"]]
    assert "488Mi are used outside the pods" in document["deferred_because"]


async def test_process_that_ends_between_the_two_readings_is_not_memory_outside(
    make_loop, make_pod, observation
):
    loop = make_loop(unhelpful_eviction_pause_seconds=10.0)
    loop.have(make_pod("ended"), working_set_bytes=0)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(20 * MIB)}

    def ended() -> None:
        loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(400 * MIB)}

    loop.usages.meanwhile = ended
    record = loop.passes.make([WAKE])

    assert (loop.kills.killed, record.decision.slowdowns, loop.known.state.slowdowns) == ([], (), ())


async def test_what_pods_took_while_the_loop_was_held_up_amid_a_pass_is_not_memory_outside(
    make_loop, make_pod, observation
):
    loop = make_loop(unhelpful_eviction_pause_seconds=10.0)
    loop.have(make_pod("small", priority=-1), make_pod("hog"))
    loop.usages.seen = {
        "uid-small": PodUsage(memory_working_set_bytes=1 * MIB),
        "uid-hog": PodUsage(memory_working_set_bytes=350 * MIB),
    }
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(95 * MIB)}
    loop.kills.reaped.set()

    def held_up() -> None:
        time.sleep(0.005)
        loop.usages.seen["uid-hog"] = PodUsage(memory_working_set_bytes=370 * MIB)
        loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(75 * MIB)}
        loop.usages.meanwhile = lambda: None

    loop.usages.meanwhile = held_up
    first = loop.passes.make([WAKE])
    await first.attempts[0].ended.wait()
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(76 * MIB)}
    loop.now_seconds += 0.02
    second = loop.passes.make([WAKE])

    assert (["small", "hog"], (), None) == (
        loop.kills.killed,
        second.decision.slowdowns,
        second.decision.deferred_because,
    )


async def test_hog_whose_process_was_not_read_yet_is_killed_after_the_second_look(
    make_loop, make_pod, observation
):
    loop = make_loop(unhelpful_eviction_pause_seconds=10.0)
    loop.have(make_pod("hog"), working_set_bytes=0)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(20 * MIB)}

    def read_again() -> None:
        if loop.usages.memory_reads > 1:
            loop.usages.seen = {"uid-hog": PodUsage(memory_working_set_bytes=480 * MIB)}

    loop.usages.meanwhile = read_again
    loop.passes.make([WAKE])

    assert ["hog"] == loop.kills.killed


async def test_memory_that_outlives_its_pod_is_said_and_spares_the_others(make_loop, make_pod, observation):
    loop = make_loop(unhelpful_eviction_pause_seconds=10.0)
    hog, calm = make_pod("hog"), make_pod("calm")
    loop.have(hog, calm)
    loop.usages.seen["uid-hog"] = PodUsage(memory_working_set_bytes=300 * MIB)
    loop.usages.stays = {"uid-hog"}
    loop.usages.shared = {"uid-hog": 280 * MIB}
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(60 * MIB)}
    loop.kills.reaped.set()

    first = loop.passes.make([WAKE])
    await first.attempts[0].ended.wait()
    second = loop.passes.make([WAKE])

    assert ["hog"] == loop.kills.killed
    assert [SlowReason.UNHELPFUL] == [one.reason for one in second.decision.slowdowns]
    (eviction,) = first.document()["evictions"]
    assert (300 * MIB, 0, 300 * MIB, 280 * MIB, None) == tuple(
        eviction[key]
        for key in ("credited_bytes", "returned_bytes", "left_bytes", "left_shared_bytes", "freed_ns")
    )
    assert [
        "has ended, but 300Mi stay charged to its cgroup, 280Mi of it shared memory or tmpfs"
    ] == eviction["problems"]
    (unhelpful,) = second.document()["unhelpful"]
    assert ("uid-hog", 300 * MIB) == (unhelpful["uid"], unhelpful["credited_bytes"])


async def test_what_a_victim_has_left_is_known_though_its_cgroup_is_removed_before_the_next_pass(
    make_loop, make_pod, observation
):
    loop = make_loop(unhelpful_eviction_pause_seconds=10.0)
    loop.have(make_pod("hog"))
    loop.usages.stays = {"uid-hog"}
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(60 * MIB)}
    record = loop.passes.make([WAKE])
    loop.usages.seen["uid-hog"] = PodUsage(memory_working_set_bytes=40 * MIB)
    loop.kills.reaped.set()
    await record.attempts[0].ended.wait()

    assert [40 * MIB] == [kill.left_bytes for kill in loop.known.state.hard_memory_kills]


async def test_memory_has_sunk_where_much_less_is_available_than_at_the_last_pass_below_a_threshold(
    make_loop, make_pod, observation
):
    loop = make_loop(unhelpful_eviction_pause_seconds=10.0)
    loop.have(make_pod("calm"), working_set_bytes=4 * MIB)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(95 * MIB)}
    loop.passes.make([WAKE])
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(20 * MIB)}
    assert loop.passes.observations.shortage_has_grown()

    loop.passes.make([WAKE])
    assert loop.known.state.slowdowns
    assert not loop.passes.observations.shortage_has_grown()
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(14 * MIB)}
    assert not loop.passes.observations.shortage_has_grown()
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(13 * MIB)}
    assert loop.passes.observations.shortage_has_grown()
    loop.node.memory_seen = {}
    assert not loop.passes.observations.shortage_has_grown()


async def test_memory_has_sunk_where_a_threshold_is_met_that_was_not_at_the_last_pass(make_loop, observation):
    loop = make_loop()
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(130 * MIB)}
    loop.passes.make([WAKE])
    assert loop.passes.approach.is_near
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(100 * MIB)}
    assert not loop.passes.observations.shortage_has_grown()
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(100 * MIB - 1)}
    assert loop.passes.observations.shortage_has_grown()
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(400 * MIB)}
    loop.passes.make([WAKE])
    assert not loop.passes.approach.is_near


async def test_what_came_back_is_what_the_node_says(make_loop, make_pod, observation):
    loop = make_loop()
    loop.have(make_pod("hog"), working_set_bytes=300 * MIB)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(60 * MIB)}
    record = loop.passes.make([WAKE])
    loop.usages.seen = {}
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(350 * MIB)}
    loop.kills.reaped.set()
    await record.attempts[0].ended.wait()
    await trio.testing.wait_all_tasks_blocked()

    attempt = record.attempts[0]
    assert (300 * MIB, 290 * MIB, None) == (
        attempt.credited_bytes,
        attempt.returned_bytes,
        attempt.left_bytes,
    )
    assert attempt.freed_ns is not None


async def test_a_pod_that_grew_between_the_decision_and_the_kill_is_credited_with_all_of_it(
    make_loop, make_pod, observation
):
    loop = make_loop(unhelpful_eviction_pause_seconds=10.0)
    hog = make_pod("hog")
    loop.have(hog, working_set_bytes=300 * MIB)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(20 * MIB)}
    kill_now = loop.kills.kill_now

    def slow_kill(pod):
        loop.usages.seen = {hog.uid: PodUsage(memory_working_set_bytes=490 * MIB)}
        return kill_now(pod)

    loop.kills.kill_now = slow_kill
    record = loop.passes.make([WAKE])

    assert ["hog"] == loop.kills.killed
    assert 490 * MIB == record.attempts[0].credited_bytes
    assert 490 * MIB == loop.passes.known.state.hard_memory_kills[-1].credited_bytes
