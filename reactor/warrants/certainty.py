"""Whether it is certain in advance which pod a crossing would evict, whatever the pods do until then.

A warrant is a decision made before its crossing (docs/internals.md): the kernel carries it out, and can
check conditions, but decide nothing. So it is given only where every movement of the pods, within bounds that
the kernel holds them to, leads to the same first pod. A pod's place in the ranking only ever falls back as it
uses less, and moves forward as it uses more. So the worst case is one corner: the victim at its least, all
others at their most. If the victim ranks first there, it ranks first everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from reactor.model.decisions import Inputs, PolicyState, Snapshot
from reactor.model.pods import Pod, PodUsage
from reactor.model.settings import EvictionSettings
from reactor.model.signals import MEMORY_SIGNALS, Reclaim
from reactor.model.thresholds import Observation, Threshold
from reactor.policy.decide import decide
from reactor.policy.holds import least_worth_bytes, may_be_due, under_way
from reactor.policy.rank import rank, small_ones_passed_over
from reactor.policy.storm import memory_slowdowns
from reactor.policy.thresholds import is_hard_memory

_RATE_WINDOW_SECONDS: Final = 60.0
# Beyond this share of the threshold it would matter how much all pods hold together (storm.py).
REACH_SHARE: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRange:
    """Between which working sets a pod is held, in bytes, both included."""

    least_bytes: int
    most_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CertainVictim:
    """The pod that is evicted first when this threshold is crossed; `crossing` is what is observed then."""

    pod: Pod
    threshold: Threshold
    crossing: Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """What lies ahead: a crossing within `horizon_seconds`, seen `reach_bytes` past the threshold at most.

    `ranges` is by uid how much each pod may use until then. Outside the pods are `outside_bytes` of their
    working set at most, None where nothing bounds that.
    """

    ranges: Mapping[str, UsageRange]
    horizon_seconds: float
    reach_bytes: int
    outside_bytes: int | None = None


def certain_victim(inputs: Inputs, threshold: Threshold, ahead: Ahead) -> CertainVictim | str:
    """Return which pod a hard memory threshold would evict, or as one line why that is not certain.

    `inputs` are as observed now; what the pods use counts for nothing.
    """
    settings, state, _, pods, now_seconds = inputs
    why = next(_unsettled(inputs, threshold, ahead), None)
    if why is not None:
        return why
    unknown = next((pod for pod in pods if pod.uid not in ahead.ranges), None)
    if unknown is not None:
        return f"how much {unknown.key} may use is not known"
    first, last = (_crossed(threshold, inputs, past_bytes) for past_bytes in (1, ahead.reach_bytes))
    most = {uid: PodUsage(memory_working_set_bytes=one.most_bytes) for uid, one in ahead.ranges.items()}
    ranking = rank(pods, most, threshold.signal, settings.layout)
    if settings.minimum_victim is not None:
        ranking = small_ones_passed_over(ranking, settings.minimum_victim, threshold, first)
    if not ranking or not ranking[0].evictable:
        return "no pod may be evicted"
    victim = ranking[0].pod
    least_bytes = ahead.ranges[victim.uid].least_bytes
    minimum = settings.minimum_victim
    if minimum is not None and least_bytes < minimum.of(threshold.missing(last)):
        return f"{victim.key} may hold too little to be worth it by then"
    corner = {**most, victim.uid: PodUsage(memory_working_set_bytes=least_bytes)}
    decided_by = without_reclaim(settings)
    for crossing in (first, last):
        crossed = Snapshot(signals={threshold.signal: crossing}, pods=corner)
        decision = decide(decided_by, state, crossed, pods, now_seconds)[1]
        chosen = [eviction.pod for eviction in decision.evictions]
        if chosen != [victim]:
            return f"{', '.join(pod.key for pod in chosen) or 'no pod'} may come before {victim.key} by then"
    return CertainVictim(pod=victim, threshold=threshold, crossing=first)


def settled_until_seconds(state: PolicyState) -> float:
    """Return when the next grace period of a memory threshold ends, infinity where none runs.

    Until then nothing is decided for it.
    """
    return min(
        (
            since_seconds + one.grace_period_seconds
            for one, since_seconds in state.first_observed.items()
            if one.signal in MEMORY_SIGNALS
        ),
        default=math.inf,
    )


def _crossed(threshold: Threshold, inputs: Inputs, past_bytes: int) -> Observation:
    seen = inputs.seen(threshold)
    value = int(threshold.value.of(seen.capacity))
    return seen._replace(available=value - past_bytes, taken_at_seconds=None)


def without_reclaim(settings: EvictionSettings) -> EvictionSettings:
    """Return the settings of a certain decision: memory that no pod holds is not reclaimed before it.

    What lies outside the pods does not follow from pods at their least or most: it is bounded by itself.
    """
    return replace(settings, reclaims_memory=False)


def _unsettled(inputs: Inputs, threshold: Threshold, ahead: Ahead) -> Iterator[str]:
    """Yield what is under way that the decision of the crossing may have to wait for, or to count."""
    settings, state, snapshot, _, now_seconds = inputs
    seen = snapshot.signals.get(threshold.signal)
    if not is_hard_memory(threshold) or seen is None or seen.absurdity is not None:
        yield f"{threshold} is no hard memory threshold that is observed"
    else:
        value = int(threshold.value.of(seen.capacity))
        if not 0 < ahead.reach_bytes <= value // REACH_SHARE or threshold.is_absurd_at(seen.capacity):
            yield f"{threshold} is too close to 0 or to the capacity"
        if settings.ranks_swap:
            yield "what pods have in swap counts too, and no charge tells of it"
        yield from _under_way(state, now_seconds + ahead.horizon_seconds)
        yield from _others_near(inputs, threshold, ahead)
        yield from _judged_still(settings, state, now_seconds)
        yield from _reclaimed_first(inputs, threshold, ahead)


def _under_way(state: PolicyState, until_seconds: float) -> Iterator[str]:
    """Yield what the last pass has left to the next, or a grace period that ends until then."""
    if state.claims:
        yield "a victim is still being waited for"
    if memory_slowdowns(state):
        yield "evictions are slowed down"
    if any(one.signal in MEMORY_SIGNALS for one in state.thresholds_met):
        yield "a memory threshold is met already"
    for one, since_seconds in state.first_observed.items():
        if one.signal in MEMORY_SIGNALS and since_seconds + one.grace_period_seconds <= until_seconds:
            yield f"the grace period of {one} ends"


def _others_near(inputs: Inputs, threshold: Threshold, ahead: Ahead) -> Iterator[str]:
    """Yield the other hard memory thresholds that may be crossed with this one."""
    for other in inputs.settings.thresholds:
        seen = inputs.snapshot.signals.get(other.signal)
        if other != threshold and is_hard_memory(other) and seen is not None:
            left = seen.available - other.value.of(seen.capacity)
            if left <= 2 * ahead.reach_bytes:
                yield f"{other} may be crossed too"


def _judged_still(settings: EvictionSettings, state: PolicyState, now_seconds: float) -> Iterator[str]:
    """Yield what is still awaited of earlier evictions."""
    kills = [kill.at_seconds for kill in state.hard_memory_kills]
    if kills and now_seconds < max(kills) + settings.unhelpful_eviction_pause_seconds:
        yield "the last eviction is still judged by what it brought back"
    most = settings.hard_memory_evictions_per_minute
    if most is not None and sum(now_seconds - at < _RATE_WINDOW_SECONDS for at in kills) >= most:
        yield "as many evictions as are allowed in a minute"


def _reclaimed_first(inputs: Inputs, threshold: Threshold, ahead: Ahead) -> Iterator[str]:
    """Yield why a reclaim may come before the eviction."""
    settings, state, _, _, now_seconds = inputs
    worth_bytes = least_worth_bytes(threshold, _crossed(threshold, inputs, 1))  # the further past, the more
    is_little = ahead.outside_bytes is not None and ahead.outside_bytes < worth_bytes
    until_seconds = now_seconds + ahead.horizon_seconds
    may_reclaim = not is_little and may_be_due(settings, state, now_seconds, until_seconds)
    if may_reclaim or under_way(state, Reclaim.MEMORY, now_seconds):
        yield "memory that no pod holds may be reclaimed first"
