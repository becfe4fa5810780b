"""Reclaim on cgroup v1: sees the crossings that usage alone does not show.

Where more page cache can be dropped than a threshold leaves free, usage stands at the limit while the
working set goes on growing into the cache, and no level of usage is crossed. But then memory is being
reclaimed, which the kernel signals ("low" pressure), up to thousands of times a second. Each signal costs
one reading of the working set at most, and the loop is woken only when that is at a threshold.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Final

import trio

from reactor.backoff import Pace
from reactor.kernel.cgroup import CgroupTree, MemoryCounters
from reactor.kernel.cgroup_files import CgroupVersion
from reactor.kernel.mem_available import counters_of
from reactor.kernel.memcg_events import register_reclaim
from reactor.kernel.scheduling import following
from reactor.model.signals import Signal
from reactor.model.wakes import Wake, WakeKind
from reactor.sources.catalogue import MEMCG_RECLAIM
from reactor.sources.levels import MemoryLevel, levels_by_cgroup, watermarks_of
from reactor.sources.wakes import SourceBoard, Wakes
from reactor.threads import in_thread

# Two reads, about 70 us on a busy node: at most 0.7 % of a CPU while reclaim goes on without a pause.
_LOOKS_PER_SECOND: Final = 100
# How soon the loop is woken again while the working set stays past the same thresholds.
_REPEAT_SECONDS: Final = 0.1


class MemcgReclaim:
    """Wakes the loop when memory is being reclaimed and the working set is at a threshold."""

    name = MEMCG_RECLAIM

    def __init__(
        self,
        tree: CgroupTree,
        wakes: Wakes,
        board: SourceBoard,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._tree = tree
        self._wakes = wakes
        self._board = board
        self._clock_ns = clock_ns
        self._levels: dict[str, list[MemoryLevel]] = {}
        self._other_cgroups = trio.Event()

    def unavailable_because(self) -> str | None:
        """Return why this node can't have it, None where it can."""
        if self._tree.version is CgroupVersion.V1:
            return None
        return "the memory controller is on cgroup v2, which has no reclaim events"

    def arm(self, levels: Sequence[MemoryLevel]) -> None:
        """Hold the working set against these levels from now on."""
        before = self._levels.keys()
        self._levels = levels_by_cgroup(levels)
        if before != self._levels.keys():
            self._other_cgroups.set()

    async def watch(self, armed: Callable[[str], None]) -> None:
        """Watch until a cgroup or the interface fails (OSError)."""
        while True:
            self._other_cgroups = trio.Event()
            async with trio.open_nursery() as nursery:
                for cgroup in tuple(self._levels):
                    await nursery.start(self._watch_cgroup, cgroup)
                armed(", ".join(self._levels) or "no levels")
                await self._other_cgroups.wait()
                nursery.cancel_scope.cancel()

    async def _watch_cgroup(self, cgroup: str, *, task_status: trio.TaskStatus[None]) -> None:
        event_fd = await in_thread(following(register_reclaim), self._tree.path(cgroup))
        with ExitStack() as owned:
            owned.callback(os.close, event_fd)
            counters = counters_of(self._tree, cgroup, watermarks_of(self._levels.get(cgroup, ())))
            owned.callback(counters.close)
            task_status.started()
            await self._look_on_reclaim(cgroup, event_fd, counters)

    async def _look_on_reclaim(self, cgroup: str, event_fd: int, counters: MemoryCounters) -> None:
        pace = Pace(burst=1, per_second=_LOOKS_PER_SECOND)
        quiet_until, past_before = float("-inf"), 0
        while True:
            await trio.lowlevel.wait_readable(event_fd)
            with suppress(BlockingIOError):
                os.eventfd_read(event_fd)
            past = self._signals_past(cgroup, counters)
            now = trio.current_time()
            if past and (len(past) > past_before or now >= quiet_until):
                quiet_until = now + _REPEAT_SECONDS
                self._wake(past[0])
            past_before = len(past)
            await pace.turn()

    def _signals_past(self, cgroup: str, counters: MemoryCounters) -> list[Signal]:
        """Return the signal of each threshold that the working set is at. Raises OSError: cgroup gone."""
        usage_bytes, inactive_file_bytes = counters.usage_bytes(), counters.available_cache_bytes()
        return [
            level.signal
            for level in self._levels.get(cgroup, ())
            if level.is_past(usage_bytes=usage_bytes, inactive_file_bytes=inactive_file_bytes)
        ]

    def _wake(self, signal: Signal) -> None:
        self._board.count_wake(self.name)
        self._wakes.notify(
            Wake(source=self.name, kind=WakeKind.MEMORY, at_ns=self._clock_ns(), signal=signal)
        )
