"""A soft eviction for memory that would come too late comes sooner, where that is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.model.decisions import Decision, PolicyState, Snapshot, TimeLeft
from reactor.model.pods import PodUsage
from reactor.model.settings import EvictionSettings
from reactor.model.signals import Signal
from reactor.policy.decide import decide
from reactor.policy.events import EndingObserved, EvictionOrdered, PodEnded, apply
from reactor.policy.in_time import due_in_time, with_ending, work_of
from tests.support.builders import MIB, make_observation, make_pod, make_threshold

SOFT = make_threshold(300 * MIB, grace_period_seconds=90)
HARD = make_threshold(100 * MIB)
SETTINGS = EvictionSettings(
    thresholds=(HARD, SOFT),
    max_pod_grace_period_seconds=20,
    soft_in_time=True,
    reclaims_memory=True,
    soft_reclaim_seconds=5.0,
)
PODS = (make_pod("small"), make_pod("large"))
MET = PolicyState(first_observed={SOFT: 100.0})


def left_of(seconds: float, *, at: float = 110.0, within: float = 1.2, held_seconds: float = 2.0) -> TimeLeft:
    return TimeLeft(
        at_seconds=at,
        seconds=seconds,
        earliest_seconds=seconds / within,
        latest_seconds=seconds * within,
        bytes_per_second=1.0,
        held_seconds=held_seconds,
    )


def passed(
    left: TimeLeft | None,
    state: PolicyState = MET,
    *,
    at: float = 110.0,
    available: int = 200 * MIB,
    settings: EvictionSettings = SETTINGS,
) -> tuple[PolicyState, Decision]:
    """Make a pass over a node of 512 MiB."""
    used = {
        "uid-small": PodUsage(memory_working_set_bytes=50 * MIB),
        "uid-large": PodUsage(memory_working_set_bytes=200 * MIB),
    }
    snapshot = Snapshot(
        signals={Signal.MEMORY_AVAILABLE: make_observation(available)},
        pods=used,
        time_left={} if left is None else {Signal.MEMORY_AVAILABLE: left},
    )
    return decide(settings, state, snapshot, PODS, at)


def test_the_first_pod_is_asked_to_end_with_the_time_that_is_left() -> None:
    """Also if the pods' own memory is reclaimed before soft evictions: there is no time for that."""
    left = left_of(10.0)
    _, decision = passed(left)
    (eviction,) = decision.evictions
    assert ("large", SOFT, 12, left) == (
        eviction.pod.name,
        eviction.threshold,
        eviction.grace_period_seconds,
        eviction.time_left,
    )
    assert decision.soft_reclaim is None


def test_the_time_is_capped_as_upstream_caps() -> None:
    _, decision = passed(left_of(24.0, at=130.0), at=130.0)
    assert [20] == [one.grace_period_seconds for one in decision.evictions]


def test_less_than_a_second_is_rounded_up() -> None:
    """No time at all would be a kill, which is the hard threshold's."""
    _, decision = passed(left_of(0.2))
    assert [1] == [one.grace_period_seconds for one in decision.evictions]


@pytest.mark.parametrize(
    "left",
    [
        None,
        TimeLeft(at_seconds=110.0, because="too few samples yet"),
        left_of(10.0, at=108.0),  # of long ago
        left_of(10.0, at=111.0),  # of a clock that went back
        left_of(70.0),  # perhaps after the grace period
        left_of(60.0),  # there is more time than a pod may take
        left_of(10.0, held_seconds=0.5),  # foreseen a moment ago for the first time
    ],
)
def test_upstreams_grace_period_holds_where_the_hard_threshold_is_not_foreseen_within_it(
    left: TimeLeft | None,
) -> None:
    state, decision = passed(left)
    assert ((), ()) == (decision.evictions, state.thresholds_met)
    state, decision = passed(left, state, at=190.0, settings=replace(SETTINGS, soft_reclaim_seconds=0))
    assert [20] == [one.grace_period_seconds for one in decision.evictions]
    assert [None] == [one.time_left for one in decision.evictions]


@pytest.mark.parametrize("changes", [{"soft_in_time": False}, {"max_pod_grace_period_seconds": 0}])
def test_nothing_comes_sooner_where_that_is_not_asked_for_or_gentler(changes: dict[str, int]) -> None:
    _, decision = passed(left_of(1.0), settings=replace(SETTINGS, **changes))
    assert decision.evictions == ()


def test_pods_own_grace_period_counts_if_there_is_no_cap() -> None:
    settings = replace(SETTINGS, max_pod_grace_period_seconds=-1)
    _, decision = passed(left_of(36.0, at=130.0), at=130.0, settings=settings)
    assert [30] == [one.grace_period_seconds for one in decision.evictions]


def ended(*seconds: float, was_cut: bool = False) -> PolicyState:
    """Return the state after earlier endings of the pod that goes first."""
    state = MET
    for one in seconds:
        state = apply(SETTINGS, state, EndingObserved(pod=PODS[1], seconds=one, was_cut=was_cut), 50.0)
    return state


