"""A probe as the eBPF sources use it: opened and closed in a worker thread, its records taken as they come.

libbpf is not to be called from two threads, and each load takes some megabytes: one at a time. BCC takes
turns at compiling only: what it has made is used by plain system calls, and must not wait for the next
compilation.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Protocol, TypeVar

import trio

from reactor.backoff import Pace
from reactor.kernel.bpf.records import CounterAddresses, Level, WatchRecord
from reactor.threads import in_thread

PAGE_BYTES: Final = os.sysconf("SC_PAGESIZE")
_ONE_AT_A_TIME: Final = trio.CapacityLimiter(1)
_Answer = TypeVar("_Answer")
_Record_co = TypeVar("_Record_co", covariant=True)


class Probe(Protocol[_Record_co]):
    """What every source needs of a probe of `kernel.bpf.loaders`."""

    fd: int

    @property
    def made_by(self) -> str:
        """Return who made its programs, "" for libbpf."""

    def take(self) -> Sequence[_Record_co]:
        """Return the records that have come."""

    def lost(self) -> int:
        """Return how many records were lost so far."""

    def close(self) -> None:
        """Detach and unload."""


class WatchProbe(Probe[WatchRecord], Protocol):
    """A probe that watches cgroups' counters, each at levels of its own."""

    def counters(self, directory: Path) -> CounterAddresses:
        """Return where the kernel keeps a cgroup's counters."""

    def watch(self, address: int, watch_id: int, levels: Sequence[Level]) -> None:
        """Watch a cgroup's counter at these levels."""

    def unwatch(self, address: int) -> bool:
        """Remove a watch."""


_Probe = TypeVar("_Probe", bound=Probe[object])


@asynccontextmanager
async def opened(open_probe: Callable[[], _Probe]) -> AsyncIterator[_Probe]:
    """Open a probe, and close it at the end, come what may. Raises BpfError and OSError."""
    probe = await _in_loader(open_probe)
    try:
        yield probe
    finally:
        with trio.CancelScope(shield=True):  # detaching waits for RCU grace periods
            await of_probe(probe, probe.close)


async def of_probe(probe: Probe[object], call: Callable[[], _Answer]) -> _Answer:
    """Return what one of the probe's calls gives, made in a worker thread."""
    return await (in_thread(call) if probe.made_by else _in_loader(call))


async def take_records(
    probe: Probe[_Record_co], heed: Callable[[Sequence[_Record_co]], None], lost: Callable[[int], None]
) -> None:
    """Give records to `heed` as they come and the number of newly lost ones to `lost`, until cancelled."""
    # Each record is a pass: 32 in a row go on at once, 100 a second in the long run.
    pace = Pace(burst=32, per_second=100)
    lost_before = 0
    while True:
        await trio.lowlevel.wait_readable(probe.fd)
        heed(probe.take())
        lost_by_now = probe.lost()
        if lost_by_now != lost_before:
            lost(lost_by_now - lost_before)
            lost_before = lost_by_now
        await pace.turn()


async def _in_loader(call: Callable[[], _Answer]) -> _Answer:
    # Not abandoned on cancellation: what the thread has loaded always reaches its owner.
    return await in_thread(call, limiter=_ONE_AT_A_TIME)
