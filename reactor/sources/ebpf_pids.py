"""Thresholds on pid.available by eBPF: the kernel compares the number of tasks with them at each fork.

Counted are the tasks of the node's cgroup where that has a limit, by the pids controller's own counter, else
those of the machine. Forks below the thresholds cost one lookup in a map, and wake nothing.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Final, Protocol

import trio

from reactor.kernel.bpf.loaders import open_tasks_probe
from reactor.kernel.bpf.records import Level
from reactor.kernel.procfs import read_task_count
from reactor.model.settings import EbpfLoader
from reactor.model.signals import Signal
from reactor.model.wakes import WakeKind
from reactor.sources.catalogue import EBPF_PIDS
from reactor.sources.ebpf_probe import WatchProbe, of_probe
from reactor.sources.ebpf_watch import MACHINE, Crossing, EbpfSource, EbpfWatch
from reactor.sources.process_levels import ProcessLevels

# On the way from a threshold to the limit the loop is woken at doubling distances from this share on.
_STEPS_TO_LIMIT: Final = 16


class TasksProbe(WatchProbe, Protocol):
    """A probe for the tasks of cgroups and of the machine."""

    def watch_node(self, watch_id: int, levels: Sequence[Level]) -> None:
        """Watch the machine at these levels."""


class _TasksWatch(EbpfWatch[ProcessLevels]):
    """Watches the tasks that `count` returns."""

    def __init__(self, cgroup: str, watch_id: int, address: int, count: Callable[[], int]) -> None:
        super().__init__(cgroup, watch_id, address)
        self._count = count

    def serves(self, armed: ProcessLevels, wanted: ProcessLevels) -> bool:
        is_same = (armed.thresholds, armed.fires) == (wanted.thresholds, wanted.fires)
        return is_same and len(self.standing(wanted)) == len(self.told)

    def pack(self, wanted: ProcessLevels) -> list[Crossing]:
        used = self._count()
        step = max(1, (wanted.limit - min(wanted.fires, default=0)) // _STEPS_TO_LIMIT)
        return [
            Crossing(
                level=Level(fire=fire, rearm=fire, step=step, told=used if used >= fire else None),
                key=threshold,
                signal=Signal.PID_AVAILABLE,
            )
            for threshold, fire in zip(wanted.thresholds, wanted.fires, strict=True)
        ]

    def check(self) -> None:
        self._count()

    def standing(self, wanted: ProcessLevels) -> set[Hashable]:
        told = super().standing(wanted)
        return {one for one in wanted.thresholds if one in told and wanted.used >= wanted.fire(one)}


class EbpfPids(EbpfSource[TasksProbe, ProcessLevels]):
    """Wakes the loop at the fork that crosses a threshold.

    Nothing is loaded while there is no threshold to watch.
    """

    name = EBPF_PIDS
    kind = WakeKind.PROCESSES
    bpf_object = "processes"
    on_v1 = "the memory controller is on cgroup v1: eBPF would be loaded for this alone"
    without_levels = "no threshold on pid.available"
    any_signal = Signal.PID_AVAILABLE

    def expect(self, levels: ProcessLevels | None) -> None:
        """Watch at these thresholds. Returns at once; what is not known leaves the watch as it is."""
        if levels is not None:
            self._want({levels.cgroup: levels} if levels.thresholds else {})

    async def watch(self, armed: Callable[[str], None]) -> None:
        """Watch as every such source; load nothing before there is a threshold."""
        await self._is_told.wait()
        if not self._wanted:
            armed(self.without_levels)
        while not self._wanted:
            self._moved = trio.Event()
            await self._moved.wait()
        await super().watch(armed)

    @staticmethod
    def _load(loader: EbpfLoader) -> TasksProbe:
        # The compiler of BCC is killed when the daemon ends or is reloaded.
        return open_tasks_probe(loader, interrupt=trio.from_thread.check_cancelled)

    async def _begin(self, probe: TasksProbe, cgroup: str, watch_id: int) -> _TasksWatch:
        address = 0
        if cgroup != MACHINE:
            directory = self._tree.path(cgroup, "pids")
            address = (await of_probe(probe, partial(probe.counters, directory))).tasks
            if not address:
                raise OSError(errno.ENODEV, "the cgroup has no pids controller", str(directory))
        return _TasksWatch(cgroup, watch_id, address, partial(self._count, cgroup))

    def _watch_machine(self, probe: TasksProbe, watch_id: int, levels: Sequence[Level]) -> None:
        probe.watch_node(watch_id, levels)

    def _described(self, watches: Sequence[EbpfWatch[ProcessLevels]]) -> str:
        return ", ".join(
            f"{watch.cgroup} {one.key} at {one.level.fire} tasks"
            for watch in watches
            for one in watch.crossings
        )

    def _count(self, cgroup: str) -> int:
        if cgroup == MACHINE:
            return read_task_count(self._proc)
        count = self._tree.pids_current(cgroup)
        if count is None:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), f"{cgroup}/pids.current")
        return count
