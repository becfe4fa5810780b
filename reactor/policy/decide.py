"""One evaluation pass: a straight pipeline from observations to what is to be done.

Source: managerImpl.synchronize in eviction_manager.go, and what it lacks: claims, holds, absurdities.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from reactor.model.decisions import (
    Decision,
    Eviction,
    Hold,
    Inputs,
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
from reactor.model.signals import CONDITION, ON_DISK, RESOURCE, Layout, NodeCondition, Signal
from reactor.model.thresholds import Threshold
from reactor.policy.claims import awaited, candidates, still_claimed
from reactor.policy.disks import first_broken_limit, holders_first, node_reclaim
from reactor.policy.holds import evictions_left, holds, is_hopeless, memory_hold, paced, pod_hold, with_hold
from reactor.policy.in_time import due_in_time, grace_period_seconds, wait_in_time
from reactor.policy.judged_evictions import (
    COUNTED,
    slowed_for_disk,
    with_counted_slowdowns,
    with_no_holder,
    with_unhelpful_slowdown,
    without_past_slowdowns,
)
from reactor.policy.kill_results import with_calm
from reactor.policy.messages import no_victim
from reactor.policy.rank import is_guess, of_no_partition, rank, small_ones_passed_over
from reactor.policy.rules import decide_firing
from reactor.policy.storm import is_newly_slowed, with_slowdowns
from reactor.policy.thresholds import (
    absurdities,
    elapsed_seconds,
    in_eviction_order,
    is_hard_memory,
    is_judged,
    thresholds_met,
    thresholds_met_grace_period,
    thresholds_with_fresh_statistics,
)

_CONDITIONS: Final = tuple(NodeCondition)  # to go over an enum takes ten times as long as over a tuple


class Due(NamedTuple):
    """Which thresholds are due by `inputs`: the sound part of a snapshot, and the state as observed now.

    It was worked out from the state `before`.
    """

    inputs: Inputs
    absurd: Mapping[Signal, str]
    thresholds: tuple[Threshold, ...]
    before: PolicyState
    unhelpful: tuple[HardMemoryKill, ...] = ()

    def with_slowdowns(self) -> Due:
        """Return the same with the slowdowns in force, and the kills that turn out not to help."""
        inputs, unhelpful = with_slowdowns(self.inputs)
        return self if inputs is self.inputs else self._replace(inputs=inputs, unhelpful=unhelpful)


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
    if due is None or due.before is not state or due.inputs.pods != pods:
        due = observed(Inputs(settings, state, snapshot, pods, now_seconds)).with_slowdowns()
    is_calm = not any(is_judged(settings, one) for one in due.inputs.state.first_observed)
    inputs, before = with_calm(due.inputs) if is_calm else due.inputs, state
    state = inputs.state
    in_vain: tuple[JudgedEviction, ...] = ()
    if state.slowdowns or any(one.signal in COUNTED for one in state.thresholds_met):
        inputs, in_vain = with_counted_slowdowns(inputs)
        inputs = without_past_slowdowns(inputs)
        state = inputs.state
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
        evictions = storage_limit_evictions(candidates(inputs), snapshot.pods, settings.layout)
        if evictions := evictions and evictions[: evictions_left(settings, state, now_seconds)]:
            return state, decision._replace(evictions=evictions)
    inputs, decision = _act(inputs, decision, due.thresholds)
    if firing is None or decision.evictions or decision.reclaim:
        return inputs.state, decision
    decision = decision._replace(acted_on=None, ranking=(), no_victim=None)
    return decide_firing(inputs, decision, firing)


def sound_part(snapshot: Snapshot) -> tuple[Mapping[Signal, str], Snapshot]:
    """Return what can't be true of what was observed, and why, and the snapshot without it."""
    absurd = absurdities(snapshot.signals)
    if not absurd:
        return absurd, snapshot
    signals = {signal: seen for signal, seen in snapshot.signals.items() if signal not in absurd}
    return absurd, snapshot._replace(signals=signals)


