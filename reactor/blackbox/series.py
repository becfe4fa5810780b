"""Memory over time, bounded: of the node each value, of the pods those that have changed most.

A pod's value holds until the next one. A sample records 16 pods at most, those that differ most from what was
recorded of them; whatever is left out is compared again with the next sample, so it is late and not lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

MOST_CHANGES: Final = 16
MOST_VALUES: Final = 1 << 16  # 9 MiB; of paths as long as can be 25
_MIB: Final = 1 << 20
_KIB: Final = 1 << 10
_GROWTH_SECONDS: Final = 10.0

Curve = Sequence[tuple[float, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The node at one time (CLOCK_MONOTONIC); `swap_free_bytes` is None if there is no swap.

    `pods` are the working sets that have changed, by uid; 0 for a pod that is gone.
    """

    at_seconds: float
    available_bytes: int
    capacity_bytes: int
    swap_free_bytes: int | None = None
    pods: Mapping[str, int] = field(default_factory=dict)


class Series:
    """The samples of the last `span_seconds`, one each `period_seconds` at most.

    Of several samples within a period the one with the least available is kept, with what has changed of
    pods in all of them. One sample beyond the span is kept, so that the span has a beginning. Where pods come
    and go by thousands the span is shorter: no more than `MOST_VALUES` of them are kept.
    """

    def __init__(self, span_seconds: float, period_seconds: float = 0.0) -> None:
        self.span_seconds = span_seconds
        self._period_seconds = period_seconds
        self._samples: deque[Sample] = deque()
        self._values = 0
        self._before: dict[str, int] = {}  # what pods had before the first sample
        self._last_began_seconds = 0.0
        self._has_forgotten = False

    def __len__(self) -> int:
        return len(self._samples)

    @property
    def last(self) -> Sample | None:
        return self._samples[-1] if self._samples else None

    def __iter__(self) -> Iterator[Sample]:
        return iter(self._samples)

    def take(self, sample: Sample) -> None:
        """Take over a sample; times only go forward."""
        samples = self._samples
        if samples and sample.at_seconds - self._last_began_seconds < self._period_seconds:
            last = samples.pop()
            self._values -= len(last.pods)
            lowest = min(last, sample, key=lambda one: one.available_bytes)
            sample = replace(lowest, at_seconds=sample.at_seconds, pods={**last.pods, **sample.pods})
        else:
            self._last_began_seconds = sample.at_seconds
        samples.append(sample)
        self._values += len(sample.pods)
        oldest_seconds = sample.at_seconds - self.span_seconds
        while len(samples) > 2 and (samples[1].at_seconds <= oldest_seconds or self._values > MOST_VALUES):
            self._values -= len(samples[0].pods)
            self._before.update(samples.popleft().pods)
            self._has_forgotten = True
            for uid in [uid for uid, used in self._before.items() if not used]:
                del self._before[uid]

    def curves(self, since_seconds: float, until_seconds: float) -> dict[str, list[tuple[float, int]]]:
        """Return the working set of each pod from the one time to the other, by uid.

        Each curve begins with what the pod had at the beginning and ends with what it had at the end. A pod
        of which nothing is known at the beginning had too little to be recorded, unless that was before the
        first sample of all.
        """
        held = dict(self._before)
        for sample in self._samples:
            if sample.at_seconds <= since_seconds:
                held.update(sample.pods)
        within = [one for one in self._samples if since_seconds < one.at_seconds <= until_seconds]
        has_beginning = self._has_forgotten or len(within) < len(self._samples)
        found = {uid: [(since_seconds, used)] for uid, used in held.items()}
        last_seconds = since_seconds
        for place, sample in enumerate(within):
            for uid, used in sample.pods.items():
                curve = found.setdefault(uid, [] if place == 0 and not has_beginning else [(last_seconds, 0)])
                if curve and curve[-1][0] < last_seconds:
                    curve.append((last_seconds, curve[-1][1]))
                curve.append((sample.at_seconds, used))
            last_seconds = sample.at_seconds
        for curve in found.values():
            if curve[-1][0] < last_seconds:
                curve.append((last_seconds, curve[-1][1]))
        return found


def least_change_bytes(capacity_bytes: int) -> int:
    """Return by how much a pod's usage differs at least if it is recorded anew."""
    return min(_MIB, max(64 * _KIB, capacity_bytes >> 12))


def largest_changes(
    before: Mapping[str, int], found: Mapping[str, int], least_bytes: int, most: int = MOST_CHANGES
) -> list[str]:
    """Return the uids whose value differs most from what it was, the largest change first."""
    by_change = {uid: abs(used - before.get(uid, 0)) for uid, used in found.items()}
    changed = [uid for uid, change in by_change.items() if change >= least_bytes]
    return sorted(changed, key=lambda uid: by_change[uid], reverse=True)[:most]


def thinned(curve: Curve, most: int) -> list[tuple[float, int]]:
    """Return at most so many points of a curve: its ends, its extremes, and those between at even times."""
    if len(curve) <= most:
        return list(curve)
    kept = {0, len(curve) - 1}
    values = [value for _, value in curve]
    kept |= {values.index(min(values)), values.index(max(values))}
    first, last = curve[0][0], curve[-1][0]
    steps = max(1, most - len(kept))
    place = 0
    for step in range(1, steps + 1):
        at_seconds = first + (last - first) * step / (steps + 1)
        while place < len(curve) - 1 and curve[place][0] < at_seconds:
            place += 1
        kept.add(place)
    return [curve[place] for place in sorted(kept)]


def growth_per_second(curve: Curve, until_seconds: float) -> int:
    """Return the fastest growth over half a second or more in the 10 s before that, 0 if there is none.

    What holds at a time holds until the next value, so growth between two values lies before the later one:
    it is taken over the time between them.
    """
    points = [one for one in curve if until_seconds - _GROWTH_SECONDS <= one[0] <= until_seconds]
    before = [one for one in curve if one[0] < until_seconds - _GROWTH_SECONDS]
    points = before[-1:] + points
    fastest = 0.0
    for place, (began, first) in enumerate(points):
        for ended, last in points[place + 1 :]:
            if ended - began >= 0.5:
                fastest = max(fastest, (last - first) / (ended - began))
                break
    return round(fastest)
