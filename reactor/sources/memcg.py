"""Memory thresholds on cgroup v1: the kernel signals an eventfd at the crossing itself.

All eventfds sit in one inner epoll, whose descriptor is the one thing that Trio waits on: re-arming adds
and removes descriptors there and leaves the waiting task alone.
"""

from __future__ import annotations

import math
import os
import select
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import trio

from reactor.backoff import Pace, next_beat
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_memory import MemoryCounters
from reactor.kernel.files import OwnedDescriptor, drain
from reactor.kernel.mem_available import counters_of
from reactor.kernel.memcg_events import register_reclaim, register_usage_level
from reactor.kernel.scheduling import following
from reactor.model.wakes import WakeKind
from reactor.sources.catalogue import MEMCG_EVENTFD, MEMCG_RECLAIM, NO_LEVELS
from reactor.sources.levels import (
    FLOOR,
    RECLAIM_SECONDS,
    CgroupsStep,
    LevelKey,
    MemoryLevel,
    MemoryStep,
    News,
    describe_levels,
    needs_rearming,
    signal_past,
    watermarks_of,
)
from reactor.sources.wakes import Wakes
from reactor.threads import in_thread

_SECOND_CHECK_SECONDS: Final = 0.005
# The kernel compares usage with levels when pages of processes and page cache are charged. What it takes for
# itself on behalf of a pod (page tables, sockets, dentries) counts as usage, and crosses a level unseen.
_KERNEL_BYTES_PER_S: Final = 256 << 20
_SOONEST_SECONDS, _LATEST_SECONDS = 0.25, 10.0  # each 0.3 ms of a busy CPU

# Two reads, about 70 us on a busy node: at most 0.7 % of a CPU while reclaim goes on without a pause.
_OBSERVED_PER_SECOND: Final = 100


@dataclass(eq=False, slots=True)
class _Watch:
    """One level registered with the kernel. Owns its eventfd (-1 once closed) and the open counters."""

    level: MemoryLevel
    event_fd: int
    counters: MemoryCounters
    fired: bool = False
    spent: bool = False

    def left_bytes(self) -> int:
        """Return how far it is to usage past the level. Raises OSError, ENODEV once the cgroup is gone."""
        return self.level.level_bytes + 1 - self.counters.usage_bytes()

    def drain(self) -> None:
        """Take what the kernel signalled, so that the descriptor is quiet until the next crossing."""
        # An early one is never spent: that would have it registered again with each page of cache.
        self.fired = not self.level.is_early
        os.eventfd_read(self.event_fd)  # it is readable, and this is its one reader

    def close(self) -> None:
        """Close what is open; also takes the eventfd out of the epoll and ends the registration."""
        event_fd, self.event_fd = self.event_fd, -1
        if event_fd >= 0:
            os.close(event_fd)
        self.counters.close()