@pytest.mark.parametrize(
    ("state", "asked_with"),
    [
        (ended(3.0), 3.1),
        (ended(3.0, 1.0), 3.1),  # the longest of the last
        (ended(9.0, 1.0, 1.0, 1.0, 2.0), 2.1),  # which are four
        (ended(2.0, was_cut=True), 4.1),  # it needs longer than it was given
        (ended(60.0), 20.1),  # no longer than it is allowed
        (MET, 10.1),  # not known: for as long as the soft threshold has been met
    ],
)
def test_a_pod_is_asked_once_no_more_time_is_left_than_it_needs(
    state: PolicyState, asked_with: float
) -> None:
    """Until then it may turn out that the fall stops, and nothing is decided, or said to be due."""
    after, decision = passed(left_of(asked_with + 0.1, within=1.0), state)
    assert ((), (), None) == (decision.evictions, after.thresholds_met, decision.deferred_because)
    (wait,) = after.waits
    assert (SOFT, "uid-large") == (wait.threshold, wait.uid)
    assert wait.needed_seconds == pytest.approx(asked_with)
    _, decision = passed(left_of(asked_with - 0.1, within=1.0), state)
    assert ["large"] == [one.pod.name for one in decision.evictions]


def test_who_goes_first_is_looked_up_again_within_a_second_and_not_at_each_sample() -> None:
    """Another pod may be the first by then, which needs longer."""
    state, _ = passed(left_of(15.0), ended(3.0))

    def is_due(left: TimeLeft, at: float) -> bool:
        return bool(due_in_time(SETTINGS, state, {Signal.MEMORY_AVAILABLE: left}, at))

    assert not is_due(left_of(14.1, at=110.9), 110.9)
    assert is_due(left_of(14.0, at=111.0), 111.0)
    assert is_due(left_of(3.0, at=110.5), 110.5)
    _, decision = passed(left_of(14.0, at=111.0), state, at=111.0)
    assert decision.evictions == ()


