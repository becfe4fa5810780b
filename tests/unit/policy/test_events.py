"""The state changes by events and by passes, in any order of the two, and keeps what the policy promises."""

from __future__ import annotations

import dataclasses
from typing import Final

import pytest
from hypothesis import strategies as st

from reactor.model.decisions import (
    Claim,
    ClaimKind,
    Eviction,
    Hold,
    Ineligible,
    PolicyState,
    Snapshot,
)
from reactor.model.kills import ProcessMemory
from reactor.model.pods import Pod, PodUsage
from reactor.model.settings import EvictionSettings
from reactor.model.signals import NodeCondition, Reclaim, Resource, Signal
from reactor.policy.claims import eligible, is_newly_empty, lingering, with_lingering
from reactor.policy.decide import decide
from reactor.policy.events import (
    CrossingServed,
    Event,
    EvictionCalledOff,
    EvictionFailed,
    FilesInMemoryObserved,
    ObservationsUsed,
    PodEmptied,
    PodEnded,
    PodsInhabited,
    PodsListed,
    ProcessEvictionOrdered,
    ProcessKilled,
    ProcessOver,
    ReclaimEnded,
    Restarted,
    apply,
    without_evictions,
)
from tests.support.builders import make_claim, make_observation, make_pod, make_threshold

MIB: Final = 1 << 20
SETTINGS: Final = EvictionSettings(thresholds=(make_threshold(100),))
UIDS: Final = st.sampled_from([f"uid-{number}" for number in range(5)])
NODE_PODS: Final = tuple(dataclasses.replace(make_pod(str(number))) for number in range(5))
AMOUNTS: Final = st.integers(0, 100 * MIB)


def flight(uid: str, resource: Resource = Resource.MEMORY, **changes: object) -> Claim:
    return make_claim(uid, resource=resource, **changes)


def files(uid: str, amount: int) -> Claim:
    return make_claim(uid, ClaimKind.FILES, amount=amount)


def eviction(pod: Pod, resource: Resource = Resource.MEMORY, grace_period_seconds: int = 0) -> Eviction:
    signal = Signal.MEMORY_AVAILABLE if resource is Resource.MEMORY else Signal.NODEFS_AVAILABLE
    return Eviction(
        pod=pod,
        signal=signal,
        resource=resource,
        grace_period_seconds=grace_period_seconds,
        message="",
        threshold=make_threshold(100, signal),
    )


def after(event: Event, state: PolicyState, now_seconds: float = 1.0) -> PolicyState:
    return apply(SETTINGS, state, event, now_seconds)


# What single events do, where no other test of the policy has it.


def test_an_eviction_that_is_called_off_is_not_awaited_and_another_is():
    state = PolicyState(claims=(flight("uid-a"), flight("uid-b")))

    assert (flight("uid-b"),) == after(EvictionCalledOff(uid="uid-a"), state).in_flight


def test_a_pod_that_ended_leaves_its_files_in_memory_and_nothing_else():
    state = PolicyState(claims=(flight("uid-a"), flight("uid-b"), flight("uid-c", Resource.PIDS)))

    left = after(PodEnded(uid="uid-a", files_bytes=MIB), state)
    assert (files("uid-a", MIB), *state.in_flight[1:]) == left.in_flight
    assert state.in_flight[1:] == after(PodEnded(uid="uid-a", files_bytes=1), state).in_flight
    assert state.in_flight[:2] == after(PodEnded(uid="uid-c", files_bytes=MIB), state).in_flight


@pytest.mark.parametrize(
    ("files_bytes", "own_bytes", "left_bytes"),
    [
        (50 * MIB, 0, 50 * MIB),
        (70 * MIB, 0, 60 * MIB),
        (1, 0, None),
        (50 * MIB, 68 * MIB, 50 * MIB),
        (50 * MIB, 69 * MIB, None),
    ],
    ids=["fewer", "more of another's", "removed", "its own is little", "it lives again"],
)
def test_files_in_memory_are_awaited_while_they_are_there_and_their_pod_has_not_grown(
    files_bytes, own_bytes, left_bytes
):
    state = PolicyState(claims=(files("uid-a", 60 * MIB), flight("uid-b")))

    seen = FilesInMemoryObserved(files_bytes={"uid-a": files_bytes}, own_bytes={"uid-a": own_bytes})
    flights = after(seen, state).in_flight

    expected = () if left_bytes is None else (files("uid-a", left_bytes),)
    assert (*expected, flight("uid-b")) == flights


