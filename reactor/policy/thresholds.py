"""Which thresholds are met, since when, and in which order they are acted on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from reactor.model.settings import EvictionSettings
from reactor.model.signals import MEMORY_SIGNALS, Signal
from reactor.model.thresholds import Observation, Threshold

_FIRST = {Signal.MEMORY_AVAILABLE: 0, Signal.ALLOCATABLE_MEMORY_AVAILABLE: 1}


def absurdities(observations: Mapping[Signal, Observation]) -> dict[Signal, str]:
    """Return the signals whose numbers can't be true, each with the reason. They count as unobserved."""
    seen = observations.items()  # a pass asks this of all signals
    doubted = [(signal, one) for signal, one in seen if not 0 <= one.available <= one.capacity > 0]
    return {signal: why for signal, one in doubted if (why := one.absurdity) is not None}


def is_met(threshold: Threshold, observation: Observation, *, with_minimum_reclaim: bool = False) -> bool:
    """Return whether less is available than the threshold asks for, its minimum reclaim added if wanted.

    A threshold at or above the capacity is never met: it could only evict every pod. Upstream acts on it.
    """
    wanted = threshold.value.of(observation.capacity)
    if wanted >= observation.capacity:
        return False
    if with_minimum_reclaim:
        wanted = threshold.target(observation.capacity)
    return observation.available < wanted


def thresholds_met(
    thresholds: Iterable[Threshold],
    observations: Mapping[Signal, Observation],
    *,
    with_minimum_reclaim: bool = False,
) -> tuple[Threshold, ...]:
    """Return the thresholds that the observations cross, in the order given.

    An unobserved signal crosses nothing.
    """
    return tuple(
        threshold
        for threshold in thresholds
        if (observation := observations.get(threshold.signal)) is not None
        and is_met(threshold, observation, with_minimum_reclaim=with_minimum_reclaim)
    )


def is_kept_by_cache(thresholds: Iterable[Threshold], memory: Mapping[Signal, Observation]) -> bool:
    """Return whether a hard memory threshold is met only without the page cache that counts as available."""
    bare = {
        signal: seen._replace(available=seen.available - (seen.inactive_file_bytes or 0))
        for signal, seen in memory.items()
        if seen.absurdity is None
    }
    kept = set(thresholds_met(thresholds, bare)).difference(thresholds_met(thresholds, memory))
    return any(map(is_hard_memory, kept))


def elapsed_seconds(since_seconds: float, now_seconds: float) -> float:
    """Return the time between two instants in whole nanoseconds, as upstream counts: 3.3 less 2.2 is 1.1."""
    return round(now_seconds - since_seconds, 9)


def thresholds_met_grace_period(
    first_observed: Mapping[Threshold, float], now_seconds: float
) -> tuple[Threshold, ...]:
    return tuple(
        threshold
        for threshold, since in first_observed.items()
        if elapsed_seconds(since, now_seconds) >= threshold.grace_period_seconds
    )


def in_eviction_order(
    thresholds: Iterable[Threshold], configured: Sequence[Threshold]
) -> tuple[Threshold, ...]:
    """Return the thresholds in the order in which they are acted on.

    Memory first, allocatable memory second, the others as configured; within each, hard before soft.
    """

    def place(one: Threshold) -> tuple[int, bool, int]:
        return _FIRST.get(one.signal, len(_FIRST)), not one.is_hard, configured.index(one)

    return tuple(sorted(thresholds, key=place))


def thresholds_with_fresh_statistics(
    thresholds: Iterable[Threshold],
    observations: Mapping[Signal, Observation],
    observed_at: Mapping[Signal, float | None],
) -> tuple[Threshold, ...]:
    """Return the thresholds whose signal was observed again since `observed_at`, the pass before.

    An observation without a time is as fresh as the pass.
    """
    return tuple(
        threshold
        for threshold in thresholds
        if (observation := observations.get(threshold.signal)) is not None
        and _is_newer(observation.taken_at_seconds, observed_at.get(threshold.signal))
    )


def _is_newer(taken_at_seconds: float | None, before_seconds: float | None) -> bool:
    return taken_at_seconds is None or before_seconds is None or taken_at_seconds > before_seconds


def is_judged(settings: EvictionSettings, threshold: Threshold) -> bool:
    """Return whether its kills are judged by what they bring back (kill_results.py)."""
    return threshold.signal in MEMORY_SIGNALS and (threshold.is_hard or settings.soft_in_time)


def is_hard_memory(threshold: Threshold | None) -> bool:
    """Return whether a threshold is one that the slowdowns are about."""
    return threshold is not None and threshold.is_hard and threshold.signal in MEMORY_SIGNALS
