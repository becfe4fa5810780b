"""One evaluation pass: a straight pipeline from observations to what is to be done.

Source: managerImpl.synchronize in pkg/kubelet/eviction/eviction_manager.go, and what that lacks
(claims.py, holds.py, absurd statistics).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from reactor.model.decisions import (
    Decision,
    Eviction,
    PolicyState,
    RankedPod,
    Shortage,
    Snapshot,
    TimeLeft,
    Wait,
)
from reactor.model.kills import HardMemoryKill, JudgedEviction
from reactor.model.pods import Pod, PodUsage
from reactor.model.rules import Firing
from reactor.model.settings import EvictionSettings
from reactor.model.signals import (
    CONDITION,
    ON_DISK,
    RESOURCE,
    Layout,
    NodeCondition,
    Signal,
)
from reactor.model.thresholds import Observation, Threshold
from reactor.policy.claims import awaited, candidates, still_claimed
from reactor.policy.disks import first_broken_limit, holders_first, node_reclaim
from reactor.policy.holds import evictions_left, holds, is_hopeless, memory_hold, paced, pod_hold, with_hold
from reactor.policy.in_time import due_in_time, grace_period_seconds, wait_in_time
from reactor.policy.judged_evictions import (
    slowed_for_disk,
    with_no_holder,
    with_process_slowdown,
    with_unhelpful_slowdown,
    without_past_slowdowns,
)
from reactor.policy.messages import no_victim
from reactor.policy.rank import of_no_partition, rank, small_ones_passed_over
from reactor.policy.rules import decide_firing
from reactor.policy.storm import is_newly_slowed, with_slowdowns
from reactor.policy.thresholds import (
    absurdities,
    elapsed_seconds,
    in_eviction_order,
    is_hard_memory,
    thresholds_met,
    thresholds_met_grace_period,
    thresholds_with_fresh_statistics,
)


class Due(NamedTuple):
    """Which thresholds are due by the `sound` part of a snapshot, and the state with the slowdowns in force.

    See `sound_part`, `observed`, `with_slowdowns`. It was worked out from the state `before` and `pods`.
    """

    absurd: Mapping[Signal, str]
    sound: Snapshot
    thresholds: tuple[Threshold, ...]
    state: PolicyState
    unhelpful: tuple[HardMemoryKill, ...]
    before: PolicyState
    pods: Sequence[Pod]


def decide(
    settings: EvictionSettings,
    state: PolicyState,
    snapshot: Snapshot | None,
    pods: Sequence[Pod],
    now_seconds: float,
    firing: Firing | None = None,
    due: Due | None = None,
) -> tuple[PolicyState, Decision]:
    """Return the state after this pass and what the pass decided.

    What is due is asked in this order: pods' own storage limits, thresholds, and a rule (`firing`). The first
    for which nothing is awaited and that nothing holds is acted on, and no other.

    `snapshot` None means that the statistics could not be read: nothing changes. A signal that the caller
    did not observe in this pass belongs into the snapshot with its last observation and the time of that: it
    stays listed and is not acted on again. An absent signal could not be observed: its grace period starts
    over. Of pods in its `bounds` nothing more has to be known (bounds.py); they are in no ranking. `due` is
    what is due by it, if that is known; it counts for nothing once the state or the pods are others.
    """
    if snapshot is None:
        return state, Decision(at_seconds=now_seconds, conditions=state.conditions)
    if due is None or due.before is not state or due.pods != pods:
        absurd, sound = sound_part(snapshot)
        found, fresh = observed(settings, state, sound, pods, now_seconds)
        slowed = with_slowdowns(settings, found, sound, pods, now_seconds)
        due = Due(absurd, sound, fresh, *slowed, state, pods)
    before, state, sound = state, due.state, due.sound
    in_vain: tuple[JudgedEviction, ...] = ()
    if state.slowdowns or any(one.signal is Signal.PID_AVAILABLE for one in state.thresholds_met):
        state, in_vain = with_process_slowdown(settings, state, sound, pods, now_seconds)
        state = without_past_slowdowns(settings, state, now_seconds)
    decision = Decision(
        at_seconds=now_seconds,
        conditions=state.conditions,
        thresholds_met=state.thresholds_met,
        absurd=due.absurd,
        slowdowns=state.slowdowns,
        unhelpful=(*due.unhelpful, *in_vain),
        again=is_newly_slowed(before, state),
    )
    if settings.local_storage_capacity_isolation and not snapshot.bounds:  # else memory alone was read
        eligible = candidates(pods, state, None, now_seconds)
        evictions = storage_limit_evictions(eligible, snapshot.pods, settings.layout)
        evictions = evictions[: evictions_left(settings, state, now_seconds)]
        if evictions:
            return state, replace(decision, evictions=evictions)
    state, decision = _act(settings, state, decision, due.thresholds, sound, pods)
    if firing is None or decision.evictions or decision.reclaim:
        return state, decision
    decision = replace(decision, acted_on=None, ranking=(), no_victim=None)
    return decide_firing(settings, state, decision, firing, sound, pods)


def sound_part(snapshot: Snapshot) -> tuple[Mapping[Signal, str], Snapshot]:
    """Return what can't be true of what was observed, and why, and the snapshot without it."""
    absurd = absurdities(snapshot.signals)
    if not absurd:
        return absurd, snapshot
    signals = {signal: seen for signal, seen in snapshot.signals.items() if signal not in absurd}
    return absurd, replace(snapshot, signals=signals)


