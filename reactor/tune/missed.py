"""What an existing configuration would miss, by the same numbers that the recommendation is made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from reactor.model.settings import Settings
from reactor.model.signals import Signal
from reactor.model.thresholds import Threshold
from reactor.tune.history import History
from reactor.tune.model import Recommendation, covered_rate_bytes
from reactor.tune.words import amount, duration, rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a configuration covers and what it misses, one sentence each."""

    covers: tuple[str, ...]
    misses: tuple[str, ...]


def verdict(settings: Settings, found: Recommendation, history: History) -> Verdict:
    """Return what the configuration covers and misses on this node."""
    hard = _threshold(settings, hard=True)
    soft = _threshold(settings, hard=False)
    if hard is None:
        return Verdict(
            covers=(),
            misses=("no hard threshold for memory.available: the kernel's OOM killer is the only answer",),
        )
    hard_bytes = int(hard.value.of(found.node.capacity_bytes))
    misses = [
        *_general(settings, history),
        *_hard_misses(hard, hard_bytes, found),
        *_history_misses(hard_bytes, found, history),
        *_soft_misses(settings, soft, hard_bytes, found, history),
    ]
    covers = _covers(hard, hard_bytes, found, settings.housekeeping_interval_seconds)
    return Verdict(covers=tuple(covers), misses=tuple(misses))


def _threshold(settings: Settings, *, hard: bool) -> Threshold | None:
    fitting = [
        threshold
        for threshold in settings.eviction.thresholds
        if threshold.signal is Signal.MEMORY_AVAILABLE and threshold.is_hard is hard
    ]
    return fitting[0] if fitting else None


def _covers(
    hard: Threshold, hard_bytes: int, found: Recommendation, interval_seconds: float
) -> Iterator[str]:
    if hard_bytes <= found.terms.reserve_bytes:
        return
    covered = covered_rate_bytes(hard_bytes, found.seconds, found.terms.reserve_bytes)
    yield f"{hard} answers allocators of up to {rate(covered)} before the reserve is touched"
    for one in found.cases:
        if one.needed_bytes <= hard_bytes:
            yield f"{one.name} ({rate(one.rate_bytes)})"
    ticked = covered_rate_bytes(hard_bytes, found.seconds + interval_seconds, found.terms.reserve_bytes)
    yield f"should every kernel event fail, the ticker alone (every {interval_seconds:g} s): {rate(ticked)}"


def _general(settings: Settings, history: History) -> Iterator[str]:
    if settings.dry_run:
        yield "dryRun is on: no pod is evicted at all"
    if history.missed:
        yield f"the kernel's OOM killer has killed {history.missed} processes: the node was out of memory"


def _hard_misses(hard: Threshold, hard_bytes: int, found: Recommendation) -> Iterator[str]:
    terms = found.terms
    if hard_bytes < terms.reserve_bytes:
        yield (
            f"{hard} is below the reserve of {amount(terms.reserve_bytes)}: the kernel reclaims in the "
            "allocators' own time before it is crossed"
        )
    for one in found.cases:
        wanted = one.needed_bytes
        if wanted > hard_bytes:
            yield (
                f"{one.name}: takes {amount(wanted - terms.reserve_bytes)} at {rate(one.rate_bytes)} before "
                f"memory is back, with the reserve {amount(wanted)}: {amount(wanted - hard_bytes)} more than "
                f"{hard} keeps"
            )


def _history_misses(hard_bytes: int, found: Recommendation, history: History) -> Iterator[str]:
    covered = covered_rate_bytes(hard_bytes, found.seconds, found.terms.reserve_bytes)
    faster = [one for one in history.rates_bytes if one > covered]
    if faster:
        yield (
            f"memory grew faster than that {len(faster)} times of the {len(history.rates_bytes)} that the "
            f"history has, by up to {rate(max(faster))}"
        )


def _soft_misses(
    settings: Settings, soft: Threshold | None, hard_bytes: int, found: Recommendation, history: History
) -> Iterator[str]:
    if soft is None:
        yield "no soft threshold for memory.available: no pod is ever given time to exit by itself"
        return
    room_bytes = int(soft.value.of(found.node.capacity_bytes)) - hard_bytes
    if room_bytes <= 0:
        yield f"{soft} is not above the hard threshold, which therefore always comes first"
        return
    pod_seconds = settings.eviction.max_pod_grace_period_seconds
    if pod_seconds == 0:
        yield "evictionMaxPodGracePeriod is 0: pods evicted for the soft threshold are killed at once"
    if 0 <= pod_seconds < max(history.terminated_seconds, default=0.0):
        slowest = duration(max(history.terminated_seconds))
        yield f"pods took up to {slowest} to exit, and are given {pod_seconds} s"
    seconds = soft.grace_period_seconds + max(0, pod_seconds)
    served = room_bytes / seconds
    if served < found.soft.rate_bytes:
        yield (
            f"{soft} leaves {amount(room_bytes)} above the hard threshold: enough for its grace periods of "
            f"{seconds:g} s up to {rate(served)}; {rate(found.soft.rate_bytes)} have to be expected"
        )
    early = [spell for spell in history.spells_seconds if spell >= soft.grace_period_seconds]
    if early:
        yield (
            f"{len(early)} of {len(history.spells_seconds)} shortages that passed by themselves lasted "
            f"longer than its grace period of {soft.grace_period_seconds:g} s"
        )
