import json
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from reactor.model.decisions import Claim, ClaimKind, Decision, PolicyState, Snapshot
from reactor.model.pods import Pod, PodUsage, Volume
from reactor.model.quantity import parse_quantity
from reactor.model.settings import EvictionSettings
from reactor.model.signals import LimitSignal, NodeCondition, Reclaim, Resource, Signal
from reactor.model.thresholds import Observation, Threshold, ThresholdValue
from reactor.plain import from_plain, to_plain
from reactor.policy.decide import (
    after_reclaim,
    conditions_observed_since,
    decide,
)
from reactor.policy.events import EvictionOrdered, apply
from reactor.policy.messages import eviction_message

from . import strategies as draw

HARD = Threshold(signal=Signal.MEMORY_AVAILABLE, value=draw.amount(100))
SOFT = replace(HARD, value=draw.amount(200), grace_period_seconds=30.0)
DISK = Threshold(signal=Signal.NODEFS_AVAILABLE, value=draw.amount(100), minimum_reclaim=draw.amount(50))
PIDS = Threshold(signal=Signal.PID_AVAILABLE, value=draw.amount(100))
PODS = tuple(Pod(name=name, namespace="n", uid=name) for name in ("big", "small", "tiny"))
USED = {
    name: PodUsage(memory_working_set_bytes=size, process_count=size)
    for name, size in (("big", 60), ("small", 30), ("tiny", 10))
}
START = PolicyState()

INODES = Threshold(signal=Signal.NODEFS_INODES_FREE, value=ThresholdValue(text="1", amount=Fraction(1)))


def _memory(available: int, used: dict[str, PodUsage] | None = None) -> Snapshot:
    return _seen(Signal.MEMORY_AVAILABLE, available, used)


def _seen(signal: Signal, available: int, used: dict[str, PodUsage] | None = None) -> Snapshot:
    observation = Observation(available=available, capacity=1000)
    return Snapshot(signals={signal: observation}, pods=USED if used is None else used)


def _settings(*thresholds: Threshold, per_minute: int | None = None) -> EvictionSettings:
    return EvictionSettings(
        thresholds=thresholds,
        max_pod_grace_period_seconds=20,
        evictions_per_minute=per_minute,
        in_flight_deadline_seconds=10.0,
    )


def _evicted(decision: Decision) -> list[str]:
    return [eviction.pod.name for eviction in decision.evictions]


def _act(
    settings: EvictionSettings, state: PolicyState, snapshot: Snapshot, now: float
) -> tuple[PolicyState, Decision]:
    """Make one pass and order its evictions, as the daemon does."""
    state, decision = decide(settings, state, snapshot, PODS, now)
    for eviction in decision.evictions:
        state = apply(settings, state, EvictionOrdered(eviction=eviction), now)
    return state, decision


# One pass


def test_a_hard_threshold_evicts_the_first_in_the_ranking_at_once() -> None:
    _, decision = decide(_settings(HARD), START, _memory(99), PODS, 5.0)
    assert ["big"] == _evicted(decision)
    assert 0 == decision.evictions[0].grace_period_seconds
    assert HARD == decision.acted_on
    assert ["big", "small", "tiny"] == [place.pod.name for place in decision.ranking]
    assert (NodeCondition.MEMORY_PRESSURE,) == decision.conditions


def test_a_threshold_that_is_not_met_evicts_no_pod() -> None:
    state, decision = decide(_settings(HARD), START, _memory(100), PODS, 5.0)
    assert Decision(at_seconds=5.0) == decision
    assert () == state.conditions


def test_a_threshold_that_a_lowered_limit_made_absurd_is_not_acted_on_any_more() -> None:
    def pass_at(
        state: PolicyState, available: int, capacity: int, now: float
    ) -> tuple[PolicyState, Decision]:
        seen = Observation(available=available, capacity=capacity)
        return decide(settings, state, Snapshot(signals={HARD.signal: seen}, pods=USED), PODS, now)

    settings = replace(
        _settings(replace(HARD, minimum_reclaim=draw.amount(50))), pressure_transition_period_seconds=5.0
    )
    state, before = pass_at(START, 99, 1000, 0.0)
    state, lowered = pass_at(state, 0, 100, 1.0)
    state, later = pass_at(state, 0, 100, 6.0)
    assert [["big"], [], []] == [_evicted(decision) for decision in (before, lowered, later)]
    assert ((), ()) == (lowered.thresholds_met, later.conditions)
    _, raised = pass_at(state, 0, 101, 7.0)
    assert ["big"] == _evicted(raised)


