from reactor.tune.history import History
from reactor.tune.model import soft_for
from tests.unit.tune.crossings import make_crossing

MIB = 1 << 20
GIB = 1 << 30


def with_rates(*rates_mib: float) -> History:
    return History(crossings=tuple(make_crossing(rate * MIB) for rate in rates_mib))


def test_without_a_history_everything_is_assumed_and_said_to_be() -> None:
    found = soft_for(500 * MIB, 60 * GIB, History())
    assert (30, 30) == (found.grace_seconds, found.pod_grace_seconds)
    assert all(why.startswith("assumed") for why in (found.grace_why, found.pod_grace_why, found.rate_why))
    # 1 % of 60 GiB a minute, for the minute that both grace periods take.
    assert 0 <= found.threshold_bytes - 500 * MIB - 0.6 * GIB < 10 * MIB


def test_the_fastest_rate_that_leaves_grace_periods_time_is_served_and_faster_ones_are_not() -> None:
    found = soft_for(500 * MIB, 60 * GIB, with_rates(1, 50, 90, 5000))
    assert (90 * MIB, 3, 4) == (found.rate_bytes, found.served, found.known)
    assert found.threshold_bytes - 500 * MIB >= 90 * MIB * 60


def test_a_history_of_nothing_but_fast_allocators_is_said_to_be_no_case_for_a_soft_threshold() -> None:
    found = soft_for(500 * MIB, 60 * GIB, with_rates(5000))
    assert (0, 1) == (found.served, found.known)
    assert "no rate in the history is slow enough" in found.rate_why


def test_the_grace_period_outlasts_nine_of_ten_shortages_that_passed_by_themselves() -> None:
    spells = tuple(float(number) for number in range(1, 11))
    assert 10 == soft_for(MIB, GIB, History(spells_seconds=spells)).grace_seconds
    assert 5 == soft_for(MIB, GIB, History(spells_seconds=(0.1,))).grace_seconds
    assert 120 == soft_for(MIB, GIB, History(spells_seconds=(4000.0,))).grace_seconds


def test_pods_are_given_what_the_slowest_needed_to_end() -> None:
    found = soft_for(MIB, GIB, History(terminated_seconds=(3.0, 11.5)))
    assert (15, True) == (found.pod_grace_seconds, "11.5 s" in found.pod_grace_why)
    late = soft_for(MIB, GIB, History(killed_after_grace=4))
    assert (30, True) == (late.pod_grace_seconds, "4 pods did not end" in late.pod_grace_why)


def test_a_soft_threshold_is_some_way_above_the_hard_one_also_for_a_slow_leak() -> None:
    found = soft_for(400 * MIB, 60 * GIB, with_rates(0.001))
    assert 500 * MIB == found.threshold_bytes
