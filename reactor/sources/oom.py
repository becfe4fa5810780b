"""The kernel's OOM kills, reported as they happen or counted afterwards: a chain as for memory.

    ebpf-oom       each kill at once, with its victim and the cgroup whose limit was met. There is a record of
                   it before the victim dies, and it costs nothing when idle
    oom-counters   their number, read with the housekeeping. On v2 they show whose limit was met. On v1 an
                   eventfd shows whether it was the node's or that of a parent of pods; for other limits it
                   is only known whether the victim's cgroup, if it still exists, was ever at its own

A kill at a limit that reactor guards is a crossing that no source reported in time: it wakes the loop. The
passes have to wait for the memory that the victim frees. So a pass knows of a kill before the kill wakes it,
and a pass that is about to choose a victim asks for kills that are not reported yet (`take_now`).
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

import trio

from reactor.backoff import next_beat
from reactor.errors import ReactorError
from reactor.kernel.bpf.probes import OomRecords
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
from reactor.sources.catalogue import OOM_COUNTERS, switched_on
from reactor.sources.chain import Chain
from reactor.sources.ebpf_watch import MACHINE
from reactor.sources.oom_steps import EbpfOom, GuardedNode, OomCounters, ReportKill
from reactor.sources.wakes import Wakes
from reactor.threads import in_thread

# How often the kernel was out of memory at a guarded limit.
#
# For a pass that is about to choose a victim this is asked in the pass itself: on v1 the kernel counts an OOM
# on an eventfd before it kills (a non-blocking read, less than 1 us), on v2 in memory.events.local. Neither
# names the victim. The machine as a whole has neither.


class GuardedLimits:
    """Counts OOMs at each guarded limit. A cgroup that does not exist (yet) has none."""

    def __init__(self, tree: CgroupTree, node: GuardedNode, *, interval_seconds: float) -> None:
        self._tree = tree
        self._node = node
        self._interval_seconds = interval_seconds
        self._held: dict[str, _EventNotice | _CountNotice] = {}
        self._met = 0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Count them until cancelled; a cgroup that was made again is registered again."""
        try:
            await self._hold()
            task_status.started()
            while True:
                await next_beat(self._interval_seconds)
                await self._hold()
        finally:
            while self._held:
                self._held.popitem()[1].close()

    def met(self) -> int:
        """Return how often a guarded limit was out of memory so far, counted when asked. Never raises."""
        self._met += sum(notice.struck() for notice in self._held.values())
        return self._met

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
        return _CountNotice(directory / "memory.events.local", inode)


class _EventNotice(OwnedDescriptor):
    """An eventfd of v1; by `inode` a cgroup made again under its path is another."""

    def __init__(self, event_fd: int, inode: int) -> None:
        super().__init__(event_fd)
        self.inode = inode
        self._poll = select.poll()
        self._poll.register(event_fd, select.POLLIN)

    def struck(self) -> bool:
        """Return whether the kernel was out of memory at the limit since the last call. Never raises."""
        try:  # on the way to each kill, where a read that finds nothing takes twice as long as to ask
            return bool(self._poll.poll(0)) and os.eventfd_read(self._fd) > 0
        except OSError:
            return False


class _CountNotice(KernelFile):
    """The count of v2."""

    def __init__(self, path: Path, inode: int) -> None:
        super().__init__(path)
        self.inode = inode
        self._met = parse_field(self.read(), b"oom", self.path)

    def struck(self) -> bool:
        with suppress(OSError, ReactorError):
            before, self._met = self._met, parse_field(self.read(), b"oom", self.path)
            return self._met > before
        return False


@dataclass(eq=False)
class OomSource:
    """Reports the OOM kills that concern the guarded node.

    `expect` is given each kill whose victim is known, before the loop is woken; it must not block. For
    `open_probe` see EbpfStep.
    """

    tree: CgroupTree
    settings: Settings
    wakes: Wakes
    report: ReportKill
    _: KW_ONLY
    expect: ReportKill = lambda _: None
    open_probe: Callable[[], OomRecords] | None = None

    def __post_init__(self) -> None:
        tree, settings, wakes = self.tree, self.settings, self.wakes
        self._met = 0
        node = GuardedNode(settings.node_cgroup or MACHINE, fences(settings.pod_parents))
        seconds = settings.housekeeping_interval_seconds
        self._limits = GuardedLimits(tree, node, interval_seconds=seconds)
        loader = settings.sources.ebpf_loader
        self._ebpf = EbpfOom(
            tree, wakes, node=node, report=self.on_kill, loader=loader, open_probe=self.open_probe
        )
        self._chain = Chain[None](
            (self._ebpf, OomCounters(tree, node, self._limits.met, self.on_kill, interval_seconds=seconds)),
            switched_on(settings.sources),
            wakes,
            kind=WakeKind.MEMORY,
            left="OOM kills are not counted",
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Report kills until cancelled."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._limits.run)
            await self._chain.run(task_status=task_status)

    def take_now(self) -> Sequence[OomKill]:
        """Return the kills since the last call that were not reported yet; never waits, never raises.

        Without eBPF there is one at the most, of which nothing else is known.
        """
        found = None if self._ebpf.probe is None else self._ebpf.take_now()
        if found is not None:
            return found
        met_before, self._met = self._met, self._limits.met()
        if self._met > met_before:
            return (OomKill(source=OOM_COUNTERS, scope=OomScope.NODE, at_ns=time.monotonic_ns()),)
        return ()

    def on_kill(self, kill: OomKill) -> None:
        """Report a kill; wake the loop if it was at a limit that is guarded."""
        if kill.pid is not None:  # a kill that was only counted is seconds old
            self.expect(kill)
        if kill.scope is OomScope.NODE:
            self.wakes.wake(kill.source, WakeKind.MEMORY, Signal.MEMORY_AVAILABLE, at_ns=kill.at_ns)
        self.report(kill)
