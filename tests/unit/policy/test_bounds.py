"""A decision by bounds is the decision by all numbers; few pods are read for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.model.decisions import (
    Claim,
    ClaimKind,
    Decision,
    Hold,
    Ineligible,
    Inputs,
    Measured,
    PolicyState,
    Snapshot,
)
from reactor.model.kills import HardMemoryKill, Slowdown, SlowReason
from reactor.model.pod_lists import Preference
from reactor.model.pods import Pod, PodUsage
from reactor.model.settings import EvictionSettings
from reactor.model.signals import MEMORY_SIGNALS, Reclaim, Resource, Signal
from reactor.model.thresholds import Observation
from reactor.policy.bounds import Bounded, Standing, completed, if_others_hold, standings, unsettled
from reactor.policy.decide import Due, decide, observed, with_whole_ranking
from reactor.policy.forecast import hold_too_little
from tests.support.builders import make_observation, make_pod, make_threshold
from tests.unit.policy.strategies import amount

pytestmark = pytest.mark.hypothesis
MIB = 1 << 20
NOW = 1000.0


class Truth(NamedTuple):
    """What a reader would find of a pod: what is charged to it, and what it uses; None: it has gone."""

    charged_bytes: int
    used: PodUsage | None


def inactive(one: Truth) -> int:
    """Return what of a pod's charge is not in its working set: page cache, all of it in its parents' too.

    One that goes takes nothing along, at the most.
    """
    held_bytes = 0 if one.used is None else one.used.memory_working_set_bytes or 0
    return one.charged_bytes - held_bytes


class Case(NamedTuple):
    """A decision's inputs, with what each pod would show. `wide`: how far a bound is above the charge."""

    settings: EvictionSettings
    state: PolicyState
    signals: Mapping[Signal, Observation]
    pods: tuple[Pod, ...]
    truth: Mapping[str, Truth]
    likely: tuple[str, ...] = ()
    wide: Mapping[str, int] = MappingProxyType({})
    read_before: tuple[str, ...] = ()


def all_wide(case: Case) -> Case:
    return case._replace(wide=dict.fromkeys(case.truth, 0))


class Read(NamedTuple):
    """What was known and due when the decision was settled, and in which order pods were read."""

    snapshot: Snapshot
    order: Sequence[str]
    due: Due | None
    is_hopeless: bool

    @property
    def is_all(self) -> bool:
        return self.due is None


def settle(case: Case, heads: int = 1) -> Read:
    """Read the pods that are asked for, as the guard does."""
    bounds = {uid: one.charged_bytes + case.wide.get(uid, 0) for uid, one in case.truth.items()}
    used = {uid: found for uid in case.read_before if (found := case.truth[uid].used) is not None}
    for uid in case.read_before:
        del bounds[uid]
    order: list[str] = []
    snapshot = Snapshot(signals=case.signals, pods=used, bounds=bounds)
    known = Bounded(
        Inputs(case.settings, case.state, snapshot, case.pods, NOW),
        standings=standings(case.pods),
        likely=case.likely,
        charged=case.truth.keys() - case.wide.keys(),
    )
    is_hopeless = hold_too_little(known)
    due = None
    asking = unsettled(known, heads=heads)
    for asked in asking:
        if isinstance(asked, Due):
            due = asked
            break
        for one in tuple(bounds) if asked is None else (asked,):
            order.append(one)
            del bounds[one]
            found = case.truth[one].used
            if found is not None:
                used[one] = found
        if asked is None:
            break
    assert not list(asking), "nothing follows what is due, or the request for all pods"
    return Read(Snapshot(signals=case.signals, pods=used, bounds=bounds), order, due, is_hopeless)


def present(case: Case, snapshot: Snapshot) -> tuple[Pod, ...]:
    """Return the pods but for those that turned out to have gone."""
    gone = {uid for uid, one in case.truth.items() if one.used is None} - snapshot.bounds.keys()
    return tuple(pod for pod in case.pods if pod.uid not in gone)


def whole(case: Case, read: Read) -> Snapshot:
    """Return what all pods show. One that has gone since its charge was read, unnoticed, holds little."""
    used = {uid: one.used for uid, one in case.truth.items() if one.used is not None}
    unnoticed = {uid: PodUsage(memory_working_set_bytes=0) for uid in read.snapshot.bounds}
    return Snapshot(signals=case.signals, pods={**unnoticed, **used})