class MemcgEventfd(MemoryStep):
    """Wakes the loop when a cgroup's usage crosses a level, either way, or the cgroup is removed."""

    name = MEMCG_EVENTFD
    lacking = "usage thresholds"
    early_pause_seconds = 0.2

    def __init__(self, tree: CgroupTree, wakes: Wakes) -> None:
        super().__init__(tree, wakes)
        self._wanted: dict[LevelKey, MemoryLevel] = {}
        self._watches: dict[LevelKey, _Watch] = {}
        self._moved = trio.Event()

    def arm(self, levels: Sequence[MemoryLevel]) -> None:
        """Watch these levels and no others. Returns at once; registering goes on behind it."""
        self._wanted = {level.key: level for level in levels}
        if self._is_stale():
            self._moved.set()

    async def watch(self, armed: Callable[[str], None]) -> None:
        """Watch until a cgroup or the interface fails, then raise OSError; call `armed` at each re-arming."""
        epoll = select.epoll()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep_armed, epoll, armed)
                nursery.start_soon(self._keep_waiting, epoll, nursery)
                nursery.start_soon(self._keep_checking)
        finally:
            while self._watches:
                self._watches.popitem()[1].close()
            epoll.close()

    async def _keep_armed(self, epoll: select.epoll, armed: Callable[[str], None]) -> None:
        while True:
            self._moved = trio.Event()
            for key in self._watches.keys() - self._wanted.keys():
                self._watches.pop(key).close()
            # Side by side: each registration waits for an RCU grace period, and they can wait for the same.
            async with trio.open_nursery() as nursery:
                for key in filter(self._needs_arming, tuple(self._wanted)):
                    nursery.start_soon(self._register, epoll, self._wanted[key])
            armed(describe_levels(watch.level for watch in self._watches.values()) or NO_LEVELS)
            if not self._is_stale():
                await self._moved.wait()

    def _is_stale(self) -> bool:
        return self._watches.keys() != self._wanted.keys() or any(map(self._needs_arming, self._wanted))

    def _needs_arming(self, key: LevelKey) -> bool:
        watch = self._watches.get(key)
        if watch is None:
            return True
        wanted_bytes = self._wanted[key].level_bytes
        return watch.spent or needs_rearming(watch.level.level_bytes, wanted_bytes, fired=watch.fired)

    async def _register(self, epoll: select.epoll, level: MemoryLevel) -> None:
        directory = self._tree.path(level.cgroup)
        counters = MemoryCounters(self._tree, level.cgroup)
        try:
            # Not abandoned on cancellation: the thread's descriptor always reaches its owner below.
            event_fd = await in_thread(following(register_usage_level), directory, level.level_bytes)
        except BaseException:
            counters.close()
            raise
        watch = _Watch(level, event_fd, counters)
        # The old registration ends only now that the new one stands: no moment is unwatched.
        before = self._watches.get(level.key)
        self._watches[level.key] = watch
        if before is not None:
            before.close()
        epoll.register(event_fd, _events(level))
        if watch.left_bytes() <= 0:  # crossed before the kernel knew of it: nothing else would report it
            watch.fired = True
            self._wake(level)

    async def _keep_waiting(self, epoll: select.epoll, nursery: trio.Nursery) -> None:
        # A usage that swings about a level may cross it thousands of times a second, and a pass for each
        # would starve the node: 32 in a row are passed on at once, 100 a second in the long run.
        pace = Pace(burst=32, per_second=100)
        doubtful: set[_Watch] = set()
        while True:
            if doubtful:
                with trio.move_on_after(_SECOND_CHECK_SECONDS) as quiet:
                    await trio.lowlevel.wait_readable(epoll.fileno())
                if quiet.cancelled_caught:
                    self._check_doubtful(doubtful)
                    doubtful.clear()
                    continue
            else:  # without a scope to leave on the way to a kill
                await trio.lowlevel.wait_readable(epoll.fileno())
            ready = {event_fd for event_fd, _ in epoll.poll(0)}
            fired = [watch for watch in self._watches.values() if watch.event_fd in ready]
            for watch in fired:
                watch.drain()
            self._wake(*(watch.level for watch in fired))
            for watch in fired:
                # Raises once the cgroup is gone: its removal signals too, and only once.
                is_past = watch.left_bytes() <= 0
                if not watch.level.is_early:
                    doubtful.add(watch)
                elif is_past:
                    nursery.start_soon(self._pause, epoll, watch)
                else:  # memory came back: the next crossing may follow a kill at once
                    epoll.modify(watch.event_fd, _events(watch.level))
            await pace.turn()

    async def _pause(self, epoll: select.epoll, watch: _Watch) -> None:
        """Leave an early level alone for a while: usage that swings about it is not worth so many passes."""
        await trio.sleep(self.early_pause_seconds)
        if watch.event_fd >= 0:
            epoll.modify(watch.event_fd, _events(watch.level))

    async def _keep_checking(self) -> None:
        """Wake the loop where a level was crossed without an event; see _KERNEL_BYTES_PER_S."""
        before: set[_Watch] = set()
        while True:
            left = {watch: watch.left_bytes() for watch in self._watches.values()}
            past = {watch for watch, left_bytes in left.items() if left_bytes <= 0}
            if new := past - before:
                await trio.sleep(_SECOND_CHECK_SECONDS)  # an event may be on its way
                self._wake(*(watch.level for watch in new if watch.event_fd >= 0 and not watch.fired))
            before = past
            near = (one for watch, one in left.items() if one > 0 and not 0 < watch.level.place_ahead < FLOOR)
            pause_seconds = min(near, default=_KERNEL_BYTES_PER_S) / _KERNEL_BYTES_PER_S
            times = math.ceil(_LATEST_SECONDS / max(pause_seconds, _SOONEST_SECONDS))
            await next_beat(_LATEST_SECONDS / times)  # one of them with the housekeeping

    def _check_doubtful(self, watches: Iterable[_Watch]) -> None:
        """Settle how usage stands to levels that have fired, once it is quiet.

        The kernel signals when a check finds usage on the other side than the check before. Usage may dip
        below a level right after its crossing, because a CPU returns the pages that it charged ahead (64),
        and rise again with no check between the two. A pass in that moment observes no crossing, and no
        later event wakes the loop: the ticker came 4.7 s later in one case, with busy CPUs.
        """
        for watch in watches:
            if watch.event_fd < 0:  # replaced meanwhile
                continue
            if watch.left_bytes() <= 0:
                self._wake(watch.level)
            else:
                watch.spent = True  # a new registration begins from where usage stands
        self._moved.set()


def _events(level: MemoryLevel) -> int:
    return select.EPOLLIN | select.EPOLLONESHOT if level.is_early else select.EPOLLIN


# Reclaim on cgroup v1: sees the crossings that usage alone does not show.
#
# Where more page cache can be dropped than a threshold leaves free, usage stands at the limit while the
# working set goes on growing into the cache, and no level of usage is crossed. But then memory is being
# reclaimed, which the kernel signals ("low" pressure), up to thousands of times a second. Each signal costs
# one reading of the working set at most, and the loop is woken only when that is at a threshold.


class MemcgReclaim(CgroupsStep):
    """Wakes the loop when memory is being reclaimed and the working set is at a threshold."""

    name = MEMCG_RECLAIM
    lacking = "reclaim events"

    async def _watch_cgroups(self, armed: Callable[[str], None]) -> None:
        async with trio.open_nursery() as nursery:
            for cgroup in tuple(self._levels):
                await nursery.start(self._watch_cgroup, cgroup)
            armed(", ".join(self._levels) or NO_LEVELS)

    async def _watch_cgroup(self, cgroup: str, *, task_status: trio.TaskStatus[None]) -> None:
        event_fd = await in_thread(following(register_reclaim), self._tree.path(cgroup))
        watermarks = watermarks_of(self._levels.get(cgroup, ()))
        pace, news = Pace(burst=1, per_second=_OBSERVED_PER_SECOND), News(*RECLAIM_SECONDS)
        with OwnedDescriptor(event_fd), closing(counters_of(self._tree, cgroup, watermarks)) as counters:
            task_status.started()
            while True:
                await trio.lowlevel.wait_readable(event_fd)
                drain(event_fd)
                signal = signal_past(self._levels.get(cgroup, ()), counters, news)
                if signal is not None:
                    self._wakes.wake(self.name, WakeKind.MEMORY, signal)
                await pace.turn()
