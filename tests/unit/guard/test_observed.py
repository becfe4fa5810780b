from __future__ import annotations

from reactor.guard.candidates import Candidates
from reactor.guard.observed import resources_wanting
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
    living: set[str] = set()
    candidates = Candidates()

    def populated(pod):
        return pod.uid in living

    pods = (make_pod("a"), make_pod("b"))
    assert candidates.of(pods, 0.0, populated) is pods

    candidates.ended("uid-a")
    assert candidates.of(pods, 0.0, populated) == (pods[1],)

    living.add("uid-a")
    assert candidates.of(pods, 0.0, populated) == pods


def test_pod_that_could_not_be_ended_is_spared_for_a_while(make_pod):
    candidates = Candidates(spare_seconds=30)
    pods = (make_pod("a"), make_pod("b"))
    candidates.failed("uid-a", "Operation not permitted", 100.0)

    spared, other = candidates.of(pods, 129.0, lambda _: True)
    assert spared.critical_because == "could not be ended: Operation not permitted"
    assert other is pods[1]
    assert candidates.of(pods, 130.0, lambda _: True) == pods


def test_what_was_noted_of_pods_that_are_gone_is_forgotten(make_pod):
    candidates = Candidates()
    candidates.ended("uid-a")
    candidates.failed("uid-b", "why", 0.0)
    candidates.forget_absent(())

    pods = (make_pod("a"), make_pod("b"))
    assert candidates.of(pods, 1.0, lambda _: False) is pods