def decided(case: Case, snapshot: Snapshot, pods: Sequence[Pod]) -> tuple[PolicyState, Decision]:
    return decide(case.settings, case.state, snapshot, pods, NOW)


def without_numbers(decision: Decision) -> Decision:
    """Return a decision but for the ranking, and what the pods behind its first would show."""
    return decision._replace(ranking=decision.ranking[:1])


sizes = st.integers(0, 12).map(lambda mebibytes: mebibytes * MIB)
INODES = st.integers(0, 3)


@st.composite
def truths(draw: st.DrawFn) -> Truth:
    held, cache, swapped = draw(sizes), draw(sizes), draw(st.none() | sizes)
    charged = held + cache + (swapped or 0)
    match draw(st.integers(0, 11)):
        case 0:
            return Truth(charged, PodUsage(unreadable=frozenset({Resource.MEMORY, Resource.PIDS})))
        case 1:
            return Truth(charged, None)
    return Truth(charged, PodUsage(memory_working_set_bytes=held, swap_bytes=swapped))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    count = draw(st.integers(0, 7))
    requests = draw(st.sampled_from([sizes, st.just(0), st.just(3 * MIB)]))  # many stand alike, or none do
    pods = tuple(
        replace(
            make_pod(f"{index}", request_bytes=draw(requests), priority=draw(st.integers(0, 1))),
            critical_because=(because := draw(st.sampled_from([None, None, None, "static pod"]))),
            could_not_be_ended=because is not None and draw(st.booleans()),
            preference=draw(st.sampled_from([Preference.NONE, Preference.NONE, *Preference])),
            cgroup_inode=draw(INODES) or None,
        )
        for index in range(count)
    )
    truth = {pod.uid: draw(truths()) for pod in pods}
    if draw(st.booleans()):
        truth["uid-ended"] = draw(truths())
    thresholds = draw(
        st.lists(
            st.builds(
                make_threshold,
                st.integers(1, 40).map(lambda mebibytes: mebibytes * MIB),
                st.sampled_from(sorted(MEMORY_SIGNALS)),
                st.sampled_from([0.0, 0.0, 5.0]),
            ),
            min_size=1,
            max_size=3,
            unique_by=str,
        ).map(tuple)
    )
    others = (make_threshold(5, Signal.PID_AVAILABLE),) if draw(st.integers(0, 9)) == 0 else ()
    inactive_bytes = sum(map(inactive, truth.values()))
    signals = {
        signal: Observation(
            available=MIB * draw(st.integers(0, 44)),
            capacity=MIB * draw(st.integers(40, 60)),
            inactive_file_bytes=draw(st.none() | sizes.map(lambda beside: inactive_bytes + beside)),
            is_mem_available=draw(st.integers(0, 9)) == 0,
        )
        for signal in draw(st.lists(st.sampled_from(sorted(MEMORY_SIGNALS)), unique=True, min_size=1))
    }
    if others:
        signals[Signal.PID_AVAILABLE] = Observation(available=draw(st.integers(0, 10)), capacity=10)
    settings = EvictionSettings(
        thresholds=(*thresholds, *others),
        unhelpful_eviction_pause_seconds=draw(st.sampled_from([0.0, 30.0])),
        minimum_victim=draw(st.none() | st.builds(amount, sizes)),
        reclaims_memory=draw(st.integers(0, 3)) == 0,
        reclaims_ended_only=draw(st.booleans()),
        ranks_swap=draw(st.booleans()),
        soft_reclaim_seconds=draw(st.sampled_from([0.0, 5.0])),
        evictions_per_minute=draw(st.sampled_from([None, None, 1])),
        hard_memory_evictions_per_minute=draw(st.sampled_from([None, None, 1])),
    )
    return Case(
        settings=settings,
        state=draw(states(tuple(truth), thresholds)),
        signals=signals,
        pods=pods,
        truth=truth,
        likely=draw(st.lists(st.sampled_from([*truth, "uid-unknown"]), max_size=2).map(tuple)),
        wide={uid: draw(sizes) for uid in truth if settings.ranks_swap or draw(st.integers(0, 3)) == 0},
    )


