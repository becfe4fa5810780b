from __future__ import annotations

import math

import pytest

from reactor.model.decisions import ClaimKind, PolicyState
from reactor.model.kills import Slowdown, SlowReason
from reactor.model.settings import EvictionSettings
from reactor.model.signals import Resource, Signal
from reactor.policy.attention import grace_period_ended, next_pass_seconds
from tests.support.builders import make_claim, make_threshold

SETTINGS = EvictionSettings(unhelpful_eviction_pause_seconds=10.0)


def _state(resource: Resource | None, signal: Signal | None) -> PolicyState:
    return PolicyState(
        claims=() if resource is None else (make_claim(resource=resource),),
        thresholds_met=() if signal is None else (make_threshold(1 << 20, signal),),
    )


def test_memory_that_is_still_coming_back_under_pressure_is_looked_after() -> None:
    assert next_pass_seconds(SETTINGS, _state(Resource.MEMORY, Signal.MEMORY_AVAILABLE), 5.0) < 0.1


def _slowed(until_seconds: float, signal: Signal = Signal.MEMORY_AVAILABLE) -> PolicyState:
    slowdown = Slowdown(
        signal=signal,
        reason=SlowReason.UNHELPFUL,
        since_seconds=0.0,
        until_seconds=until_seconds,
        message="",
    )
    return _state(None, Signal.MEMORY_AVAILABLE)._replace(slowdowns=(slowdown,))


def test_slowed_down_evictions_are_looked_after_until_their_pause_is_over_and_without_haste() -> None:
    assert 0.1 == next_pass_seconds(SETTINGS, _slowed(15.0), 5.0)
    assert 0.04 < next_pass_seconds(SETTINGS, _slowed(5.05), 5.0) < 0.06
    assert math.inf == next_pass_seconds(SETTINGS, _slowed(4.0), 5.0)
    assert 0.3 == next_pass_seconds(SETTINGS, _slowed(15.0), 5.0, slowed_pause_seconds=0.3)
    assert 0.04 < next_pass_seconds(SETTINGS, _slowed(5.05), 5.0, slowed_pause_seconds=0.3) < 0.06


def test_slowed_down_evictions_of_a_threshold_that_is_not_met_need_no_look() -> None:
    assert math.inf == next_pass_seconds(SETTINGS, _slowed(15.0, Signal.ALLOCATABLE_MEMORY_AVAILABLE), 5.0)


@pytest.mark.parametrize(
    ("resource", "signal"),
    [
        (None, Signal.MEMORY_AVAILABLE),
        (Resource.MEMORY, None),
        (Resource.PIDS, Signal.PID_AVAILABLE),
        (Resource.PIDS, Signal.MEMORY_AVAILABLE),
        (Resource.MEMORY, Signal.NODEFS_AVAILABLE),
    ],
)
def test_otherwise_the_loop_waits_for_its_sources(resource: Resource | None, signal: Signal | None) -> None:
    assert math.inf == next_pass_seconds(SETTINGS, _state(resource, signal), 5.0)


def _in_grace_period(*, since_seconds: float) -> PolicyState:
    soft = make_threshold(1 << 20, Signal.NODEFS_AVAILABLE, grace_period_seconds=30.0)
    return PolicyState(first_observed={soft: since_seconds})


def test_the_end_of_a_grace_period_is_looked_for_and_not_before() -> None:
    state = _in_grace_period(since_seconds=100.0)
    assert 10.0 < next_pass_seconds(SETTINGS, state, 120.0) < 10.1
    assert frozenset() == grace_period_ended(state, 129.9)
    assert {Signal.NODEFS_AVAILABLE} == grace_period_ended(state, 130.1)


def test_a_grace_period_that_is_over_is_not_waited_for_again() -> None:
    state = _in_grace_period(since_seconds=100.0)
    over = PolicyState(first_observed=state.first_observed, thresholds_met=tuple(state.first_observed))
    assert math.inf == next_pass_seconds(SETTINGS, over, 131.0)
    assert frozenset() == grace_period_ended(over, 131.0)


@pytest.mark.parametrize(
    ("grace_period_seconds", "evicted_at"), [(30.0, (1.0, 6.0)), (0.0, (6.0,)), (30.0, ())]
)
def test_the_end_of_a_pause_between_soft_evictions_is_looked_for(
    grace_period_seconds: float, evicted_at: tuple[float, ...]
) -> None:
    met = make_threshold(1 << 20, grace_period_seconds=grace_period_seconds)
    state = PolicyState(thresholds_met=(met,), first_observed={met: -60.0}, evicted_at=evicted_at)

    waits = grace_period_seconds > 0 and bool(evicted_at)
    assert (5.001 if waits else math.inf) == pytest.approx(next_pass_seconds(SETTINGS, state, 11.0))
    assert math.inf == next_pass_seconds(SETTINGS, state, 16.1)


def test_memory_that_a_victim_of_the_kernels_frees_is_awaited() -> None:
    kill = make_claim(kind=ClaimKind.KERNEL_KILL)
    state = _state(None, Signal.MEMORY_AVAILABLE)._replace(claims=(kill,))
    assert next_pass_seconds(SETTINGS, state, 5.0) < 0.1
