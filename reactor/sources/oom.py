"""The kernel's OOM kills, reported as they happen or counted afterwards: a chain as for memory.

    ebpf-oom       each kill at once, with its victim and the cgroup whose limit was met
    oom-counters   their number, read with the housekeeping

A kill at a limit that reactor guards is a crossing that no source reported in time: it wakes the loop. The
passes have to wait for the memory that the victim frees. So a pass knows of a kill before the kill wakes it,
and a pass that is about to choose a victim asks for kills that are not reported yet (`take_now`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import trio

from reactor.backoff import next_beat
from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.kernel.files import KernelFile, OwnedDescriptor, parse_field
from reactor.kernel.memcg_events import register_oom
from reactor.kernel.scheduling import following
from reactor.model.kills import OomKill, OomScope
from reactor.model.name_patterns import fences
from reactor.model.settings import Settings
from reactor.model.signals import Signal
from reactor.model.wakes import WakeKind
from reactor.sources.catalogue import OOM_COUNTERS, SourceBoard, switched_on
from reactor.sources.chain import Chain, Step
from reactor.sources.oom_steps import EbpfOom, GuardedNode, OomCounters, ReportKill
from reactor.sources.wakes import Wakes, wake
from reactor.threads import in_thread

_READ_BYTES: Final = 8

# Whether the kernel has killed at a guarded limit, for a pass that is about to choose a victim.
#
# These counters are read with the housekeeping, seconds later. The notices are asked in the pass itself: on
# v1 the kernel counts an OOM on an eventfd before it kills (a non-blocking read, less than 1 us), on v2 in
# memory.events.local. Neither names the victim. The machine as a whole has neither.


class OomNotices:
    """Holds a notice for each guarded cgroup. A cgroup that does not exist (yet) has none."""

    def __init__(self, tree: CgroupTree, node: GuardedNode, *, interval_seconds: float) -> None:
        self._tree = tree
        self._node = node
        self._interval_seconds = interval_seconds
        self._held: dict[str, _EventNotice | _CountNotice] = {}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep a notice for each guarded cgroup until cancelled; a recreated one is registered again."""
        try:
            await self._hold()
            task_status.started()
            while True:
                await next_beat(self._interval_seconds)
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

    def _registered(self, cgroup: str, inode: int) -> _EventNotice | _CountNotice:
        directory = self._tree.path(cgroup)
        if self._tree.version is CgroupVersion.V1:
            return _EventNotice(register_oom(directory), inode)
        return _CountNotice(KernelFile(directory / "memory.events.local"), inode)


class _EventNotice(OwnedDescriptor):
    """An eventfd of v1; by `inode` a cgroup made again under its path is another."""

    def __init__(self, event_fd: int, inode: int) -> None:
        super().__init__(event_fd)
        self.inode = inode

    def struck(self) -> bool:
        """Return whether the kernel was out of memory at the limit since the last call. Never raises."""
        try:  # on the way to each kill: three calls fewer than `suppress`
            return len(os.read(self._fd, _READ_BYTES)) > 0
        except OSError:  # BlockingIOError: none
            return False


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


class OomSource:
    """Reports the OOM kills that concern the guarded node. `steps` replaces the chain.

    `expect` is given each kill whose victim is known, before the loop is woken; it must not block.
    """

    def __init__(
        self,
        tree: CgroupTree,
        settings: Settings,
        wakes: Wakes,
        board: SourceBoard,
        report: ReportKill,
        *,
        steps: Sequence[Step] | None = None,
        expect: ReportKill = lambda _: None,
    ) -> None:
        self._wakes = wakes
        self._board = board
        self._report = report
        self._expect = expect
        node = GuardedNode(settings.node_cgroup or "/", fences(settings.pod_parents))
        interval_seconds = settings.housekeeping_interval_seconds
        if steps is None:
            steps = (
                EbpfOom(tree, node, board, self.on_kill, settings.sources.ebpf_loader),
                OomCounters(tree, node, self.on_kill, interval_seconds=interval_seconds),
            )
        self._ebpf = next((step for step in steps if isinstance(step, EbpfOom)), None)
        self._notices = OomNotices(tree, node, interval_seconds=interval_seconds)
        self._chain = Chain(
            steps,
            switched_on(settings.sources),
            wakes,
            board,
            kind=WakeKind.MEMORY,
            left="OOM kills are not counted",
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Report kills until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._notices.run)
            await self._chain.run(task_status=task_status)

    def take_now(self) -> Sequence[OomKill]:
        """Return the kills since the last call that were not reported yet; never waits, never raises.

        Without eBPF there is one at the most, of which nothing else is known.
        """
        if self._ebpf is not None and self._ebpf.probe is not None:
            found = self._ebpf.take_now(self._ebpf.probe)
            if found is not None:
                return found
        if self._notices.struck():
            return (OomKill(source=OOM_COUNTERS, scope=OomScope.NODE, at_ns=time.monotonic_ns()),)
        return ()

    def on_kill(self, kill: OomKill) -> None:
        """Report a kill; wake the loop if it was at a limit that is guarded."""
        if kill.pid is not None:  # a kill that was only counted is seconds old
            self._expect(kill)
        if kill.scope is OomScope.NODE:
            counted = (self._wakes, self._board, kill.source, WakeKind.MEMORY)
            wake(*counted, Signal.MEMORY_AVAILABLE, at_ns=kill.at_ns)
        self._report(kill)