@st.composite
def states(draw: st.DrawFn, uids: Sequence[str], thresholds: Sequence[object]) -> PolicyState:
    uid = st.sampled_from([*uids, "uid-unknown"])
    ago = st.sampled_from([0.5, 5.0, 50.0])
    claims = st.builds(
        lambda uid, kind, left, grace: Claim(
            kind=kind,
            uid=uid,
            kill_at_seconds=NOW + grace,
            deadline_seconds=NOW + left,
            amount=None if kind is ClaimKind.POD else 3 * MIB,
            progress_seconds=NOW,
        ),
        uid,
        st.sampled_from([ClaimKind.POD, ClaimKind.PROCESS, ClaimKind.FILES]),
        st.sampled_from([-1.0, 5.0]),
        st.sampled_from([-2.0, 3.0]),
    )
    kills = st.builds(
        lambda uid, signal, ago, credited, outside, pods, kept, newest, bystanders: HardMemoryKill(
            uid=uid,
            signal=signal,
            at_seconds=NOW - ago,
            credited_bytes=credited,
            outside_bytes=outside,
            pods_bytes=pods,
            kept=kept,
            newest_inode=newest,
            bystanders=bystanders,
        ),
        uid,
        st.sampled_from(sorted(MEMORY_SIGNALS)),
        ago,
        sizes,
        st.none() | sizes,
        st.none() | sizes,
        st.lists(uid, max_size=1).map(tuple),
        INODES,
        st.integers(0, 5),
    )
    slowdowns = st.builds(
        lambda signal, reason, left: Slowdown(
            signal=signal, reason=reason, since_seconds=NOW - 5, until_seconds=NOW + left, message="slow"
        ),
        st.sampled_from(sorted(MEMORY_SIGNALS)),
        st.sampled_from([SlowReason.RATE, SlowReason.RATE, SlowReason.UNHELPFUL]),
        st.sampled_from([-1.0, 5.0]),
    )
    found = draw(st.lists(kills, max_size=2).map(tuple)) if draw(st.booleans()) else ()
    return PolicyState(
        first_observed={one: NOW - draw(ago) for one in thresholds if draw(st.booleans())},
        thresholds_met=tuple(one for one in thresholds if draw(st.booleans())),
        claims=draw(st.lists(claims, max_size=2).map(tuple)) if draw(st.booleans()) else (),
        evicted_at=draw(st.lists(ago, max_size=1).map(lambda ago: tuple(NOW - one for one in ago))),
        ineligible=Ineligible(emptied=draw(st.frozensets(uid, max_size=1))),
        hard_memory_kills=tuple(sorted(found, key=lambda one: one.at_seconds)),
        slowdowns=draw(st.lists(slowdowns, max_size=1).map(tuple)) if draw(st.integers(0, 4)) == 0 else (),
        holds=draw(
            st.lists(
                st.builds(
                    lambda kind: Hold(
                        kind=kind, reason="reclaim", began_seconds=NOW - 0.1, until_seconds=NOW + 1
                    ),
                    st.sampled_from([Reclaim.MEMORY, Reclaim.POD_MEMORY]),
                ),
                max_size=1,
            ).map(tuple)
        ),
    )


@st.composite
def hopeless_or_not(draw: st.DrawFn) -> Case:
    """Cases of pods that can be read, at a hard threshold far from being left."""
    case = draw(cases())
    held = PodUsage(memory_working_set_bytes=0)
    truth = {
        uid: one
        if one.used is not None and one.used.memory_working_set_bytes is not None
        else one._replace(used=held)
        for uid, one in case.truth.items()
    }
    wanted_bytes = draw(st.integers(20, 60)) * MIB
    seen = Observation(available=0, capacity=80 * MIB)
    settings = replace(
        case.settings,
        thresholds=(make_threshold(wanted_bytes),),
        unhelpful_eviction_pause_seconds=draw(st.sampled_from([0.0, 30.0])),
    )
    state = case.state._replace(first_observed={}, thresholds_met=())
    return case._replace(settings=settings, state=state, truth=truth, signals={Signal.MEMORY_AVAILABLE: seen})


