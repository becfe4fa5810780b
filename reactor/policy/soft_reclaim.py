"""Memory is reclaimed from the pods' own cgroups before the first eviction for a soft memory threshold.

A soft threshold has time: what pods have not used for long can go to swap, or be read from the disk again,
before one of them ends. So where the operator wants that, its first eviction waits for a reclaim, once its
grace period is over: for as long as is configured at the most, once in each shortage, and not again for a
while. A hard memory threshold never waits for it, and none begins while one is met.
"""

from __future__ import annotations

from typing import Final

from reactor.model.decisions import PolicyState, SoftReclaim
from reactor.model.quantity import bytes_text
from reactor.model.settings import EvictionSettings
from reactor.model.signals import MEMORY_SIGNALS
from reactor.model.thresholds import Observation, Threshold
from reactor.policy.storm import is_hard_memory

PAUSE_SECONDS: Final = 60.0
# As much more than is missing, of the threshold: else the next allocation would be short of it again.
_MARGIN_SHARE: Final = 16


def soft_reclaim_wanted(
    settings: EvictionSettings,
    state: PolicyState,
    threshold: Threshold,
    seen: Observation,
    now_seconds: float,
) -> SoftReclaim | None:
    """Return the reclaim that is to be made before a pod is evicted for this threshold, None where none is.

    To be asked where nothing else keeps the eviction from being ordered now.
    """
    if not settings.reclaims_memory or settings.soft_reclaim_seconds <= 0 or not _is_soft_memory(threshold):
        return None
    if any(is_hard_memory(one) for one in state.thresholds_met):
        return None
    before = state.soft_reclaim
    if before is not None:
        since_seconds = state.first_observed.get(threshold, now_seconds)
        is_same_shortage = before.threshold == threshold and before.began_seconds >= since_seconds
        if is_same_shortage or now_seconds - before.began_seconds < PAUSE_SECONDS:
            return None
    return SoftReclaim(
        threshold=threshold,
        began_seconds=now_seconds,
        until_seconds=now_seconds + settings.soft_reclaim_seconds,
        wanted_bytes=threshold.missing(seen) + int(threshold.value.of(seen.capacity)) // _MARGIN_SHARE,
    )


def soft_reclaim_awaited(state: PolicyState, threshold: Threshold, now_seconds: float) -> str | None:
    """Return why no pod is to be evicted yet for a soft memory threshold, None where one may be."""
    reclaim = state.soft_reclaim
    if reclaim is None or not is_soft_reclaiming(state, now_seconds) or not _is_soft_memory(threshold):
        return None
    seconds = reclaim.until_seconds - reclaim.began_seconds
    return (
        f"reclaim: {bytes_text(reclaim.wanted_bytes)} are being reclaimed from the pods first, "
        f"for {seconds:g} s at most"
    )


def is_soft_reclaiming(state: PolicyState, now_seconds: float) -> bool:
    """Return whether soft evictions for memory wait for a reclaim."""
    reclaim = state.soft_reclaim
    return reclaim is not None and not reclaim.is_over and now_seconds < reclaim.until_seconds


def _is_soft_memory(threshold: Threshold) -> bool:
    return not threshold.is_hard and threshold.signal in MEMORY_SIGNALS
