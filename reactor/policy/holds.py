"""Why an eviction waits although nothing that is awaited is enough: a reclaim, a slowdown, a rate.

Two reclaims of memory come before an eviction. MEMORY is of what no pod holds, before a further pod is
evicted. The first eviction goes by upstream's arithmetic, and may leave page cache and slab of a dead cgroup,
charged to the cgroup above. Further evictions free none of that; a reclaim does, within half a second. So
if the memory outside the pods would be enough, a reclaim comes before the next eviction: for a moment, not
again for a while, and it delays no eviction while the shortage grows. Less than 1 MiB is not reclaimed first:
the kernel itself holds about as much for the pods' cgroups. If only the cgroups of ended pods can be emptied,
what they hold counts and nothing else that is outside the pods.

A soft memory threshold is no emergency: it evicts one pod in `unhelpfulEvictionPause` after any eviction,
since whether that one helped is not judged.

POD_MEMORY is of what pods have not used for long, before the first eviction for a soft threshold. That one
has time: such memory can go to swap, or be read from the disk again, before a pod ends. So if the operator
wants that, its first eviction waits for a reclaim after its grace period: for as long as is configured, once
in each shortage, and not again for a while. None begins while a hard memory threshold is met, or delays it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from reactor.model.decisions import Hold, Inputs, PolicyState
from reactor.model.pods import PodUsage, working_set_bytes
from reactor.model.quantity import bytes_text
from reactor.model.settings import EvictionSettings
from reactor.model.signals import MEMORY_SIGNALS, Reclaim, Signal
from reactor.model.thresholds import Observation, Threshold
from reactor.policy.claims import RATE_WINDOW_SECONDS, is_dying, is_memory_awaited
from reactor.policy.rank import can_be_evicted, memory_outside_pods
from reactor.policy.storm import slowed
from reactor.policy.thresholds import is_hard_memory

MOST_SECONDS: Final = 0.5
PAUSE_SECONDS: Final = 10.0
AFTER_EVICTION_SECONDS: Final = 30.0
LEAST_BYTES: Final = 1 << 20
SOFT_PAUSE_SECONDS: Final = 60.0
# As much more than is missing, of the threshold: else the next allocation would be short of it again.
_MARGIN_SHARE: Final = 16


def holds(inputs: Inputs, threshold: Threshold) -> Iterator[str]:
    """Yield why an eviction of a pod for a threshold waits."""
    state, now_seconds = inputs.state, inputs.now_seconds
    slow = [*slowed(state, threshold, now_seconds)]
    if not is_hard_memory(threshold):
        slow += rated(inputs.settings, state, now_seconds)
    if slow and not is_hopeless(inputs):
        yield from slow
    for hold in state.holds:
        if is_on(hold, now_seconds) and _is_about(hold, threshold, inputs.seen(threshold)):
            yield hold.reason


def soft_pause_end(settings: EvictionSettings, state: PolicyState) -> float:
    """Return until when no pod is evicted for a soft memory threshold, in seconds."""
    return max(state.evicted_at, default=-math.inf) + settings.unhelpful_eviction_pause_seconds


def paced(inputs: Inputs, threshold: Threshold) -> str | None:
    """Return that a soft memory eviction comes too soon after the last one, None if it does not."""
    is_over = inputs.now_seconds >= soft_pause_end(inputs.settings, inputs.state)
    if is_over or not is_soft_memory(threshold) or is_hopeless(inputs):
        return None
    pause_seconds = inputs.settings.unhelpful_eviction_pause_seconds
    return f"pause: one eviction in {pause_seconds:g} s for soft memory thresholds"


def is_hopeless(inputs: Inputs) -> bool:
    """Return whether nothing is awaited and no pod can be evicted: no slowdown and no rate keeps one then."""
    return not (inputs.state.claims or can_be_evicted(inputs.pods))


def _is_about(hold: Hold, threshold: Threshold, seen: Observation) -> bool:
    if hold.kind is Reclaim.POD_MEMORY:
        return is_soft_memory(threshold)
    if hold.threshold is None or hold.threshold.signal is not threshold.signal:
        return False
    return hold.void_below_bytes is None or seen.available >= hold.void_below_bytes


def rated(settings: EvictionSettings, state: PolicyState, now_seconds: float) -> Iterator[str]:
    """Yield that as many evictions as are allowed in a minute were ordered."""
    if evictions_left(settings, state, now_seconds) == 0:
        yield f"rate: {settings.evictions_per_minute} evictions in the last minute, as many as are allowed"


def evictions_left(settings: EvictionSettings, state: PolicyState, now_seconds: float) -> int | None:
    """Return how many evictions the configured rate still allows in this minute, None for any number."""
    if settings.evictions_per_minute is None:
        return None
    recent = sum(1 for at in state.evicted_at if now_seconds - at < RATE_WINDOW_SECONDS)
    return max(0, settings.evictions_per_minute - recent)


def is_on(hold: Hold, now_seconds: float) -> bool:
    return not hold.is_over and now_seconds < hold.until_seconds


def under_way(state: PolicyState, kind: Reclaim, now_seconds: float) -> Hold | None:
    """Return the reclaim of this kind that evictions wait for, None if there is none."""
    return next((one for one in state.holds if one.kind is kind and is_on(one, now_seconds)), None)


def goes_on(state: PolicyState, hold: Hold, now_seconds: float) -> bool:
    """Return whether soft evictions wait for this reclaim, and nothing happens that does not wait for it."""
    ours = under_way(state, hold.kind, now_seconds)
    return (
        ours is not None
        and ours.began_seconds == hold.began_seconds
        and not is_dying(state)
        and not any(map(is_hard_memory, state.thresholds_met))
    )


def with_hold(state: PolicyState, hold: Hold) -> PolicyState:
    """Return the state after a reclaim has begun; it takes the place of the last one of its kind."""
    others = (one for one in state.holds if one.kind is not hold.kind)
    return state._replace(holds=tuple(sorted((*others, hold), key=lambda one: one.kind)))


def over(state: PolicyState, kind: Reclaim, began_seconds: float | None = None) -> PolicyState:
    """Return the state after a reclaim is over: the last of this kind, if it began then (None: whenever)."""
    return state._replace(
        holds=tuple(
            replace(one, is_over=True)
            if one.kind is kind and began_seconds in {None, one.began_seconds}
            else one
            for one in state.holds
        ),
    )


def memory_hold(inputs: Inputs, threshold: Threshold) -> Hold | None:
    """Return the reclaim of what no pod holds that is to come before an eviction, None if none is.

    What a pod that has ended left behind belongs to no pod.
    """
    settings, state, snapshot, pods, now_seconds = inputs
    if threshold.signal not in MEMORY_SIGNALS or not may_be_due(settings, state, now_seconds, now_seconds):
        return None
    if is_memory_awaited(state):
        return None  # what victims bring back is seen first
    seen = inputs.seen(threshold)
    # In the pods' parents beside the pods: on a machine the system has its own memory.
    parents = snapshot.signals.get(Signal.ALLOCATABLE_MEMORY_AVAILABLE, seen)
    outside_bytes = memory_outside_pods(parents, pods, snapshot.pods)
    if settings.reclaims_ended_only and outside_bytes is not None:
        outside_bytes = min(outside_bytes, left_by_ended_bytes(state, {}, snapshot.pods))
    if outside_bytes is None or outside_bytes < least_worth_bytes(threshold, seen):
        return None
    return Hold(
        kind=Reclaim.MEMORY,
        reason=f"reclaim: {bytes_text(outside_bytes)} that belong to no pod are being reclaimed first",
        began_seconds=now_seconds,
        until_seconds=now_seconds + MOST_SECONDS,
        threshold=threshold,
        wanted_bytes=threshold.missing(seen),
        outside_bytes=outside_bytes,
        void_below_bytes=seen.available - LEAST_BYTES,
    )


def may_be_due(
    settings: EvictionSettings, state: PolicyState, now_seconds: float, until_seconds: float
) -> bool:
    """Return whether between these a reclaim of what no pod holds may be due, whatever is awaited now."""
    if not settings.reclaims_memory or (settings.reclaims_ended_only and not state.ineligible.emptied):
        return False
    is_recent = any(now_seconds - at < AFTER_EVICTION_SECONDS for at in state.evicted_at)
    before = _last(state, Reclaim.MEMORY)
    return is_recent and (before is None or until_seconds - before.began_seconds >= PAUSE_SECONDS)


def left_by_ended_bytes(state: PolicyState, bounds: Mapping[str, int], used: Mapping[str, PodUsage]) -> int:
    """Return what the cgroups of pods hold that an eviction has emptied, at the most if bounds are known."""
    return sum(bounds.get(uid, 0) or working_set_bytes(used, uid) or 0 for uid in state.ineligible.emptied)


def least_worth_bytes(threshold: Threshold, seen: Observation) -> int:
    """Return how much has to lie outside the pods, or more, that a reclaim is worth it."""
    return max(threshold.missing(seen), LEAST_BYTES)


def pod_hold(inputs: Inputs, threshold: Threshold) -> Hold | None:
    """Return the reclaim of the pods' own that is to come before a soft eviction, None if none is.

    To be asked if nothing else keeps the eviction from being ordered now.
    """
    settings, state, now_seconds = inputs.settings, inputs.state, inputs.now_seconds
    if not settings.reclaims_memory or settings.soft_reclaim_seconds <= 0 or not is_soft_memory(threshold):
        return None
    if any(map(is_hard_memory, state.thresholds_met)):
        return None
    before = _last(state, Reclaim.POD_MEMORY)
    if before is not None:
        since_seconds = state.first_observed.get(threshold, now_seconds)
        is_same_shortage = before.threshold == threshold and before.began_seconds >= since_seconds
        if is_same_shortage or now_seconds - before.began_seconds < SOFT_PAUSE_SECONDS:
            return None
    seen = inputs.seen(threshold)
    wanted_bytes = threshold.missing(seen) + int(threshold.value.of(seen.capacity)) // _MARGIN_SHARE
    return Hold(
        kind=Reclaim.POD_MEMORY,
        reason=f"reclaim: {bytes_text(wanted_bytes)} are being reclaimed from the pods first, "
        f"for {settings.soft_reclaim_seconds:g} s at most",
        began_seconds=now_seconds,
        until_seconds=now_seconds + settings.soft_reclaim_seconds,
        threshold=threshold,
        wanted_bytes=wanted_bytes,
    )


def _last(state: PolicyState, kind: Reclaim) -> Hold | None:
    return next((one for one in state.holds if one.kind is kind), None)


def is_soft_memory(threshold: Threshold) -> bool:
    return not threshold.is_hard and threshold.signal in MEMORY_SIGNALS