def test_what_a_reclaim_left_short_of_an_absurd_threshold_evicts_no_pod() -> None:
    settings = _settings(DISK, replace(PIDS, value=draw.amount(1000)))
    before = _seen(DISK.signal, 99)
    state, decision = decide(settings, START, before, PODS, 0.0)
    freed = {
        DISK.signal: Observation(available=500, capacity=1000),
        PIDS.signal: Observation(available=10, capacity=1000),
    }
    _, after = after_reclaim(settings, state, decision, before, Snapshot(signals=freed), PODS)
    assert [] == _evicted(after)


@given(draw.snapshots(), st.integers(1, 100), st.integers(0, 100), st.integers(0, 200), st.integers(0, 200))
def test_a_soft_threshold_that_is_not_above_its_hard_one_is_never_acted_on(
    drawn: Snapshot, hard: int, soft: int, first: int, second: int
) -> None:
    signal = Signal.MEMORY_AVAILABLE
    settings = _settings(
        replace(HARD, value=draw.amount(max(hard, soft))),
        replace(SOFT, value=draw.amount(min(hard, soft)), grace_period_seconds=5.0),
    )
    state = START
    for now, available in ((0.0, first), (5.0, second), (10.0, second)):
        seen = Observation(available=available, capacity=200)
        snapshot = drawn._replace(signals={signal: seen})
        state, decision = _act(settings, state, snapshot, now)
        assert decision.acted_on is None or decision.acted_on.is_hard


def test_a_soft_threshold_evicts_after_its_grace_period_and_not_before() -> None:
    settings = _settings(SOFT)
    state, first = decide(settings, START, _memory(150), PODS, 0.0)
    state, early = decide(settings, state, _memory(150), PODS, 29.9)
    _, late = decide(settings, state, _memory(150), PODS, 30.0)
    assert [[], [], ["big"]] == [_evicted(decision) for decision in (first, early, late)]
    assert (NodeCondition.MEMORY_PRESSURE,) == first.conditions


@pytest.mark.parametrize(("maximum", "own", "grace"), [(20, 30, 20), (20, 5, 5), (-1, 30, 30), (0, 30, 0)])
def test_a_soft_eviction_gives_the_smaller_grace_period(maximum: int, own: int, grace: int) -> None:
    settings = replace(_settings(SOFT), max_pod_grace_period_seconds=maximum)
    pods = [replace(pod, termination_grace_period_seconds=own) for pod in PODS]
    state, _ = decide(settings, START, _memory(150), pods, 0.0)
    _, decision = decide(settings, state, _memory(150), pods, 30.0)
    assert grace == decision.evictions[0].grace_period_seconds


def test_statistics_that_cannot_be_read_change_nothing() -> None:
    state, _ = decide(_settings(HARD), START, _memory(99), PODS, 0.0)
    after, decision = decide(_settings(HARD), state, None, PODS, 9999.0)
    assert state is after
    assert ((NodeCondition.MEMORY_PRESSURE,), ()) == (decision.conditions, decision.evictions)


def test_a_threshold_stays_met_until_its_minimum_reclaim_is_there() -> None:
    settings = _settings(DISK)
    state, first = decide(settings, START, _seen(DISK.signal, 99), PODS, 0.0)
    state, between = decide(settings, state, _seen(DISK.signal, 149), PODS, 1.0)
    _, after = decide(settings, state, _seen(DISK.signal, 150), PODS, 2.0)
    assert [(DISK,), (DISK,), ()] == [pass_.thresholds_met for pass_ in (first, between, after)]


def test_no_pod_is_evicted_for_a_disk_while_it_is_unknown_what_the_last_eviction_brings() -> None:
    settings = _settings(DISK)
    short = _seen(DISK.signal, 99)
    state, asked = decide(settings, START, short, PODS, 0.0)
    state, decision = after_reclaim(settings, state, asked, short, short, PODS)
    (eviction,) = decision.evictions
    state = apply(settings, state, EvictionOrdered(eviction=eviction), 0.0)
    _, second = decide(settings, state, short, PODS, 1.0)
    assert ((), ()) == (second.evictions, second.reclaim)
    assert "how much the eviction of n/big frees is not known yet" in str(second.deferred_because)


