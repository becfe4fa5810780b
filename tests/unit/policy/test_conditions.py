from fractions import Fraction

from reactor.model.signals import NodeCondition, Signal
from reactor.model.thresholds import Threshold, ThresholdValue
from reactor.policy.conditions import conditions_last_observed, conditions_observed_since, conditions_since

DISK = Threshold(signal=Signal.NODEFS_INODES_FREE, value=ThresholdValue(text="1", amount=Fraction(1)))


def test_a_threshold_makes_its_condition_observed_now_and_keeps_the_others() -> None:
    before = {NodeCondition.MEMORY_PRESSURE: 1.0, NodeCondition.DISK_PRESSURE: 2.0}
    observed = conditions_last_observed([DISK], before, 9.0)
    assert {NodeCondition.MEMORY_PRESSURE: 1.0, NodeCondition.DISK_PRESSURE: 9.0} == observed


def test_a_condition_lasts_for_the_transition_period_and_not_longer() -> None:
    last = {NodeCondition.PID_PRESSURE: 10.0, NodeCondition.MEMORY_PRESSURE: 10.0}
    both = (NodeCondition.MEMORY_PRESSURE, NodeCondition.PID_PRESSURE)
    assert both == conditions_observed_since(last, 60.0, 69.9)
    assert () == conditions_observed_since(last, 60.0, 70.0)


def test_a_condition_is_in_force_since_it_came_and_anew_after_a_gap() -> None:
    since = conditions_since([NodeCondition.DISK_PRESSURE], {}, 5.0)
    assert {NodeCondition.DISK_PRESSURE: 5.0} == since
    assert since == conditions_since([NodeCondition.DISK_PRESSURE], since, 6.0)
    assert {} == conditions_since([], since, 7.0)
