from dataclasses import replace

import pytest
from hypothesis import given

from reactor.model.decisions import PolicyState, Snapshot
from reactor.model.pods import Pod, PodUsage
from reactor.model.settings import EvictionSettings
from reactor.model.signals import Resource, Signal
from reactor.model.thresholds import Observation, Threshold
from reactor.policy.decide import decide

from . import strategies as draw

MIB = 1 << 20
HARD = Threshold(signal=Signal.MEMORY_AVAILABLE, value=draw.amount(100 * MIB))
LOW = Observation(available=60 * MIB, capacity=512 * MIB)
TINY, HOG, CRITICAL = (
    Pod(name="tiny", namespace="n", uid="tiny", priority=-10),
    Pod(name="hog", namespace="n", uid="hog"),
    Pod(name="critical", namespace="n", uid="critical", critical_because="static pod"),
)
USED = {
    "tiny": PodUsage(memory_working_set_bytes=MIB // 8),
    "hog": PodUsage(memory_working_set_bytes=300 * MIB),
    "critical": PodUsage(memory_working_set_bytes=90 * MIB),
}


def ranking(minimum, *pods, threshold=HARD, used=USED):
    settings = EvictionSettings(thresholds=(threshold,), minimum_victim=minimum)
    signals = {threshold.signal: LOW}
    decision = decide(settings, PolicyState(), Snapshot(signals=signals, pods=used), pods, 1.0)[1]
    assert [pod.name for pod in (place.pod for place in decision.ranking[:1])] == [
        eviction.pod.name for eviction in decision.evictions
    ]
    return [(place.pod.name, place.is_passed_over) for place in decision.ranking]


def test_by_default_the_pod_of_lowest_priority_goes_however_little_it_holds():
    assert [("tiny", False), ("hog", False), ("critical", False)] == ranking(None, HOG, CRITICAL, TINY)


@pytest.mark.parametrize("minimum", [draw.amount(MIB), draw.percent(10)])
def test_pods_that_hold_less_are_passed_over(minimum):
    expected = [("hog", False), ("tiny", True), ("critical", False)]
    assert expected == ranking(minimum, TINY, HOG, CRITICAL)


def test_a_share_is_one_of_what_is_missing_with_its_minimum_reclaim():
    # 40 MiB are missing, 290 MiB with the minimum reclaim.
    small = {**USED, "tiny": PodUsage(memory_working_set_bytes=20 * MIB)}
    assert [("tiny", False), ("hog", False)] == ranking(draw.percent(50), TINY, HOG, used=small)
    more = replace(HARD, minimum_reclaim=draw.amount(250 * MIB))
    assert [("hog", False), ("tiny", True)] == ranking(
        draw.percent(50), TINY, HOG, threshold=more, used=small
    )


def test_where_no_other_holds_more_the_small_ones_go():
    assert [("tiny", False), ("critical", False)] == ranking(draw.amount(MIB), TINY, CRITICAL)


def test_pod_of_which_nothing_is_known_is_not_passed_over():
    used = {"hog": USED["hog"]}
    assert "tiny" == ranking(draw.amount(MIB), TINY, HOG, used=used)[0][0]


def test_pod_that_could_not_be_read_stays_behind_the_small_ones():
    used = {**USED, "hog": PodUsage(unreadable=frozenset({Resource.MEMORY}))}
    assert ["tiny", "hog"] == [name for name, _ in ranking(draw.amount(MIB), HOG, TINY, used=used)]


def test_soft_thresholds_and_other_signals_pass_no_pod_over():
    pids = replace(HARD, signal=Signal.PID_AVAILABLE)
    assert ranking(None, TINY, HOG, threshold=pids) == ranking(draw.amount(MIB), TINY, HOG, threshold=pids)


@given(draw.snapshots(), draw.pods(), draw.values)
def test_the_same_pods_are_ranked_and_none_is_spared_for_being_small(snapshot, pods, minimum):
    thresholds = (replace(HARD, value=draw.amount(50)),)
    plain = EvictionSettings(thresholds=thresholds)
    with_minimum = replace(plain, minimum_victim=minimum)
    one = decide(plain, PolicyState(), snapshot, pods, 1.0)[1]
    other = decide(with_minimum, PolicyState(), snapshot, pods, 1.0)[1]

    assert {place.pod.uid for place in one.ranking} == {place.pod.uid for place in other.ranking}
    assert len(one.evictions) == len(other.evictions)