def test_a_threshold_that_is_no_longer_configured_is_forgotten() -> None:
    state, _ = decide(_settings(DISK), START, _seen(DISK.signal, 99), PODS, 0.0)
    state, decision = decide(_settings(PIDS), state, _seen(DISK.signal, 99), PODS, 1.0)
    assert ((), ()) == (decision.thresholds_met, state.thresholds_met)


def test_a_statistic_that_was_acted_on_is_listed_and_not_acted_on_again() -> None:
    seen = Snapshot(
        signals={HARD.signal: Observation(available=1, capacity=1000, taken_at_seconds=7.0)}, pods=USED
    )
    state, first = decide(_settings(HARD), START, seen, PODS, 0.0)
    _, second = decide(_settings(HARD), state, seen, PODS, 10.0)
    assert [["big"], []] == [_evicted(first), _evicted(second)]
    assert (HARD,) == second.thresholds_met


def test_only_critical_pods_are_ranked_and_none_is_evicted() -> None:
    pods = [replace(pod, critical_because="static pod (source file)") for pod in PODS]
    _, decision = decide(_settings(HARD), START, _memory(0), pods, 0.0)
    assert [] == _evicted(decision)
    assert 3 == len(decision.ranking)


def test_a_node_without_pods_evicts_no_pod() -> None:
    _, decision = decide(_settings(HARD), START, _memory(0), (), 0.0)
    assert ((), ()) == (decision.evictions, decision.ranking)


def test_where_a_storage_limit_acts_thresholds_get_no_action() -> None:
    pods = [replace(pod, volumes=(Volume(name="v", size_limit=parse_quantity("1")),)) for pod in PODS]
    used = {"small": USED["small"]._replace(ephemeral_storage_bytes=5), "tiny": USED["tiny"]}
    limited = [replace(pods[1], ephemeral_storage_limit=parse_quantity("4")), *pods]
    _, decision = decide(_settings(HARD), START, _memory(1, used), limited[:1], 0.0)
    assert [LimitSignal.POD] == [eviction.signal for eviction in decision.evictions]
    assert ((HARD,), None, ()) == (decision.thresholds_met, decision.acted_on, decision.ranking)
    off = replace(_settings(HARD), local_storage_capacity_isolation=False)
    _, decision = decide(off, START, _memory(1, used), limited[:1], 0.0)
    assert HARD == decision.acted_on


# Node-level reclaim


def test_the_node_reclaims_before_any_pod_is_ended() -> None:
    settings = _settings(DISK)
    before = _seen(DISK.signal, 99)
    state, asked = decide(settings, START, before, PODS, 0.0)
    assert ((Reclaim.CONTAINERS, Reclaim.IMAGES), ()) == (asked.reclaim, asked.evictions)
    _, enough = after_reclaim(settings, state, asked, before, _seen(DISK.signal, 150), PODS)
    _, short = after_reclaim(settings, state, asked, before, _seen(DISK.signal, 149), PODS)
    _, unread = after_reclaim(settings, state, asked, before, None, PODS)
    assert [0, 1, 1] == [len(decision.evictions) for decision in (enough, short, unread)]
    assert () == enough.ranking


def test_after_a_reclaim_soft_thresholds_count_without_their_grace_period_and_absurd_ones_do_not() -> None:
    settings = _settings(DISK, SOFT)
    before = _seen(DISK.signal, 99)
    state, asked = decide(settings, START, before, PODS, 0.0)
    fine = Observation(available=500, capacity=1000)
    for memory, evicted in ((199, 1), (200, 0), (-5, 0)):
        observed = Observation(available=memory, capacity=1000)
        after = Snapshot(signals={DISK.signal: fine, SOFT.signal: observed})
        _, decision = after_reclaim(settings, state, asked, before, after, PODS)
        assert evicted == len(decision.evictions)


