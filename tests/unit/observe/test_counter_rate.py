from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.observe.counter_rate import CounterRate


def fed(*samples: tuple[float, int | None], window_seconds: float = 10.0) -> CounterRate:
    rate = CounterRate(window_seconds)
    for at_seconds, count in samples:
        rate.take(count, at_seconds)
    return rate


def test_rate_is_the_mean_over_the_window() -> None:
    assert fed((0, 100), (4, 100), (10, 300)).per_second() == 20
    assert fed((0, 0), (5, 1000), (10, 1000), (15, 1000), (20, 1100)).per_second() == 10


def test_rate_is_not_known_before_the_whole_window_was_observed() -> None:
    assert fed().per_second() is None
    assert fed((0, 100)).per_second() is None
    assert fed((0, 100), (9.9, 300)).per_second() is None


def test_what_is_older_than_the_window_does_not_count() -> None:
    assert fed((0, 0), (10, 1_000_000), (20, 1_000_000)).per_second() == 0


def test_samples_that_come_seldom_count_for_the_time_between_them() -> None:
    assert fed((0, 0), (60, 600)).per_second() == 10


@pytest.mark.parametrize("broken", [None, 50])
def test_counter_that_goes_back_or_can_not_be_read_begins_a_window_anew(broken: int | None) -> None:
    rate = fed((0, 100), (10, 300), (12, broken), (14, 400))
    assert rate.per_second() is None
    rate.take(500, 24)
    assert rate.per_second() == 10


def test_counter_that_stands_still_has_a_rate_of_zero() -> None:
    assert fed((0, 7), (5, 7), (10, 7)).per_second() == 0


def test_window_that_is_just_over_has_a_rate_though_its_length_is_rounded() -> None:
    began, ended = 15.113528497272648, 15.213528497272648
    assert ended - began < 0.1
    rate = CounterRate(0.1)
    for at_seconds, count in [(began - 1, 0), (began, 20), (ended, 30)]:
        rate.take(count, at_seconds)
    assert rate.per_second() == pytest.approx(100)


@given(
    st.lists(st.tuples(st.floats(0.001, 30), st.integers(0, 1 << 30)), min_size=2, max_size=300),
    st.floats(0.1, 60),
)
def test_rate_lies_between_the_slowest_and_the_fastest_step_and_memory_is_bounded(steps, window_seconds):
    rate = CounterRate(window_seconds)
    at_seconds, count, speeds = 0.0, 0, []
    rate.take(count, at_seconds)
    for pause_seconds, growth in steps:
        at_seconds += pause_seconds
        count += growth
        speeds.append(growth / pause_seconds)
        rate.take(count, at_seconds)
    found = rate.per_second()
    assert (found is None) or min(speeds) * 0.999 <= found <= max(speeds) * 1.001
    assert (found is not None) or at_seconds < window_seconds * 1.1
    assert len(rate._samples) <= 64 * 2 + 3
