"""The time until what is available falls below a threshold, from samples of it.

The same fall is measured over windows of 0.3 s to a minute. In each window the rate is the median of the
slopes between points that lie half of the window apart, and the outermost of these slopes are its bounds. A
window counts if all of this holds:

- it falls steadily: every slope but the outliers falls, and the fastest at most four times as fast as the
  slowest;
- it has lasted: a fall is believed for twice as far ahead as it has been observed;
- it goes on: the last new low is not longer ago than one and a half of the pauses between those before;
- it is deeper, by a quarter, than any fall of the last minute from which half came back: memory that goes up
  and down comes back once more.

If no window counts, the time is not foreseeable. No amount of bytes is built in: the same samples in other
units give the same time.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final, NamedTuple

from reactor.model.decisions import TimeLeft
from reactor.model.thresholds import ThresholdValue

_SHORTEST_SECONDS: Final = 0.3
_LONGEST_SECONDS: Final = 60.0
_WINDOWS: Final = tuple(_SHORTEST_SECONDS * 1.3**step for step in range(21))  # the last one is 57 s
_POINTS: Final = 8
_DISTANCES: Final = tuple(point / (_POINTS - 1) for point in range(1, _POINTS))
_FEWEST_POINTS: Final = 4
_COVERED: Final = 0.85  # of a window, by samples
_OUTLIERS_FROM: Final = 8  # slopes: of so many the outermost two are left out
_STEADY: Final = 4.0
_AHEAD: Final = 2.0
_PAUSES: Final = 1.5
_SHORTEST_PAUSE_SECONDS: Final = 0.25
_DEEPER: Final = 1.25
_RECOVERED: Final = 0.5
_FULL_SECONDS: Final = 2.0
_PER_AGE: Final = 10.0  # samples stand a tenth of their age apart from the next but one
_TURNS: Final = 40.0
_READING: Final = 1.1  # a sample lies anywhere in its interval, an allocator takes pieces
_GAP_SECONDS: Final = 2.0
_NEW: Final = 20

_FEW: Final = "too few samples yet"
_USUAL: Final = "falls as deep have come back within the last minute"
_RISING: Final = "what is available does not fall steadily"


class Sample(NamedTuple):
    """What was available at a moment of a clock that only goes forward."""

    at_seconds: float
    available_bytes: int


class Samples:
    """The samples of the last minute, fewer of them the older they are: 200 at the most at ten a second.

    A gap, another capacity or an absurd number begins anew.
    """

    def __init__(self) -> None:
        self._samples: list[Sample] = []
        self._capacity_bytes = 0
        self._foreseen_since: float | None = None

    def clear(self) -> None:
        self._samples, self._foreseen_since = [], None

    def add(self, at_seconds: float, available_bytes: int, capacity_bytes: int) -> None:
        """Take over a sample, unless the clock stands still."""
        is_absurd = not 0 <= available_bytes <= capacity_bytes or not math.isfinite(at_seconds)
        if is_absurd or capacity_bytes != self._capacity_bytes:
            self.clear()
        self._capacity_bytes = capacity_bytes
        if is_absurd:
            return
        if self._samples:
            elapsed_seconds = at_seconds - self._samples[-1].at_seconds
            if elapsed_seconds == 0:
                return
            if not 0 < elapsed_seconds <= _GAP_SECONDS:
                self.clear()
        self._samples.append(Sample(at_seconds, available_bytes))
        self._thin(at_seconds)

    def _thin(self, now_seconds: float) -> None:
        """Drop what is too old, and one sample at most that lies closer to its neighbours than its age asks.

        Of three samples the middle one goes, unless it is lower or higher than both: that is a turn.
        """
        samples = self._samples
        while now_seconds - samples[0].at_seconds > _LONGEST_SECONDS:
            del samples[0]
        for place in range(1, len(samples) - 1):
            before, one, after = samples[place - 1 : place + 2]
            age_seconds = now_seconds - one.at_seconds
            if age_seconds < _FULL_SECONDS:
                return
            is_below = one.available_bytes < before.available_bytes
            is_turn = is_below == (one.available_bytes < after.available_bytes)
            span_seconds = after.at_seconds - before.at_seconds
            if span_seconds * (_TURNS if is_turn else _PER_AGE) < age_seconds:
                del samples[place]
                return

    def rise(self, by_bytes: int) -> None:
        """Go on as if so much more had been available all the time."""
        self._samples = [Sample(one.at_seconds, one.available_bytes + by_bytes) for one in self._samples]

    def falls_within(self, seconds: float, value: ThresholdValue) -> bool:
        """Return whether the last step down, repeated for so long, would cross the threshold."""
        if len(self._samples) < _NEW:
            return True
        before, last = self._samples[-2:]
        left_bytes = last.available_bytes - value.of(self._capacity_bytes)
        fell_bytes = before.available_bytes - last.available_bytes
        return fell_bytes * seconds > left_bytes * (last.at_seconds - before.at_seconds)

    def time_left(self, threshold_bytes: float, now_seconds: float) -> TimeLeft:
        """Return how long it takes until less than the threshold is available, by these samples."""
        left = time_left(tuple(self._samples), threshold_bytes, now_seconds)
        if left.seconds is None or self._foreseen_since is None:
            self._foreseen_since = None if left.seconds is None else now_seconds
            return left
        return replace(left, held_seconds=now_seconds - self._foreseen_since)


class _Fall(NamedTuple):
    """A window's rate in bytes a second and its bounds, above zero where it falls."""

    slowest: float
    rate: float
    fastest: float