def test_after_reclaim_refuses_a_decision_that_asked_for_none() -> None:
    with pytest.raises(ValueError, match="acted on no threshold"):
        after_reclaim(_settings(DISK), START, Decision(at_seconds=0.0), Snapshot(), None, PODS)


# In flight


def test_no_other_pod_is_evicted_while_the_first_still_holds_what_is_needed() -> None:
    settings = _settings(HARD)
    state, _ = _act(settings, START, _memory(50), 0.0)
    state, decision = _act(settings, state, _memory(50), 1.0)
    assert [] == _evicted(decision)
    assert decision.deferred_because is not None
    assert "n/big" in decision.deferred_because
    assert (HARD,) == decision.thresholds_met


def test_another_pod_is_evicted_where_the_first_holds_too_little() -> None:
    settings = _settings(HARD)
    state, _ = _act(settings, START, _memory(30), 0.0)  # 30 + 60 is below 100
    _, decision = _act(settings, state, _memory(30), 1.0)
    assert ["small"] == _evicted(decision)


def test_the_credit_has_to_cover_the_minimum_reclaim() -> None:
    settings = _settings(replace(HARD, minimum_reclaim=draw.amount(20)))
    state, _ = _act(settings, START, _memory(50), 0.0)  # 50 + 60 is below 100 + 20
    _, decision = _act(settings, state, _memory(50), 1.0)
    assert ["small"] == _evicted(decision)


def test_what_the_first_frees_is_no_longer_credited() -> None:
    settings = _settings(HARD)
    state, _ = _act(settings, START, _memory(50), 0.0)
    used = {**USED, "big": PodUsage(memory_working_set_bytes=5)}
    _, decision = _act(settings, state, _memory(50, used), 1.0)
    assert ["small"] == _evicted(decision)


def test_a_dying_pod_without_statistics_holds_nothing_back() -> None:
    settings = _settings(HARD)
    state, _ = _act(settings, START, _memory(50), 0.0)
    used = {name: used for name, used in USED.items() if name != "big"}
    _, decision = _act(settings, state, _memory(50, used), 1.0)
    assert ["small"] == _evicted(decision)


def test_the_wait_ends_at_the_deadline_and_the_pod_may_be_chosen_again() -> None:
    settings = _settings(HARD)
    state, _ = _act(settings, START, _memory(50), 0.0)
    state, waiting = _act(settings, state, _memory(50), 9.9)
    _, over = _act(settings, state, _memory(50), 10.0)
    assert [[], ["big"]] == [_evicted(waiting), _evicted(over)]


def test_the_wait_ends_when_the_pod_is_gone() -> None:
    settings = _settings(HARD)
    state, _ = _act(settings, START, _memory(50), 0.0)
    state, decision = decide(settings, state, _memory(50), PODS[1:], 0.1)
    assert ["small"] == _evicted(decision)
    assert () == state.in_flight


def test_an_eviction_for_another_resource_is_not_waited_for() -> None:
    settings = _settings(HARD, PIDS)
    state, _ = _act(settings, START, _memory(50), 0.0)
    _, decision = _act(settings, state, _seen(PIDS.signal, 1), 1.0)
    assert ["small"] == _evicted(decision)


def test_a_threshold_that_waits_leaves_the_pass_to_the_next_one() -> None:
    settings = _settings(HARD, PIDS)
    state, _ = _act(settings, START, _memory(50), 0.0)
    both = Snapshot(signals={**_memory(50).signals, **_seen(PIDS.signal, 1).signals}, pods=USED)
    _, decision = _act(settings, state, both, 1.0)
    assert PIDS == decision.acted_on
    assert ["small"] == _evicted(decision)


def test_a_soft_eviction_is_waited_for_by_its_own_kind() -> None:
    settings = _settings(SOFT)
    state, _ = _act(settings, START, _memory(150), 0.0)
    state, first = _act(settings, state, _memory(150), 30.0)
    _, second = _act(settings, state, _memory(150), 31.0)
    assert [["big"], []] == [_evicted(first), _evicted(second)]


