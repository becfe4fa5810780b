"""The time left, from samples: what it has to hold for all falls, and for the usual shapes of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reactor.model.decisions import TimeLeft
from reactor.time_left.estimate import Sample, Samples, time_left

_MIB = 1 << 20
_GIB = 1 << 30
_STEP_SECONDS = 0.1


def _sampled(available: Callable[[float], float], seconds: float, start: float = 0.0) -> list[Sample]:
    return [
        Sample(start + step * _STEP_SECONDS, int(available(step * _STEP_SECONDS)))
        for step in range(round(seconds / _STEP_SECONDS) + 1)
    ]


def _at_end(samples: Sequence[Sample], threshold_bytes: float) -> TimeLeft:
    return time_left(samples, threshold_bytes, samples[-1].at_seconds)


def _foreseen_while(available: Callable[[float], float], seconds: float, threshold: float) -> list[float]:
    """Return at which moments of a course a time was foreseen."""
    samples = _sampled(available, seconds)
    return [
        samples[end - 1].at_seconds
        for end in range(1, len(samples) + 1)
        if _at_end(samples[:end], threshold).seconds is not None
    ]


@given(
    rate=st.floats(_MIB, 4 * _GIB),
    ahead=st.floats(0.1, 1.9),
    seconds=st.floats(0.4, 60.0),
    start=st.floats(0, 1e6),
)
def test_a_ramp_gives_its_time_within_the_uncertainty(
    rate: float, ahead: float, seconds: float, start: float
) -> None:
    """A fall that has lasted for half of what is left, or longer, is foreseen, whatever its rate."""
    lasted_seconds = int(seconds / _STEP_SECONDS) * _STEP_SECONDS
    left_seconds = lasted_seconds * ahead * 0.65  # the longest window is two thirds of it at least
    top = rate * (lasted_seconds + left_seconds)
    found = _at_end(_sampled(lambda at: top - rate * at, lasted_seconds, start), 0)
    assert found.seconds is not None, found
    assert found.earliest_seconds is not None
    assert found.latest_seconds is not None
    assert found.earliest_seconds <= left_seconds <= found.latest_seconds
    assert found.seconds == pytest.approx(left_seconds, rel=0.02, abs=0.01)


@given(steps=st.lists(st.integers(0, _GIB), min_size=4, max_size=80))
def test_use_that_does_not_grow_never_gives_a_time(steps: list[int]) -> None:
    """Available memory that only rises or stands still is never foreseen to run out."""
    available, samples = _GIB, []
    for place, step in enumerate(steps):
        available += step
        samples.append(Sample(place * _STEP_SECONDS, available))
    assert _at_end(samples, _GIB // 2).seconds is None


@given(
    amounts=st.lists(st.integers(1, 1 << 40), min_size=4, max_size=120),
    threshold=st.integers(0, 1 << 40),
    exponent=st.integers(1, 12),
)
def test_the_unit_does_not_matter(amounts: list[int], threshold: int, exponent: int) -> None:
    """The same course in other units has the same time left."""
    times = 1 << exponent
    samples = [Sample(place * _STEP_SECONDS, amount) for place, amount in enumerate(amounts)]
    larger = [Sample(at, amount * times) for at, amount in samples]
    before, after = _at_end(samples, threshold), _at_end(larger, threshold * times)
    assert (before.seconds, before.latest_seconds, before.because) == pytest.approx(
        (after.seconds, after.latest_seconds, after.because)
    )


@given(
    samples=st.lists(
        st.tuples(st.floats(allow_nan=True), st.integers(-(1 << 64), 1 << 64)).map(lambda one: Sample(*one)),
        max_size=40,
    ),
    threshold=st.floats(0, 1e30),
)
@settings(max_examples=300)
def test_any_samples_give_bounds_in_order_or_no_time(samples: list[Sample], threshold: float) -> None:
    """Numbers that can't be, and a clock that steps back or stands still, give no time."""
    found = time_left(samples, threshold, 0.0)
    clock_is_sound = all(a.at_seconds < b.at_seconds for a, b in pairwise(samples))
    if not clock_is_sound or any(one.available_bytes < 0 for one in samples):
        assert found.seconds is None
    if found.seconds is None:
        assert found.because
        assert found.latest_seconds is None
    else:
        assert found.earliest_seconds is not None
        assert found.latest_seconds is not None
        assert 0 <= found.earliest_seconds <= found.seconds <= found.latest_seconds < math.inf


