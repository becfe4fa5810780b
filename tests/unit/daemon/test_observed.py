from __future__ import annotations

from reactor.daemon.candidates import Candidates
from reactor.daemon.observed import resources_wanting
from reactor.model.signals import Resource, Signal

MIB = 1 << 20


def test_resources_are_wanted_where_a_threshold_or_its_minimum_reclaim_may_be_met(
    make_threshold, observation
):
    thresholds = [make_threshold(100 * MIB), make_threshold(10, Signal.PID_AVAILABLE)]
    signals = {Signal.MEMORY_AVAILABLE: observation(99 * MIB), Signal.PID_AVAILABLE: observation(50, 100)}

    assert resources_wanting(thresholds, signals) == {Resource.MEMORY}
    assert resources_wanting(thresholds, {}) == frozenset()


def test_emptied_pod_is_left_out_until_it_lives_again_or_is_forgotten(make_pod):
    populated: set[str] = set()
    candidates = Candidates(lambda pod: pod.uid in populated)
    pods = (make_pod("a"), make_pod("b"))
    assert candidates.of(pods, 0.0) is pods

    candidates.ended("uid-a")
    assert candidates.of(pods, 0.0) == (pods[1],)

    populated.add("uid-a")
    assert candidates.of(pods, 0.0) == pods


def test_pod_that_could_not_be_ended_is_spared_for_a_while(make_pod):
    candidates = Candidates(lambda _: True, spare_seconds=30)
    pods = (make_pod("a"), make_pod("b"))
    candidates.failed("uid-a", "Operation not permitted", 100.0)

    spared, other = candidates.of(pods, 129.0)
    assert spared.critical_because == "could not be ended: Operation not permitted"
    assert other is pods[1]
    assert candidates.of(pods, 130.0) == pods


def test_what_was_noted_of_pods_that_are_gone_is_forgotten(make_pod):
    candidates = Candidates(lambda _: False)
    candidates.ended("uid-a")
    candidates.failed("uid-b", "why", 0.0)
    candidates.forget_absent(())

    pods = (make_pod("a"), make_pod("b"))
    assert candidates.of(pods, 1.0) is pods