def test_a_hard_threshold_ends_at_once_the_pod_that_a_soft_one_gave_time() -> None:
    settings = _settings(HARD, replace(SOFT, value=draw.amount(105)))
    state, _ = _act(settings, START, _memory(102), 0.0)
    state, soft = _act(settings, state, _memory(102), 30.0)
    assert 20 == soft.evictions[0].grace_period_seconds
    state, hard = _act(settings, state, _memory(50), 31.0)
    assert ["big"] == _evicted(hard)
    assert 0 == hard.evictions[0].grace_period_seconds
    assert [31.0] == [flight.kill_at_seconds for flight in state.in_flight]
    _, after = _act(settings, state, _memory(50), 32.0)
    assert [] == _evicted(after)  # it is being killed now, and is waited for


# The rate


@pytest.mark.parametrize(
    ("available", "left", "evicted"), [(50, 50, []), (50, 49, ["small"]), (49, 900, ["small"])]
)
def test_files_in_memory_of_a_pod_that_ended_are_awaited_while_half_of_the_threshold_is_there(
    available: int, left: int, evicted: list[str]
) -> None:
    files = Claim(kind=ClaimKind.FILES, uid="big", deadline_seconds=10.0, amount=left)
    state, settings = PolicyState(claims=(files,)), _settings(HARD)
    state, decision = decide(settings, state, _memory(available), PODS[1:], 9.0)
    assert evicted == _evicted(decision)
    assert (files,) == state.claims  # also where its cgroup is listed no more

    state, decision = decide(settings, state, _memory(available), PODS[1:], 10.0)
    assert (["small"], ()) == (_evicted(decision), state.claims)


def test_no_more_pods_a_minute_than_configured_are_evicted() -> None:
    settings = _settings(PIDS, per_minute=1)
    state, first = _act(settings, START, _seen(PIDS.signal, 1), 0.0)
    state, second = _act(settings, state, _seen(PIDS.signal, 1), 20.0)
    _, third = _act(settings, state, _seen(PIDS.signal, 1), 60.0)
    assert [["big"], [], ["big"]] == [_evicted(decision) for decision in (first, second, third)]
    because = "pid.available<100: rate: 1 evictions in the last minute, as many as are allowed"
    assert because == second.deferred_because


@pytest.mark.parametrize(
    ("threshold", "is_bound"), [(HARD, False), (replace(HARD, grace_period_seconds=1.0), True)]
)
def test_the_rate_does_not_bind_hard_memory_thresholds(threshold: Threshold, *, is_bound: bool) -> None:
    settings = _settings(threshold, per_minute=1)
    state = PolicyState(evicted_at=(0.5,), first_observed={threshold: 0.0})
    _, decision = decide(settings, state, _memory(1), PODS, 5.0)
    assert is_bound is (not decision.evictions)


def test_storage_limits_count_against_the_rate() -> None:
    pods = [replace(pod, ephemeral_storage_limit=parse_quantity("4")) for pod in PODS]
    used = {pod.uid: PodUsage(ephemeral_storage_bytes=5) for pod in pods}
    for per_minute, expected in ((None, 3), (2, 2), (5, 3)):
        settings = _settings(per_minute=per_minute)
        _, decision = decide(settings, START, Snapshot(pods=used), pods, 0.0)
        assert expected == len(decision.evictions)


def test_evictions_older_than_a_minute_are_forgotten() -> None:
    settings = _settings(HARD, per_minute=1)
    _, decision = decide(settings, START, _memory(1), PODS, 100.0)
    state = apply(
        settings, PolicyState(evicted_at=(40.0, 41.0)), EvictionOrdered(eviction=decision.evictions[0]), 100.0
    )
    assert (41.0, 100.0) == state.evicted_at
    assert state.claims == (
        Claim(
            kind=ClaimKind.POD,
            uid="big",
            resource=Resource.MEMORY,
            kill_at_seconds=100.0,
            deadline_seconds=110.0,
            threshold=HARD,
        ),
    )


# Whatever comes


PASSES = st.lists(
    st.tuples(st.none() | draw.snapshots(), draw.pods(), st.floats(0.1, 40.0)), min_size=1, max_size=6
)