@pytest.mark.slow
@given(cases())
def test_a_decision_by_bounds_is_the_decision_by_all_numbers(case: Case) -> None:
    """State and decision are the same, whatever the pods that were not read hold up to their bounds."""
    read = settle(case)
    state, decision = decided(case, read.snapshot, present(case, read.snapshot))
    whole_state, whole_decision = decided(case, whole(case, read), present(case, read.snapshot))
    assert state == whole_state
    assert without_numbers(decision) == without_numbers(whole_decision)
    pods = present(case, read.snapshot)
    by_due = decide(case.settings, case.state, read.snapshot, pods, NOW, due=read.due)
    assert (state, decision) == by_due


@pytest.mark.slow
@given(cases())
def test_what_was_due_counts_for_nothing_once_state_or_pods_are_others(case: Case) -> None:
    read = settle(case)
    for state, pods in ((PolicyState(), case.pods), (case.state, case.pods[1:])):
        anew = decide(case.settings, state, read.snapshot, pods, NOW)
        assert anew == decide(case.settings, state, read.snapshot, pods, NOW, due=read.due)


@pytest.mark.slow
@given(hopeless_or_not())
def test_pods_that_hold_too_little_by_their_bounds_do_by_all_numbers(case: Case) -> None:
    read = settle(case)
    _, decision = decided(case, whole(case, read), case.pods)
    assert not (read.is_hopeless and decision.evictions)


def test_that_they_do_is_seen_before_any_is_read() -> None:
    settings = EvictionSettings(thresholds=(make_threshold(64 * MIB),), unhelpful_eviction_pause_seconds=30.0)
    small = plain([(5, 5), (3, 0)], available=8, settings=settings)
    assert settle(small).is_hopeless
    large = plain([(50, 5), (3, 0)], available=8, settings=settings)
    assert not settle(large).is_hopeless


@pytest.mark.parametrize(("others_mib", "is_slowed"), [(60, False), (5, True)])
def test_pods_that_were_not_read_hold_what_is_said_in_all(others_mib: int, *, is_slowed: bool) -> None:
    """One of them stands for all, behind a pod that was read."""
    settings = EvictionSettings(thresholds=(make_threshold(64 * MIB),), unhelpful_eviction_pause_seconds=30.0)
    case = plain([(1, 1), (50, 50), (50, 50)], available=8, settings=settings)
    read, *others = case.truth
    snapshot = Snapshot(
        signals=case.signals,
        pods={read: PodUsage(memory_working_set_bytes=MIB)},
        bounds=dict.fromkeys(others, 50 * MIB),
    )
    due = observed(Inputs(settings, case.state, snapshot, case.pods, NOW))
    found = if_others_hold(Bounded(due.inputs, standings(case.pods)), others_mib * MIB)
    assert is_slowed == any(one.reason is SlowReason.OUTSIDE_PODS for one in found.slowdowns)


