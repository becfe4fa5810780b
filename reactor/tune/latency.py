"""How long it takes from a crossing to the kill (the reaction), and from there until the memory is free.

Both as measured, by each way of watching and by the size of the victim, and with the bound that a threshold
has to allow for.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from reactor.errors import RefusedError
from reactor.tune.history import History
from reactor.tune.measured import AS_CONFIGURED, Measured, Reaction

QUANTILE: Final = 0.999
CONFIDENCE: Final = 0.95
SHAPE: Final = 0.4
FEWEST: Final = 5
_TAIL_SHARE: Final = 0.2
_FEWEST_EXCESSES: Final = 8
_RESAMPLES: Final = 400
_SEED: Final = 6  # the same samples give the same bound

_SMALLEST_SHARE: Final = 0.1  # of the largest victim: smaller ones measure the scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """What samples show, and the bound of their p99.9; all in the samples' unit.

    p50 and p99 are by nearest rank: each is a sample.
    """

    n: int
    p50: float
    p99: float
    max: float
    bound: float

    @property
    def max_is_below_probability(self) -> float:
        """Return how likely it is that even the largest sample lies below the p99.9."""
        return float(QUANTILE**self.n)


def tail_of(values: Sequence[float]) -> Tail:
    """Return what the values show. Raises ValueError for fewer than FEWEST of them, or a negative one."""
    if len(values) < FEWEST:
        raise ValueError(f"{len(values)} values; a bound needs {FEWEST}")
    ordered = sorted(values)
    if ordered[0] < 0:
        raise ValueError(f"{ordered[0]!r} is negative")

    def rank(percent: int) -> float:
        return ordered[math.ceil(len(ordered) * percent / 100) - 1]

    return Tail(n=len(ordered), p50=rank(50), p99=rank(99), max=ordered[-1], bound=_bound(ordered))


def _bound(ordered: Sequence[float]) -> float:
    count = min(max(math.ceil(len(ordered) * _TAIL_SHARE), _FEWEST_EXCESSES), len(ordered) - 1)
    level = ordered[-count - 1]
    excesses = [value - level for value in ordered[-count:]]
    chance = random.Random(_SEED)  # noqa: S311 - resampling, nothing secret
    means = sorted(sum(chance.choices(excesses, k=count)) / count for _ in range(_RESAMPLES))
    mean = means[math.ceil(CONFIDENCE * _RESAMPLES) - 1]
    # Quantile of the generalised Pareto distribution whose mean is scale / (1 - shape).
    times = count / len(ordered) / (1 - QUANTILE)
    return max(ordered[-1], level + mean * (1 - SHAPE) / SHAPE * (math.pow(times, SHAPE) - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """What one way of watching showed under one load, in seconds.

    `source` is what woke the daemon most often.
    """

    way: str
    load: str
    source: str
    wake: Tail
    kill: Tail
    freed: Tail
    overshoot_bytes: int


def latencies_of(reactions: Iterable[Reaction]) -> tuple[Latency, ...]:
    """Return what each way showed under each load, as measured first; left out where that is too little."""
    groups: dict[tuple[str, str], list[Reaction]] = {}
    for reaction in reactions:
        groups.setdefault((reaction.way, reaction.load), []).append(reaction)
    return tuple(
        Latency(
            way=way,
            load=load,
            source=Counter(reaction.source for reaction in group).most_common(1)[0][0],
            wake=tail_of([reaction.wake_seconds for reaction in group]),
            kill=tail_of([reaction.kill_seconds for reaction in group]),
            freed=tail_of([reaction.freed_seconds for reaction in group]),
            overshoot_bytes=max(reaction.overshoot_bytes for reaction in group),
        )
        for (way, load), group in groups.items()
        if len(group) >= FEWEST
    )


def reaction_bound(latencies: Sequence[Latency], history: History) -> tuple[float, str]:
    """Return the bound from crossing to kill under the worst load, and where it comes from.

    What the daemon took in service counts as well: its crossings are not known there, only its wakes.
    Raises RefusedError where too little was measured.
    """
    configured = [latency for latency in latencies if latency.way == AS_CONFIGURED]
    if not configured:
        raise RefusedError(f"too few crossings were measured: a bound needs {FEWEST} under one load")
    worst = max(configured, key=lambda latency: latency.kill.bound)
    bound = worst.kill.bound
    why = f"{worst.load}: the largest of {worst.kill.n} was {worst.kill.max * 1e3:.3g} ms"
    lived = [crossing.killed_seconds for crossing in history.crossings if crossing.killed_seconds is not None]
    if lived:
        wakes = max(latency.wake.bound for latency in configured)
        in_service = wakes + (tail_of(lived).bound if len(lived) >= FEWEST else max(lived))
        if in_service > bound:
            slowest = f"the largest of {len(lived)} was {max(lived) * 1e3:.3g} ms"
            wake = f"the wake as measured, up to {wakes * 1e3:.3g} ms"
            return in_service, f"{wake}, and from there to the kill in the history: {slowest}"
    return bound, why


@dataclass(frozen=True, slots=True, kw_only=True)
class Freeing:
    """A straight line through what was seen, and how far above it single victims lay (`ratio`, 1 is on it).

    The bound of a victim's time is the line's times the bound of the ratio.
    """

    base_seconds: float
    seconds_per_byte: float
    ratio: Tail

    def usual_seconds(self, victim_bytes: int) -> float:
        """Return what the line says."""
        return self.base_seconds + self.seconds_per_byte * victim_bytes

    def bound_seconds(self, victim_bytes: int) -> float:
        """Return what 999 of 1000 victims of that size stay below."""
        return self.usual_seconds(victim_bytes) * self.ratio.bound


def freeing_of(measured: Measured, history: History) -> Freeing:
    """Return how long freeing takes, by all victims that were seen. Raises RefusedError for too few."""
    found = list(_seen(measured, history))
    smallest_bytes = _SMALLEST_SHARE * max((size for size, _ in found), default=0)
    seen = [(size, seconds) for size, seconds in found if size >= smallest_bytes and size]
    if len(seen) < FEWEST:
        raise RefusedError(f"only {len(seen)} victims were seen to free their memory; {FEWEST} are needed")
    base_seconds, seconds_per_byte = _line(seen)
    ratios = [seconds / (base_seconds + seconds_per_byte * size) for size, seconds in seen]
    return Freeing(base_seconds=base_seconds, seconds_per_byte=seconds_per_byte, ratio=tail_of(ratios))


def _seen(measured: Measured, history: History) -> Iterator[tuple[int, float]]:
    """Yield size and time of every victim. Huge pages come back faster and would flatter the others."""
    for growth in measured.growths:
        if growth.allocators == 1 and not growth.huge_pages:
            yield growth.size_bytes, growth.freed_seconds
    for reaction in measured.reactions:
        yield reaction.victim_bytes, reaction.freed_seconds
    for crossing in history.crossings:
        if crossing.victim_bytes is not None and crossing.freed_seconds is not None and crossing.evicted == 1:
            yield crossing.victim_bytes, crossing.freed_seconds


def _line(seen: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Return base and slope by least squares, neither below zero, and not both zero."""
    count = len(seen)
    mean_size = sum(size for size, _ in seen) / count
    mean_seconds = max(sum(seconds for _, seconds in seen) / count, 1e-6)
    spread = sum((size - mean_size) ** 2 for size, _ in seen)
    if spread > 0:
        slope = sum((size - mean_size) * (seconds - mean_seconds) for size, seconds in seen) / spread
        base = mean_seconds - slope * mean_size
        if slope >= 0 and base >= 0:
            return base, slope
        if slope >= 0:
            through_zero = sum(size * seconds for size, seconds in seen) / sum(size**2 for size, _ in seen)
            return 0.0, max(through_zero, 1e-15)
    return mean_seconds, 0.0
