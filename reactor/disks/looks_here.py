"""Looks in the calling process, without a walker: for benchmarks, and wherever the files are our own."""

from __future__ import annotations

import time
from collections.abc import Callable

from reactor.disks.places import Pace, Places
from reactor.disks.usage import DiskUsage
from reactor.disks.walk_messages import Add, Drop


class LooksHere:
    """Looks for one DiskUsage, which it tells what it finds."""

    def __init__(self, usage: DiskUsage, *, clock_seconds: Callable[[], float] = time.monotonic) -> None:
        self._usage = usage
        self._places = Places(usage.take, clock_seconds=clock_seconds)

    def look(self, pace: Pace | None = None) -> None:
        """Look at all places that are known, and return when everything is counted. Raises GivenUpError."""
        for request in self._usage.assign():
            match request:
                case Add(place, pod, path):
                    self._places.add(place, pod, path)
                case Drop(place):
                    self._places.drop(place)
        self._usage.look_begins()
        self._places.due()
        pace = pace or Pace()
        while not self._places.is_idle:
            self._places.turn(pace)
        self._usage.look_ended()
