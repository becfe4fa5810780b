"""How often is observed unasked: by what the last one has cost."""

from __future__ import annotations

import pytest

from reactor.model.decisions import Hold, PolicyState
from reactor.model.settings import EvictionSettings
from reactor.model.signals import Reclaim, Signal
from reactor.policy.attention import Pace, cache_has_gone, has_grown, next_pass_seconds
from tests.support.builders import make_observation, make_threshold


@pytest.mark.parametrize(("cost_seconds", "pause_seconds"), [(0.0, 0.0), (0.024, 0.12), (5.0, 0.25)])
def test_passes_are_at_least_five_times_as_far_apart_as_one_takes(
    cost_seconds: float, pause_seconds: float
) -> None:
    pace = Pace()
    pace.pass_seconds = cost_seconds
    assert pause_seconds == pytest.approx(pace.between_passes_seconds(is_powerless=False))


def test_a_look_that_costs_little_is_as_frequent_as_wanted_while_a_pass_may_kill() -> None:
    pace = Pace()
    pace.check_seconds = 0.0004
    assert 0.01 == pace.between_checks_seconds(0.01, 5.0, is_powerless=False)
    pace.check_seconds = 0.004
    assert 0.02 == pytest.approx(pace.between_checks_seconds(0.01, 5.0, is_powerless=False))


@pytest.mark.parametrize("cost_seconds", [0.00001, 0.0003, 0.002, 0.1])
def test_while_no_pass_can_kill_looks_and_passes_take_half_a_percent_together(cost_seconds: float) -> None:
    pace = Pace()
    pace.check_seconds = cost_seconds
    pace.pass_seconds = cost_seconds
    looks = pace.between_checks_seconds(0.01, 5.0, is_powerless=True)
    passes = pace.between_passes_seconds(is_powerless=True)
    if cost_seconds < 0.002:
        assert cost_seconds / looks + cost_seconds / passes <= 0.005
    assert looks <= 1.0  # a newcomer is found within a second in any case
    assert looks <= passes <= 10.0


def test_while_no_pass_can_kill_passes_over_many_pods_take_a_few_tenths_of_a_percent() -> None:
    pace = Pace()
    pace.pass_seconds = 0.006  # over 110 pods
    assert 0.006 / pace.between_passes_seconds(is_powerless=True) <= 0.002


def test_for_a_second_after_a_pod_has_come_looks_are_as_frequent_as_wanted() -> None:
    pace = Pace()
    pace.check_seconds = 0.0004
    pace.hurry(5.0)
    assert 0.01 == pace.between_checks_seconds(0.01, 5.9, is_powerless=True)
    assert 0.1 < pace.between_checks_seconds(0.01, 6.0, is_powerless=True)


@pytest.mark.parametrize("cost_seconds", [0.00006, 0.0002, 0.0005])
def test_while_evictions_are_slowed_down_observing_takes_a_hundredth_of_a_cpu_where_much_memory_is_left(
    cost_seconds: float,
) -> None:
    pace = Pace()
    pace.check_seconds = cost_seconds
    looks = pace.between_checks_seconds(0.005, 5.0, is_powerless=False, left_bytes=8 << 30)
    assert cost_seconds / looks <= 0.01
    assert looks <= 0.1


def test_while_evictions_are_slowed_down_no_hog_takes_all_that_is_left_before_it_is_observed_and_killed() -> (
    None
):
    pace = Pace()
    pace.check_seconds = 0.0002
    pace.pass_seconds = 0.002
    left = {
        mib: pace.between_checks_seconds(0.005, 5.0, is_powerless=False, left_bytes=mib << 20)
        for mib in (0, 30, 80)
    }
    assert {0: 0.005, 30: 0.005} == {mib: left[mib] for mib in (0, 30)}
    assert 80 / 4096 - 0.004 == pytest.approx(left[80])


@pytest.mark.parametrize(("cost_seconds", "pause_seconds"), [(0.0002, 0.04), (0.002, 0.4), (5.0, 1.0)])
def test_while_evictions_are_slowed_down_passes_take_half_a_hundredth_of_a_cpu(
    cost_seconds: float, pause_seconds: float
) -> None:
    pace = Pace()
    pace.pass_seconds = cost_seconds
    assert pause_seconds == pytest.approx(pace.between_slowed_passes_seconds())


def test_a_pass_is_worth_it_at_a_new_threshold_or_if_much_less_is_left_of_a_hard_one() -> None:
    hard, soft = make_threshold(160), make_threshold(320, grace_period_seconds=30.0)
    settings = EvictionSettings(thresholds=(hard, soft))
    known = PolicyState(first_observed={hard: 0.0, soft: 0.0}, thresholds_met=(hard, soft))

    def grown(state: PolicyState, before: int, now: int) -> bool:
        seen = [{Signal.MEMORY_AVAILABLE: make_observation(one, 1000)} for one in (before, now)]
        return has_grown(settings, state, *seen)

    assert grown(PolicyState(), 100, 100)
    assert [False, True] == [grown(known, 100, now) for now in (90, 89)]
    assert not grown(known._replace(thresholds_met=(soft,)), 100, 10)
    assert not has_grown(settings, known, {}, {Signal.MEMORY_AVAILABLE: make_observation(1, 1000)})


def test_the_end_of_a_reclaim_before_a_soft_eviction_is_observed() -> None:
    hold = Hold(kind=Reclaim.POD_MEMORY, reason="", began_seconds=1.0, until_seconds=9.0)

    assert 4.0 == pytest.approx(
        next_pass_seconds(EvictionSettings(), PolicyState(holds=(hold,)), 5.0), abs=0.01
    )


@pytest.mark.parametrize(
    ("before_bytes", "now_bytes", "has_gone"),
    [
        (9 << 20, 7 << 20, True),
        (9 << 20, 8 << 20, False),  # as the counters differ anyway
        (9 << 20, None, True),
        (None, 9 << 20, False),
    ],
)
def test_page_cache_has_gone_if_clearly_less_of_it_is_counted(
    before_bytes: int | None, now_bytes: int | None, *, has_gone: bool
) -> None:
    before, now = (
        {Signal.MEMORY_AVAILABLE: make_observation(9)._replace(inactive_file_bytes=one)}
        for one in (before_bytes, now_bytes)
    )
    assert has_gone is cache_has_gone(before, now)
    assert not cache_has_gone({}, now)
