"""Whether the kernel has killed at a guarded limit, for a pass that is about to choose a victim.

The counters of `oom_counters` are read with the housekeeping, seconds later. These are asked in the pass
itself: on v1 the kernel counts an OOM on an eventfd before it kills (a non-blocking read, less than 1 us), on
v2 in memory.events.local. Neither names the victim. The machine as a whole has neither.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final, Protocol

import trio

from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_files import CgroupVersion
from reactor.kernel.files import KernelFile, parse_field
from reactor.kernel.memcg_events import register_oom
from reactor.kernel.scheduling import following
from reactor.sources.oom_scope import GuardedNode
from reactor.threads import in_thread

_READ_BYTES: Final = 8


class OomNotices:
    """Holds a notice for each guarded cgroup. A cgroup that does not exist (yet) has none."""

    def __init__(self, tree: CgroupTree, node: GuardedNode, *, interval_seconds: float) -> None:
        self._tree = tree
        self._node = node
        self._interval_seconds = interval_seconds
        self._held: dict[str, _Notice] = {}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep a notice for each guarded cgroup until cancelled; a recreated one is registered again."""
        try:
            await self._hold()
            task_status.started()
            while True:
                await trio.sleep(self._interval_seconds)
                await self._hold()
        finally:
            while self._held:
                self._held.popitem()[1].close()

    def struck(self) -> bool:
        """Return whether a guarded limit was out of memory since the last call. Never raises."""
        # No any(): each one is to be asked, so that none answers for this time the next time.
        return sum([notice.struck() for notice in self._held.values()]) > 0

    async def _hold(self) -> None:
        for cgroup in self._node.cgroups:
            with suppress(OSError, ReactorError):
                inode = os.stat(self._tree.path(cgroup)).st_ino
                held = self._held.get(cgroup)
                if held is not None and held.inode == inode:
                    continue
                # Not abandoned on cancellation: what the thread has registered always reaches its owner.
                notice = await in_thread(following(self._registered), cgroup, inode)
                self._held[cgroup] = notice
                if held is not None:
                    held.close()

    def _registered(self, cgroup: str, inode: int) -> _Notice:
        directory = self._tree.path(cgroup)
        if self._tree.version is CgroupVersion.V1:
            return _EventNotice(register_oom(directory), inode)
        return _CountNotice(KernelFile(directory / "memory.events.local"), inode)


class _Notice(Protocol):
    """One cgroup's notice; by `inode` a cgroup that was made again under the same path is another."""

    inode: int

    def struck(self) -> bool:
        """Return whether the kernel was out of memory at the limit since the last call. Never raises."""

    def close(self) -> None:
        """Close the descriptor."""


class _EventNotice:
    """An eventfd of v1 (-1 once closed)."""

    def __init__(self, event_fd: int, inode: int) -> None:
        self.inode = inode
        self._event_fd = event_fd

    def struck(self) -> bool:
        with suppress(OSError):  # BlockingIOError: none
            return len(os.read(self._event_fd, _READ_BYTES)) > 0
        return False

    def close(self) -> None:
        event_fd, self._event_fd = self._event_fd, -1
        if event_fd >= 0:
            os.close(event_fd)


class _CountNotice:
    """The count of v2."""

    def __init__(self, events: KernelFile, inode: int) -> None:
        self.inode = inode
        self._events = events
        self._met = parse_field(events.read(), b"oom", events.path)

    def struck(self) -> bool:
        with suppress(OSError, ReactorError):
            met = parse_field(self._events.read(), b"oom", self._events.path)
            before, self._met = self._met, met
            return met > before
        return False

    def close(self) -> None:
        self._events.close()
