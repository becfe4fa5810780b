from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.model.signals import Signal
from reactor.model.thresholds import Observation, Threshold, ThresholdValue
from reactor.policy.thresholds import (
    absurdities,
    in_eviction_order,
    is_kept_by_cache,
    thresholds_met,
    thresholds_met_grace_period,
    thresholds_with_fresh_statistics,
)
from reactor.sources.levels import memory_level

from . import strategies as draw

MEMORY = Threshold(signal=Signal.MEMORY_AVAILABLE, value=draw.amount(100))


def _seen(available: int, *, at: float | None = None) -> Observation:
    return Observation(available=available, capacity=1000, taken_at_seconds=at)


def test_a_threshold_is_met_below_its_value_and_not_at_it() -> None:
    assert (MEMORY,) == thresholds_met([MEMORY], {Signal.MEMORY_AVAILABLE: _seen(99)})
    assert () == thresholds_met([MEMORY], {Signal.MEMORY_AVAILABLE: _seen(100)})


@pytest.mark.parametrize("value", [draw.amount(1000), draw.amount(5000), draw.percent(100)])
@pytest.mark.parametrize("available", [0, 1, 999, 1000])
def test_a_threshold_at_or_above_the_capacity_is_never_met(value: ThresholdValue, available: int) -> None:
    absurd = replace(MEMORY, value=value, minimum_reclaim=draw.amount(1))
    seen = {Signal.MEMORY_AVAILABLE: _seen(available)}
    assert () == thresholds_met([absurd], seen)
    assert () == thresholds_met([absurd], seen, with_minimum_reclaim=True)
    assert memory_level(absurd, _seen(available)._replace(inactive_file_bytes=50)) is None


def test_a_threshold_just_below_the_capacity_is_met() -> None:
    high = replace(MEMORY, value=draw.amount(999))
    assert (high,) == thresholds_met([high], {Signal.MEMORY_AVAILABLE: _seen(998)})


def test_a_share_is_of_the_capacity_and_exact() -> None:
    share = replace(MEMORY, value=ThresholdValue(text="0.1%", percent=Fraction("0.1")))
    assert (share,) == thresholds_met([share], {Signal.MEMORY_AVAILABLE: _seen(0)})
    assert () == thresholds_met([share], {Signal.MEMORY_AVAILABLE: _seen(1)})


@pytest.mark.parametrize(
    ("available", "cached", "is_kept"),
    [(150, 60, True), (150, 50, False), (150, None, False), (90, 0, False), (90, 60, False)],
)
def test_page_cache_keeps_a_threshold_from_being_met_if_it_would_be_without_and_is_not(
    available: int, cached: int | None, *, is_kept: bool
) -> None:
    seen = _seen(available)._replace(inactive_file_bytes=cached)
    assert is_kept is is_kept_by_cache([MEMORY], {Signal.MEMORY_AVAILABLE: seen})
    soft = replace(MEMORY, grace_period_seconds=30.0)
    assert not is_kept_by_cache([soft], {Signal.MEMORY_AVAILABLE: seen})


def test_an_unobserved_signal_crosses_nothing() -> None:
    assert () == thresholds_met([MEMORY], {Signal.PID_AVAILABLE: _seen(0)})


@given(st.lists(draw.thresholds), st.dictionaries(st.sampled_from(Signal), draw.plausible))
def test_minimum_reclaim_only_widens_what_is_met(
    configured: list[Threshold], observations: dict[Signal, Observation]
) -> None:
    met = thresholds_met(configured, observations)
    wider = thresholds_met(configured, observations, with_minimum_reclaim=True)
    assert set(met) <= set(wider)
    assert all(threshold.minimum_reclaim is not None for threshold in set(wider) - set(met))


def test_grace_period_is_over_when_it_has_passed_and_not_before() -> None:
    soft = replace(MEMORY, grace_period_seconds=30.0)
    assert () == thresholds_met_grace_period({soft: 100.0}, 129.9)
    assert (soft,) == thresholds_met_grace_period({soft: 100.0}, 130.0)
    assert (MEMORY,) == thresholds_met_grace_period({MEMORY: 130.0}, 130.0)


