"""Memory that no pod holds is reclaimed before a further pod is evicted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reactor.model.decisions import Claim, ClaimKind, Decision, Ineligible, PolicyState, Snapshot
from reactor.model.pods import Pod, PodUsage
from reactor.model.settings import EvictionSettings
from reactor.model.signals import Reclaim, Signal
from reactor.model.thresholds import Observation, Threshold
from reactor.policy.decide import decide
from reactor.policy.holds import MOST_SECONDS, PAUSE_SECONDS, over, under_way

from . import strategies as draw

MIB = 1 << 20
HARD = Threshold(signal=Signal.MEMORY_AVAILABLE, value=draw.amount(100 * MIB))
SETTINGS = EvictionSettings(thresholds=(HARD,), reclaims_memory=True)
PODS = (Pod(name="innocent", namespace="n", uid="innocent"),)
EVICTED = PolicyState(evicted_at=(99.0,))


def passed(
    state: PolicyState = EVICTED,
    at: float = 100.0,
    *,
    available_mib: int = 60,
    pods_mib: int | None = 100,
    settings: EvictionSettings = SETTINGS,
    **signals: Observation,
) -> tuple[PolicyState, Decision]:
    """Make a pass over a node of 512 MiB."""
    seen = Observation(available=available_mib * MIB, capacity=512 * MIB, taken_at_seconds=at)
    used = None if pods_mib is None else pods_mib * MIB
    snapshot = Snapshot(
        signals={Signal.MEMORY_AVAILABLE: seen, **{Signal(name): one for name, one in signals.items()}},
        pods={"innocent": PodUsage(memory_working_set_bytes=used)},
    )
    return decide(settings, state, snapshot, PODS, at)


def test_what_no_pod_holds_is_reclaimed_before_the_next_eviction() -> None:
    state, decision = passed()
    assert (decision.memory_reclaim,) == state.holds
    assert decision.memory_reclaim is not None
    assert (40 * MIB, 352 * MIB) == (
        decision.memory_reclaim.wanted_bytes,
        decision.memory_reclaim.outside_bytes,
    )
    assert () == decision.evictions
    assert "reclaim: 352Mi that belong to no pod" in (decision.deferred_because or "")


def test_the_first_eviction_waits_for_no_reclaim() -> None:
    for state in (PolicyState(), PolicyState(evicted_at=(60.0,))):
        _, decision = passed(state)
        assert (None, 1) == (decision.memory_reclaim, len(decision.evictions))


def test_where_the_pods_hold_what_is_missing_nothing_is_reclaimed() -> None:
    assert 1 == len(passed(pods_mib=420)[1].evictions)
    assert passed(pods_mib=412)[1].memory_reclaim is not None


def test_less_than_a_mebibyte_outside_the_pods_is_not_reclaimed_first() -> None:
    seen = Observation(available=100 * MIB - 1, capacity=512 * MIB, taken_at_seconds=100.0)
    for outside_bytes, reclaims in ((MIB - 1, 0), (MIB, 1)):
        held = PodUsage(memory_working_set_bytes=412 * MIB + 1 - outside_bytes)
        snapshot = Snapshot(signals={Signal.MEMORY_AVAILABLE: seen}, pods={"innocent": held})
        _, decision = decide(SETTINGS, EVICTED, snapshot, PODS, 100.0)
        assert (reclaims, 1 - reclaims) == (decision.memory_reclaim is not None, len(decision.evictions))


def test_nothing_is_reclaimed_where_the_pods_memory_is_unknown() -> None:
    assert 1 == len(passed(pods_mib=None)[1].evictions)


def test_who_can_not_reclaim_is_not_asked_to() -> None:
    assert 1 == len(passed(settings=replace(SETTINGS, reclaims_memory=False))[1].evictions)


@pytest.mark.parametrize(("left_mib", "reclaims"), [(None, 0), (39, 0), (40, 1)])
def test_where_only_ended_pods_can_be_reclaimed_what_they_left_counts(left_mib: int | None, reclaims: int):
    settings = replace(SETTINGS, reclaims_ended_only=True)
    state = EVICTED._replace(ineligible=Ineligible(emptied=frozenset({"ended"} if left_mib else ())))
    seen = Observation(available=60 * MIB, capacity=512 * MIB, taken_at_seconds=100.0)
    used = {"innocent": PodUsage(memory_working_set_bytes=100 * MIB)}
    if left_mib:
        used["ended"] = PodUsage(memory_working_set_bytes=left_mib * MIB)
    snapshot = Snapshot(signals={Signal.MEMORY_AVAILABLE: seen}, pods=used)
    _, decision = decide(settings, state, snapshot, PODS, 100.0)
    assert (reclaims, 1 - reclaims) == (decision.memory_reclaim is not None, len(decision.evictions))


def test_on_a_machine_what_counts_lies_in_the_pods_parents() -> None:
    parents = Observation(available=350 * MIB, capacity=460 * MIB, taken_at_seconds=100.0)
    name = Signal.ALLOCATABLE_MEMORY_AVAILABLE
    assert 1 == len(passed(**{name: parents})[1].evictions)
    assert passed(**{name: parents._replace(available=300 * MIB)})[1].memory_reclaim is not None


def test_an_eviction_waits_for_a_reclaim_that_is_under_way_and_not_longer() -> None:
    state, _ = passed()
    state, decision = passed(state, 100 + MOST_SECONDS * 0.9)
    assert ((), None) == (decision.evictions, decision.memory_reclaim)
    assert under_way(state, Reclaim.MEMORY, 100 + MOST_SECONDS * 0.9)
    assert 1 == len(passed(state, 100 + MOST_SECONDS)[1].evictions)


def test_an_eviction_waits_no_longer_where_the_reclaim_is_over() -> None:
    state, _ = passed()
    assert 0 == len(passed(state, 100.1)[1].evictions)
    assert 1 == len(passed(over(state, Reclaim.MEMORY, state.holds[0].began_seconds), 100.1)[1].evictions)


@pytest.mark.parametrize(("available_mib", "evicted"), [(60, 0), (59, 0), (58, 1)])
def test_an_eviction_waits_no_longer_where_the_shortage_grows(available_mib: int, evicted: int) -> None:
    state, _ = passed()
    assert evicted == len(passed(state, 100.1, available_mib=available_mib)[1].evictions)


def test_no_reclaim_follows_another_at_once() -> None:
    state, _ = passed()
    state = state._replace(evicted_at=(99.0 + PAUSE_SECONDS,))
    _, decision = passed(state, 100 + PAUSE_SECONDS - 0.1)
    assert (None, 1) == (decision.memory_reclaim, len(decision.evictions))
    assert passed(state, 100 + PAUSE_SECONDS)[1].memory_reclaim is not None


def test_what_a_dying_pod_brings_is_seen_before_anything_is_reclaimed() -> None:
    claim = Claim(kind=ClaimKind.POD, uid="innocent", kill_at_seconds=200.0, deadline_seconds=210.0)
    _, decision = passed(EVICTED._replace(claims=(claim,)))
    assert (None, 1) == (decision.memory_reclaim, len(decision.evictions))


def test_evictions_that_are_bound_in_rate_are_no_reason_not_to_reclaim() -> None:
    soft = replace(HARD, grace_period_seconds=5.0)
    settings = replace(SETTINGS, thresholds=(soft,), evictions_per_minute=1)
    state, decision = passed(EVICTED._replace(first_observed={soft: 90.0}), settings=settings)
    assert (0, state.holds) == (len(decision.evictions), (decision.memory_reclaim,))
    assert "rate: 1 evictions" in (decision.deferred_because or "")
    assert decision.memory_reclaim is not None


def test_another_signal_does_not_wait_for_it() -> None:
    pids = Threshold(signal=Signal.PID_AVAILABLE, value=draw.amount(100))
    settings = replace(SETTINGS, thresholds=(HARD, pids))
    seen = Observation(available=1, capacity=1000, taken_at_seconds=100.0)
    _, decision = passed(settings=settings, **{Signal.PID_AVAILABLE: seen})
    assert pids == decision.acted_on
    assert decision.memory_reclaim is not None
