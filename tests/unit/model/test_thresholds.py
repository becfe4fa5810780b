from __future__ import annotations

from reactor.model.signals import Resource, Signal
from reactor.model.thresholds import resources_wanting
from tests.support.builders import make_observation, make_threshold

MIB = 1 << 20


def test_resources_are_wanted_where_a_threshold_or_its_minimum_reclaim_may_be_met():
    thresholds = [make_threshold(100 * MIB), make_threshold(10, Signal.PID_AVAILABLE)]
    signals = {
        Signal.MEMORY_AVAILABLE: make_observation(99 * MIB),
        Signal.PID_AVAILABLE: make_observation(50, 100),
    }

    assert resources_wanting(thresholds, signals) == {Resource.MEMORY}
    assert resources_wanting(thresholds, {}) == frozenset()