def test_a_reclaim_is_over_once_it_is_said_to_be_and_not_by_the_end_of_an_earlier_one():
    memory = Hold(kind=Reclaim.MEMORY, reason="", began_seconds=1.0, until_seconds=2.0)
    soft = dataclasses.replace(memory, kind=Reclaim.POD_MEMORY)
    state = PolicyState(holds=(memory, soft))

    assert [True, False] == [hold.is_over for hold in after(ReclaimEnded(kind=Reclaim.MEMORY), state).holds]
    ended = after(ReclaimEnded(kind=Reclaim.POD_MEMORY, began_seconds=1.0), state)
    assert [False, True] == [hold.is_over for hold in ended.holds]
    assert state == after(ReclaimEnded(kind=Reclaim.POD_MEMORY, began_seconds=0.5), state)
    assert PolicyState() == after(ReclaimEnded(kind=Reclaim.MEMORY), PolicyState())
    assert PolicyState() == after(ReclaimEnded(kind=Reclaim.POD_MEMORY, began_seconds=1.0), PolicyState())


def test_an_observation_that_was_decided_over_is_not_fresh_any_more():
    state = PolicyState(observed_at={Signal.NODEFS_AVAILABLE: 1.0, Signal.MEMORY_AVAILABLE: 2.0})

    used = after(ObservationsUsed(taken_at_seconds={Signal.NODEFS_AVAILABLE: 5.0}), state)

    assert {Signal.NODEFS_AVAILABLE: 5.0, Signal.MEMORY_AVAILABLE: 2.0} == used.observed_at


def test_a_kill_of_the_kernels_at_a_crossing_leaves_the_node_under_pressure():
    """The memory of its victim is back when the guard follows."""
    crossing = Snapshot(signals={Signal.MEMORY_AVAILABLE: make_observation(99)})

    served = after(CrossingServed(snapshot=crossing, pods=()), PolicyState(), 5.0)

    assert (NodeCondition.MEMORY_PRESSURE,) == served.conditions
    assert SETTINGS.thresholds == served.thresholds_met


def test_a_restart_awaits_no_process_and_takes_up_whole_pods():
    whole, process, ended = (
        flight("uid-a"),
        make_claim("uid-b", ClaimKind.ENDING_PROCESS, amount=1),
        files("uid-c", MIB),
    )
    kill = make_claim(kind=ClaimKind.KERNEL_KILL, pid=7, amount=1)
    state = PolicyState(
        claims=(whole, process, ended, kill),
        holds=(Hold(kind=Reclaim.RULE, reason="", began_seconds=1.0, until_seconds=9.0),),
        ineligible=Ineligible(failed={"uid-a": (9.0, "why")}),
        evicted_at=(1.0,),
    )

    assert after(Restarted(), state) == PolicyState(
        claims=(whole, ended), ineligible=Ineligible(emptied=frozenset({"uid-c"})), evicted_at=(1.0,)
    )


def test_after_a_restart_no_eviction_waits_for_a_reclaim_that_has_ended_with_the_daemon():
    """It is remembered: there is none again for a while."""
    soft = make_threshold(100, grace_period_seconds=1.0)
    hold = Hold(
        kind=Reclaim.POD_MEMORY, reason="reclaim", began_seconds=1.0, until_seconds=60.0, threshold=soft
    )
    state = PolicyState(first_observed={soft: 0.0}, holds=(hold,))
    settings = EvictionSettings(thresholds=(soft,), soft_reclaim_seconds=59.0, reclaims_memory=True)
    seen = Snapshot(
        signals={Signal.MEMORY_AVAILABLE: make_observation(50, capacity=1000)},
        pods={"uid-a": PodUsage(memory_working_set_bytes=500)},
    )
    pods = (make_pod("a"),)
    assert "reclaim" in str(decide(settings, state, seen, pods, 5.0)[1].deferred_because)

    _, decision = decide(settings, after(Restarted(), state), seen, pods, 5.0)

    assert ["a"] == [one.pod.name for one in decision.evictions]


