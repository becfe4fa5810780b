"""How often is observed unasked: by what the last one has cost."""

from __future__ import annotations

import pytest

from reactor.policy.attention import Pace


@pytest.mark.parametrize(("cost_seconds", "pause_seconds"), [(0.0, 0.0), (0.024, 0.12), (5.0, 0.25)])
def test_passes_are_at_least_five_times_as_far_apart_as_one_takes(
    cost_seconds: float, pause_seconds: float
) -> None:
    pace = Pace()
    pace.passed(cost_seconds)
    assert pause_seconds == pytest.approx(pace.between_passes_seconds(is_powerless=False))


def test_a_look_that_costs_little_is_as_frequent_as_wanted_while_a_pass_may_kill() -> None:
    pace = Pace()
    pace.looked(0.0004)
    assert 0.01 == pace.between_looks_seconds(0.01, 5.0, is_powerless=False)
    pace.looked(0.004)
    assert 0.02 == pytest.approx(pace.between_looks_seconds(0.01, 5.0, is_powerless=False))


@pytest.mark.parametrize("cost_seconds", [0.00001, 0.0003, 0.002, 0.1])
def test_while_no_pass_can_kill_looks_and_passes_take_half_a_percent_together(cost_seconds: float) -> None:
    pace = Pace()
    pace.looked(cost_seconds)
    pace.passed(cost_seconds)
    looks = pace.between_looks_seconds(0.01, 5.0, is_powerless=True)
    passes = pace.between_passes_seconds(is_powerless=True)
    if cost_seconds < 0.002:
        assert cost_seconds / looks + cost_seconds / passes <= 0.005
    assert looks <= 1.0  # a newcomer is found within a second in any case
    assert looks <= passes <= 3.0


def test_while_no_pass_can_kill_passes_over_many_pods_take_a_few_tenths_of_a_percent() -> None:
    pace = Pace()
    pace.passed(0.006)  # over 110 pods
    assert 0.006 / pace.between_passes_seconds(is_powerless=True) <= 0.002


def test_for_a_second_after_a_pod_has_come_looks_are_as_frequent_as_wanted() -> None:
    pace = Pace()
    pace.looked(0.0004)
    pace.hurry(5.0)
    assert 0.01 == pace.between_looks_seconds(0.01, 5.9, is_powerless=True)
    assert 0.1 < pace.between_looks_seconds(0.01, 6.0, is_powerless=True)


@pytest.mark.parametrize("cost_seconds", [0.00006, 0.0002, 0.0005])
def test_while_evictions_are_slowed_down_observing_takes_a_hundredth_of_a_cpu_where_much_memory_is_left(
    cost_seconds: float,
) -> None:
    pace = Pace()
    pace.looked(cost_seconds)
    looks = pace.between_looks_seconds(0.005, 5.0, is_powerless=False, left_bytes=8 << 30)
    assert cost_seconds / looks <= 0.01
    assert looks <= 0.1


def test_while_evictions_are_slowed_down_no_hog_takes_all_that_is_left_before_it_is_observed_and_killed() -> (
    None
):
    pace = Pace()
    pace.looked(0.0002)
    pace.passed(0.002)
    left = {
        mib: pace.between_looks_seconds(0.005, 5.0, is_powerless=False, left_bytes=mib << 20)
        for mib in (0, 30, 80)
    }
    assert {0: 0.005, 30: 0.005} == {mib: left[mib] for mib in (0, 30)}
    assert 80 / 4096 - 0.004 == pytest.approx(left[80])


@pytest.mark.parametrize(("cost_seconds", "pause_seconds"), [(0.0002, 0.04), (0.002, 0.4), (5.0, 1.0)])
def test_while_evictions_are_slowed_down_passes_take_half_a_hundredth_of_a_cpu(
    cost_seconds: float, pause_seconds: float
) -> None:
    pace = Pace()
    pace.passed(cost_seconds)
    assert pause_seconds == pytest.approx(pace.between_slowed_passes_seconds())
