import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.disks.filling import Filling
from reactor.model.signals import Signal
from tests.support.builders import make_observation, make_threshold

GIB = 1 << 30
LONGEST_SECONDS = 10.0


@pytest.fixture
def hard():
    return make_threshold(GIB, Signal.NODEFS_AVAILABLE)


@pytest.fixture
def fill(hard):
    """Return a Filling that has been shown these GiB as available, one after the other."""

    def make(*available_gib: float, every_seconds: float = 1.0) -> Filling:
        filling = Filling([hard])
        for number, gib in enumerate(available_gib):
            seen = {hard.signal: make_observation(int(gib * GIB), 1000 * GIB)}
            filling.take(seen, 100 + number * every_seconds)
        return filling

    return make


def test_time_to_the_threshold_is_the_margin_at_the_present_rate(fill, hard):
    filling = fill(11, 9)
    assert 2 * GIB == filling.rate(hard.signal)
    assert 4 == filling.seconds_to(hard)


def test_disk_at_rest_and_one_that_empties_reach_no_threshold(fill, hard):
    assert fill(9, 9).seconds_to(hard) is None
    assert fill(9, 11).seconds_to(hard) is None
    assert fill(9).seconds_to(hard) is None


def test_pause_in_the_writing_is_no_end_of_it_at_once(fill, hard):
    assert GIB == fill(11, 9, 9).rate(hard.signal)


def test_empty_disk_at_rest_is_looked_at_seldom_and_a_full_one_twice_a_second(fill):
    assert LONGEST_SECONDS == fill(500, 500).pause_seconds(LONGEST_SECONDS)
    assert 0.5 == fill(1.1, 1.1).pause_seconds(LONGEST_SECONDS)


def test_filling_disk_is_looked_at_before_half_of_the_time_left_is_over(fill):
    assert 0.4 == pytest.approx(fill(2.8, 1.8).pause_seconds(LONGEST_SECONDS))
    assert 0.05 == fill(2.001, 1.001).pause_seconds(LONGEST_SECONDS)


def test_threshold_above_the_capacity_has_no_disk_looked_at_more_often():
    absurd = make_threshold(10 * GIB, Signal.NODEFS_AVAILABLE)
    filling = Filling([absurd])
    for number, available in enumerate((5 * GIB, 4 * GIB)):
        filling.take({absurd.signal: make_observation(available, 10 * GIB)}, 100.0 + number)
    assert filling.seconds_to(absurd) is None
    assert LONGEST_SECONDS == filling.pause_seconds(LONGEST_SECONDS)


def test_end_of_a_threshold_that_is_met_is_looked_for_every_second(fill):
    assert 1 == fill(0.9, 0.5).pause_seconds(LONGEST_SECONDS)


def test_other_size_is_no_rate(fill, hard):
    filling = fill(11, 9)
    filling.take({hard.signal: make_observation(2 * GIB, 500 * GIB)}, 103)
    assert 0 == filling.rate(hard.signal)


@pytest.mark.parametrize("gib_per_second", [0.1, 1.0, 4.0])
def test_crossing_is_seen_within_a_second_however_long_the_disk_was_at_rest(fill, hard, gib_per_second):
    """The disk is looked at when its Filling says so, and nothing else is known of it."""
    for start_gib in (1.01, 2.0, 7.7, 30.0, 90.0):
        filling, now, available = fill(start_gib, start_gib), 101.0, start_gib
        while available >= 1:
            pause = filling.pause_seconds(LONGEST_SECONDS)
            now, available = now + pause, available - pause * gib_per_second
            filling.take({hard.signal: make_observation(int(available * GIB), 1000 * GIB)}, now)
        assert (1 - available) / gib_per_second < 1


@given(st.lists(st.tuples(st.integers(0, 1 << 50), st.floats(0, 1e9)), max_size=20))
def test_pause_is_always_between_the_bounds(looks):
    threshold = make_threshold(GIB, Signal.NODEFS_AVAILABLE)
    filling = Filling([threshold, dataclasses.replace(threshold, signal=Signal.NODEFS_INODES_FREE)])
    for available, at in looks:
        filling.take({threshold.signal: make_observation(available, 1 << 50)}, at)
        assert 0.05 <= filling.pause_seconds(LONGEST_SECONDS) <= LONGEST_SECONDS