def time_left(samples: Sequence[Sample], threshold_bytes: float, now_seconds: float) -> TimeLeft:
    """Return how long it takes until less than the threshold is available, the oldest sample first."""
    is_sound = all(math.isfinite(one.at_seconds) and one.available_bytes >= 0 for one in samples)
    if not is_sound or any(before.at_seconds >= after.at_seconds for before, after in pairwise(samples)):
        return TimeLeft(at_seconds=now_seconds, because="the samples contradict each other")
    if len(samples) < _FEWEST_POINTS:
        return TimeLeft(at_seconds=now_seconds, because=_FEW)
    left_bytes = samples[-1].available_bytes - threshold_bytes
    if left_bytes <= 0:
        return TimeLeft(at_seconds=now_seconds, seconds=0.0, earliest_seconds=0.0, latest_seconds=0.0)
    falls, because = _falls(samples, left_bytes)
    if not falls:
        return TimeLeft(at_seconds=now_seconds, because=because)
    rate = sorted(fall.rate for fall in falls)[len(falls) // 2]
    return TimeLeft(
        at_seconds=now_seconds,
        seconds=left_bytes / rate,
        earliest_seconds=left_bytes / (max(fall.fastest for fall in falls) * _READING),
        latest_seconds=left_bytes * _READING / min(fall.slowest for fall in falls),
        bytes_per_second=rate,
    )


def _falls(samples: Sequence[Sample], left_bytes: float) -> tuple[list[_Fall], str]:
    """Return the falls of the windows that count, and why there are none if there are none."""
    because = _FEW if samples[-1].at_seconds - samples[0].at_seconds < _SHORTEST_SECONDS else _RISING
    falls: list[_Fall] = []
    times = [sample.at_seconds for sample in samples]
    for window, span_seconds in _windows(samples, times):
        fall = _fall(window)
        if fall.slowest <= 0 or fall.fastest > _STEADY * fall.slowest:
            continue
        if left_bytes > fall.rate * _AHEAD * span_seconds:
            because = "it is farther ahead than the fall has lasted for"
        elif not _goes_on(samples[bisect_left(times, window[0].at_seconds) :]):
            because = "the fall has paused"
        else:
            falls.append(fall)
    return (falls, because) if not falls or _is_deeper(samples) else ([], _USUAL)


def _windows(samples: Sequence[Sample], times: Sequence[float]) -> Iterator[tuple[list[Sample], float]]:
    """Yield a few points of each window that the samples cover, and its span; the shortest first."""
    last = len(samples) - 1
    end_seconds = times[-1]
    for wanted_seconds in _WINDOWS:
        if end_seconds - times[0] < wanted_seconds * _COVERED:
            return
        places = {last}
        for distance in _DISTANCES:
            at_seconds = end_seconds - wanted_seconds * distance
            place = bisect_left(times, at_seconds)
            if place > 0 and at_seconds - times[place - 1] < times[place] - at_seconds:
                place -= 1
            places.add(place)
        if len(places) >= _FEWEST_POINTS:
            window = [samples[place] for place in sorted(places)]
            yield window, end_seconds - window[0].at_seconds


def _fall(window: Sequence[Sample]) -> _Fall:
    """Return the rate between points of which half of the others lie between them, or more."""
    apart = len(window) // 2
    slopes = sorted(
        [
            (bytes_before - bytes_after) / (after - before)
            for place, (before, bytes_before) in enumerate(window[:-apart])
            for after, bytes_after in window[place + apart :]
        ]
    )
    outliers = 1 if len(slopes) >= _OUTLIERS_FROM else 0
    return _Fall(slopes[outliers], slopes[len(slopes) // 2], slopes[-1 - outliers])


def _goes_on(samples: Sequence[Sample]) -> bool:
    """Return whether the fall of these samples has not paused for longer than it did before."""
    low_seconds, low_bytes = samples[0]
    longest_seconds = 0.0
    for at_seconds, available_bytes in samples:
        if available_bytes < low_bytes:
            longest_seconds = max(longest_seconds, at_seconds - low_seconds)
            low_seconds, low_bytes = at_seconds, available_bytes
    paused_seconds = samples[-1].at_seconds - low_seconds
    return paused_seconds <= max(_SHORTEST_PAUSE_SECONDS, _PAUSES * longest_seconds)


def _is_deeper(samples: Sequence[Sample]) -> bool:
    """Return whether the last fall is deeper than those before it that have come back."""
    deepest = 0
    high = low = samples[0].available_bytes
    for _, available_bytes in samples:
        if available_bytes - low > _RECOVERED * (high - low):
            deepest = max(deepest, high - low)
            high = low = available_bytes
        else:
            low = min(low, available_bytes)
    return high - low >= _DEEPER * deepest