def observed(
    settings: EvictionSettings,
    state: PolicyState,
    snapshot: Snapshot,
    pods: Sequence[Pod],
    now_seconds: float,
) -> tuple[PolicyState, tuple[Threshold, ...]]:
    """Return the state as observed now, and the thresholds to act on: grace period over, statistics fresh.

    One whose grace period or pause would be over too late is due as well; see `due_in_time`.
    """
    observations = snapshot.signals
    met = thresholds_met(settings.thresholds, observations)
    unresolved = thresholds_met(
        (threshold for threshold in state.thresholds_met if threshold in settings.thresholds),
        observations,
        with_minimum_reclaim=True,
    )
    first_observed = {
        threshold: state.first_observed.get(threshold, now_seconds) for threshold in (*met, *unresolved)
    }
    last_observed = {**state.condition_last_observed}
    last_observed |= {CONDITION[threshold.signal]: now_seconds for threshold in first_observed}
    conditions = conditions_observed_since(
        last_observed, settings.pressure_transition_period_seconds, now_seconds
    )
    over = thresholds_met_grace_period(first_observed, now_seconds)
    before = state.observed_at
    state = replace(
        state,
        conditions=conditions,
        condition_last_observed=last_observed,
        condition_since={one: state.condition_since.get(one, now_seconds) for one in conditions},
        first_observed=first_observed,
        thresholds_met=in_eviction_order(over, settings.thresholds),
        observed_at={signal: seen.taken_at_seconds for signal, seen in observations.items()},
        claims=still_claimed(state.claims, pods, observations.get(Signal.MEMORY_AVAILABLE), now_seconds),
        waits=tuple(one for one in state.waits if one.threshold in first_observed),
    )
    if settings.soft_in_time:
        in_time = due_in_time(settings, state, snapshot.time_left, now_seconds)
        state = replace(state, thresholds_met=in_eviction_order({*over, *in_time}, settings.thresholds))
    return state, thresholds_with_fresh_statistics(state.thresholds_met, observations, before)


def _act(
    settings: EvictionSettings,
    state: PolicyState,
    decision: Decision,
    fresh: Sequence[Threshold],
    snapshot: Snapshot,
    pods: Sequence[Pod],
) -> tuple[PolicyState, Decision]:
    """Return the decision for the first threshold that waits for no earlier eviction and no reclaim."""
    now_seconds = decision.at_seconds
    in_time = due_in_time(settings, state, snapshot.time_left, now_seconds) if settings.soft_in_time else {}
    reasons = []
    deferred: list[Threshold] = []
    for threshold in fresh:
        seen = snapshot.signals[threshold.signal]
        # Also where evictions are slowed down: that a reclaim would help is a reason for one.
        hold = memory_hold(settings, state, threshold, snapshot, pods, now_seconds)
        if hold is not None:
            state, decision = with_hold(state, hold), replace(decision, memory_reclaim=hold)
        reason = kept_because(settings, state, threshold, seen, pods, snapshot.pods, now_seconds)
        if reason is None and threshold not in in_time:
            reason = paced(settings, state, threshold, pods, now_seconds)
            hold = pod_hold(settings, state, threshold, seen, now_seconds) if reason is None else None
            if hold is not None:
                state, decision = with_hold(state, hold), replace(decision, soft_reclaim=hold)
                reason = hold.reason
        if reason is None:
            if RESOURCE[threshold.signal] in ON_DISK:
                reclaims = node_reclaim(threshold.signal, settings.layout, settings.commands_for)
                asked = replace(decision, acted_on=threshold, reclaim=reclaims, deferred=tuple(deferred))
                return state, asked
            left = in_time.get(threshold)
            found = evict(settings, state, decision, threshold, snapshot, pods, left)
            wait = None
            if left is not None and found.evictions:
                pod = found.evictions[0].pod
                wait = wait_in_time(settings, state, threshold, pod, left, now_seconds)
            if wait is None:
                return state, found
            state, decision = _waiting(state, decision, wait)
            continue
        reasons.append(f"{threshold}: {reason}")
        deferred.append(threshold)
    return state, replace(decision, deferred_because="; ".join(reasons) or None)


