"""Thresholds on pid.available by eBPF: the kernel compares the number of tasks with them at each fork.

Counted are the tasks of the node's cgroup where that has a limit, by the pids controller's own counter, else
those of the machine. A crossing is told at the fork itself, and again at doubling distances while the number
rises on; forks below the thresholds cost a look into a map, and nobody is woken.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Protocol, Self

import trio

from reactor.kernel.bpf.loaders import absent_because, open_tasks_probe
from reactor.kernel.bpf.records import Level, RecordKind, WatchRecord
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_files import CgroupVersion
from reactor.kernel.procfs import PROC, read_task_count
from reactor.model.settings import EbpfLoader
from reactor.model.signals import Signal
from reactor.model.thresholds import Threshold
from reactor.model.wakes import Wake, WakeKind
from reactor.sources.catalogue import EBPF_PIDS
from reactor.sources.ebpf_probe import WatchProbe, of_probe, opened, take_records
from reactor.sources.process_levels import ProcessLevels
from reactor.sources.wakes import SourceBoard, Wakes

MACHINE: Final = "/"
# On the way from a threshold to the limit the loop is told at doubling distances from this share on.
_STEPS_TO_LIMIT: Final = 16


class TasksProbe(WatchProbe, Protocol):
    """A probe for the tasks of cgroups and of the machine."""

    def watch_node(self, watch_id: int, levels: Sequence[Level]) -> None:
        """Watch the machine at these levels."""


class _Watch:
    """The watch in the kernel: on a cgroup's counter, or with address 0 on the machine's."""

    __slots__ = ("address", "armed", "cgroup", "id", "told")

    def __init__(self, cgroup: str, address: int, watch_id: int) -> None:
        self.cgroup = cgroup
        self.address = address
        self.id = watch_id
        self.armed: tuple[tuple[Threshold, int], ...] = ()
        self.told: frozenset[Threshold] = frozenset()

    def serves(self, wanted: ProcessLevels) -> bool:
        """Return whether it is armed as wanted, and no crossing that was told has been undone since."""
        return (
            self.cgroup == wanted.cgroup
            and self.armed == _fires(wanted)
            and not any(wanted.used < wanted.fire(threshold) for threshold in self.told)
        )


def _absent_because() -> str | None:
    return absent_because("processes")


class EbpfPids:
    """Wakes the loop at the fork that crosses a threshold; a wake's time is that of the fork.

    `open_probe` loads the programs. Nothing is loaded while there is no threshold to watch.
    """

    name = EBPF_PIDS

    def __init__(
        self,
        tree: CgroupTree,
        wakes: Wakes,
        board: SourceBoard,
        *,
        open_probe: Callable[[], TasksProbe] = open_tasks_probe,
        absent: Callable[[], str | None] = _absent_because,
        proc: Path = PROC,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._tree = tree
        self._wakes = wakes
        self._board = board
        self._open_probe = open_probe
        self._absent = absent
        self._proc = proc
        self._clock_ns = clock_ns
        self._wanted: ProcessLevels | None = None
        self._watch: _Watch | None = None
        self._next_id = 1
        self._moved = trio.Event()

    @classmethod
    def loaded_by(cls, loader: EbpfLoader, tree: CgroupTree, wakes: Wakes, board: SourceBoard) -> Self:
        """Return the source with the loader that the configuration names."""
        open_probe = partial(open_tasks_probe, loader, interrupt=trio.from_thread.check_cancelled)
        return cls(
            tree, wakes, board, open_probe=open_probe, absent=partial(absent_because, "processes", loader)
        )

    def unavailable_because(self) -> str | None:
        """Return why this node can't have it, None where it may be tried."""
        if self._tree.version is CgroupVersion.V1:
            return "the memory controller is on cgroup v1: eBPF would be loaded for this alone"
        return self._absent()

    def expect(self, levels: ProcessLevels | None) -> None:
        """Watch at these thresholds. Returns at once; what is not known leaves the watch as it is."""
        if levels is None:
            return
        self._wanted = levels
        if self._watch is None or not self._watch.serves(levels):
            self._moved.set()

    async def watch(self, armed: Callable[[str], None]) -> None:
        """Watch until the cgroup or the probe fails (OSError, BpfError); call `armed` at each re-arming."""
        while not _fires(self._wanted):
            if self._wanted is not None:
                armed("no threshold on pid.available")
            await self._moved.wait()
            self._moved = trio.Event()
        async with opened(self._open_probe) as probe:
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._keep_armed, probe, armed)
                    nursery.start_soon(take_records, probe, self._heed, self._count_lost)
            finally:
                self._watch = None

    async def _keep_armed(self, probe: TasksProbe, armed: Callable[[str], None]) -> None:
        while True:
            self._moved = trio.Event()
            wanted = self._wanted
            if wanted is not None and (self._watch is None or not self._watch.serves(wanted)):
                await self._arm(probe, wanted)
            armed(self._detail(probe.made_by))
            await self._moved.wait()

    async def _arm(self, probe: TasksProbe, wanted: ProcessLevels) -> None:
        if self._watch is not None and self._watch.cgroup != wanted.cgroup:
            self._drop(probe, self._watch)
        watch = self._watch or await self._begin(probe, wanted.cgroup)
        used = self._count(watch.cgroup)
        fires = _fires(wanted)
        step = max(1, (wanted.limit - min((fire for _, fire in fires), default=0)) // _STEPS_TO_LIMIT)
        levels = [
            Level(fire=fire, rearm=fire, step=step, told=used if used >= fire else None) for _, fire in fires
        ]
        if watch.cgroup == MACHINE:
            probe.watch_node(watch.id, levels)
        else:
            probe.watch(watch.address, watch.id, levels)
            try:
                self._count(watch.cgroup)
            except OSError:
                # The cgroup went before the watch was made: the kernel did not take the watch with it.
                self._drop(probe, watch)
                raise
        told_before = {threshold for threshold in watch.told if wanted.used >= wanted.fire(threshold)}
        watch.armed = fires
        watch.told = frozenset(threshold for threshold, fire in fires if used >= fire)
        if watch.told - told_before:
            self._wake(self._clock_ns())

    async def _begin(self, probe: TasksProbe, cgroup: str) -> _Watch:
        address = 0
        if cgroup != MACHINE:
            directory = self._tree.path(cgroup, "pids")
            address = (await of_probe(probe, partial(probe.counters, directory))).tasks
            if not address:
                raise OSError(errno.ENODEV, "the cgroup has no pids controller", str(directory))
        self._watch = _Watch(cgroup, address, self._next_id)
        self._next_id += 1
        return self._watch

    def _count(self, cgroup: str) -> int:
        if cgroup == MACHINE:
            return read_task_count(self._proc)
        count = self._tree.pids_current(cgroup)
        if count is None:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), f"{cgroup}/pids.current")
        return count

    def _heed(self, records: Sequence[WatchRecord]) -> None:
        for record in records:
            watch = self._watch
            if watch is None or record.watch_id != watch.id:
                continue
            if record.kind is RecordKind.REMOVED:
                raise OSError(errno.ENODEV, "the cgroup is gone", watch.cgroup)
            if record.level < len(watch.armed):
                watch.told |= {watch.armed[record.level][0]}
                self._wake(record.at_ns)

    def _count_lost(self, lost: int) -> None:
        self._board.count_lost(self.name, lost)
        self._wake(self._clock_ns())  # whatever they said, it is there to be observed

    def _drop(self, probe: TasksProbe, watch: _Watch) -> None:
        self._watch = None
        if watch.cgroup == MACHINE:
            probe.watch_node(watch.id, [])
        else:
            probe.unwatch(watch.address)

    def _detail(self, made_by: str) -> str:
        if self._watch is None or not self._watch.armed:
            return "no threshold on pid.available"
        levels = ", ".join(
            f"{self._watch.cgroup} {threshold} at {fire} tasks" for threshold, fire in self._watch.armed
        )
        return f"{levels}; {made_by}" if made_by else levels

    def _wake(self, at_ns: int) -> None:
        self._board.count_wake(self.name)
        self._wakes.notify(
            Wake(source=self.name, kind=WakeKind.PROCESSES, at_ns=at_ns, signal=Signal.PID_AVAILABLE)
        )


def _fires(levels: ProcessLevels | None) -> tuple[tuple[Threshold, int], ...]:
    """Return each threshold with the number of tasks at which it is crossed."""
    return () if levels is None else tuple((one, levels.fire(one)) for one in levels.thresholds)