def test_a_clock_that_steps_begins_anew() -> None:
    """A clock that went back or ahead makes what was before it no part of a fall."""
    for step_seconds in (-5.0, 30.0):
        samples = Samples()
        for place in range(20):
            samples.add(100 + place * _STEP_SECONDS, _GIB - place * 30 * _MIB, _GIB)
        assert samples.time_left(300 * _MIB, 102).seconds is not None
        samples.add(102 + step_seconds, _GIB - 600 * _MIB, _GIB)
        assert samples.time_left(300 * _MIB, 102).seconds is None
        assert len(samples._samples) == 1


def test_absurd_numbers_and_another_capacity_begin_anew() -> None:
    """More available than there is, less than nothing, or another capacity: nothing is foreseen."""
    for available, capacity in ((2 * _GIB, _GIB), (-1, _GIB), (300 * _MIB, 2 * _GIB)):
        samples = Samples()
        for place in range(20):
            samples.add(place * _STEP_SECONDS, _GIB - place * 30 * _MIB, _GIB)
        samples.add(2.0, available, capacity)
        assert samples.time_left(200 * _MIB, 2.0).seconds is None


def test_what_is_crossed_has_no_time_left() -> None:
    samples = _sampled(lambda at: _GIB - at * 300 * _MIB, 2)
    assert _at_end(samples, _GIB).seconds == 0


def test_a_fall_is_not_believed_for_longer_than_twice_as_long_as_it_lasted() -> None:
    """A second of falling says nothing of what is an hour away."""
    found = _at_end(_sampled(lambda at: 4 * _GIB - at * _MIB, 1), 0)
    assert found.seconds is None
    assert found.because == "it is farther ahead than the fall has lasted for"


def test_a_fall_that_has_stopped_is_not_foreseen_to_go_on() -> None:
    """Half a second after a ramp has ended there is no time left of it."""
    course = _foreseen_while(lambda at: _GIB - min(at, 1.0) * 500 * _MIB, 10, 300 * _MIB)
    assert course
    assert max(course) < 1.5


def test_a_fall_in_steps_is_foreseen_after_some_of_them() -> None:
    """Steps of a second are one fall: it is foreseen between two of them, and the time is about right."""
    samples = _sampled(lambda at: 2 * _GIB - math.floor(at) * 50 * _MIB, 20)
    found = _at_end(samples, _GIB / 2)
    assert found.seconds is not None, found
    assert found.earliest_seconds is not None
    assert found.latest_seconds is not None
    true_seconds = (samples[-1].available_bytes - _GIB / 2) / (50 * _MIB)
    assert found.earliest_seconds <= true_seconds <= found.latest_seconds


@pytest.mark.parametrize("period_seconds", [1.0, 2.0, 4.0])
def test_a_sawtooth_that_has_come_back_before_is_not_foreseen(period_seconds: float) -> None:
    """What takes and frees 300 MiB by turns, with 330 MiB left, is not foreseen to cross after a turn."""
    period = 300 * _MIB
    course = _foreseen_while(
        lambda at: _GIB - period * (at % period_seconds) / period_seconds,
        30,
        _GIB - 400 * _MIB,
    )
    assert all(at <= period_seconds for at in course)


def test_a_leak_below_a_sawtooth_is_foreseen_when_it_is_near() -> None:
    """A sawtooth that comes back less and less is foreseen once it is deeper than it was."""

    def available(at: float) -> float:
        return _GIB - 20 * _MIB * at - 60 * _MIB * (at % 1.0)

    assert _foreseen_while(available, 30, _GIB - 600 * _MIB)


@pytest.mark.slow
@pytest.mark.parametrize("period_seconds", [1.0, 2.5, 4.0])
def test_what_is_kept_of_a_minute_is_little_and_enough(period_seconds: float) -> None:
    """Of ten minutes at ten a second some 150 samples are kept; a sawtooth among them is still known."""
    samples, foreseen = Samples(), []
    for step in range(6000):
        at = step * _STEP_SECONDS
        samples.add(at, int(_GIB - 300 * _MIB * (at % period_seconds) / period_seconds), _GIB)
        assert len(samples._samples) <= 250
        if at > 2 * period_seconds and samples.time_left(_GIB - 400 * _MIB, at).seconds is not None:
            foreseen.append(at)
    assert foreseen == []
