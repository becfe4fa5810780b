"""Soft memory thresholds whose grace period would end only after the hard threshold is crossed.

With `softEviction: inTime` such a threshold is due before its grace period is over: the first in the ranking
is asked to end with the time that is left. It is due once even the slowest of the likely rates crosses the
hard threshold within the grace period, and not while there is more than twice the time that a pod is allowed
for its end: until then the fall may still stop.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from reactor.model.decisions import TimeLeft
from reactor.model.settings import EvictionSettings
from reactor.model.signals import MEMORY_SIGNALS, Signal
from reactor.model.thresholds import Threshold

_FRESH_SECONDS: Final = 1.0
_TIMES_ALLOWED: Final = 2.0


def due_in_time(
    settings: EvictionSettings,
    first_observed: Mapping[Threshold, float],
    time_left: Mapping[Signal, TimeLeft],
    now_seconds: float,
) -> dict[Threshold, TimeLeft]:
    """Return the soft thresholds that are due before their grace period is over, with the time left."""
    if not settings.soft_in_time or not time_left:
        return {}
    return {
        threshold: left
        for threshold, since_seconds in first_observed.items()
        if not threshold.is_hard
        and threshold.signal in MEMORY_SIGNALS
        and (left := time_left.get(threshold.signal)) is not None
        and _is_due(settings, left, since_seconds + threshold.grace_period_seconds - now_seconds, now_seconds)
    }


def _is_due(
    settings: EvictionSettings, left: TimeLeft, grace_left_seconds: float, now_seconds: float
) -> bool:
    if left.latest_seconds is None or left.earliest_seconds is None:
        return False
    age_seconds = now_seconds - left.at_seconds
    if not 0 <= age_seconds <= _FRESH_SECONDS or grace_left_seconds <= 0:
        return False
    allowed_seconds = settings.max_pod_grace_period_seconds  # without any, sooner would be no gentler
    is_near = allowed_seconds < 0 or left.earliest_seconds <= _TIMES_ALLOWED * allowed_seconds
    return allowed_seconds != 0 and is_near and left.latest_seconds - age_seconds < grace_left_seconds


def grace_period_in_time(left: TimeLeft, allowed_seconds: int) -> int:
    """Return how long a pod may take to end that would be allowed more; the crossing kills it at once."""
    return min(allowed_seconds, max(1, math.ceil(left.latest_seconds or 0.0)))
