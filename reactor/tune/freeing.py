"""How long a victim's memory takes to come back, by its size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from reactor.errors import RefusedError
from reactor.tune.history import History
from reactor.tune.measured import Measured
from reactor.tune.tail import FEWEST, Tail, tail_of

_SMALLEST_SHARE: Final = 0.1  # of the largest victim: smaller ones measure the scheduler


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
        raise RefusedError(
            f"only {len(seen)} victims were seen to give their memory back; {FEWEST} are needed"
        )
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
