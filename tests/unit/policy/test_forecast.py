"""Before a crossing: whom it would evict."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from reactor.model.decisions import Calm, Decision, Inputs, PolicyState, Snapshot
from reactor.model.kills import HardMemoryKill
from reactor.model.pods import PodUsage
from reactor.model.settings import EvictionSettings
from reactor.model.signals import NodeCondition, Signal
from reactor.model.thresholds import Threshold
from reactor.policy.decide import decide
from reactor.policy.forecast import Ahead, Forecast, is_unchanged, near, with_victims
from tests.support.builders import make_observation, make_pod, make_threshold

HARD = make_threshold(100)
PODS = (make_pod("small"), make_pod("hog"))
USED = {
    "uid-small": PodUsage(memory_working_set_bytes=10),
    "uid-hog": PodUsage(memory_working_set_bytes=500),
}
SEEN = {Signal.MEMORY_AVAILABLE: make_observation(150, 1000)}


def known(threshold: Threshold, used: Mapping[str, PodUsage] = USED) -> Forecast:
    settings = EvictionSettings(thresholds=(threshold,), unhelpful_eviction_pause_seconds=10.0)
    snapshot = Snapshot(signals=SEEN, pods=used)
    return Forecast(inputs=Inputs(settings, PolicyState(), snapshot, PODS, now_seconds=1.0))


def test_where_pods_hold_too_little_for_a_node_with_nothing_left_the_crossing_itself_evicts_one() -> None:
    little = {uid: PodUsage(memory_working_set_bytes=10) for uid in USED}
    found = with_victims(known(HARD, little), SEEN)

    assert () == found.first
    assert ["small", "hog"] == [pod.name for pod in found.prepared]


def test_no_pod_is_foreseen_at_the_crossing_of_a_threshold_that_is_no_hard_one() -> None:
    found = with_victims(known(make_threshold(100, grace_period_seconds=30.0)), SEEN)

    assert () == found.first == found.prepared


def test_a_forecast_names_whom_the_crossing_evicts_of_thresholds_that_are_near() -> None:
    found = with_victims(known(HARD), near((HARD,), SEEN))

    assert ["hog", "small"] == [pod.name for pod in found.first]
    assert found.first == found.prepared
    assert 1.0 == found.now_seconds


def test_what_past_kills_brought_back_is_judged_for_practice_and_names_no_other_pod(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kill = HardMemoryKill("uid-gone", Signal.MEMORY_AVAILABLE, at_seconds=0.5, credited_bytes=400)
    fresh = known(HARD)
    after_kill = replace(fresh, inputs=fresh.inputs.with_state(PolicyState(hard_memory_kills=(kill,))))
    judged = []

    def noted(settings: EvictionSettings, state: PolicyState, *others: Any) -> tuple[PolicyState, Decision]:
        found = decide(settings, state, *others)
        judged.append((state.hard_memory_kills, found[1].thresholds_met))
        return found

    monkeypatch.setattr("reactor.policy.forecast.decide", noted)
    found = with_victims(after_kill, near((HARD,), SEEN))

    assert [((kill,), (HARD,)), ((), (HARD,))] == judged
    assert with_victims(fresh, near((HARD,), SEEN)).first == found.first


def test_a_state_is_unchanged_if_only_the_time_of_an_observation_has_moved_on() -> None:
    state = PolicyState(thresholds_met=(HARD,), observed_at={Signal.MEMORY_AVAILABLE: 1.0})
    later = state._replace(
        observed_at={Signal.MEMORY_AVAILABLE: 2.0},
        condition_last_observed={NodeCondition.MEMORY_PRESSURE: 2.0},
        calm=Calm(SEEN),
    )

    assert is_unchanged(state, later)
    assert not is_unchanged(state, later._replace(evicted_at=(2.0,)))


class _Prepares(Ahead):
    """A part that has only what each has to have."""

    def near(self, forecast: Forecast, gives_way: Callable[[], bool]) -> None:
        """Do nothing."""

    def far(self) -> None:
        """Do nothing."""


def test_a_part_needs_no_more_than_the_forecast_unless_it_says_so() -> None:
    part = _Prepares()
    part.pods(PODS)

    assert (False, math.inf) == (part.reads_all, part.retry_seconds())


def test_no_pod_is_named_where_no_decision_is_needed() -> None:
    asked = []

    def settle(*seen: object) -> bool:
        asked.append(seen)
        return False

    found = with_victims(known(HARD), near((HARD,), SEEN), settle)

    assert ((), ()) == (found.first, found.prepared)
    assert len(asked) == 2
