"""What places take of the node's filesystems, as the walker reports it, and what the guard receives of it.

Results are reported place by place, so that a large pod delays no other one's numbers. Of a count under way
the guard gets what was found so far.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

from reactor.disks.walk_messages import LONGEST_PATH, Add, Drop, Kind, Report, Request
from reactor.forms import FormError
from reactor.link.orders import CountedPlace
from reactor.link.requests import MOST_USAGES, PlaceUsage, UsageKind, Usages

_OVERDUE_SECONDS: Final = 120.0


class _Place:
    """What is known of one place.

    `number` is the walker's (None: it is not asked about it). `counted` is the last whole count, `so_far`
    what the count under way has found (None: none is), in `directories`. `due_seconds` is since when a count
    is awaited (None: none is). `problem` says what could not be read, `is_failing` that it is the place
    itself.
    """

    __slots__ = (
        "counted",
        "directories",
        "due_seconds",
        "is_failing",
        "number",
        "place",
        "problem",
        "so_far",
    )

    def __init__(self, place: CountedPlace) -> None:
        self.place = place
        self.number: int | None = None
        self.counted: PlaceUsage | None = None
        self.so_far: PlaceUsage | None = None
        self.directories = 0
        self.due_seconds: float | None = None
        self.problem: str | None = None
        self.is_failing = False


class DiskUsage:
    """Knows what places take; `assign` says what the walker is to be asked, `take` is given what it reports.

    Places go by the guard's numbers, and by others to the walker: those of one that was lost mean nothing to
    the next.
    """

    def __init__(self, *, clock_seconds: Callable[[], float] = time.monotonic) -> None:
        self._clock_seconds = clock_seconds
        self._places: dict[int, _Place] = {}
        self._by_number: dict[int, _Place] = {}
        self._next_number = 1
        self._dropped: list[int] = []
        self._pod_numbers: dict[str, int] = {}
        self._next_pod_number = 1
        # By place, and whether it is a whole count, which what is found of the next one does not replace.
        self._news: dict[tuple[int, bool], tuple[PlaceUsage, int]] = {}

    def __len__(self) -> int:
        """Return how many places are known."""
        return len(self._places)

    @property
    def problems(self) -> dict[str, str]:
        """Return which places could not be read, and which pods' counts take too long."""
        found = {
            f"storage {place.place.path}": place.problem
            for place in self._places.values()
            if place.problem is not None
        }
        now_seconds = self._clock_seconds()
        for places in self._overdue().values():
            awaited_seconds = max(now_seconds - (place.due_seconds or now_seconds) for place in places)
            directories = sum(place.directories for place in places)
            found[f"storage of pod {places[0].place.pod}"] = (
                f"not counted for {awaited_seconds:.0f} s: {directories} directories so far"
            )
        return found

    @property
    def overdue(self) -> int:
        """Return of how many pods a count takes too long."""
        return len(self._overdue())

    @property
    def has_news(self) -> bool:
        """Return whether the guard has not heard of everything yet."""
        return bool(self._news)

    def know(self, places: Iterable[CountedPlace]) -> None:
        """Count these from now on too."""
        for place in places:
            known = self._places.setdefault(place.number, _Place(place))
            if len(os.fsencode(place.path)) > LONGEST_PATH:
                known.problem = f"{os.strerror(errno.ENAMETOOLONG)}: {place.path[:80]!r}..."

    def forget(self, numbers: Iterable[int]) -> None:
        """Count these no longer."""
        for number in numbers:
            place = self._places.pop(number, None)
            if place is not None:
                self._withdraw(place)
                self._forget_news(number)
        uids = {place.place.uid for place in self._places.values()}
        self._pod_numbers = {uid: number for uid, number in self._pod_numbers.items() if uid in uids}

    def assign(self, without: Collection[str] = ()) -> list[Request]:
        """Return the requests before the walker counts all places, but for these paths."""
        for place in self._places.values():
            if place.number is not None and place.place.path in without:
                self._withdraw(place)
        requests: list[Request] = [*self.drops()]
        requests += [
            Add(self._numbered(place), self._pod_number(place.place.uid), place.place.path)
            for place in self._places.values()
            if place.number is None and place.place.path not in without
            if len(os.fsencode(place.place.path)) <= LONGEST_PATH
        ]
        return requests

    def drops(self) -> list[Drop]:
        """Return the requests for places that the walker is to count no longer, each once."""
        drops = [Drop(number) for number in self._dropped]
        self._dropped.clear()
        return drops

    def forget_walker(self) -> None:
        """Record that the walker is gone: another one is to be given every place."""
        for place in self._places.values():
            place.number, place.directories = None, 0
            self._stop(place)
        self._by_number.clear()
        self._dropped.clear()

    def round_begins(self) -> None:
        """Record that the walker is asked for a round."""
        now_seconds = self._clock_seconds()
        for place in self._by_number.values():
            if place.due_seconds is None:
                place.due_seconds = now_seconds

    def round_ended(self) -> None:
        """Record that a round is over: a place that was not reported is as it was."""
        for place in self._by_number.values():
            if place.so_far is None and not place.is_failing and place.counted is not None:
                place.due_seconds = None
                self._report(place.counted)

    def path_of(self, number: int) -> str | None:
        """Return a place's path by the walker's number, None where it is not asked about (any more)."""
        place = self._by_number.get(number)
        return None if place is None else place.place.path

    def take(self, report: Report) -> None:
        """Take what the walker reports of a place. Raises FormError for a place that never was."""
        if not 0 < report.place < self._next_number:
            raise FormError(f"got place {report.place}; accepted: 1 to {self._next_number - 1}")
        place = self._by_number.get(report.place)
        if place is None:
            return  # it was dropped meanwhile
        number = place.place.number
        match report.kind:
            case Kind.SO_FAR:
                place.so_far = PlaceUsage(number, UsageKind.SO_FAR, report.used_bytes, report.inodes)
                place.directories = report.directories
                self._report(place.so_far)
            case Kind.COUNTED:
                place.counted = PlaceUsage(number, UsageKind.COUNTED, report.used_bytes, report.inodes)
                place.so_far, place.due_seconds, place.is_failing = None, None, False
                place.problem = _unreadable(report)
                self._report(place.counted)
            case Kind.FAILED:  # what it last took stands while that is fresh
                self._stop(place)
                place.due_seconds, place.is_failing = None, True
                place.problem = f"{os.strerror(report.error_number)}: {place.place.path!r}"
            case _:
                return

    def news(self) -> Iterator[Usages]:
        """Yield what the guard has not received yet, as messages, of which each is yielded once."""
        while self._news:
            news = [self._news.pop(key) for key in list(self._news)[:MOST_USAGES]]
            yield Usages(at_ns=min(at_ns for _, at_ns in news), places=tuple(usage for usage, _ in news))

    def _report(self, usage: PlaceUsage) -> None:
        is_whole = usage.kind is UsageKind.COUNTED
        if is_whole:
            self._forget_news(usage.place)
        self._news.pop((usage.place, is_whole), None)  # behind what was reported of it before
        self._news[usage.place, is_whole] = usage, time.monotonic_ns()

    def _forget_news(self, place: int) -> None:
        for is_whole in (True, False):
            self._news.pop((place, is_whole), None)

    def _stop(self, place: _Place) -> None:
        """Record that the count under way has come to nothing, if there is one."""
        if place.so_far is not None:
            place.so_far = None
            self._report(PlaceUsage(place.place.number, UsageKind.NOT_COUNTED))

    def _withdraw(self, place: _Place) -> None:
        """Have the walker asked about a place no longer."""
        if place.number is not None:
            del self._by_number[place.number]
            self._dropped.append(place.number)
        place.number, place.due_seconds = None, None
        self._stop(place)

    def _overdue(self) -> dict[str, list[_Place]]:
        """Return the places whose counts take too long, by their pods' uids."""
        now_seconds = self._clock_seconds()
        found: dict[str, list[_Place]] = {}
        for place in self._places.values():
            if place.due_seconds is not None and now_seconds - place.due_seconds >= _OVERDUE_SECONDS:
                found.setdefault(place.place.uid, []).append(place)
        return found

    def _numbered(self, place: _Place) -> int:
        place.number = self._next_number
        self._next_number += 1
        self._by_number[place.number] = place
        return place.number

    def _pod_number(self, uid: str) -> int:
        if uid not in self._pod_numbers:
            self._pod_numbers[uid] = self._next_pod_number
            self._next_pod_number += 1
        return self._pod_numbers[uid]


def _unreadable(report: Report) -> str | None:
    if not report.unreadable:
        return None
    return f"{report.unreadable} entries could not be read, the last: {os.strerror(report.error_number)}"