def test_what_waits_is_forgotten_with_its_threshold() -> None:
    state, _ = passed(left_of(15.0), ended(3.0))
    assert state.waits
    state, _ = passed(None, state, at=112.0, available=400 * MIB)
    assert state.waits == ()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("web-7d4b9c6f5b-x2k4q", "web-6c8f9d7b4d-zz5wl"),  # of a Deployment
        ("agent-x2k4q", "agent-zz5wl"),  # of a DaemonSet, of a Job
        ("db-0", "db-0"),
        ("agent@17.service", "agent@18.service"),
        ("agent@17", "agent@18"),
    ],
)
def test_pods_that_do_the_same_share_what_is_known(one: str, other: str) -> None:
    assert work_of(make_pod(one)) == work_of(make_pod(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [("web-server", "web"), ("db-0", "db-1"), ("a.service", "b.service"), ("a@1.service", "a.service")],
)
def test_pods_of_other_names_do_not(one: str, other: str) -> None:
    assert work_of(make_pod(one)) != work_of(make_pod(other))
    assert work_of(make_pod("web")) != work_of(replace(make_pod("web"), namespace="other"))


def test_a_kill_sooner_than_a_work_is_known_to_end_says_nothing_of_what_it_needs() -> None:
    """A fall may be faster than foreseen. If that doubled it each time, pods would be asked ever sooner."""
    web = make_pod("web")
    known = with_ending({}, web, 1.0, was_cut=False)
    assert known == with_ending(known, web, 0.4, was_cut=True)
    assert known == with_ending(known, web, 1.0, was_cut=True)
    (longer,) = with_ending(known, web, 1.2, was_cut=True).values()
    assert longer == (1.0, 2.4)


def test_a_work_whose_pod_was_killed_is_still_one_of_those_that_ended_last() -> None:
    known = with_ending({}, make_pod("web"), 1.0, was_cut=False)
    for number in range(127):
        known = with_ending(known, make_pod(f"other{number}"), 1.0, was_cut=False)
    known = with_ending(known, make_pod("web"), 0.4, was_cut=True)
    known = with_ending(known, make_pod("another"), 1.0, was_cut=False)
    assert work_of(make_pod("web")) in known


@given(
    endings=st.lists(
        st.tuples(st.text(max_size=20), st.floats(0, 1e9), st.booleans()), min_size=1, max_size=300
    )
)
def test_what_is_known_is_bounded_whatever_pods_are_called(endings: list[tuple[str, float, bool]]) -> None:
    known: Mapping[str, tuple[float, ...]] = {}
    for name, seconds, was_cut in endings:
        known = with_ending(known, make_pod(name), seconds, was_cut=was_cut)
        assert work_of(make_pod(name)) in known
    assert len(known) <= 128
    assert all(len(some) <= 4 and all(0 <= one <= 86_400 for one in some) for some in known.values())


def test_no_second_pod_is_asked_while_the_first_frees_enough() -> None:
    state, decision = passed(left_of(10.0))
    (eviction,) = decision.evictions
    ordered = EvictionOrdered(eviction=eviction, snapshot=Snapshot(), pods=PODS, held_bytes=200 * MIB)
    state = apply(SETTINGS, state, ordered, 110.0)
    state, decision = passed(left_of(9.0, at=111.0), state, at=111.0)
    assert decision.evictions == ()
    assert "in flight" in (decision.deferred_because or "")


PAUSED = replace(SETTINGS, unhelpful_eviction_pause_seconds=10.0, soft_reclaim_seconds=0.0)


def test_an_eviction_in_time_waits_for_no_pause() -> None:
    state, decision = passed(left_of(10.0), MET._replace(evicted_at=(109.0,)), settings=PAUSED)
    assert [("large", 10.0)] == [
        (one.pod.name, one.time_left and one.time_left.seconds) for one in decision.evictions
    ]
    assert state.thresholds_met == (SOFT,)


@pytest.mark.parametrize(
    ("left", "victims"), [(left_of(7.0, at=200.0), ["large"]), (left_of(8.0, at=200.0), []), (None, [])]
)
def test_a_pause_is_cut_short_by_a_crossing_that_would_come_within_it_and_by_no_other(
    left: TimeLeft | None, victims: list[str]
) -> None:
    """The grace period is over; the pause lasts 9 s more."""
    state = MET._replace(evicted_at=(199.0,), thresholds_met=(SOFT,))
    after, decision = passed(left, state, at=200.0, settings=PAUSED)

    assert victims == [one.pod.name for one in decision.evictions]
    assert ("pause" in (decision.deferred_because or "")) == (not victims)
    assert after.thresholds_met == (SOFT,)
    _, decision = passed(left, state, at=200.0, settings=replace(PAUSED, soft_in_time=False))
    assert "pause" in (decision.deferred_because or "")


def test_the_crossing_kills_at_once_as_ever() -> None:
    state, decision = passed(left_of(10.0))
    (eviction,) = decision.evictions
    ordered = EvictionOrdered(eviction=eviction, snapshot=Snapshot(), pods=PODS, held_bytes=200 * MIB)
    state = apply(SETTINGS, state, ordered, 110.0)
    _, decision = passed(left_of(0.0, at=112.0), state, at=112.0, available=99 * MIB)
    assert [("large", 0, None)] == [
        (one.pod.name, one.grace_period_seconds, one.time_left) for one in decision.evictions
    ]


@given(
    seconds=st.floats(0, 1000),
    within=st.floats(1, 4),
    age=st.floats(-10, 10),
    passed_seconds=st.floats(0, 200),
    available_mib=st.integers(101, 511),
    is_on=st.booleans(),
)
def test_an_estimate_changes_nothing_but_when_a_soft_eviction_comes(
    seconds: float, within: float, age: float, passed_seconds: float, available_mib: int, *, is_on: bool
) -> None:
    """The victim is upstream's, and it has no more time to end than upstream's cap."""
    at = 100.0 + passed_seconds
    settings = replace(SETTINGS, soft_in_time=is_on, soft_reclaim_seconds=0.0)
    left = left_of(seconds, at=at - age, within=within)
    _, decision = passed(left, at=at, available=available_mib * MIB, settings=settings)
    _, upstreams = passed(None, at=at, available=available_mib * MIB, settings=settings)
    if upstreams.evictions or not is_on:
        assert upstreams.evictions == tuple(one._replace(time_left=None) for one in decision.evictions)
    for eviction in decision.evictions:
        assert available_mib < 300
        assert eviction.pod.name == "large"
        assert 1 <= eviction.grace_period_seconds <= 20


def test_what_goes_outside_the_pods_costs_one_of_them_in_a_pause_also_in_time() -> None:
    settings = replace(PAUSED, unhelpful_eviction_pause_seconds=60.0)
    pods = tuple(make_pod(f"pod-{number}") for number in range(8))
    state, gone, available = MET, list[str](), 200
    for turn in range(8):  # 10 MiB come back each time, and 20 more are taken outside
        at = 110.0 + turn
        living = tuple(pod for pod in pods if pod.uid not in gone)
        snapshot = Snapshot(
            signals={Signal.MEMORY_AVAILABLE: make_observation(available * MIB)},
            pods={pod.uid: PodUsage(memory_working_set_bytes=10 * MIB) for pod in living},
            time_left={Signal.MEMORY_AVAILABLE: left_of(5.0, at=at)},
        )
        state, decision = decide(settings, state, snapshot, living, at)
        for eviction in decision.evictions:
            gone.append(eviction.pod.uid)
            ordered = EvictionOrdered(eviction=eviction, snapshot=snapshot, pods=living, held_bytes=10 * MIB)
            ended = PodEnded(uid=eviction.pod.uid)
            state = apply(settings, apply(settings, state, ordered, at), ended, at)
        available -= 10
    assert 1 == len(gone)
    assert ["unhelpful"] == [one.reason for one in state.slowdowns]
    assert "evicting does not help" in (decision.deferred_because or "")