def test_what_a_dry_run_has_only_thought_of_is_not_taken_up():
    state = PolicyState(claims=(flight("uid-a"),), evicted_at=(1.0,), thresholds_met=SETTINGS.thresholds)

    assert PolicyState(thresholds_met=SETTINGS.thresholds) == without_evictions(state)


def test_a_pod_is_left_out_from_when_it_is_found_empty_until_a_process_lives_in_it():
    pods = (make_pod("a"), make_pod("b"))
    state = after(PodEmptied(uid="uid-a", was_found=True), PolicyState())

    assert pods[1:] == eligible(state, pods, 1.0)
    assert pods == eligible(after(PodsInhabited(uids=frozenset({"uid-a"})), state), pods, 1.0)


def test_a_pod_that_is_found_empty_again_at_once_is_no_news():
    state = after(PodEmptied(uid="uid-a", was_found=True), PolicyState(), 1.0)

    assert is_newly_empty(state, "uid-b", 1.01)
    assert not is_newly_empty(state, "uid-a", 1.01)
    assert is_newly_empty(state, "uid-a", 1.02)


def test_what_is_known_of_pods_ends_with_them():
    state = after(PodEmptied(uid="uid-a", was_found=True), PolicyState())
    state = after(EvictionFailed(uid="uid-b", why="why"), state)
    state = after(PodEmptied(uid="uid-c"), state)

    assert after(PodsListed(uids=frozenset({"uid-a", "uid-b", "uid-c"})), state) == state
    assert after(PodsListed(uids=frozenset()), state) == PolicyState()
    assert after(PodsListed(uids=frozenset({"uid-a"})), PolicyState()) is not None


def test_a_pod_that_could_not_be_killed_is_spared_for_a_while_and_a_critical_one_keeps_its_reason():
    pods = (make_pod("a"), dataclasses.replace(make_pod("b"), critical_because="static pod"), make_pod("c"))
    state = PolicyState()
    for uid in ("uid-a", "uid-b"):
        state = after(EvictionFailed(uid=uid, why="Operation not permitted"), state, 100.0)

    spared, critical, other = eligible(state, pods, 129.0)
    assert "could not be ended: Operation not permitted" == spared.critical_because
    assert (critical, other) == pods[1:]
    assert pods == eligible(state, pods, 130.0)


def test_a_pod_whose_files_are_awaited_counts_without_a_cgroup_until_its_deadline():
    gone, present = make_pod("gone"), make_pod("present")
    state = PolicyState(claims=(flight("uid-gone", Resource.EPHEMERAL_STORAGE, pod=gone),))

    assert (present, gone) == with_lingering(state, (present,), 9.0)
    assert (present, gone) == with_lingering(state, (present, gone), 9.0)
    assert {} == lingering(state, 10.0)
    assert (present,) == with_lingering(state, (present,), 10.0)


def test_an_eviction_of_a_process_is_awaited_and_is_judged_by_its_pod():
    pod, process = (
        make_pod("a"),
        ProcessMemory(pid=7, name="tab", anonymous_bytes=MIB, shared_bytes=0, swap_bytes=0),
    )
    at_once = ProcessEvictionOrdered(
        eviction=eviction(pod), process=process, snapshot=Snapshot(), pods=(pod,)
    )
    with_grace = dataclasses.replace(at_once, eviction=eviction(pod, grace_period_seconds=5))

    assert [7] == [one.pid for one in after(at_once, PolicyState()).killed_alone]
    asked = after(with_grace, PolicyState())
    assert [MIB] == [one.amount for one in asked.in_flight]
    assert () == after(ProcessOver(uid=pod.uid), asked).in_flight
    killed = after(ProcessKilled(pod=pod, process=process), asked)
    assert ((), [7]) == (killed.in_flight, [one.pid for one in killed.killed_alone])
