"""Whether an eviction in time was needed is judged by what would have been available without it."""

from __future__ import annotations

from collections.abc import Callable

from reactor.model.decisions import Eviction, RankedPod, Shortage, Snapshot, TimeLeft
from reactor.model.pods import PodUsage
from reactor.model.signals import Resource, Signal
from reactor.time_left.watch import Judged, Needs
from tests.support.builders import MIB, make_observation, make_pod, make_threshold

HARD = {Signal.MEMORY_AVAILABLE: make_threshold(100 * MIB)}
GRACE_SECONDS = 20.0


def evicted(
    needs: Needs,
    *,
    grew_mib: int,
    held_mib: int = 200,
    in_time: bool = True,
    grace_seconds: float = GRACE_SECONDS,
) -> None:
    """Have a pod evicted at 10 s that has grown by so much since the soft threshold was met at 0 s."""
    pod = make_pod("victim")
    used = PodUsage(memory_working_set_bytes=held_mib * MIB)
    before = PodUsage(memory_working_set_bytes=(held_mib - grew_mib) * MIB)
    needs.seen(Snapshot(pods={pod.uid: before}), 0.0)
    needs.seen(Snapshot(pods={pod.uid: used}), 9.0)
    place = RankedPod(pod, held_mib * MIB, 0, exceeds_request=True)
    eviction = Eviction(
        pod=pod,
        signal=Signal.MEMORY_AVAILABLE,
        resource=Resource.MEMORY,
        grace_period_seconds=5,
        threshold=make_threshold(300 * MIB, grace_period_seconds=30),
        shortage=Shortage(make_observation(250 * MIB), place, used),
        time_left=TimeLeft(at_seconds=10.0, seconds=5.0) if in_time else None,
    )
    needs.ordered(eviction, HARD, grace_seconds)


def course(needs: Needs, available_mib: Callable[[float], float], held_mib: Callable[[float], float]) -> None:
    """Let the time pass until the grace period would have been over."""
    at = 10.0
    while needs.is_judging:
        seen = {Signal.MEMORY_AVAILABLE: make_observation(int(available_mib(at) * MIB), 2048 * MIB)}
        held = int(held_mib(at) * MIB)
        needs.judge(seen, lambda _, held=held: held, at)  # type: ignore[misc]
        at += 0.25
        assert at < 1000


def counted(needs: Needs) -> list[Judged]:
    return list(needs.counted.elements())


def test_a_victim_that_would_have_grown_past_the_threshold_is_presumed_to_have_been_needed() -> None:
    """It took 10 MiB/s, 150 MiB were left until the threshold and 20 s of the grace period."""
    needs = Needs()
    evicted(needs, grew_mib=100)
    course(needs, lambda at: 250 if at < 12 else 450, lambda at: 200 if at < 12 else 0)
    assert counted(needs) == [Judged.PRESUMED]


def test_a_victim_that_would_not_have_got_so_far_was_not_needed() -> None:
    """At 15 s others free so much that the soft threshold would not have been met without the eviction."""
    needs = Needs()
    evicted(needs, grew_mib=50)
    course(
        needs,
        lambda at: 250 if at < 12 else 450 if not 15 <= at < 16 else 550,
        lambda at: 200 if at < 12 else 0,
    )
    assert counted(needs) == [Judged.NOT_NEEDED]


def test_a_victim_whose_grace_period_would_have_ended_with_the_threshold_met_only_went_sooner() -> None:
    """250 MiB would have been available all the time: upstream evicts it at the end of the grace period."""
    needs = Needs()
    evicted(needs, grew_mib=50)
    course(needs, lambda at: 250 if at < 12 else 450, lambda at: 200 if at < 12 else 0)
    assert counted(needs) == [Judged.SOONER]
    document = needs.document()
    assert (document["sooner"], document["not_needed"], document["being_judged"]) == (1, 0, 0)


def test_a_grace_period_that_is_longer_than_is_watched_is_not_said_to_have_ended() -> None:
    needs = Needs()
    evicted(needs, grew_mib=0, grace_seconds=3600.0)
    course(needs, lambda at: 250 if at < 12 else 450, lambda at: 200 if at < 12 else 0)
    assert counted(needs) == [Judged.NOT_NEEDED]


def test_a_threshold_that_is_crossed_before_the_victim_has_ended_needed_it() -> None:
    needs = Needs()
    evicted(needs, grew_mib=100)
    course(needs, lambda at: 250 - 100 * (at - 10), lambda _: 200)
    assert counted(needs) == [Judged.NEEDED]


def test_what_others_took_counts() -> None:
    """The victim stood still, others took on all that it freed and more."""
    needs = Needs()
    evicted(needs, grew_mib=0)
    course(
        needs, lambda at: 250 - 20 * (at - 10) + (200 if at >= 12 else 0), lambda at: 200 if at < 12 else 0
    )
    assert counted(needs) == [Judged.NEEDED]


def test_what_others_freed_counts() -> None:
    needs = Needs()
    evicted(needs, grew_mib=100)
    course(needs, lambda at: 250 if at < 12 else 1000, lambda at: 200 if at < 12 else 0)
    assert counted(needs) == [Judged.NOT_NEEDED]


def test_other_evictions_are_not_judged() -> None:
    needs = Needs()
    evicted(needs, grew_mib=100, in_time=False)
    assert not needs.is_judging


def test_growth_is_measured_from_the_shortage_at_hand() -> None:
    """What a pod held in a shortage long ago says nothing of how fast it grows."""
    needs = Needs()
    pod = make_pod("victim")
    needs.seen(Snapshot(pods={pod.uid: PodUsage(memory_working_set_bytes=MIB)}), -1000.0)
    needs.calm()
    evicted(needs, grew_mib=50)
    course(needs, lambda at: 250 if at < 12 else 450, lambda at: 200 if at < 12 else 0)
    assert counted(needs) == [Judged.SOONER]
