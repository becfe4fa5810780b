"""One cgroup's brake, and how far down it goes.

An allocator past memory.high sleeps after every 64 pages that it is charged, by the square of how far usage
is past it: 64 s x (excess / memory.high)^2, and not at all where that is 10 ms or less, which it is up to an
excess of 1.3 % (calculate_high_delay and its callers in mm/memcontrol.c). At the level that was crossed
itself the allocators would therefore go on for another 200 MiB on a node of 16 GiB before anything held them
up. 4 % below it they sleep 0.1 s for each 256 KiB from the crossing on.

Measured on 6.12, in a guest, a level of 412 MiB, one pod growing at full speed while another of 330 MiB dies:
3.0 MiB past the level without a brake, 1.7 MiB with memory.high at the level, 0.2 MiB with it 4 % below; the
dying pod's memory was back after 134, 220 and 130 ms, which is within the noise: a fatal signal ends the
sleep, and who is dying is charged past memory.high. At 10 % below allocators slept on for 0.7 s after the
release.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from mmap import PAGESIZE
from typing import Final

import trio

from reactor.kernel.memory_high import BorrowedHigh

BELOW_PERCENT: Final = 4  # of the level


@dataclass(slots=True, kw_only=True)
class Braking:
    """One cgroup's brake, from the crossing on; filled in as it happens. Instants are CLOCK_MONOTONIC ns.

    `name` is its own among those that want memory.high: a late release must not take the next one's away.
    `engaged_ns` is when memory.high was about to be written, None where that came to nothing (`problem`
    says why). `released_because` stands from when it is to end; `released` is set once the operator's
    value is back.
    """

    name: str
    cgroup: str
    high_bytes: int
    high: BorrowedHigh
    engaged_ns: int | None = None
    released_ns: int | None = None
    released_because: str | None = None
    problem: str | None = None
    released: trio.Event = field(default_factory=trio.Event)

    @property
    def is_on(self) -> bool:
        """Return whether memory.high is not the operator's yet, or again."""
        return self.released_ns is None

    def end(self, because: str) -> None:
        """Want memory.high no more; the first reason is the one that counts."""
        if self.released_because is None:
            self.released_because = because
        self.high.want(None, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrakeReading:
    """How the brake stands: what is on, how often it was on and for how long in all, why it failed last."""

    on: tuple[Braking, ...] = ()
    times: int = 0
    seconds: float = 0.0
    problem: str | None = None


def braked_bytes(level_bytes: int) -> int:
    """Return what memory.high is set to for a level."""
    return level_bytes * (100 - BELOW_PERCENT) // 100 // PAGESIZE * PAGESIZE
