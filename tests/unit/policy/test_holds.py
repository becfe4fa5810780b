"""Holds: no reclaim, slowdown or rate delays an eviction that it is not about."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.model.decisions import Hold, Inputs, PolicyState, Snapshot
from reactor.model.kills import Slowdown, SlowReason
from reactor.model.settings import EvictionSettings
from reactor.model.signals import MEMORY_SIGNALS, Reclaim, Signal
from reactor.model.thresholds import Observation, Threshold
from reactor.policy.holds import evictions_left, goes_on, holds, is_on, over, paced, under_way, with_hold
from tests.support.builders import make_claim, make_pod, make_threshold
from tests.unit.policy import strategies as drawn

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
STATES = drawn.built(
    PolicyState,
    holds=st.lists(HOLDS, max_size=3).map(tuple),
    slowdowns=st.lists(SLOWDOWNS, max_size=3).map(tuple),
    evicted_at=st.lists(SECONDS, max_size=3).map(tuple),
)
SEEN = st.builds(Observation, available=st.integers(0, 120), capacity=st.just(1000))
SETTINGS = st.builds(EvictionSettings, evictions_per_minute=st.none() | st.integers(0, 3))
INPUTS = st.builds(
    Inputs,
    SETTINGS,
    STATES,
    snapshot=st.builds(lambda seen: Snapshot(signals=dict.fromkeys(Signal, seen)), SEEN),
    pods=st.just((make_pod("a"),)),
    now_seconds=SECONDS,
)


@pytest.mark.slow
@given(INPUTS, MEMORY)
def test_no_hold_of_a_soft_threshold_delays_a_hard_one(inputs: Inputs, signal: Signal) -> None:
    soft = tuple(one for one in inputs.state.holds if one.kind is Reclaim.POD_MEMORY)
    alone = inputs.with_state(inputs.state._replace(holds=soft, slowdowns=()))

    assert [] == list(holds(alone, make_threshold(100, signal)))


@given(INPUTS, THRESHOLDS)
def test_without_a_pod_that_can_be_evicted_no_slowdown_and_no_rate_holds(
    inputs: Inputs, threshold: Threshold
) -> None:
    reclaims = {one.reason for one in inputs.state.holds if is_on(one, inputs.now_seconds)}

    kept = replace(inputs.pods[0], critical_because="static pod")
    assert reclaims >= set(holds(inputs._replace(pods=(kept,)), threshold))


@given(INPUTS, THRESHOLDS)
def test_every_hold_ends(inputs: Inputs, threshold: Threshold) -> None:
    settings = replace(inputs.settings, evictions_per_minute=inputs.settings.evictions_per_minute or None)

    assert [] == list(holds(inputs._replace(settings=settings, now_seconds=80.0), threshold))


@given(INPUTS, THRESHOLDS, st.sampled_from([0.0, 10.0]))
def test_a_pause_is_for_soft_memory_thresholds_alone_and_ends(
    inputs: Inputs, threshold: Threshold, pause: float
) -> None:
    inputs = inputs._replace(settings=EvictionSettings(unhelpful_eviction_pause_seconds=pause))
    is_soft_memory = not threshold.is_hard and threshold.signal in MEMORY_SIGNALS
    is_paused = any(inputs.now_seconds < at + pause for at in inputs.state.evicted_at)

    assert (paced(inputs, threshold) is not None) == (is_soft_memory and is_paused)
    assert None is paced(inputs._replace(now_seconds=30.0), threshold)


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
    assert not goes_on(state._replace(claims=(make_claim(),)), hold, 2.0)
    assert not goes_on(state._replace(thresholds_met=(make_threshold(100),)), hold, 2.0)
    assert goes_on(
        state._replace(thresholds_met=(make_threshold(100, grace_period_seconds=30.0),)), hold, 2.0
    )
