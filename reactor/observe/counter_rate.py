"""How fast a counter of the kernel's grows, over a window: pure, instants are arguments.

A rate is the mean over the whole window, so that one burst does not look like a flood. It is known only once
the window has been observed from its begin to now: a rate over two seconds is none over ten.
"""

from __future__ import annotations

from collections import deque
from typing import Final

# Samples closer than such a part of the window are merged: memory is bounded, however often it is fed.
_MOST_SAMPLES: Final = 64


class CounterRate:
    """The rate of one counter over the last `window_seconds`.

    A counter that has gone back is another one (a cgroup was made again, the machine was restored), and what
    could not be read is not known: both begin a window anew.
    """

    def __init__(self, window_seconds: float) -> None:
        self.window_seconds = window_seconds
        self._samples: deque[tuple[float, int]] = deque()

    def take(self, count: int | None, at_seconds: float) -> None:
        """Take note of the counter at this time, None where it could not be read; times only go forward."""
        samples = self._samples
        if count is None or (samples and count < samples[-1][1]):
            samples.clear()
        if count is None:
            return
        if len(samples) > 1 and at_seconds - samples[-2][0] < self.window_seconds / _MOST_SAMPLES:
            samples.pop()
        samples.append((at_seconds, count))
        while len(samples) > 2 and samples[1][0] <= at_seconds - self.window_seconds:
            samples.popleft()

    def per_second(self) -> float | None:
        """Return the rate over the window that ends with the last sample; None where it is not known yet."""
        if len(self._samples) < 2:
            return None
        (began, first), (ended, last) = self._samples[0], self._samples[-1]
        if began > ended - self.window_seconds:  # as `take` has it: by a difference it could round otherwise
            return None
        return (last - first) / (ended - began)
