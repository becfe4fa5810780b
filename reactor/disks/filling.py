"""How fast a filesystem fills, and how soon it has to be looked at again for that.

A statvfs costs microseconds, but a crossing is seen only by a look. So looks come the more often the nearer
a threshold is: at half of the time that is left at the rate seen, and, since a disk at rest may begin to
fill at any moment, never later than the fastest disk could reach it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from reactor.model.signals import RESOURCE, Resource, Signal
from reactor.model.thresholds import Observation, Threshold

# What a node may be filled with at the worst, a second: a fast NVMe drive; files created on many CPUs.
_POSSIBLE_RATE: Final = {Resource.EPHEMERAL_STORAGE: 4 << 30, Resource.INODES: 400_000}
_SHORTEST_AT_REST_SECONDS: Final = 0.5
_SHORTEST_SECONDS: Final = 0.05
_WHILE_MET_SECONDS: Final = 1.0  # a threshold can only be crossed again once its end was seen


class Filling:
    """Follows the signals of the filesystems at one path, from one look to the next."""

    def __init__(self, thresholds: Sequence[Threshold]) -> None:
        self._thresholds = thresholds
        self._seen: Mapping[Signal, Observation] = {}
        self._seen_at_seconds = 0.0
        self._rates: dict[Signal, float] = {}

    def take(self, seen: Mapping[Signal, Observation], now_seconds: float) -> None:
        """Take over what a look showed. A filesystem that has changed its size starts again."""
        elapsed_seconds = now_seconds - self._seen_at_seconds
        rates = {}
        for signal, observation in seen.items():
            before = self._seen.get(signal)
            if before is None or before.capacity != observation.capacity or elapsed_seconds <= 0:
                continue
            rate = (before.available - observation.available) / elapsed_seconds
            # One pause in the writing is no end of it: a rate falls by half at each look, and rises at once.
            rates[signal] = max(rate, self._rates.get(signal, 0.0) / 2, 0.0)
        self._rates, self._seen, self._seen_at_seconds = rates, seen, now_seconds

    def rate(self, signal: Signal) -> float:
        """Return by how much the signal falls in a second at present."""
        return self._rates.get(signal, 0.0)

    def seconds_to(self, threshold: Threshold) -> float | None:
        """Return when the threshold is reached at the present rate; None: not known, or not at all."""
        margin, rate = self._margin(threshold), self.rate(threshold.signal)
        if margin is None or rate <= 0:
            return None
        return max(0.0, margin / rate)

    def pause_seconds(self, longest_seconds: float) -> float:
        """Return after how long to look again."""
        return min([longest_seconds, *self._pauses()])

    def _pauses(self) -> Iterable[float]:
        for threshold in self._thresholds:
            margin = self._margin(threshold)
            if margin is None:
                continue
            if margin < 0:
                yield _WHILE_MET_SECONDS
                continue
            possible = margin / _POSSIBLE_RATE[RESOURCE[threshold.signal]]
            left_seconds = self.seconds_to(threshold)
            at_this_rate = math.inf if left_seconds is None else max(left_seconds / 2, _SHORTEST_SECONDS)
            yield min(max(possible, _SHORTEST_AT_REST_SECONDS), at_this_rate)

    def _margin(self, threshold: Threshold) -> float | None:
        seen = self._seen.get(threshold.signal)
        if seen is None or threshold.is_absurd_at(seen.capacity):
            return None
        return float(seen.available - threshold.value.of(seen.capacity))
