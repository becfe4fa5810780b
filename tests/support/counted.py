"""Pods' files, counted in this process: what guard and steward tell each other goes by its forms."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from bench.disk import LooksHere
from reactor.disks.usage import DiskUsage
from reactor.disks.walker import Pace
from reactor.guard.usage_facts import UsageFacts
from reactor.link.orders import read_order, write_order
from reactor.link.requests import Usages, read_request, write_request
from reactor.model.pods import Pod


class Counted:
    """Counts what one UsageFacts names."""

    def __init__(self, storage: UsageFacts, *, clock_seconds: Callable[[], float] = time.monotonic) -> None:
        self.storage = storage
        self.usage = DiskUsage(clock_seconds=clock_seconds)
        self._looks = LooksHere(self.usage, clock_seconds=clock_seconds)
        self._told: set[int] = set()

    def look(self, pods: Sequence[Pod], pace: Pace | None = None) -> None:
        """Count everything that these pods take, and nothing else."""
        self.name(pods)
        self._looks.look(pace)
        self.tell()

    def name(self, pods: Sequence[Pod]) -> None:
        """Tell the steward which places these pods have."""
        self.storage.assign(pods)
        for places in self.storage.changes(self._told):
            read = read_order(write_order(places))
            self.usage.forget(read.forget)
            self.usage.know(read.count)

    def tell(self) -> None:
        """Tell the guard what was counted."""
        for usages in self.usage.news():
            read = read_request(write_request(usages))
            assert isinstance(read, Usages)
            self.storage.take(read)
