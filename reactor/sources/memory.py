"""What wakes the loop for memory: a chain of watches, each standing in for the one before, and hints.

    ebpf            v2   at the crossing itself
    memcg-eventfd   v1   at the crossing itself
    memory-high     v2   events of memory.high, which throttles too
    ticker               whatever else fails (its own source)

    memcg-reclaim   v1   beside the chain: crossings that page cache hides from usage
    psi                  beside the chain: a hint that memory is short, never a reason to act by itself

One step of the chain watches at a time (`chain`).
"""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from reactor.kernel.bpf.loaders import open_memory_probe
from reactor.kernel.bpf.records import LEVELS_PER_WATCH, Level, NodeCounting
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.kernel.cgroup_memory import MemoryCounters
from reactor.kernel.files import PAGE_BYTES
from reactor.kernel.mem_available import counters_of
from reactor.kernel.memory_control import BorrowedHighs
from reactor.kernel.psi import UNPRIVILEGED_WINDOW_US, open_trigger
from reactor.model.settings import Settings
from reactor.model.signals import Signal
from reactor.model.wakes import WakeKind
from reactor.sources.catalogue import EBPF, MEMORY_HIGH, NO_LEVELS, PSI, switched_on
from reactor.sources.chain import Chain
from reactor.sources.ebpf_watch import (
    MACHINE,
    Crossing,
    EbpfSource,
    EbpfWatch,
    of_probe,
)
from reactor.sources.levels import (
    DRIFT_BYTES,
    RECLAIM_SECONDS,
    CgroupsStep,
    MemoryChain,
    MemoryLevel,
    News,
    describe_levels,
    levels_by_cgroup,
    needs_rearming,
    signal_past,
    watermarks_of,
    with_room_for,
)
from reactor.sources.memcg import MemcgEventfd, MemcgReclaim
from reactor.sources.memory_high import MemoryHigh
from reactor.sources.wakes import Wakes
from reactor.threads import close_behind

if TYPE_CHECKING:
    from reactor.kernel.bpf.bcc_probes import BccMemoryProbe
    from reactor.kernel.bpf.probes import MemoryProbe

    _Probe = MemoryProbe | BccMemoryProbe


def memory_chain(tree: CgroupTree, settings: Settings, wakes: Wakes, highs: BorrowedHighs) -> MemoryChain:
    """Return what arms levels with the best that this node has; `highs` are all of this process."""
    return Chain(
        (
            EbpfMemory(tree, wakes, loader=settings.sources.ebpf_loader),
            MemcgEventfd(tree, wakes),
            MemoryHigh(tree, wakes, highs),
        ),
        switched_on(settings.sources) | ({MEMORY_HIGH: False} if settings.dry_run else {}),
        wakes,
        kind=WakeKind.MEMORY,
        hints=(MemcgReclaim(tree, wakes), PsiHint(tree, wakes)),
    )


MACHINE_PRESSURE: Final = Path("/proc/pressure/memory")
# One part in ten of the shortest window that every kernel takes.
WINDOW_US: Final = 500_000
STALL_US: Final = WINDOW_US // 10


class PsiHint(CgroupsStep):
    """Wakes the loop when tasks of the watched cgroups, or of the machine on cgroup v1, stall for memory.

    Some task for `stall_us` within WINDOW_US; in proportion where the kernel grants a longer window only.
    """

    name = PSI
    stall_us = STALL_US

    def unavailable_because(self) -> str | None:
        """Return why this node can't have it, None where it can be tried."""
        if MACHINE_PRESSURE.exists():
            return None
        return f"no {MACHINE_PRESSURE}: the kernel lacks CONFIG_PSI or was not booted with psi=1"

    async def _watch_cgroups(self, armed: Callable[[str], None]) -> None:
        with ExitStack() as owned:
            epoll = owned.enter_context(select.epoll())
            paths: dict[int, Path] = {}
            windows: list[str] = []
            for path in self._paths():
                fd, window_us = _open(path, self.stall_us)
                # Its end waits for an RCU grace period: 12 to 30 ms in which no wake would be seen.
                owned.callback(close_behind, fd)
                # Trio waits for EPOLLIN, which these files always have.
                epoll.register(fd, select.EPOLLPRI)
                paths[fd] = path
                windows.append(f"{path} in {window_us / 1e6:g} s")
            armed(", ".join(windows) or NO_LEVELS)
            await self._keep_waiting(epoll, paths)

    def _paths(self) -> tuple[Path, ...]:
        """Return the pressure files of the watched cgroups; v1 knows the machine's only."""
        if self._tree.version is CgroupVersion.V1:
            return (MACHINE_PRESSURE,)
        return tuple(
            MACHINE_PRESSURE if cgroup == "/" else self._tree.path(cgroup) / "memory.pressure"
            for cgroup in sorted(self._levels)
        )

    async def _keep_waiting(self, epoll: select.epoll, paths: dict[int, Path]) -> None:
        while True:
            await trio.lowlevel.wait_readable(epoll.fileno())
            # Asking whether a trigger was signalled takes the signal away, and Trio's own epoll has asked:
            # this list is often empty. Only a trigger that is gone still shows.
            for fd, events in epoll.poll(0):
                if events & select.EPOLLERR:
                    raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), str(paths[fd]))
            self._wakes.wake(self.name, WakeKind.MEMORY, None)