def observed(inputs: Inputs) -> Due:
    """Return the state as observed now, and the thresholds to act on: grace period over, statistics fresh.

    One whose grace period or pause would be over too late is due as well; see `due_in_time`.
    """
    settings, before, snapshot, pods, now_seconds = inputs
    absurd, snapshot = sound_part(snapshot)
    observations = snapshot.signals
    met = thresholds_met(settings.thresholds, observations)
    unresolved = thresholds_met(
        (threshold for threshold in before.thresholds_met if threshold in settings.thresholds),
        observations,
        with_minimum_reclaim=True,
    )
    first_observed = {
        threshold: before.first_observed.get(threshold, now_seconds) for threshold in (*met, *unresolved)
    }
    last_observed = {**before.condition_last_observed}
    last_observed |= {CONDITION[threshold.signal]: now_seconds for threshold in first_observed}
    conditions = conditions_observed_since(
        last_observed, settings.pressure_transition_period_seconds, now_seconds
    )
    over = thresholds_met_grace_period(first_observed, now_seconds)
    state = before._replace(
        conditions=conditions,
        condition_last_observed=last_observed,
        condition_since={one: before.condition_since.get(one, now_seconds) for one in conditions},
        first_observed=first_observed,
        thresholds_met=in_eviction_order(over, settings.thresholds),
        observed_at={signal: seen.taken_at_seconds for signal, seen in observations.items()},
        claims=still_claimed(before.claims, pods, observations.get(Signal.MEMORY_AVAILABLE), now_seconds),
        waits=tuple(one for one in before.waits if one.threshold in first_observed),
    )
    if settings.soft_in_time:
        in_time = due_in_time(settings, state, snapshot.time_left, now_seconds)
        state = state._replace(thresholds_met=in_eviction_order({*over, *in_time}, settings.thresholds))
    fresh = thresholds_with_fresh_statistics(state.thresholds_met, observations, before.observed_at)
    return Due(Inputs(settings, state, snapshot, pods, now_seconds), absurd, fresh, before)


def _act(inputs: Inputs, decision: Decision, fresh: Sequence[Threshold]) -> tuple[Inputs, Decision]:
    """Return the decision for the first threshold that waits for no earlier eviction and no reclaim."""
    settings, state, snapshot, _, now_seconds = inputs
    in_time = due_in_time(settings, state, snapshot.time_left, now_seconds) if settings.soft_in_time else {}
    reasons = []
    deferred: list[Threshold] = []
    for threshold in fresh:
        # Also where evictions are slowed down: that a reclaim would help is a reason for one.
        hold = memory_hold(inputs, threshold)
        if hold is not None:
            inputs, decision = _held(inputs, hold), decision._replace(memory_reclaim=hold)
        reason = kept_because(inputs, threshold)
        if reason is None and threshold not in in_time:
            reason = paced(inputs, threshold)
            hold = pod_hold(inputs, threshold) if reason is None else None
            if hold is not None:
                inputs, decision = _held(inputs, hold), decision._replace(soft_reclaim=hold)
                reason = hold.reason
        if reason is None:
            if RESOURCE[threshold.signal] in ON_DISK:
                reclaims = node_reclaim(threshold.signal, settings.layout, settings.commands_for)
                asked = decision._replace(acted_on=threshold, reclaim=reclaims, deferred=tuple(deferred))
                return inputs, asked
            left = in_time.get(threshold)
            found = evict(inputs, decision, threshold, left)
            wait = None
            if left is not None and found.evictions:
                wait = wait_in_time(inputs, threshold, found.evictions[0].pod, left)
            if wait is None:
                return inputs, found
            inputs, decision = _waiting(inputs, decision, wait)
            continue
        reasons.append(f"{threshold}: {reason}")
        deferred.append(threshold)
    return inputs, decision._replace(deferred_because="; ".join(reasons) or None)


def _held(inputs: Inputs, hold: Hold) -> Inputs:
    return inputs.with_state(with_hold(inputs.state, hold))


def _waiting(inputs: Inputs, decision: Decision, wait: Wait) -> tuple[Inputs, Decision]:
    """Return the state in which a threshold is not due yet, though it will have to be acted on early."""
    state = inputs.state
    met = tuple(one for one in state.thresholds_met if one != wait.threshold)
    others = tuple(one for one in state.waits if one.threshold != wait.threshold)
    state = state._replace(thresholds_met=met, waits=(*others, wait))
    return inputs.with_state(state), decision._replace(thresholds_met=met)


def kept_because(inputs: Inputs, threshold: Threshold) -> str | None:
    """Return why no pod is evicted for a threshold now: what is awaited is enough, or something holds it."""
    return awaited(inputs, threshold) or next(holds(inputs, threshold), None)


