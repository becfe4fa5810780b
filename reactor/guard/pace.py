"""How often to observe unasked: as often as it is of use, and no more than a share of a CPU.

What is observed again and again while a shortage lasts takes its time from the victims that are to free
memory, and in real time. So the pause follows from what the last one has cost: five times as long while a
pass may still kill. If none can, because no pod can be evicted or the run is a dry one, all of it together
takes a few tenths of a percent of a CPU.

While evictions are slowed down, next to nothing is to be done for seconds, but a hog that comes meanwhile is
to be killed. So the pauses are long there, too, but never so long that a fast hog takes all memory in one.
"""

from __future__ import annotations

import math
from typing import Final

_TIMES: Final = 5
_TIMES_POWERLESS: Final = 1000
_TIMES_SLOWED: Final = 100  # between two passes, the wake included
_TIMES_SLOWED_PASSES: Final = 200
_LONGEST_SLOWED_SECONDS: Final = 1.0
_HOG_BYTES_A_SECOND: Final = 4 << 30
_LONGEST_SECONDS: Final = 0.25  # what a pass has cost that was held up says nothing of the next
_LONGEST_POWERLESS_SECONDS: Final = 1.0
_LONGEST_POWERLESS_PASS_SECONDS: Final = 3.0
_HURRIED_SECONDS: Final = 1.0
_WAKE_SECONDS: Final = 0.00025  # to be woken by a timer, which is in no measurement


class Pace:
    """Knows what the last pass that evicted no pod has cost, and the last look between two passes."""

    def __init__(self) -> None:
        self._pass_seconds = 0.0
        self._look_seconds = 0.0
        self._hurried_until_seconds = -math.inf

    def passed(self, seconds: float) -> None:
        """Record what a pass has cost."""
        self._pass_seconds = seconds

    def looked(self, seconds: float) -> None:
        """Record what a look between two passes has cost."""
        self._look_seconds = seconds

    def between_passes_seconds(self, *, is_powerless: bool) -> float:
        """Return how long to wait for the next pass at least, where nothing but time asks for it."""
        longest_seconds = _LONGEST_POWERLESS_PASS_SECONDS
        return _pause_seconds(self._pass_seconds, longest_seconds, is_powerless=is_powerless)

    def between_slowed_passes_seconds(self) -> float:
        """Return how long to wait for the next pass at least while evictions are slowed down."""
        return min(_TIMES_SLOWED_PASSES * self._pass_seconds, _LONGEST_SLOWED_SECONDS)

    def between_looks_seconds(
        self, wanted_seconds: float, now_seconds: float, *, is_powerless: bool, left_bytes: int = 0
    ) -> float:
        """Return how long to wait for the next look where one is wanted after so long.

        `left_bytes` is what is available while evictions are slowed down.
        """
        is_seldom = is_powerless and not self.is_hurried(now_seconds)
        return max(
            wanted_seconds,
            _pause_seconds(self._look_seconds, is_powerless=is_seldom),
            min(_TIMES_SLOWED * (self._look_seconds + _WAKE_SECONDS), self._in_time_seconds(left_bytes)),
        )

    def _in_time_seconds(self, left_bytes: int) -> float:
        """Return how long a hog may go unobserved: what is left has to last for the pass and kill, too."""
        return left_bytes / _HOG_BYTES_A_SECOND - 2 * self._pass_seconds

    def hurry(self, now_seconds: float) -> None:
        """Look as often as is wanted for a second: a pod has come that may be evicted soon."""
        self._hurried_until_seconds = now_seconds + _HURRIED_SECONDS

    def is_hurried(self, now_seconds: float) -> bool:
        """Return whether a pod has come a moment ago."""
        return now_seconds < self._hurried_until_seconds


def _pause_seconds(
    cost_seconds: float, longest_powerless_seconds: float = _LONGEST_POWERLESS_SECONDS, *, is_powerless: bool
) -> float:
    if is_powerless:
        return min(_TIMES_POWERLESS * (cost_seconds + _WAKE_SECONDS), longest_powerless_seconds)
    return min(_TIMES * cost_seconds, _LONGEST_SECONDS)