@st.composite
def soon_after_an_eviction(draw: st.DrawFn) -> Case:
    """A crossing at which what lies outside the pods may be reclaimed first, by a little or not."""
    pods = tuple(make_pod(f"{index}") for index in range(draw(st.integers(1, 5))))
    truth = {pod.uid: draw(truths()) for pod in pods}
    signal = draw(st.sampled_from(sorted(MEMORY_SIGNALS)))
    held = sum(one.used.memory_working_set_bytes or 0 for one in truth.values() if one.used is not None)
    used_bytes = held + draw(st.integers(0, 8)) * (MIB // 2)
    missing_bytes = draw(st.integers(1, 4)) * (MIB // 2)
    wanted_bytes = 64 * MIB
    seen = Observation(
        available=wanted_bytes - missing_bytes,
        capacity=wanted_bytes - missing_bytes + used_bytes,
        inactive_file_bytes=sum(map(inactive, truth.values())) + draw(st.integers(0, 2)) * (MIB // 2),
    )
    return Case(
        settings=EvictionSettings(thresholds=(make_threshold(wanted_bytes, signal),), reclaims_memory=True),
        state=PolicyState(evicted_at=(NOW - draw(st.sampled_from([5.0, 20.0])),)),
        signals={signal: seen},
        pods=pods,
        truth=truth,
    )


@given(soon_after_an_eviction())
def test_what_is_outside_the_pods_is_reclaimed_first_as_by_all_numbers(case: Case) -> None:
    test_a_decision_by_bounds_is_the_decision_by_all_numbers.hypothesis.inner_test(case)


def test_charges_alone_say_that_too_little_is_outside_the_pods(seen_after_an_eviction: Case) -> None:
    read = settle(seen_after_an_eviction)
    assert (read.order, read.is_all) == (["uid-hog"], False)


def test_what_a_pod_holds_that_was_read_before_is_not_outside_either(seen_after_an_eviction: Case) -> None:
    read = settle(seen_after_an_eviction._replace(read_before=("uid-hog",)))
    assert (read.order, read.is_all) == ([], False)


@pytest.mark.parametrize(("more_bytes", "is_all"), [(MIB // 2 - 1, False), (MIB // 2, True)])
def test_just_enough_outside_the_pods_asks_for_all_of_them(
    seen_after_an_eviction: Case, more_bytes: int, *, is_all: bool
) -> None:
    signals = {
        signal: one._replace(capacity=one.capacity + more_bytes)
        for signal, one in seen_after_an_eviction.signals.items()
    }
    assert is_all == settle(seen_after_an_eviction._replace(signals=signals)).is_all


def test_nothing_outside_the_pods_asks_for_them_if_only_what_has_ended_can_be_reclaimed(
    seen_after_an_eviction: Case,
) -> None:
    """What an ended pod has left is nothing here."""
    case = seen_after_an_eviction
    signals = {signal: one._replace(capacity=one.capacity + MIB) for signal, one in case.signals.items()}
    state = case.state._replace(ineligible=case.state.ineligible._replace(emptied=frozenset({"uid-gone"})))
    settings = replace(case.settings, reclaims_ended_only=True)
    changed = case._replace(signals=signals, state=state)
    assert settle(changed).is_all
    assert not settle(changed._replace(settings=settings)).is_all


def test_wide_bounds_do_not(seen_after_an_eviction: Case) -> None:
    assert settle(all_wide(seen_after_an_eviction)).is_all


def test_memory_that_counts_as_mem_available_does_is_asked_for(seen_after_an_eviction: Case) -> None:
    """Of a pod all that can be reclaimed counts then, which may be more than counts of its parents."""
    signals = {
        signal: one._replace(is_mem_available=True) for signal, one in seen_after_an_eviction.signals.items()
    }
    assert settle(seen_after_an_eviction._replace(signals=signals)).is_all


@pytest.fixture
def seen_after_an_eviction() -> Case:
    """A hog and others that hold 1 MiB each, page cache among it; half of 1 MiB lies outside."""
    pods = (make_pod("hog"), *(make_pod(f"{index}") for index in range(4)))
    truth = {pod.uid: Truth(MIB, PodUsage(memory_working_set_bytes=MIB // 2)) for pod in pods[1:]} | {
        pods[0].uid: Truth(40 * MIB, PodUsage(memory_working_set_bytes=40 * MIB))
    }
    seen = Observation(
        available=63 * MIB, capacity=63 * MIB + 42 * MIB + MIB // 2, inactive_file_bytes=2 * MIB
    )
    return Case(
        settings=EvictionSettings(thresholds=(make_threshold(64 * MIB),), reclaims_memory=True),
        state=PolicyState(evicted_at=(NOW - 20.0,)),
        signals={Signal.MEMORY_AVAILABLE: seen},
        pods=pods,
        truth=truth,
    )


def test_a_pod_that_is_never_evicted_does_not_hide_that_there_are_others() -> None:
    """Evictions are slowed down if all that may go hold too little, not if none may go."""
    static = replace(make_pod("static"), critical_because="static pod")
    pods = (static, make_pod("small"))
    truth = {pod.uid: Truth(MIB, PodUsage(memory_working_set_bytes=MIB)) for pod in pods}
    case = Case(
        settings=EvictionSettings(
            thresholds=(make_threshold(64 * MIB),), unhelpful_eviction_pause_seconds=30.0
        ),
        state=PolicyState(),
        signals={Signal.MEMORY_AVAILABLE: Observation(available=8 * MIB, capacity=128 * MIB)},
        pods=pods,
        truth=truth,
        likely=(static.uid,),
    )

    read = settle(case)

    state, decision = decided(case, read.snapshot, pods)
    assert (state, decision) == decided(case, whole(case, read), pods)
    assert [one.reason for one in state.slowdowns] == [SlowReason.OUTSIDE_PODS]


@pytest.mark.slow
@given(cases())
def test_the_whole_ranking_is_that_of_all_numbers(case: Case) -> None:
    """What is read after the kill fills in the places behind the first, and marks them."""
    read = settle(case)
    state, decision = decided(case, read.snapshot, present(case, read.snapshot))
    snapshot = completed(case.settings, read.snapshot, whole(case, read).pods)
    inputs = Inputs(case.settings, state, snapshot, present(case, read.snapshot), NOW)
    filled = with_whole_ranking(inputs, decision)
    _, expected = decided(case, whole(case, read), present(case, read.snapshot))
    unmarked = [place._replace(measured=Measured.AT_DECISION) for place in filled.ranking]
    assert unmarked == list(expected.ranking)
    late = {place.pod.uid for place in filled.ranking if place.measured is Measured.AFTERWARDS}
    assert late == read.snapshot.bounds.keys() & {place.pod.uid for place in filled.ranking}


@pytest.mark.slow
@given(cases(), st.data())
def test_the_first_stays_first_however_the_others_move_after_the_kill(
    case: Case, data: st.DataObject
) -> None:
    """Numbers that are read later are taken as no more than the bounds at the decision."""
    read = settle(case)
    state, decision = decided(case, read.snapshot, present(case, read.snapshot))
    moved = {
        uid: data.draw(truths()).used or PodUsage()
        for uid in read.snapshot.bounds
        if data.draw(st.booleans(), label=f"{uid} is still there")
    }
    snapshot = completed(case.settings, read.snapshot, moved)
    inputs = Inputs(case.settings, state, snapshot, present(case, read.snapshot), NOW)
    filled = with_whole_ranking(inputs, decision)
    assert filled.ranking[:1] == decision.ranking[:1]
    gone = read.snapshot.bounds.keys() - moved.keys()
    for place in filled.ranking if decision.ranking else ():
        if place.pod.uid in gone:
            assert place.measured is Measured.BOUND
            assert place.usage == read.snapshot.bounds[place.pod.uid]


@pytest.mark.slow
@given(cases(), st.integers(1, 3))
def test_as_many_are_settled_as_are_asked_for(case: Case, heads: int) -> None:
    """A forecast asks for the first two."""
    read = settle(case, heads)
    _, decision = decided(case, read.snapshot, present(case, read.snapshot))
    _, expected = decided(case, whole(case, read), present(case, read.snapshot))
    readable = [place for place in expected.ranking if place.evictable and not place.unreadable]
    assert list(decision.ranking[: min(heads, len(readable))]) == readable[:heads][: len(decision.ranking)]


def plain(
    held: Sequence[tuple[int, int]], *, available: int = 10, settings: EvictionSettings | None = None
) -> Case:
    """Return a crossing of one hard threshold among pods of so much working set and page cache, in MiB."""
    pods = tuple(make_pod(f"{index}") for index in range(len(held)))
    return Case(
        settings=settings or EvictionSettings(thresholds=(make_threshold(20 * MIB),)),
        state=PolicyState(),
        signals={Signal.MEMORY_AVAILABLE: make_observation(available * MIB)},
        pods=pods,
        truth={
            pod.uid: Truth((used + cache) * MIB, PodUsage(memory_working_set_bytes=used * MIB))
            for pod, (used, cache) in zip(pods, held, strict=True)
        },
    )


def test_a_pod_that_holds_just_the_minimum_is_none_of_the_small_ones() -> None:
    standing = Standing(position=0, preference=0, priority=0, request_bytes=0)
    assert [True, False] == [standing.place(amount, 10)[0] for amount in (9, 10)]


def test_one_pod_is_read_if_no_other_is_charged_as_much_as_it_holds() -> None:
    read = settle(plain([(5, 5), (300, 10), (40, 100), (7, 0)]))
    assert read.order == ["uid-1"]


def test_a_pod_to_which_nothing_is_charged_may_be_the_first_as_well() -> None:
    never_slowed = EvictionSettings(
        thresholds=(make_threshold(20 * MIB),), unhelpful_eviction_pause_seconds=0.0
    )
    assert settle(plain([(0, 0), (0, 0)], settings=never_slowed)).order == ["uid-0"]


def test_a_pod_with_much_page_cache_is_read_before_the_one_that_holds_most() -> None:
    read = settle(plain([(5, 5), (300, 10), (40, 400), (7, 0)]))
    assert read.order == ["uid-2", "uid-1"]


def test_what_was_prepared_is_read_first() -> None:
    read = settle(plain([(5, 5), (300, 10), (40, 100)])._replace(likely=("uid-0", "uid-gone")))
    assert read.order == ["uid-0", "uid-1"]


def test_no_pod_is_read_if_no_threshold_is_met() -> None:
    assert settle(plain([(5, 5), (300, 10)], available=30)).order == []


def test_all_pods_are_read_if_none_may_be_evicted() -> None:
    case = plain([(5, 5), (300, 10)])
    case = case._replace(pods=tuple(replace(pod, critical_because="static pod") for pod in case.pods))
    assert settle(case).is_all


def test_all_pods_are_read_while_evictions_are_slowed_down() -> None:
    slowdown = Slowdown(
        signal=Signal.MEMORY_AVAILABLE,
        reason=SlowReason.UNHELPFUL,
        since_seconds=NOW - 1,
        until_seconds=NOW + 10,
        message="slow",
    )
    case = plain([(5, 5), (300, 10)])
    assert settle(case._replace(state=PolicyState(slowdowns=(slowdown,)))).is_all


def test_pods_are_read_until_they_hold_what_is_missing() -> None:
    """Evictions are not slowed down for memory outside the pods then."""
    settings = EvictionSettings(
        thresholds=(make_threshold(400 * MIB),), unhelpful_eviction_pause_seconds=30.0
    )
    case = plain([(100, 0), (50, 0), (90, 0), (120, 0), (60, 0)], available=10, settings=settings)
    assert settle(all_wide(case)).order == ["uid-3", "uid-0", "uid-2", "uid-4"]


def test_none_is_if_their_charges_without_all_inactive_page_cache_are_enough() -> None:
    settings = EvictionSettings(
        thresholds=(make_threshold(400 * MIB),), unhelpful_eviction_pause_seconds=30.0
    )
    case = plain([(100, 0), (50, 9), (90, 0), (120, 0), (60, 0)], available=10, settings=settings)
    seen = case.signals[Signal.MEMORY_AVAILABLE]
    for inactive_bytes, order in ((9 * MIB, ["uid-3"]), (90 * MIB, ["uid-3", "uid-0", "uid-2", "uid-4"])):
        signals = {Signal.MEMORY_AVAILABLE: seen._replace(inactive_file_bytes=inactive_bytes)}
        assert settle(case._replace(signals=signals)).order == order


@pytest.mark.parametrize("other_bytes", [90 * MIB, None], ids=["more", "not known"])
def test_of_several_signals_the_least_inactive_page_cache_bounds_that_of_the_pods(
    other_bytes: int | None,
) -> None:
    """Each signal's cgroup has the pods in it."""
    settings = EvictionSettings(
        thresholds=(make_threshold(400 * MIB),), unhelpful_eviction_pause_seconds=30.0
    )
    case = plain([(100, 0), (50, 9), (90, 0), (120, 0), (60, 0)], available=10, settings=settings)
    seen = case.signals[Signal.MEMORY_AVAILABLE]
    signals = {
        Signal.MEMORY_AVAILABLE: seen._replace(inactive_file_bytes=other_bytes),
        Signal.ALLOCATABLE_MEMORY_AVAILABLE: seen._replace(inactive_file_bytes=9 * MIB),
    }
    assert ["uid-3"] == settle(case._replace(signals=signals)).order


def test_all_pods_are_read_if_the_shortage_is_outside_them() -> None:
    settings = EvictionSettings(
        thresholds=(make_threshold(400 * MIB),), unhelpful_eviction_pause_seconds=30.0
    )
    assert settle(plain([(20, 0), (10, 0)], available=10, settings=settings)).is_all


def test_all_pods_are_read_beside_a_victim_that_does_not_die() -> None:
    case = plain([(5, 5), (300, 10)], available=1)
    kill = HardMemoryKill(
        uid="uid-0", signal=Signal.MEMORY_AVAILABLE, at_seconds=NOW - 3, credited_bytes=5 * MIB
    )
    claim = Claim(kind=ClaimKind.POD, uid="uid-0", deadline_seconds=NOW + 5, kill_at_seconds=NOW - 3)
    read = settle(case._replace(state=PolicyState(hard_memory_kills=(kill,), claims=(claim,))))
    assert read.order[0] == "uid-0"
    assert read.is_all
