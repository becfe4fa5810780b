"""A victim is certain only where every movement of the pods within their ranges leads to one decision."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from reactor.model.decisions import Claim, ClaimKind, Hold, Inputs, PolicyState, Snapshot
from reactor.model.kills import HardMemoryKill, Slowdown, SlowReason
from reactor.model.pods import Pod, PodUsage
from reactor.model.settings import EvictionSettings
from reactor.model.signals import Reclaim, Resource, Signal
from reactor.model.thresholds import Observation, Threshold
from reactor.policy.decide import decide
from reactor.policy.holds import LEAST_BYTES
from reactor.warrants.certainty import (
    Ahead,
    CertainVictim,
    UsageRange,
    certain_victim,
    settled_until_seconds,
)
from tests.unit.policy import strategies as draw

HARD = Threshold(signal=Signal.MEMORY_AVAILABLE, value=draw.amount(100))
SOFT = replace(HARD, value=draw.amount(300), grace_period_seconds=30.0)
ALLOCATABLE = replace(HARD, signal=Signal.ALLOCATABLE_MEMORY_AVAILABLE)
NEAR = {Signal.MEMORY_AVAILABLE: Observation(available=105, capacity=1000)}
HOG, OTHER, CRITICAL = (
    Pod(name="hog", namespace="n", uid="hog"),
    Pod(name="other", namespace="n", uid="other"),
    Pod(name="critical", namespace="n", uid="critical", critical_because="static pod"),
)
RANGES = {
    "hog": UsageRange(least_bytes=500, most_bytes=520),
    "other": UsageRange(least_bytes=0, most_bytes=499),
    "critical": UsageRange(least_bytes=0, most_bytes=900),
}
PODS = (OTHER, CRITICAL, HOG)
SETTINGS = EvictionSettings(thresholds=(HARD,), unhelpful_eviction_pause_seconds=10.0)


def certain(
    policy: EvictionSettings = SETTINGS,
    state: PolicyState = PolicyState(),  # noqa: B008 - frozen
    pods: tuple[Pod, ...] = PODS,
    ranges: dict[str, UsageRange] = RANGES,
    signals: dict[Signal, Observation] = NEAR,
    threshold: Threshold = HARD,
    reach_bytes: int = 5,
    *,
    outside_bytes: int | None = None,
) -> CertainVictim | str:
    ahead = Ahead(ranges=ranges, horizon_seconds=0.25, reach_bytes=reach_bytes, outside_bytes=outside_bytes)
    inputs = Inputs(policy, state, Snapshot(signals=signals), pods, now_seconds=100.0)
    return certain_victim(inputs, threshold, ahead)


def test_pod_that_stays_first_in_all_its_range_is_certain() -> None:
    found = certain()
    assert isinstance(found, CertainVictim)
    assert (HOG, HARD, 99) == (found.pod, found.threshold, found.crossing.available)


def test_pod_that_another_may_overtake_is_not() -> None:
    ranges = {**RANGES, "other": UsageRange(least_bytes=0, most_bytes=501)}
    assert certain(ranges=ranges) == "n/other may come before n/hog by then"
    assert certain(ranges={**RANGES, "other": UsageRange(least_bytes=0, most_bytes=600)}) == (
        "n/hog may come before n/other by then"
    )


def test_nothing_is_certain_of_a_pod_that_is_not_observed() -> None:
    assert certain(pods=(*PODS, Pod(name="new", namespace="n", uid="new"))) == (
        "how much n/new may use is not known"
    )


def test_nothing_is_certain_without_a_pod_that_may_be_evicted() -> None:
    assert certain(pods=(CRITICAL,)) == "no pod may be evicted"
    assert certain(pods=()) == "no pod may be evicted"


def test_where_the_decision_would_evict_no_pod_none_is_certain() -> None:
    """The threshold is not among those that the decision goes by."""
    assert certain(replace(SETTINGS, thresholds=())) == "no pod may come before n/hog by then"


@pytest.mark.parametrize(
    ("threshold", "signals", "reach_bytes", "why"),
    [
        (SOFT, NEAR, 5, "is no hard memory threshold that is observed"),
        (HARD, {}, 5, "is no hard memory threshold that is observed"),
        (
            HARD,
            {HARD.signal: Observation(available=-1, capacity=9)},
            5,
            "is no hard memory threshold that is observed",
        ),
        (
            HARD,
            {HARD.signal: Observation(available=90, capacity=100)},
            5,
            "is too close to 0 or to the capacity",
        ),
        (HARD, NEAR, 13, "is too close to 0 or to the capacity"),
        (HARD, NEAR, 0, "is too close to 0 or to the capacity"),
    ],
)
def test_only_a_sound_hard_memory_threshold_has_a_certain_victim(
    threshold: Threshold, signals: dict[Signal, Observation], reach_bytes: int, why: str
) -> None:
    assert certain(threshold=threshold, signals=signals, reach_bytes=reach_bytes) == f"{threshold} {why}"


_RECLAIM = Hold(
    kind=Reclaim.MEMORY,
    reason="reclaim: it is",
    threshold=HARD,
    began_seconds=99.9,
    until_seconds=100.4,
    void_below_bytes=90,
    wanted_bytes=10,
    outside_bytes=50,
)


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (
            PolicyState(
                claims=(Claim(kind=ClaimKind.POD, uid="x", resource=Resource.PIDS, deadline_seconds=200.0),)
            ),
            "a victim is still being waited for",
        ),
        (
            PolicyState(claims=(Claim(kind=ClaimKind.KERNEL_KILL, pid=1, amount=1, deadline_seconds=200.0),)),
            "a victim is still being waited for",
        ),
        (
            PolicyState(
                slowdowns=(
                    Slowdown(
                        signal=HARD.signal,
                        reason=SlowReason.RATE,
                        since_seconds=1.0,
                        until_seconds=101.0,
                        message="",
                    ),
                )
            ),
            "evictions are slowed down",
        ),
        (PolicyState(thresholds_met=(SOFT,)), "a memory threshold is met already"),
        (PolicyState(first_observed={SOFT: 70.2}), f"the grace period of {SOFT} ends"),
        (
            PolicyState(hard_memory_kills=(HardMemoryKill(uid="x", signal=HARD.signal, at_seconds=91.0),)),
            "the last eviction is still judged by what it brought back",
        ),
        (
            PolicyState(evicted_at=(75.0,)),
            "memory that no pod holds may be reclaimed first",
        ),
        (PolicyState(holds=(_RECLAIM,)), "memory that no pod holds may be reclaimed first"),
    ],
)
def test_nothing_is_certain_while_something_is_under_way(state: PolicyState, why: str) -> None:
    assert certain(replace(SETTINGS, reclaims_memory=True), state) == why


def test_what_is_over_keeps_nothing_from_being_certain() -> None:
    kill = HardMemoryKill(uid="x", signal=HARD.signal, at_seconds=60.0)
    state = PolicyState(
        hard_memory_kills=(kill,),
        evicted_at=(60.0,),
        first_observed={SOFT: 99.0},
        holds=(replace(_RECLAIM, is_over=True),),
    )
    policy = replace(SETTINGS, reclaims_memory=True, hard_memory_evictions_per_minute=2)
    assert isinstance(certain(policy, state), CertainVictim)
    policy = replace(policy, hard_memory_evictions_per_minute=1)
    assert certain(policy, state) == "as many evictions as are allowed in a minute"


def test_nothing_is_certain_where_what_is_in_swap_counts_too() -> None:
    why = "what pods have in swap counts too, and no charge tells of it"
    assert certain(replace(SETTINGS, ranks_swap=True)) == why


def test_another_hard_threshold_that_is_near_leaves_nothing_certain() -> None:
    policy = replace(SETTINGS, thresholds=(HARD, ALLOCATABLE))
    far = {**NEAR, ALLOCATABLE.signal: Observation(available=500, capacity=900)}
    assert isinstance(certain(policy, signals=far), CertainVictim)
    assert isinstance(certain(policy), CertainVictim)  # not observed: it is never acted on
    near = {**NEAR, ALLOCATABLE.signal: Observation(available=110, capacity=900)}
    assert certain(policy, signals=near) == f"{ALLOCATABLE} may be crossed too"


def test_victim_that_may_turn_out_to_be_too_small_is_not_certain() -> None:
    policy = replace(SETTINGS, minimum_victim=draw.amount(501))
    assert certain(policy) == "n/hog may hold too little to be worth it by then"
    assert isinstance(certain(replace(policy, minimum_victim=draw.amount(500))), CertainVictim)


def test_no_reclaim_comes_between_where_the_last_one_is_not_long_ago() -> None:
    policy = replace(SETTINGS, reclaims_memory=True, unhelpful_eviction_pause_seconds=0.0)
    state = PolicyState(evicted_at=(85.0,), holds=(_reclaim_of(90.5),))
    assert isinstance(certain(policy, state), CertainVictim)
    again = state._replace(holds=(_reclaim_of(90.2),))
    assert certain(policy, again) == "memory that no pod holds may be reclaimed first"


def test_no_reclaim_comes_between_where_less_lies_outside_the_pods_than_is_reclaimed() -> None:
    policy = replace(SETTINGS, reclaims_memory=True, unhelpful_eviction_pause_seconds=0.0)
    state = PolicyState(evicted_at=(85.0,))
    assert isinstance(certain(policy, state, outside_bytes=LEAST_BYTES - 1), CertainVictim)
    for outside_bytes in (LEAST_BYTES, None):
        why = "memory that no pod holds may be reclaimed first"
        assert certain(policy, state, outside_bytes=outside_bytes) == why
    under_way = state._replace(holds=(_RECLAIM,))
    assert certain(policy, under_way, outside_bytes=0) == why


def test_no_reclaim_comes_between_where_less_lies_outside_the_pods_than_is_wanted() -> None:
    hard = replace(HARD, minimum_reclaim=draw.amount(2 * LEAST_BYTES))
    policy = EvictionSettings(thresholds=(hard,), reclaims_memory=True, unhelpful_eviction_pause_seconds=0.0)
    state = PolicyState(evicted_at=(85.0,))
    for outside_bytes, is_sure in ((2 * LEAST_BYTES, True), (2 * LEAST_BYTES + 1, False)):
        found = certain(policy, state, threshold=hard, outside_bytes=outside_bytes)
        assert isinstance(found, CertainVictim) is is_sure


def test_what_is_awaited_is_settled_until_the_first_grace_period_of_memory_ends() -> None:
    assert settled_until_seconds(PolicyState()) == math.inf
    disk = Threshold(signal=Signal.NODEFS_AVAILABLE, value=draw.amount(1), grace_period_seconds=1.0)
    longer = replace(SOFT, grace_period_seconds=90.0)
    state = PolicyState(first_observed={disk: 99.0, SOFT: 80.0, longer: 80.0})
    assert settled_until_seconds(state) == 110.0


def _reclaim_of(began_seconds: float) -> Hold:
    until_seconds = began_seconds + 0.5
    return replace(_RECLAIM, began_seconds=began_seconds, until_seconds=until_seconds, is_over=True)


@st.composite
def moving_nodes(drawn: st.DrawFn):
    pods = drawn(draw.pods(with_preferences=True))
    assume(pods)
    ranges = {}
    for pod in pods:
        least, width = drawn(st.integers(0, 100)), drawn(st.sampled_from([0, 1, 5, 20]))
        ranges[pod.uid] = UsageRange(least_bytes=least, most_bytes=least + width)
    minimum = drawn(
        st.none() | st.builds(draw.amount, st.integers(0, 60)) | st.builds(draw.percent, draw.SMALL)
    )
    hard = replace(HARD, minimum_reclaim=drawn(st.none() | st.builds(draw.amount, st.integers(0, 200))))
    state = PolicyState(
        first_observed=drawn(st.sampled_from([{}, {SOFT: 99.0}, {SOFT: 70.1}])),
        hard_memory_kills=drawn(
            st.sampled_from(
                [
                    (),
                    (
                        HardMemoryKill(
                            uid="x",
                            signal=HARD.signal,
                            at_seconds=85.0,
                            credited_bytes=50,
                            outside_bytes=0,
                            pods_bytes=10,
                        ),
                    ),
                ]
            )
        ),
        evicted_at=drawn(st.sampled_from([(), (85.0,), (60.0,)])),
        holds=drawn(st.just(()) | st.tuples(st.builds(_reclaim_of, st.sampled_from([89.9, 90.1, 95.0])))),
    )
    policy = EvictionSettings(
        thresholds=(hard, SOFT),
        minimum_victim=minimum,
        reclaims_memory=drawn(st.booleans()),
        unhelpful_eviction_pause_seconds=drawn(st.sampled_from([0.0, 10.0])),
        hard_memory_evictions_per_minute=drawn(st.sampled_from([None, 1, 5])),
    )
    return policy, hard, state, pods, ranges


@pytest.mark.slow
@given(moving_nodes(), st.data())
@settings(max_examples=150)
def test_wherever_the_pods_move_within_their_ranges_the_decision_is_the_certain_one(node, data) -> None:
    policy, hard, state, pods, ranges = node
    reach = data.draw(st.integers(1, 12))
    outside = data.draw(st.none() | st.sampled_from([0, LEAST_BYTES - 1, LEAST_BYTES]))
    found = certain(policy, state, pods, ranges, threshold=hard, reach_bytes=reach, outside_bytes=outside)
    event("certain" if isinstance(found, CertainVictim) else found.partition(" ")[2])
    if isinstance(found, str):
        return
    for _ in range(5):
        used = {
            uid: PodUsage(memory_working_set_bytes=data.draw(st.integers(one.least_bytes, one.most_bytes)))
            for uid, one in ranges.items()
        }
        available = data.draw(st.integers(100 - reach, 99))
        most = 2 * LEAST_BYTES if outside is None else outside
        held = sum(one.memory_working_set_bytes or 0 for one in used.values())
        capacity = max(1000, available + held + data.draw(st.integers(0, most)))
        signals = {HARD.signal: Observation(available=available, capacity=capacity)}
        later_seconds = 100.0 + data.draw(st.floats(0.0, 0.25))
        decision = decide(policy, state, Snapshot(signals=signals, pods=used), pods, later_seconds)[1]
        assert [found.pod.uid] == [eviction.pod.uid for eviction in decision.evictions]
        assert decision.evictions[0].grace_period_seconds == 0
        assert decision.memory_reclaim is None


@given(moving_nodes())
@settings(max_examples=100)
def test_each_range_of_no_width_has_the_decisions_own_victim(node) -> None:
    policy, hard, _, pods, ranges = node
    still = {uid: replace(one, most_bytes=one.least_bytes) for uid, one in ranges.items()}
    used = {uid: PodUsage(memory_working_set_bytes=one.least_bytes) for uid, one in still.items()}
    signals = {HARD.signal: Observation(available=99, capacity=1000)}
    decision = decide(policy, PolicyState(), Snapshot(signals=signals, pods=used), pods, 100.0)[1]
    found = certain(policy, pods=pods, ranges=still, threshold=hard, reach_bytes=1)
    if isinstance(found, CertainVictim):
        assert [found.pod.uid] == [eviction.pod.uid for eviction in decision.evictions]
    elif policy.minimum_victim is None:
        assert not decision.evictions
