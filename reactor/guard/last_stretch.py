"""The last stretch before a crossing: usage is read again and again, and its pass is rehearsed.

The nearer early level wakes the loop some milliseconds before an allocator crosses the threshold. To wait for
the event of the crossing from there is slow: cgroup v1 checks a threshold every 128 pages of a CPU, a task
that sleeps is awake after 0.1 ms, and meanwhile others fill the caches with their pages, in which the same
pass takes twice as long. So the loop stays. It reads usage every 0.3 ms and sees the crossing itself, at the
level that the kernel watches; in between it prepares the likeliest victims again, which leads through the
code of the pass and its counters. Where it gives up, the event comes as ever.

The loop has no time for anything else meanwhile. So it stays for a few milliseconds at the most, less where
usage stands still, and not again for a while: usage that swings about the early level takes 1 % of a CPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from typing import Final

from reactor.sources.levels import MemoryLevel

_MOST_SECONDS: Final = 0.01
# Charges are counted 64 pages at a time, every 0.25 ms at 1 GiB/s; and an allocator may wait for its CPU.
_STILL_SECONDS: Final = 0.004
_PAUSE_SECONDS: Final = 0.00025
_REST_SECONDS: Final = 0.1
_REACH_BYTES: Final = 6 << 20  # twice the nearer early level: page cache may have lifted the crossing since


class LastStretch:
    """Sees a crossing that is imminent.

    `usage_bytes` reads a cgroup's usage, None where it has none; `rehearse` prepares for the crossing.
    """

    def __init__(
        self,
        usage_bytes: Callable[[str], int | None],
        rehearse: Callable[[], None],
        *,
        clock_seconds: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._usage_bytes = usage_bytes
        self._rehearse = rehearse
        self._clock_seconds = clock_seconds
        self._sleep = sleep
        self._rests_until_seconds = 0.0

    def watch(self, levels: Sequence[MemoryLevel]) -> MemoryLevel | None:
        """Stay until usage is at one of these levels, and return it; None where that does not come soon.

        `levels` are those of hard thresholds at which a crossing is. Where usage is at one already a pass
        has seen to it. Blocks.
        """
        now_seconds = self._clock_seconds()
        if now_seconds < self._rests_until_seconds:
            return None
        nearest, left_bytes = self._nearest(levels)
        if nearest is None or left_bytes >= _REACH_BYTES:
            return None
        until_seconds, still_until_seconds = now_seconds + _MOST_SECONDS, now_seconds + _STILL_SECONDS
        steps: Iterator[Callable[[], None]] = cycle((self._pause, self._rehearse))
        while left_bytes > 0 and now_seconds < min(until_seconds, still_until_seconds):
            next(steps)()
            usage_bytes = self._usage_bytes(nearest.cgroup)
            now_seconds = self._clock_seconds()
            if usage_bytes is None:
                break
            now_left_bytes = nearest.level_bytes - usage_bytes
            if now_left_bytes < left_bytes:
                left_bytes, still_until_seconds = now_left_bytes, now_seconds + _STILL_SECONDS
        self._rests_until_seconds = now_seconds + _REST_SECONDS
        return nearest if left_bytes <= 0 else None

    def _pause(self) -> None:
        self._sleep(_PAUSE_SECONDS)

    def _nearest(self, levels: Sequence[MemoryLevel]) -> tuple[MemoryLevel | None, int]:
        """Return the level that is crossed next, and how much is left until it."""
        nearest, left_bytes = None, 0
        for level in levels:
            usage_bytes = self._usage_bytes(level.cgroup)
            if usage_bytes is None or usage_bytes >= level.level_bytes:
                continue
            if nearest is None or level.level_bytes - usage_bytes < left_bytes:
                nearest, left_bytes = level, level.level_bytes - usage_bytes
        return nearest, left_bytes
