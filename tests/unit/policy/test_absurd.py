from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from reactor.model.signals import Signal
from reactor.model.thresholds import Observation, Threshold
from reactor.policy.messages import absurd_thresholds
from reactor.policy.thresholds import thresholds_met

from . import strategies as draw

MIB = 1 << 20
HARD = Threshold(signal=Signal.ALLOCATABLE_MEMORY_AVAILABLE, value=draw.amount(500 * MIB))
SOFT = replace(HARD, grace_period_seconds=30.0)


def _absurd(*thresholds: Threshold, capacity: int = 1000 * MIB) -> dict[str, str]:
    seen = Observation(available=1, capacity=capacity)
    return absurd_thresholds(thresholds, {threshold.signal: seen for threshold in thresholds})


def test_a_threshold_at_or_above_the_capacity_is_named_with_what_it_would_do() -> None:
    (name,) = (found := _absurd(HARD, capacity=300 * MIB))
    assert name == f"threshold allocatableMemory.available<{500 * MIB}"
    assert found[name] == (
        "ignored: it is not below the 300Mi that the pods' cgroups may use, so it would be met at all times "
        "and evict every pod"
    )
    assert [name] == list(_absurd(HARD, capacity=500 * MIB))
    assert {} == _absurd(HARD, capacity=500 * MIB + 1)
    disk = replace(HARD, signal=Signal.NODEFS_INODES_FREE, value=draw.percent(100))
    assert "below the 1k that the filesystem has" in str(_absurd(disk, capacity=1000))


def test_a_soft_threshold_that_is_not_above_its_hard_one_is_named_and_another_is_not() -> None:
    (name,) = (found := _absurd(HARD, SOFT))
    assert name == f"soft {next(iter(_absurd(HARD, capacity=1)))}"
    assert f"not above the hard threshold {HARD}" in found[name]
    assert [name.replace(str(500 * MIB), "50%")] == list(_absurd(HARD, replace(SOFT, value=draw.percent(50))))
    assert {} == _absurd(HARD, replace(SOFT, value=draw.percent(51)))
    assert {} == _absurd(SOFT)


def test_a_soft_threshold_stays_in_force_below_a_hard_one_that_is_ignored() -> None:
    (name,) = _absurd(replace(HARD, value=draw.percent(100)), SOFT)
    assert name.startswith("threshold ")


def test_a_minimum_reclaim_that_reaches_the_capacity_is_named_and_a_smaller_one_is_not() -> None:
    (why,) = _absurd(replace(HARD, minimum_reclaim=draw.percent(50))).values()
    assert "its minimum reclaim of 50% can't be reached" in why
    assert {} == _absurd(replace(HARD, minimum_reclaim=draw.percent(49)))


def test_what_was_not_observed_or_is_absurd_itself_is_no_measure() -> None:
    assert {} == absurd_thresholds([HARD], {})
    assert {} == absurd_thresholds([HARD], {HARD.signal: Observation(available=2, capacity=1)})


@given(st.lists(draw.thresholds), st.dictionaries(st.sampled_from(Signal), draw.plausible))
def test_what_is_named_as_ignored_is_never_met(
    thresholds: list[Threshold], observations: dict[Signal, Observation]
) -> None:
    ignored = {name for name, why in absurd_thresholds(thresholds, observations).items() if "ignored" in why}
    for threshold in thresholds_met(thresholds, observations, with_minimum_reclaim=True):
        assert f"{'' if threshold.is_hard else 'soft '}threshold {threshold}" not in ignored
