"""Memory that no pod holds is reclaimed before a further pod is evicted for it.

The first eviction goes by upstream's arithmetic. It may leave page cache and slab of a dead cgroup: they
belong to no pod any more, and are charged to the cgroup above. Further evictions free none of that; a reclaim
does, in a fraction of a second. So if the memory outside the pods would be enough, a reclaim comes before the
next eviction: for a moment, not again for a while, and it delays no eviction while the shortage grows. Less
than 1 MiB is not reclaimed first: the kernel itself holds about as much for the pods' cgroups, the counters
are read one after the other, and a shortage that grows by as much waits no longer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from reactor.model.decisions import MemoryReclaim, PolicyState, Snapshot
from reactor.model.pods import Pod, PodUsage
from reactor.model.quantity import bytes_text
from reactor.model.settings import EvictionSettings
from reactor.model.signals import MEMORY_SIGNALS, Signal
from reactor.model.thresholds import Observation, Threshold
from reactor.policy.in_flight import is_dying
from reactor.policy.outside import memory_outside_pods

MOST_SECONDS: Final = 0.5
PAUSE_SECONDS: Final = 10.0
AFTER_EVICTION_SECONDS: Final = 30.0
LEAST_BYTES: Final = 1 << 20
_FALL_BYTES: Final = LEAST_BYTES


def reclaim_wanted(
    settings: EvictionSettings,
    state: PolicyState,
    threshold: Threshold,
    snapshot: Snapshot,
    pods: Sequence[Pod],
    now_seconds: float,
) -> MemoryReclaim | None:
    """Return the reclaim that is to be made before a pod is evicted for this threshold, None where none is.

    `pods` are those that may be ranked: what a pod that has ended left behind belongs to no pod.
    """
    if not settings.reclaims_memory or threshold.signal not in MEMORY_SIGNALS:
        return None
    if not _is_due(state, now_seconds):
        return None
    seen = snapshot.signals[threshold.signal]
    outside_bytes = _outside_bytes(snapshot.signals, seen, pods, snapshot.pods)
    if outside_bytes is None or outside_bytes < least_worth_bytes(threshold, seen):
        return None
    return MemoryReclaim(
        signal=threshold.signal,
        began_seconds=now_seconds,
        until_seconds=now_seconds + MOST_SECONDS,
        available_bytes=seen.available,
        wanted_bytes=threshold.missing(seen),
        outside_bytes=outside_bytes,
    )


def least_worth_bytes(threshold: Threshold, seen: Observation) -> int:
    """Return how much has to lie outside the pods, or more, that a reclaim is worth it."""
    return max(threshold.missing(seen), LEAST_BYTES)


def reclaim_awaited(
    state: PolicyState, threshold: Threshold, seen: Observation, now_seconds: float
) -> str | None:
    """Return why no pod is to be evicted yet for a reclaim's sake, None where one may be."""
    reclaim = state.memory_reclaim
    if reclaim is None or not is_reclaiming(state, now_seconds):
        return None
    if threshold.signal is not reclaim.signal or seen.available < reclaim.available_bytes - _FALL_BYTES:
        return None
    return f"reclaim: {bytes_text(reclaim.outside_bytes)} that belong to no pod are being reclaimed first"


def is_reclaiming(state: PolicyState, now_seconds: float) -> bool:
    """Return whether evictions may be waiting for a reclaim."""
    reclaim = state.memory_reclaim
    return reclaim is not None and not reclaim.is_over and now_seconds < reclaim.until_seconds


def may_be_due(state: PolicyState, now_seconds: float, until_seconds: float) -> bool:
    """Return whether between these a reclaim may be due, whatever is awaited now."""
    before = state.memory_reclaim
    is_recent = any(now_seconds - at < AFTER_EVICTION_SECONDS for at in state.evicted_at)
    return is_recent and (before is None or until_seconds - before.began_seconds >= PAUSE_SECONDS)


def _is_due(state: PolicyState, now_seconds: float) -> bool:
    if state.oom_victims or is_dying(state):
        return False  # what they bring back is seen first
    return may_be_due(state, now_seconds, now_seconds)


def _outside_bytes(
    signals: Mapping[Signal, Observation],
    seen: Observation,
    pods: Sequence[Pod],
    used: Mapping[str, PodUsage],
) -> int | None:
    """Return what lies in the pods' parents beside the pods; on a machine the system has its own memory."""
    parents = signals.get(Signal.ALLOCATABLE_MEMORY_AVAILABLE, seen)
    return memory_outside_pods(parents, pods, used)