def _waiting(state: PolicyState, decision: Decision, wait: Wait) -> tuple[PolicyState, Decision]:
    """Return the state in which a threshold is not due yet, though it will have to be acted on early."""
    met = tuple(one for one in state.thresholds_met if one != wait.threshold)
    others = tuple(one for one in state.waits if one.threshold != wait.threshold)
    return replace(state, thresholds_met=met, waits=(*others, wait)), replace(decision, thresholds_met=met)


def kept_because(
    settings: EvictionSettings,
    state: PolicyState,
    threshold: Threshold,
    seen: Observation,
    pods: Sequence[Pod],
    used: Mapping[str, PodUsage],
    now_seconds: float,
) -> str | None:
    """Return why no pod is evicted for a threshold now: what is awaited is enough, or something holds it."""
    reason = awaited(settings, state, threshold, seen, pods, used, now_seconds)
    return reason or next(holds(settings, state, threshold, seen, pods, now_seconds), None)


def evict(
    settings: EvictionSettings,
    state: PolicyState,
    decision: Decision,
    threshold: Threshold,
    snapshot: Snapshot,
    pods: Sequence[Pod],
    left: TimeLeft | None = None,
) -> Decision:
    """Return the decision to act on a threshold: the ranking, and the first in it that may be evicted.

    `left` is how much time there is, if the threshold is due before its grace period is over.
    If only holders are evicted and there is none, the caller reports that, in place of a `no_victim`.
    """
    eligible = candidates(pods, state, threshold, decision.at_seconds)
    if snapshot.bounds:  # they come behind the first of the others, or they would have been read
        eligible = tuple(pod for pod in eligible if pod.uid not in snapshot.bounds)
    ranking = _ranking(settings, threshold, snapshot, eligible)
    needs_holder = settings.evicts_holders_only and RESOURCE[threshold.signal] in ON_DISK
    if needs_holder:
        ranking = holders_first(ranking, snapshot.pods, threshold.signal, settings.layout)
    evictions = []
    if ranking and ranking[0].evictable:
        pod = ranking[0].pod
        evictions.append(
            Eviction(
                pod=pod,
                signal=threshold.signal,
                resource=RESOURCE[threshold.signal],
                grace_period_seconds=0 if threshold.is_hard else grace_period_seconds(settings, pod, left),
                threshold=threshold,
                shortage=Shortage(snapshot.signals[threshold.signal], ranking[0], snapshot.pods.get(pod.uid)),
                time_left=left,
            )
        )
    found = replace(decision, acted_on=threshold, ranking=ranking, evictions=tuple(evictions))
    if evictions or state.in_flight or needs_holder:
        return found
    seen = snapshot.signals[threshold.signal]
    return replace(found, no_victim=no_victim(threshold, seen, ranking, pods, snapshot.pods))


def with_whole_ranking(
    settings: EvictionSettings,
    state: PolicyState,
    decision: Decision,
    snapshot: Snapshot,
    pods: Sequence[Pod],
) -> Decision:
    """Return a decision that was made by bounds with all pods in its ranking; see `bounds.completed`.

    `state` is as it was decided on.
    """
    threshold = decision.acted_on
    if threshold is None or not decision.ranking:
        return decision
    eligible = candidates(pods, state, threshold, decision.at_seconds)
    return replace(decision, ranking=_ranking(settings, threshold, snapshot, eligible))


def _ranking(
    settings: EvictionSettings, threshold: Threshold, snapshot: Snapshot, eligible: Sequence[Pod]
) -> tuple[RankedPod, ...]:
    ranking = rank(
        eligible,
        snapshot.pods,
        threshold.signal,
        settings.layout,
        with_swap=settings.ranks_swap,
        bounds=snapshot.bounds,
    )
    if settings.minimum_victim is not None and is_hard_memory(threshold):
        seen = snapshot.signals[threshold.signal]
        ranking = small_ones_passed_over(ranking, settings.minimum_victim, threshold, seen)
    return ranking