def _open(path: Path, stall_us: int) -> tuple[int, int]:
    """Return a trigger's descriptor and the window in microseconds that the kernel granted."""
    try:
        return open_trigger(path, "some", stall_us, WINDOW_US), WINDOW_US
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.EPERM}:
            raise
    stall_us = stall_us * UNPRIVILEGED_WINDOW_US // WINDOW_US
    return open_trigger(path, "some", stall_us, UNPRIVILEGED_WINDOW_US), UNPRIVILEGED_WINDOW_US


# The step for cgroup v2, which has no events for memory thresholds: eBPF programs at the page counters.
#
# The kernel reports a crossing 4-250 KiB past the level, and also reclaim at a limit, when usage stands still
# and only the working set grows. On the machine itself anonymous and file pages without the inactive ones are
# watched, which is the working set: page cache does not move its levels at all. What wakes the loop there is
# what a pass reads from /proc/meminfo (reactor/observe/memory.py).

_STEP_PAGES: Final = DRIFT_BYTES // PAGE_BYTES
_ONCE_PAGES: Final = 1 << 48  # an early level is reported once on the way up
# A level fires again once usage was this far below it: charges come in batches of up to 2 MiB.
_REARM_BYTES: Final = 2 << 20
_REARM_SHARE: Final = 200

_Levels = Sequence[MemoryLevel]


class EbpfMemory(EbpfSource["_Probe", _Levels]):
    """Wakes the loop when usage crosses a level upwards."""

    name = EBPF
    kind = WakeKind.MEMORY
    bpf_object = "memory"
    load = staticmethod(open_memory_probe)
    on_v1 = "the memory controller is on cgroup v1, which has thresholds of its own"

    def arm(self, levels: Sequence[MemoryLevel]) -> None:
        """Watch these levels and no others. Returns at once; arming goes on behind it."""
        by_cgroup = levels_by_cgroup(levels)
        self._want({cgroup: with_room_for(found, LEVELS_PER_WATCH) for cgroup, found in by_cgroup.items()})

    async def _begin(self, probe: _Probe, cgroup: str, watch_id: int) -> EbpfWatch[_Levels]:
        if cgroup == MACHINE:
            counting = _counting(self._wanted.get(MACHINE, ()))
            await of_probe(probe, partial(probe.prepare_node, mem_available=counting is not None))
            return EbpfWatch(cgroup, watch_id, 0, int)  # the kernel alone counts there
        directory = self.tree.path(cgroup)
        addresses = await of_probe(probe, partial(probe.counters, directory))
        if not addresses.memory:
            raise OSError(errno.ENODEV, "the cgroup has no memory controller", str(directory))
        counters = counters_of(self.tree, cgroup, watermarks_of(self._wanted.get(cgroup, ())))
        return EbpfWatch(
            cgroup,
            watch_id,
            addresses.memory,
            lambda: counters.usage_bytes() // PAGE_BYTES,
            partial(self._crossed_by_reclaim, cgroup, counters, News(*RECLAIM_SECONDS)),
            counters.close,
        )

    def _crossed_by_reclaim(self, cgroup: str, counters: MemoryCounters, news: News) -> Signal | None:
        """Return the signal of a level that the working set is at, though usage stands at a limit."""
        with suppress(OSError):  # a cgroup that is gone: its removal is reported too
            return signal_past(self._wanted.get(cgroup, ()), counters, news)
        return None

    def _crossings(self, cgroup: str, wanted: _Levels) -> list[Crossing]:
        """Return the levels in pages: of usage, of the machine the working set."""
        found, counting = [], _counting(wanted)
        for level in wanted:
            at_bytes = level.working_set_bytes if cgroup == MACHINE else None
            fire_bytes = level.level_bytes if at_bytes is None else at_bytes
            # Compared is `available < threshold`: one page past it is the first.
            fire = fire_bytes // PAGE_BYTES + 1
            rearm = fire - max(_REARM_BYTES, fire_bytes // _REARM_SHARE) // PAGE_BYTES
            step = _ONCE_PAGES if level.is_early else _STEP_PAGES
            key = (level.key, counting)
            found.append(Crossing(fire=fire, rearm=max(0, rearm), step=step, key=key, signal=level.signal))
        return found

    def _has_moved(self, armed: Crossing, wanted: Crossing, *, is_reported: bool) -> bool:
        return needs_rearming(armed.fire * PAGE_BYTES, wanted.fire * PAGE_BYTES, fired=is_reported)

    def _watch_machine(self, probe: _Probe, watch_id: int, levels: Sequence[Level]) -> None:
        probe.watch_node(watch_id, levels, _counting(self._wanted.get(MACHINE, ())) if levels else None)

    def _described(self, watches: Sequence[EbpfWatch[_Levels]]) -> str:
        return describe_levels(level for watch in watches for level in watch.wanted or ())


def _counting(levels: _Levels) -> NodeCounting | None:
    """Return how the machine's memory counts at these levels, None where by the working set."""
    watermarks = watermarks_of(levels)
    if watermarks is None:
        return None
    return NodeCounting(
        total=levels[0].capacity_bytes // PAGE_BYTES,
        reserved=watermarks.reserved_bytes // PAGE_BYTES,
        low=watermarks.low_bytes // PAGE_BYTES,
    )
