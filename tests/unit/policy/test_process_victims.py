"""One process of a pod instead of the whole pod: which, when not, and what is waited for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.model.decisions import Claim, ClaimKind, Eviction, PolicyState, Snapshot
from reactor.model.kills import ProcessKill, ProcessMemory
from reactor.model.pod_lists import ProcessVictim
from reactor.model.pods import Pod, PodUsage
from reactor.model.settings import EvictionSettings
from reactor.model.signals import Resource, Signal
from reactor.model.thresholds import Observation, Threshold
from reactor.policy.claims import dying_bytes
from reactor.policy.decide import decide
from reactor.policy.events import ProcessEvictionOrdered, ProcessKilled, ProcessOver, apply
from reactor.policy.process_victims import (
    counts_shared_memory,
    given_up_because,
    in_order,
    too_small_because,
)

from . import strategies as draw

MIB = 1 << 20
HARD = Threshold(signal=Signal.MEMORY_AVAILABLE, value=draw.amount(100 * MIB))
SOFT = replace(HARD, grace_period_seconds=5.0)
SETTINGS = EvictionSettings(thresholds=(HARD,), in_flight_deadline_seconds=10.0)
SESSION = Pod(name="session", namespace="n", uid="session", process_victim=ProcessVictim(entry="unit a"))
PODS = (SESSION, Pod(name="other", namespace="n", uid="other"))
HELD = {
    "session": PodUsage(memory_working_set_bytes=300 * MIB),
    "other": PodUsage(memory_working_set_bytes=20 * MIB),
}


def process(pid: int, mib: int, *, shared: int = 0, swap: int = 0, name: str = "tab") -> ProcessMemory:
    return ProcessMemory(
        pid=pid,
        name=name,
        anonymous_bytes=mib * MIB,
        shared_bytes=shared * MIB,
        swap_bytes=swap * MIB,
    )


def snapshot(available_mib: int = 0, at: float = 0.0, **held: PodUsage) -> Snapshot:
    seen = Observation(available=available_mib * MIB, capacity=512 * MIB, taken_at_seconds=at)
    return Snapshot(signals={Signal.MEMORY_AVAILABLE: seen}, pods={**HELD, **held})


def eviction(threshold: Threshold = HARD, grace_period_seconds: int = 0) -> Eviction:
    return Eviction(
        pod=SESSION,
        signal=Signal.MEMORY_AVAILABLE,
        resource=Resource.MEMORY,
        grace_period_seconds=grace_period_seconds,
        message="",
        threshold=threshold,
    )


def ordered(state: PolicyState, one: ProcessMemory, at: float = 0.0, **changed: object) -> PolicyState:
    asked = eviction()._replace(**changed)
    return apply(
        SETTINGS,
        state,
        ProcessEvictionOrdered(eviction=asked, process=one, snapshot=snapshot(), pods=PODS),
        at,
    )


def test_only_pods_under_a_rule_and_only_for_memory_and_swap() -> None:
    taken = {one for one in Resource if SESSION.loses_one_process(one)}
    assert {Resource.MEMORY, Resource.SWAP} == taken
    assert not PODS[1].loses_one_process(Resource.MEMORY)


def test_only_for_thresholds_and_not_by_a_rule() -> None:
    assert eviction().is_of_one_process
    assert not eviction()._replace(threshold=None).is_of_one_process
    assert not eviction()._replace(resource=Resource.PIDS).is_of_one_process


def test_the_one_that_holds_most_is_first_and_of_equal_ones_that_of_the_lowest_id() -> None:
    found = in_order([process(3, 5), process(2, 1, shared=2, swap=2), process(1, 4), process(4, 1)])
    assert [2, 3, 1, 4] == [one.pid for one in found]


def test_shared_memory_that_others_have_mapped_too_is_no_process_s() -> None:
    readers = [process(pid, 3, shared=220) for pid in (1, 2, 3)]
    found = in_order([*readers, process(4, 190)])
    assert [4, 1, 2, 3] == [one.pid for one in found]
    assert [190, 3, 3, 3] == [one.held_bytes // MIB for one in found]


def test_of_shared_memory_what_no_others_can_have_mapped_counts() -> None:
    found = in_order([process(1, 10, shared=300), process(2, 100, shared=20), process(3, 5, shared=20)])
    assert [(1, 270), (2, 100), (3, 5)] == [(one.pid, one.held_bytes // MIB) for one in found]


def test_where_shared_memory_does_not_count_the_most_anonymous_memory_is_first() -> None:
    found = in_order([process(1, 10, shared=300), process(2, 100)], counts_shared=False)
    assert [(2, 100), (1, 10)] == [(one.pid, one.held_bytes // MIB) for one in found]


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=8))
def test_no_more_is_expected_of_shared_memory_than_there_can_be(sizes) -> None:
    found = [process(pid, mib, shared=shared) for pid, (mib, shared) in enumerate(sizes)]
    most = max((shared for _, shared in sizes), default=0) * MIB
    assert sum(one.shared_bytes for one in in_order(found)) <= most


@given(st.lists(st.tuples(st.integers(1, 99), st.integers(0, 9)), unique_by=lambda one: one[0]), st.randoms())
def test_the_order_does_not_depend_on_the_order_in_which_they_were_found(sizes, random) -> None:
    found = [process(pid, mib) for pid, mib in sizes]
    mixed = random.sample(found, len(found))
    assert in_order(found) == in_order(mixed)


@pytest.mark.parametrize(
    ("processes", "used_mib", "why"),
    [
        ([process(1, 10), process(2, 5)], 100, None),
        ([process(1, 9), process(2, 9)], 100, "holds 9Mi of 100Mi, less than 10 %"),
        # What is in swap counts on both sides.
        ([process(1, 5, swap=10), process(2, 5)], 100, None),
        ([process(1, 9), process(2, 5, swap=300)], 80, "holds 9Mi of 380Mi"),
        ([process(1, 9), process(2, 5)], None, None),
        ([process(1, 0)], 0, "holds 0 of 0"),
    ],
)
def test_a_small_share_is_not_worth_it(processes, used_mib, why) -> None:
    told = too_small_because(processes[0], processes, None if used_mib is None else used_mib * MIB)
    assert (told is None) == (why is None)
    assert (why or "") in (told or "")


def kills(*used_mib: int | None, uid: str = "session", every: float = 1.0) -> list[ProcessKill]:
    return [
        ProcessKill(
            uid=uid,
            at_seconds=number * every,
            held_bytes=40 * MIB,
            used_bytes=None if used is None else used * MIB,
        )
        for number, used in enumerate(used_mib)
    ]


@pytest.mark.parametrize(
    ("found", "now_mib", "at", "given_up"),
    [
        (kills(300, 300), 300, 3.0, False),
        (kills(300, 300, 300), 300, 3.0, True),
        (kills(300, 300, 300), 271, 3.0, True),  # 120 of them were killed: a quarter is 30
        (kills(300, 300, 300), 269, 3.0, False),
        (kills(None, 300, 300), 100, 3.0, True),
        (kills(300, 300, 300), None, 3.0, True),
        (kills(500, 300, 260, 200), 200, 4.0, False),  # each of them helped
        (kills(300, 300, 300), 300, 61.0, False),  # a minute ago
        (kills(300, 300, 300, uid="other"), 300, 3.0, False),
    ],
)
def test_after_three_that_did_not_help_no_more_are_killed_one_by_one(found, now_mib, at, given_up) -> None:
    used_bytes = None if now_mib is None else now_mib * MIB
    assert given_up == (given_up_because(found, "session", used_bytes, at) is not None)


@pytest.mark.parametrize(
    ("found", "now_mib", "at", "counts"),
    [
        ([], 300, 1.0, True),
        (kills(300), 300, 1.0, False),
        (kills(300), 291, 1.0, False),  # 40 of them were killed: a quarter is 10
        (kills(300), 289, 1.0, True),
        (kills(300, 300), 200, 2.0, True),  # the last one counts
        (kills(300), 300, 61.0, True),
        (kills(300, uid="other"), 300, 1.0, True),
    ],
)
def test_after_a_kill_that_brought_nothing_back_shared_memory_does_not_count(
    found, now_mib, at, counts
) -> None:
    assert counts == counts_shared_memory(found, "session", now_mib * MIB, at)


def test_what_a_killed_process_held_is_waited_for_and_its_pod_is_not_in_flight() -> None:
    state = ordered(PolicyState(), process(42, 250))
    assert () == state.in_flight
    state, decision = decide(SETTINGS, state, snapshot(0, 0.01), PODS, 0.01)
    assert () == decision.evictions
    assert "250Mi still to be freed by process 42 of n/session" in (decision.deferred_because or "")


def test_a_swap_threshold_waits_for_it_as_well_and_for_no_victim_of_the_kernels() -> None:
    on_swap = Threshold(signal=Signal.SWAP_AVAILABLE, value=draw.amount(100 * MIB))
    settings = replace(SETTINGS, thresholds=(on_swap,))
    seen = Observation(available=0, capacity=512 * MIB, taken_at_seconds=0.01)
    held = {"session": PodUsage(swap_bytes=300 * MIB), "other": PodUsage(swap_bytes=20 * MIB)}
    low = Snapshot(signals={Signal.SWAP_AVAILABLE: seen}, pods=held)
    asked = eviction(on_swap)._replace(signal=Signal.SWAP_AVAILABLE, resource=Resource.SWAP)
    state = apply(
        settings,
        PolicyState(),
        ProcessEvictionOrdered(eviction=asked, process=process(42, 1, swap=90), snapshot=low, pods=PODS),
        0.0,
    )
    _, decision = decide(settings, state, low, PODS, 0.01)
    assert "the end of process 42 of n/session frees is not known yet" in (decision.deferred_because or "")
    by_kernel = tuple(replace(one, kind=ClaimKind.KERNEL_KILL, pod=None) for one in state.claims)
    _, decision = decide(settings, state._replace(claims=by_kernel), low, PODS, 0.01)
    assert ["session"] == [one.pod.name for one in decision.evictions]


def test_what_is_dying_of_a_pod_is_known() -> None:
    state = ordered(ordered(PolicyState(), process(42, 50)), process(43, 20))
    by_kernel = replace(state.claims[0], kind=ClaimKind.KERNEL_KILL, pid=44, pod=None)
    state = state._replace(claims=(*state.claims, by_kernel))
    assert (70 * MIB, 0) == (dying_bytes(state, "session"), dying_bytes(state, "other"))


def test_where_that_is_not_enough_the_same_pod_is_chosen_again() -> None:
    state = ordered(PolicyState(), process(42, 50))
    _, decision = decide(SETTINGS, state, snapshot(0, 0.01), PODS, 0.01)
    assert ["session"] == [one.pod.name for one in decision.evictions]


def test_a_process_of_which_nothing_comes_back_is_waited_for_a_second() -> None:
    state = ordered(PolicyState(), process(42, 250))
    state, decision = decide(SETTINGS, state, snapshot(0, 0.9), PODS, 0.9)
    assert decision.deferred_because is not None
    state, decision = decide(SETTINGS, state, snapshot(0, 1.1), PODS, 1.1)
    assert decision.evictions
    assert () == state.claims


def test_a_process_that_still_frees_is_waited_for_longer() -> None:
    state = ordered(PolicyState(), process(42, 250))
    for tenth in range(0, 20, 5):
        at = tenth / 10
        state, decision = decide(SETTINGS, state, snapshot(tenth * 2, at), PODS, at)
        assert decision.deferred_because is not None


def test_what_is_shared_or_in_swap_of_it_is_not_credited_twice() -> None:
    (claim,) = ordered(PolicyState(), process(42, 10, shared=5, swap=90)).claims
    assert 15 * MIB == claim.amount


def test_a_kill_counts_for_the_storm_brake_with_what_the_process_held() -> None:
    (kill,) = ordered(PolicyState(), process(42, 250)).hard_memory_kills
    assert (250 * MIB, 70 * MIB) == (kill.credited_bytes, kill.pods_bytes)
    assert 192 * MIB == kill.outside_bytes
    unseen = apply(
        SETTINGS,
        PolicyState(),
        ProcessEvictionOrdered(eviction=eviction(), process=process(1, 1), snapshot=Snapshot(), pods=PODS),
        0.0,
    )
    assert None is unseen.hard_memory_kills[0].outside_bytes
    assert None is unseen.process_kills[0].used_bytes


def test_of_pods_that_could_not_be_read_no_sum_is_noted() -> None:
    partly = Snapshot(signals=snapshot().signals, pods={"session": HELD["session"]})
    state = apply(
        SETTINGS,
        PolicyState(),
        ProcessEvictionOrdered(eviction=eviction(), process=process(42, 250), snapshot=partly, pods=PODS),
        0.0,
    )
    assert None is state.hard_memory_kills[0].pods_bytes


def test_a_soft_eviction_of_a_process_is_in_flight_until_it_is_over_and_is_no_hard_kill() -> None:
    state = ordered(PolicyState(), process(42, 250), threshold=SOFT, grace_period_seconds=5)
    (flight,) = state.in_flight
    assert (5.0, 15.0, 250 * MIB) == (
        flight.kill_at_seconds,
        flight.deadline_seconds,
        flight.amount,
    )
    assert () == state.hard_memory_kills == state.killed_alone
    again = ordered(state, process(43, 20), 6.0, threshold=SOFT, grace_period_seconds=5)
    assert [20 * MIB] == [one.amount for one in again.in_flight]
    assert [0.0, 6.0] == [one.at_seconds for one in again.process_kills] == list(again.evicted_at)
    late = ordered(state, process(43, 20), 61.0)
    assert [61.0] == [one.at_seconds for one in late.process_kills] == list(late.evicted_at)


def test_in_its_grace_period_a_soft_threshold_credits_what_the_process_holds_and_not_the_pod() -> None:
    soft = replace(SETTINGS, thresholds=(SOFT,))
    for mib, is_waited_for in ((50, False), (150, True)):
        state = ordered(PolicyState(), process(42, mib), threshold=SOFT, grace_period_seconds=5)
        state, _ = decide(soft, state, snapshot(0, 0.0), PODS, 0.0)
        _, decision = decide(soft, state, snapshot(0, 5.5), PODS, 5.5)
        assert is_waited_for == (decision.deferred_because is not None)
        assert is_waited_for == (decision.evictions == ())


def test_once_killed_or_called_off_the_process_is_in_flight_no_more_and_whole_pods_stay_so() -> None:
    whole = Claim(kind=ClaimKind.POD, uid="session", kill_at_seconds=0.0, deadline_seconds=10.0)
    one = replace(whole, kind=ClaimKind.ENDING_PROCESS, amount=MIB)
    other = replace(one, uid="other")
    state = PolicyState(claims=(whole, one, other))
    assert (whole, other) == apply(SETTINGS, state, ProcessOver(uid="session"), 0.0).in_flight
    killed = apply(SETTINGS, state, ProcessKilled(pod=SESSION, process=process(42, 1)), 3.0)
    assert (whole, other) == killed.in_flight
    again = apply(SETTINGS, killed, ProcessKilled(pod=SESSION, process=process(42, 2)), 4.0)
    assert [(42, 2 * MIB, 14.0)] == [
        (one.pid, one.amount, one.deadline_seconds) for one in again.killed_alone
    ]


def test_a_storage_limit_is_no_hard_memory_kill() -> None:
    state = ordered(PolicyState(), process(42, 1), threshold=None)
    assert () == state.hard_memory_kills