def evict(inputs: Inputs, decision: Decision, threshold: Threshold, left: TimeLeft | None = None) -> Decision:
    """Return the decision to act on a threshold: the ranking, and the first in it that may be evicted.

    `left` is how much time there is, if the threshold is due before its grace period is over.
    If only holders are evicted and there is none, the caller reports that, in place of a `no_victim`. Of
    several pods none of which could be read no victim is guessed.
    """
    settings, used, resource = inputs.settings, inputs.snapshot.pods, RESOURCE[threshold.signal]
    eligible, bounds = candidates(inputs, threshold), inputs.snapshot.bounds
    if bounds:  # they come behind the first of the others, or they would have been read
        eligible = tuple(pod for pod in eligible if pod.uid not in bounds)
    ranking = _ranking(inputs, threshold, eligible)
    needs_holder = settings.evicts_holders_only and resource in ON_DISK
    if needs_holder:
        ranking = holders_first(ranking, used, threshold.signal, settings.layout)
    evictions = []
    if ranking and ranking[0].evictable and not is_guess(ranking):
        pod = ranking[0].pod
        evictions.append(
            Eviction(
                pod=pod,
                signal=threshold.signal,
                resource=resource,
                grace_period_seconds=0 if threshold.is_hard else grace_period_seconds(settings, pod, left),
                threshold=threshold,
                shortage=Shortage(inputs.seen(threshold), ranking[0], used.get(pod.uid)),
                time_left=left,
            )
        )
    found = decision._replace(acted_on=threshold, ranking=ranking, evictions=tuple(evictions))
    if evictions or inputs.state.in_flight or needs_holder:
        return found
    return found._replace(no_victim=no_victim(inputs, threshold, ranking))


def with_whole_ranking(inputs: Inputs, decision: Decision) -> Decision:
    """Return a decision that was made by bounds with all pods in its ranking; see `bounds.completed`.

    The state is as it was decided on.
    """
    threshold = decision.acted_on
    if threshold is None or not decision.ranking:
        return decision
    return decision._replace(ranking=_ranking(inputs, threshold, candidates(inputs, threshold)))


def _ranking(inputs: Inputs, threshold: Threshold, eligible: Sequence[Pod]) -> tuple[RankedPod, ...]:
    settings, used, bounds = inputs.settings, inputs.snapshot.pods, inputs.snapshot.bounds
    with_swap, signal = settings.ranks_swap, threshold.signal
    ranking = rank(eligible, used, signal, settings.layout, with_swap=with_swap, bounds=bounds)
    if settings.minimum_victim is not None and is_hard_memory(threshold):
        seen = inputs.seen(threshold)
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
    rate and whether the last eviction helped are asked as for any eviction, of a signal that is missing then
    by what it showed last. `before` is what pods are ranked by. Source: reclaimNodeLevelResources.
    """
    threshold = decision.acted_on
    if threshold is None:
        raise ValueError("the decision acted on no threshold; accepted: one that asked for a reclaim")
    is_over = settings.rechecks_disks and threshold not in state.thresholds_met
    if is_over or is_enough(settings, decision, after):
        return state, decision
    now_seconds = decision.at_seconds if now_seconds is None else now_seconds
    decision = decision._replace(at_seconds=now_seconds)
    ranked = now = Inputs(settings, state, before, pods, now_seconds)
    if after is not None:
        signals = {threshold.signal: ranked.seen(threshold), **after.signals}
        now = ranked._replace(snapshot=Snapshot(signals=signals, pods=before.pods))
    reason = kept_because(now, threshold)
    if reason is not None:
        return state, decision._replace(deferred_because=f"{threshold}: {reason}", slowdowns=state.slowdowns)
    now, unhelpful = with_unhelpful_slowdown(now, threshold)
    if not is_hopeless(now):
        reason = slowed_for_disk(now, threshold)
    known, state = state, now.state
    if reason is None:
        decision = evict(now._replace(snapshot=before), decision, threshold)
        if settings.evicts_holders_only and not decision.evictions:
            state, reason = with_no_holder(now, threshold, known.slowdowns)
    return state, decision._replace(deferred_because=reason, slowdowns=state.slowdowns, unhelpful=unhelpful)


def is_enough(settings: EvictionSettings, decision: Decision, after: Snapshot | None) -> bool:
    """Return whether a reclaim spares every pod, by what was observed after it (None: it could not be read).

    Upstream evicts while any threshold is met, grace periods ignored and minimum reclaims added; a missing
    signal meets none. It never reclaims a disk while a memory threshold is due; here that may wait, and then
    counts for nothing. If the caller rechecks the filesystem, that alone counts.
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
        for condition in _CONDITIONS
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
    counted = {uid for uid, one in used.items() if one.ephemeral_storage_bytes is not None or one.volumes}
    counted |= {uid for uid, one in used.items() if one.containers}
    return tuple(
        eviction
        for pod in (pods if counted else ())  # in most passes memory alone was read
        if pod.uid in counted and of_no_partition(pod).critical_because is None
        for eviction in first_broken_limit(pod, used[pod.uid], layout)
    )