def test_a_span_is_over_to_the_nanosecond_although_a_difference_of_floats_is_less() -> None:
    soft = replace(MEMORY, grace_period_seconds=1.1)
    assert 3.3 - 2.2 < 1.1
    assert (soft,) == thresholds_met_grace_period({soft: 2.2}, 3.3)
    assert () == thresholds_met_grace_period({soft: 2.2}, 3.299999999)


@given(st.lists(draw.thresholds, unique=True))
def test_eviction_order_keeps_every_threshold_and_puts_memory_first_and_hard_before_soft(
    configured: list[Threshold],
) -> None:
    ordered = in_eviction_order(reversed(configured), configured)
    assert set(configured) == set(ordered)
    assert len(configured) == len(ordered)
    ranks = [
        (
            {Signal.MEMORY_AVAILABLE: 0, Signal.ALLOCATABLE_MEMORY_AVAILABLE: 1}.get(threshold.signal, 2),
            not threshold.is_hard,
        )
        for threshold in ordered
    ]
    assert sorted(ranks) == ranks


@pytest.mark.parametrize(
    ("before", "now", "is_acted_on"),
    [
        ({}, 5.0, True),  # not observed in the pass before
        ({Signal.MEMORY_AVAILABLE: 5.0}, 5.0, False),
        ({Signal.MEMORY_AVAILABLE: 5.0}, 4.0, False),  # a clock that went back
        ({Signal.MEMORY_AVAILABLE: 5.0}, 5.1, True),
        ({Signal.MEMORY_AVAILABLE: 5.0}, None, True),
        ({Signal.MEMORY_AVAILABLE: None}, 5.0, True),
    ],
)
def test_statistics_are_acted_on_once(
    before: dict[Signal, float | None], now: float | None, *, is_acted_on: bool
) -> None:
    fresh = thresholds_with_fresh_statistics([MEMORY], {Signal.MEMORY_AVAILABLE: _seen(1, at=now)}, before)
    assert ((MEMORY,) if is_acted_on else ()) == fresh


def test_a_threshold_whose_signal_vanished_is_not_acted_on() -> None:
    assert () == thresholds_with_fresh_statistics([MEMORY], {}, {})


@given(draw.absurd)
def test_absurd_numbers_are_named_with_the_reason(observation: Observation) -> None:
    assert Signal.PID_AVAILABLE in absurdities({Signal.PID_AVAILABLE: observation})


@given(draw.plausible)
def test_plausible_numbers_are_not_absurd(observation: Observation) -> None:
    assert {} == absurdities({Signal.PID_AVAILABLE: observation})


def test_memory_level_is_capacity_less_threshold_plus_inactive_file() -> None:
    assert 950 == memory_level(MEMORY, _seen(500)._replace(inactive_file_bytes=50))
    assert memory_level(MEMORY, _seen(500)) is None


@given(st.integers(0, 1000), st.integers(0, 500))
def test_memory_level_is_crossed_exactly_when_the_threshold_is_met(working_set: int, inactive: int) -> None:
    observation = Observation(available=1000 - working_set, capacity=1000, inactive_file_bytes=inactive)
    level = memory_level(MEMORY, observation)
    assert level is not None
    is_met = bool(thresholds_met([MEMORY], {Signal.MEMORY_AVAILABLE: observation}))
    assert is_met == (working_set + inactive > level)


@pytest.mark.parametrize(
    ("percent", "capacity", "amount"),
    [
        ("10", 101, 10),
        ("35", 1000, 349),
        ("15", 100_000_000_000, 15_000_000_596),
        ("5", 100, 5),
        ("33.3", 1000, 333),
        ("100", 1000, 1000),
    ],
)
def test_a_share_is_what_the_kubelet_makes_of_it(percent: str, capacity: int, amount: int) -> None:
    assert amount == ThresholdValue(text=f"{percent}%", percent=Fraction(percent)).of(capacity)


def test_ten_percent_of_101_process_ids_are_10_and_10_free_are_enough() -> None:
    threshold = Threshold(signal=Signal.PID_AVAILABLE, value=draw.percent(10))
    for available, met in ((10, ()), (9, (threshold,))):
        seen = {Signal.PID_AVAILABLE: Observation(available=available, capacity=101)}
        assert met == thresholds_met([threshold], seen)