def after_reclaim(
    settings: EvictionSettings,
    state: PolicyState,
    decision: Decision,
    before: Snapshot,
    after: Snapshot | None,
    pods: Sequence[Pod],
    now_seconds: float | None = None,
) -> tuple[PolicyState, Decision]:
    """Return the state and the decision once the node has reclaimed what it could: it is decided again.

    `after` is what was observed then, at `now_seconds` (None: it could not be read, and at once). If no
    threshold that counts is met any more, no pod is evicted (see `is_enough`). What is in flight by now, the
    rate and whether the last eviction helped are asked as for any eviction. `before` is what pods are ranked
    by. Source: reclaimNodeLevelResources.
    """
    threshold = decision.acted_on
    if threshold is None:
        raise ValueError("the decision acted on no threshold; accepted: one that asked for a reclaim")
    is_over = settings.rechecks_disks and threshold not in state.thresholds_met
    if is_over or is_enough(settings, decision, after):
        return state, decision
    now_seconds = decision.at_seconds if now_seconds is None else now_seconds
    decision = replace(decision, at_seconds=now_seconds)
    now = before if after is None else Snapshot(signals=after.signals, pods=before.pods)
    seen = now.signals.get(threshold.signal) or before.signals[threshold.signal]
    reason = kept_because(settings, state, threshold, seen, pods, before.pods, now_seconds)
    if reason is not None:
        return state, replace(decision, deferred_because=f"{threshold}: {reason}", slowdowns=state.slowdowns)
    known = state
    state, unhelpful = with_unhelpful_slowdown(settings, state, threshold, now, pods, now_seconds)
    if not is_hopeless(state, pods):
        reason = slowed_for_disk(state, threshold, settings.layout)
    if reason is None:
        decision = evict(settings, state, decision, threshold, before, pods)
        if settings.evicts_holders_only and not decision.evictions:
            state, reason = with_no_holder(settings, state, known.slowdowns, threshold, now_seconds)
    return state, replace(decision, deferred_because=reason, slowdowns=state.slowdowns, unhelpful=unhelpful)


def is_enough(settings: EvictionSettings, decision: Decision, after: Snapshot | None) -> bool:
    """Return whether a reclaim spares every pod, by what was observed after it (None: it could not be read).

    Upstream evicts while any threshold is met, grace periods ignored and minimum reclaims added. It never
    reclaims a disk while a memory threshold is due; here that may wait, and then counts for nothing. If the
    caller rechecks the filesystem, that alone counts.
    """
    if after is None:
        return settings.rechecks_disks
    met = thresholds_met(settings.thresholds, sound_part(after)[1].signals, with_minimum_reclaim=True)
    if settings.rechecks_disks:
        return decision.acted_on not in met
    return all(threshold in decision.deferred for threshold in met)


def conditions_observed_since(
    last_observed: Mapping[NodeCondition, float], period_seconds: float, now_seconds: float
) -> tuple[NodeCondition, ...]:
    """Return the conditions observed less than the period ago, in the order in which they are reported."""
    return tuple(
        condition
        for condition in NodeCondition
        if condition in last_observed
        and elapsed_seconds(last_observed[condition], now_seconds) < period_seconds
    )


def storage_limit_evictions(
    pods: Iterable[Pod], used: Mapping[str, PodUsage], layout: Layout
) -> tuple[Eviction, ...]:
    """Return an eviction for each pod above a limit of its own, in the pods' order, at once (grace 0).

    Critical pods and pods without statistics stay. `used` is by uid.
    Source: localStorageEviction: emptyDir limits, then the pod's, then its containers'.
    """
    return tuple(
        eviction
        for pod in pods
        if pod.uid in used and _has_limits(pod) and of_no_partition(pod).critical_because is None
        for eviction in first_broken_limit(pod, used[pod.uid], layout)
    )


def _has_limits(pod: Pod) -> bool:
    """Return whether the pod has a limit to check: most have none, and every pass asks for all pods."""
    if pod.ephemeral_storage_limit is not None:
        return True
    for volume in pod.volumes:  # plain loops: a tenth of the time that any() takes for so few
        if volume.size_limit is not None:
            return True
    for container in pod.containers:  # noqa: SIM110 - see above
        if container.ephemeral_storage_limit is not None:
            return True
    return False
