"""Before a crossing: whom it would evict."""

from __future__ import annotations

from reactor.model.decisions import PolicyState
from reactor.model.pods import PodUsage
from reactor.model.settings import EvictionSettings
from reactor.model.signals import Signal
from reactor.policy.forecast import at_crossing, foreseen
from tests.support.builders import make_observation, make_pod, make_threshold

HARD = make_threshold(100)
PODS = (make_pod("small"), make_pod("hog"))
USED = {
    "uid-small": PodUsage(memory_working_set_bytes=10),
    "uid-hog": PodUsage(memory_working_set_bytes=500),
}
SEEN = {Signal.MEMORY_AVAILABLE: make_observation(150, 1000)}


def test_the_crossing_and_a_node_with_nothing_left_evict_the_same_pods_first() -> None:
    settings = EvictionSettings(thresholds=(HARD,))
    for first in (foreseen, at_crossing):
        found = first(settings, PolicyState(), SEEN, PODS, USED, 1.0)
        assert ["hog", "small"] == [pod.name for pod in found]


def test_no_pod_is_foreseen_at_the_crossing_of_a_threshold_that_is_no_hard_one() -> None:
    soft = make_threshold(100, grace_period_seconds=30.0)
    assert () == at_crossing(EvictionSettings(thresholds=(soft,)), PolicyState(), SEEN, PODS, USED, 1.0)
