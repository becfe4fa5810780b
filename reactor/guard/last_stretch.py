"""The last stretch before a crossing: memory is read again and again while it is being taken.

The nearer early level wakes the loop one or two milliseconds before an allocator at full speed crosses the
threshold. To wait for the event of the crossing from there is slow: cgroup v1 checks a threshold every 128
pages of a CPU, a sleeping task is awake after 0.1 ms, and meanwhile the allocator fills the caches with its
pages, in which the same pass takes twice as long. So the loop does not sleep: it reads the node every 0.05 ms
and sees the crossing itself. Where it gives up, the event comes as ever.

The loop has no time for anything else meanwhile, and so stays for a few milliseconds at the most, for 1 ms
where memory stands still, and not again for a while: usage that swings about the level takes 1 % of a CPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from reactor.guard.readiness import ahead_bytes
from reactor.model.signals import MEMORY_SIGNALS, Signal
from reactor.model.thresholds import Observation, Threshold

_MOST_SECONDS: Final = 0.005
_STILL_SECONDS: Final = 0.001  # charges are counted 64 pages at a time: every 0.25 ms at 1 GiB/s
_PAUSE_SECONDS: Final = 0.00005
_REST_SECONDS: Final = 0.1
_LAG: Final = 2  # page cache may have lifted the crossing since the early level was armed


class LastStretch:
    """Sees the crossings of hard memory thresholds that are imminent. `observe` reads the memory signals."""

    def __init__(
        self,
        thresholds: Iterable[Threshold],
        observe: Callable[[], Mapping[Signal, Observation]],
        *,
        clock_seconds: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._thresholds = tuple(
            threshold for threshold in thresholds if threshold.is_hard and threshold.signal in MEMORY_SIGNALS
        )
        self._observe = observe
        self._clock_seconds = clock_seconds
        self._sleep = sleep
        self._rests_until_seconds = 0.0

    def watch(self, memory: Mapping[Signal, Observation]) -> bool:
        """Stay until a threshold is crossed; return False where that is not imminent, or does not come.

        `memory` is as just observed: where a threshold is crossed already, a pass has seen to it. Blocks.
        """
        left_bytes = self._left_bytes(memory)
        now_seconds = self._clock_seconds()
        if left_bytes is None or left_bytes < 0 or now_seconds < self._rests_until_seconds:
            return False
        until_seconds, still_until_seconds = now_seconds + _MOST_SECONDS, now_seconds + _STILL_SECONDS
        while left_bytes >= 0 and now_seconds < min(until_seconds, still_until_seconds):
            self._sleep(_PAUSE_SECONDS)
            now_left_bytes = self._left_bytes(self._observe())
            now_seconds = self._clock_seconds()
            if now_left_bytes is None:
                break
            if now_left_bytes < left_bytes:
                left_bytes, still_until_seconds = now_left_bytes, now_seconds + _STILL_SECONDS
        self._rests_until_seconds = now_seconds + _REST_SECONDS
        return left_bytes < 0

    def _left_bytes(self, memory: Mapping[Signal, Observation]) -> int | None:
        """Return how much may be taken until the first threshold is crossed, below 0 if one is.

        None where none is imminent.
        """
        left_bytes = None
        for threshold in self._thresholds:
            seen = memory.get(threshold.signal)
            if seen is None or seen.absurdity is not None or threshold.is_absurd_at(seen.capacity):
                continue
            own_left_bytes = seen.available - int(threshold.value.of(seen.capacity))
            if own_left_bytes < _LAG * ahead_bytes(seen.capacity)[-1]:
                left_bytes = own_left_bytes if left_bytes is None else min(left_bytes, own_left_bytes)
        return left_bytes