def _run(
    settings: EvictionSettings,
    passes: list[tuple[Snapshot | None, tuple[Pod, ...], float]],
    *,
    through_restart: bool = False,
) -> list[Decision]:
    state, now, decisions = PolicyState(), 0.0, []
    for snapshot, pods, seconds in passes:
        now += seconds
        state, decision = decide(settings, state, snapshot, pods, now)
        if decision.reclaim and snapshot is not None:
            state, decision = after_reclaim(settings, state, decision, snapshot, snapshot, pods)
        for eviction in decision.evictions:
            state = apply(settings, state, EvictionOrdered(eviction=eviction), now)
        if through_restart:
            state = from_plain(PolicyState, json.loads(json.dumps(to_plain(state))))
        decisions.append(decision)
    return decisions


@examples(max_examples=min(40, examples().max_examples))  # each is up to six passes
@given(draw.settings, PASSES)
def test_a_critical_pod_is_never_chosen_and_none_twice_in_a_pass(
    settings: EvictionSettings, passes: list[tuple[Snapshot | None, tuple[Pod, ...], float]]
) -> None:
    for decision, (_, pods, _) in zip(_run(settings, passes), passes, strict=True):
        chosen = [eviction.pod for eviction in decision.evictions]
        assert all(pod.critical_because is None for pod in chosen)
        assert all(pod in pods for pod in chosen)
        assert len({pod.uid for pod in chosen}) == len(chosen)
        assert sum(eviction.threshold is not None for eviction in decision.evictions) <= 1


@examples(max_examples=min(40, examples().max_examples))  # each is up to six passes
@given(draw.settings, PASSES)
def test_the_same_history_is_decided_the_same_also_through_restarts(
    settings: EvictionSettings, passes: list[tuple[Snapshot | None, tuple[Pod, ...], float]]
) -> None:
    assert _run(settings, passes) == _run(settings, passes, through_restart=True)


@given(draw.settings, draw.snapshots(draw.absurd), draw.pods())
def test_absurd_observations_never_cause_an_eviction_or_a_condition(
    settings: EvictionSettings, snapshot: Snapshot, pods: tuple[Pod, ...]
) -> None:
    _, decision = decide(settings, PolicyState(), snapshot, pods, 0.0)
    assert () == decision.conditions
    assert all(eviction.threshold is None for eviction in decision.evictions)
    assert set(snapshot.signals) == set(decision.absurd)


@given(draw.settings, draw.snapshots(), draw.pods())
def test_who_is_evicted_stands_first_in_the_ranking(
    settings: EvictionSettings, snapshot: Snapshot, pods: tuple[Pod, ...]
) -> None:
    (decision,) = _run(settings, [(snapshot, pods, 1.0)])
    for eviction in decision.evictions:
        if eviction.threshold is not None:
            assert eviction.pod == decision.ranking[0].pod
            assert decision.acted_on == eviction.threshold
            message, _ = eviction_message(eviction)
            assert message.startswith(f"The node was low on resource: {eviction.resource}. ")


def test_a_threshold_makes_its_condition_observed_now_and_keeps_the_others() -> None:
    before = {NodeCondition.MEMORY_PRESSURE: 1.0, NodeCondition.DISK_PRESSURE: 2.0}
    state = PolicyState(condition_last_observed=before)
    state, _ = decide(_settings(INODES), state, _seen(Signal.NODEFS_INODES_FREE, 0), (), 9.0)
    assert {**before, NodeCondition.DISK_PRESSURE: 9.0} == state.condition_last_observed


def test_a_condition_lasts_for_the_transition_period_and_not_longer() -> None:
    last = {NodeCondition.PID_PRESSURE: 10.0, NodeCondition.MEMORY_PRESSURE: 10.0}
    both = (NodeCondition.MEMORY_PRESSURE, NodeCondition.PID_PRESSURE)
    assert both == conditions_observed_since(last, 60.0, 69.9)
    assert () == conditions_observed_since(last, 60.0, 70.0)


def test_a_condition_is_in_force_since_it_came_and_from_the_start_again_after_a_gap() -> None:
    state, found = PolicyState(), []
    settings = replace(_settings(INODES), pressure_transition_period_seconds=1.5)
    for now_seconds, left in ((5.0, 0), (6.0, 0), (7.0, 9), (8.0, 9), (9.0, 0)):
        state, _ = decide(settings, state, _seen(Signal.NODEFS_INODES_FREE, left), (), now_seconds)
        found.append(state.condition_since.get(NodeCondition.DISK_PRESSURE))
    assert [5.0, 5.0, 5.0, None, 9.0] == found
