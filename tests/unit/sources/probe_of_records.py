"""The kernel's side of a probe: a descriptor that is readable while there are records."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

from reactor.kernel.bpf.records import CounterAddresses, Level, RecordKind, Watched, WatchRecord

_Record = TypeVar("_Record")


class ProbeOfRecords(Generic[_Record]):
    """Gives the records that a test tells it."""

    made_by = ""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK)
        self.records: list[_Record] = []
        self.lost_records = 0
        self.closed = False

    def tell(self, record: _Record) -> None:
        self.records.append(record)
        os.eventfd_write(self.fd, 1)

    def take(self) -> Sequence[_Record]:
        with suppress(BlockingIOError):
            os.eventfd_read(self.fd)
        records, self.records = self.records, []
        return records

    def lost(self) -> int:
        return self.lost_records

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            os.close(self.fd)


class ProbeOfCgroups(ProbeOfRecords[WatchRecord]):
    """Watches cgroups, at an address that is the inode of their directory."""

    def __init__(self) -> None:
        super().__init__()
        self.watches: dict[int, tuple[int, list[Level]]] = {}
        self.watch_refusal: OSError | None = None

    def counters(self, directory: Path) -> CounterAddresses:
        identity = os.stat(directory).st_ino
        return CounterAddresses(cgroup_id=identity, memory=identity, tasks=identity)

    def watch(self, address: int, watch_id: int, levels: Sequence[Level]) -> None:
        if self.watch_refusal is not None:
            raise self.watch_refusal
        self.watches[address] = (watch_id, list(levels))

    def unwatch(self, address: int) -> bool:
        return self.watches.pop(address, None) is not None


def watch_record(kind: RecordKind, watch_id: int, level: int = 0, at_ns: int = 1) -> WatchRecord:
    """Return a record of a watch; of its numbers the sources use none."""
    return WatchRecord(
        kind=kind,
        watched=Watched.CGROUP_MEMORY,
        at_ns=at_ns,
        watch_id=watch_id,
        value=0,
        fire=0,
        level=level,
        pid=1,
        comm="hog",
    )
