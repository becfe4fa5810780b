"""Holds: no reclaim, slowdown or rate delays an eviction that it is not about."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.model.decisions import Hold, PolicyState
from reactor.model.kills import Slowdown, SlowReason
from reactor.model.settings import EvictionSettings
from reactor.model.signals import MEMORY_SIGNALS, Reclaim, Signal
from reactor.model.thresholds import Observation, Threshold
from reactor.policy.holds import evictions_left, goes_on, holds, is_on, over, paced, under_way, with_hold
from tests.support.builders import make_claim, make_pod, make_threshold

MEMORY = st.sampled_from(sorted(MEMORY_SIGNALS))
THRESHOLDS = st.builds(make_threshold, st.just(100), st.sampled_from(Signal), st.sampled_from([0.0, 30.0]))
SECONDS = st.floats(0, 20)
HOLDS = st.builds(
    Hold,
    kind=st.sampled_from([Reclaim.MEMORY, Reclaim.POD_MEMORY, Reclaim.RULE]),
    reason=st.text(max_size=5),
    began_seconds=SECONDS,
    until_seconds=SECONDS,
    threshold=st.none() | THRESHOLDS,
    void_below_bytes=st.none() | st.integers(0, 100),
    is_over=st.booleans(),
)
SLOWDOWNS = st.builds(
    Slowdown,
    signal=st.sampled_from(Signal),
    reason=st.sampled_from(SlowReason),
    since_seconds=st.just(0.0),
    until_seconds=SECONDS,
    message=st.text(max_size=5),
)
STATES = st.builds(
    PolicyState,
    holds=st.lists(HOLDS, max_size=3).map(tuple),
    slowdowns=st.lists(SLOWDOWNS, max_size=3).map(tuple),
    evicted_at=st.lists(SECONDS, max_size=3).map(tuple),
)
PODS = (make_pod("a"),)
SEEN = st.builds(Observation, available=st.integers(0, 120), capacity=st.just(1000))
SETTINGS = st.builds(EvictionSettings, evictions_per_minute=st.none() | st.integers(0, 3))


@pytest.mark.slow
@given(SETTINGS, STATES, MEMORY, SEEN, SECONDS)
def test_no_hold_of_a_soft_threshold_delays_a_hard_one(
    settings: EvictionSettings, state: PolicyState, signal: Signal, seen: Observation, now: float
) -> None:
    soft = tuple(one for one in state.holds if one.kind is Reclaim.POD_MEMORY)
    hard, alone = make_threshold(100, signal), replace(state, holds=soft, slowdowns=())

    assert [] == list(holds(settings, alone, hard, seen, PODS, now))


@given(SETTINGS, STATES, THRESHOLDS, SEEN, SECONDS)
def test_without_a_pod_that_can_be_evicted_no_slowdown_and_no_rate_holds(
    settings: EvictionSettings, state: PolicyState, threshold: Threshold, seen: Observation, now: float
) -> None:
    reclaims = {one.reason for one in state.holds if is_on(one, now)}

    kept = replace(PODS[0], critical_because="static pod")
    assert reclaims >= set(holds(settings, state, threshold, seen, (kept,), now))


@given(SETTINGS, STATES, THRESHOLDS, SEEN)
def test_every_hold_ends(
    settings: EvictionSettings, state: PolicyState, threshold: Threshold, seen: Observation
) -> None:
    settings = replace(settings, evictions_per_minute=settings.evictions_per_minute or None)

    assert [] == list(holds(settings, state, threshold, seen, PODS, 80.0))


@given(STATES, THRESHOLDS, st.sampled_from([0.0, 10.0]), SECONDS)
def test_a_pause_is_for_soft_memory_thresholds_alone_and_ends(
    state: PolicyState, threshold: Threshold, pause: float, now: float
) -> None:
    settings = EvictionSettings(unhelpful_eviction_pause_seconds=pause)

    reason = paced(settings, state, threshold, PODS, now)

    is_soft_memory = not threshold.is_hard and threshold.signal in MEMORY_SIGNALS
    assert (reason is not None) == (is_soft_memory and any(now < at + pause for at in state.evicted_at))
    assert None is paced(settings, state, threshold, PODS, 30.0)


@given(STATES, HOLDS, SECONDS)
def test_of_each_kind_the_last_one_holds_until_it_is_over(state: PolicyState, hold: Hold, now: float) -> None:
    begun = with_hold(state, hold)

    assert [hold] == [one for one in begun.holds if one.kind is hold.kind]
    assert (hold if is_on(hold, now) else None) == under_way(begun, hold.kind, now)
    assert None is under_way(over(begun, hold.kind, hold.began_seconds), hold.kind, now)
    assert begun == over(begun, hold.kind, hold.began_seconds + 1)


def test_the_rate_leaves_no_less_than_none() -> None:
    settings = EvictionSettings(evictions_per_minute=1)

    assert [1, 0, 0] == [
        evictions_left(settings, PolicyState(evicted_at=at), 10.0) for at in ((), (1.0,), (1.0, 2.0))
    ]


def test_a_reclaim_from_the_pods_goes_on_until_something_happens_that_does_not_wait_for_it() -> None:
    hold = Hold(kind=Reclaim.POD_MEMORY, reason="", began_seconds=1.0, until_seconds=9.0)
    state = PolicyState(holds=(hold,))

    assert goes_on(state, hold, 8.9)
    assert not goes_on(state, hold, 9.0)
    assert not goes_on(state, replace(hold, began_seconds=0.5), 2.0)
    assert not goes_on(replace(state, claims=(make_claim(),)), hold, 2.0)
    assert not goes_on(replace(state, thresholds_met=(make_threshold(100),)), hold, 2.0)
    assert goes_on(
        replace(state, thresholds_met=(make_threshold(100, grace_period_seconds=30.0),)), hold, 2.0
    )
