"""Pods' memory is reclaimed before the first eviction for a soft memory threshold, where asked for."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from reactor.model.decisions import Decision, Hold, PolicyState, Snapshot
from reactor.model.kills import HardMemoryKill
from reactor.model.pods import PodUsage
from reactor.model.settings import EvictionSettings
from reactor.model.signals import Reclaim, Signal
from reactor.model.thresholds import Observation, Threshold, ThresholdValue
from reactor.policy import holds
from reactor.policy.decide import decide
from reactor.policy.holds import SOFT_PAUSE_SECONDS as PAUSE_SECONDS
from reactor.policy.holds import under_way
from tests.support.builders import make_pod, make_threshold

MIB = 1 << 20
SOFT = make_threshold(160 * MIB, grace_period_seconds=30)
HARD = make_threshold(100 * MIB)
SETTINGS = EvictionSettings(thresholds=(HARD, SOFT), reclaims_memory=True, soft_reclaim_seconds=5.0)
PODS = (make_pod("one"), make_pod("two"))
GRACE_OVER = PolicyState(first_observed={SOFT: 70.0})
NONE: dict[Signal, Observation] = {}


def passed(
    state: PolicyState = GRACE_OVER,
    at: float = 100.0,
    *,
    available_mib: int = 140,
    settings: EvictionSettings = SETTINGS,
    others: dict[Signal, Observation] = NONE,
) -> tuple[PolicyState, Decision]:
    """Make a pass over a node of 512 MiB."""
    seen = Observation(available=available_mib * MIB, capacity=512 * MIB, taken_at_seconds=at)
    used = {pod.uid: PodUsage(memory_working_set_bytes=150 * MIB) for pod in PODS}
    snapshot = Snapshot(signals={Signal.MEMORY_AVAILABLE: seen, **others}, pods=used)
    return decide(settings, state, snapshot, PODS, at)


def over(state: PolicyState) -> PolicyState:
    (hold,) = state.holds
    return holds.over(state, Reclaim.POD_MEMORY, hold.began_seconds)


def test_reclaim_comes_after_the_grace_period_and_before_the_first_soft_eviction() -> None:
    state, decision = passed(PolicyState(), 70.0)
    assert (None, ()) == (decision.soft_reclaim, decision.evictions)
    state, decision = passed(state, 100.0)
    because = "reclaim: 30Mi are being reclaimed from the pods first, for 5 s at most"
    expected = Hold(
        kind=Reclaim.POD_MEMORY,
        reason=because,
        threshold=SOFT,
        began_seconds=100.0,
        until_seconds=105.0,
        wanted_bytes=(20 + 10) * MIB,
    )
    assert expected == decision.soft_reclaim
    assert (expected,) == state.holds
    assert () == decision.evictions
    assert f"{SOFT}: {because}" == decision.deferred_because


def test_minimum_reclaim_is_part_of_what_is_wanted() -> None:
    minimum = ThresholdValue(text="50Mi", amount=Fraction(50 * MIB))
    soft = replace(SOFT, minimum_reclaim=minimum)
    settings = replace(SETTINGS, thresholds=(soft,))
    _, decision = passed(PolicyState(first_observed={soft: 70.0}), settings=settings)
    assert decision.soft_reclaim is not None
    assert (20 + 50 + 10) * MIB == decision.soft_reclaim.wanted_bytes


def test_soft_eviction_waits_for_the_reclaim_and_no_longer_than_its_time() -> None:
    state, _ = passed()
    state, decision = passed(state, 104.9)
    assert ((), None, True) == (
        decision.evictions,
        decision.soft_reclaim,
        bool(under_way(state, Reclaim.POD_MEMORY, 104.9)),
    )
    assert 1 == len(passed(state, 105.0)[1].evictions)
    assert 1 == len(passed(over(state), 104.95)[1].evictions)


def test_nobody_is_evicted_where_the_reclaim_was_enough() -> None:
    state, _ = passed()
    state, decision = passed(over(state), 101.0, available_mib=161)
    assert ((), ()) == (decision.evictions, state.thresholds_met)


def test_hard_crossing_meanwhile_waits_for_no_reclaim_and_begins_none() -> None:
    state, _ = passed()
    _, decision = passed(state, 100.1, available_mib=99)
    assert (HARD, 1) == (decision.acted_on, len(decision.evictions))
    _, decision = passed(available_mib=99)
    assert (HARD, 1, None) == (decision.acted_on, len(decision.evictions), decision.soft_reclaim)


def test_no_reclaim_begins_while_a_hard_memory_threshold_is_met_for_which_evictions_wait() -> None:
    settings = replace(SETTINGS, hard_memory_evictions_per_minute=1)
    kill = HardMemoryKill(uid="three", signal=HARD.signal, at_seconds=99.0)
    state = GRACE_OVER._replace(hard_memory_kills=(kill,))
    _, decision = passed(state, available_mib=99, settings=settings)
    assert (SOFT, 1, None) == (decision.acted_on, len(decision.evictions), decision.soft_reclaim)


def test_there_is_one_reclaim_in_a_shortage() -> None:
    state, _ = passed()
    state, decision = passed(over(state), 100.0 + 10 * PAUSE_SECONDS)
    assert (1, None) == (len(decision.evictions), decision.soft_reclaim)


def test_next_shortage_has_a_reclaim_of_its_own_but_not_within_the_pause() -> None:
    state, _ = passed()
    state, _ = passed(over(state), 101.0, available_mib=200)
    state, _ = passed(state, 102.0)
    later, decision = passed(state, 132.0)
    assert (1, None) == (len(decision.evictions), decision.soft_reclaim)
    _, decision = passed(state, 100.0 + PAUSE_SECONDS)
    assert None is not decision.soft_reclaim
    assert () == decision.evictions
    assert later.holds


def test_nothing_is_reclaimed_where_it_is_not_asked_for_or_can_not_be_done() -> None:
    for settings in (replace(SETTINGS, soft_reclaim_seconds=0.0), replace(SETTINGS, reclaims_memory=False)):
        _, decision = passed(settings=settings)
        assert (1, None) == (len(decision.evictions), decision.soft_reclaim)


def test_other_signals_and_hard_thresholds_have_no_reclaim_and_do_not_wait_for_one() -> None:
    pids = make_threshold(100, signal=Signal.PID_AVAILABLE, grace_period_seconds=30)
    thresholds: tuple[Threshold, ...] = (pids,)
    settings = replace(SETTINGS, thresholds=thresholds)
    seen = Observation(available=1, capacity=1000, taken_at_seconds=100.0)
    begun, _ = passed()
    for state in (PolicyState(), begun):
        _, decision = passed(
            state._replace(first_observed={pids: 70.0}),
            100.5,
            available_mib=300,
            settings=settings,
            others={Signal.PID_AVAILABLE: seen},
        )
        assert (pids, None) == (decision.acted_on, decision.soft_reclaim)


def test_soft_threshold_of_the_pods_cgroup_waits_for_the_same_reclaim() -> None:
    pods = replace(SOFT, signal=Signal.ALLOCATABLE_MEMORY_AVAILABLE)
    settings = replace(SETTINGS, thresholds=(SOFT, pods))
    state = PolicyState(first_observed={SOFT: 70.0, pods: 70.0})
    seen = Observation(available=140 * MIB, capacity=500 * MIB, taken_at_seconds=100.0)
    others = {Signal.ALLOCATABLE_MEMORY_AVAILABLE: seen}
    state, decision = passed(state, settings=settings, others=others)
    assert () == decision.evictions
    assert SOFT == (decision.soft_reclaim and decision.soft_reclaim.threshold)
