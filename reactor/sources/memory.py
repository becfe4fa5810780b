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
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Protocol

import trio

from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.kernel.memory_control import BorrowedHighs
from reactor.kernel.psi import UNPRIVILEGED_WINDOW_US, open_trigger
from reactor.model.settings import Settings
from reactor.model.wakes import SourceHealth, Wake, WakeKind
from reactor.sources.catalogue import PSI, SOURCES, SourceBoard, switched_on
from reactor.sources.chain import Chain, Step, keep_trying, off_because
from reactor.sources.ebpf_memory import EbpfMemory
from reactor.sources.levels import MemoryLevel
from reactor.sources.memcg import MemcgEventfd, MemcgReclaim
from reactor.sources.memory_high import MemoryHigh
from reactor.sources.wakes import Wakes
from reactor.threads import close_behind

# memory.high would slow down allocators before they have crossed anything, and hints come too late.
_TAKE_EARLY: Final = frozenset(source.name for source in SOURCES if source.prepares)


class MemoryStep(Step, Protocol):
    """One way of being woken for memory."""

    def arm(self, levels: Sequence[MemoryLevel]) -> None:
        """Watch these levels and no others from now on. Never blocks; at any time, also before `watch`."""


class MemorySource:
    """Arms the levels it is given with the best that this node has.

    `highs` has one memory.high for each cgroup in this process. `steps` and `hints` replace the chain and
    what runs beside it; steps that come first are preferred.
    """

    def __init__(
        self,
        tree: CgroupTree,
        settings: Settings,
        wakes: Wakes,
        board: SourceBoard,
        highs: BorrowedHighs | None = None,
        *,
        steps: Sequence[MemoryStep] | None = None,
        hints: Sequence[MemoryStep] | None = None,
    ) -> None:
        allowed = switched_on(settings.sources)
        if steps is None:
            steps = (
                EbpfMemory(tree, wakes, board, settings.sources.ebpf_loader),
                MemcgEventfd(tree, wakes, board),
                MemoryHigh(tree, wakes, board, highs or BorrowedHighs()),
            )
        if hints is None:
            hints = (MemcgReclaim(tree, wakes, board), PsiHint(tree, wakes, board))
        self._board = board
        self._steps = [step for step in steps if off_because(step, allowed) is None]
        self._chain = Chain(steps, allowed, wakes, board, kind=WakeKind.MEMORY)
        self._hints = [(hint, off_because(hint, allowed)) for hint in hints]

    def arm(self, levels: Sequence[MemoryLevel]) -> None:
        """Ask to be woken at these levels and no others. Returns at once; arming goes on behind it."""
        crossings = [level for level in levels if not level.is_early]
        for step in self._steps:
            step.arm(levels if step.name in _TAKE_EARLY else crossings)
        for hint, because in self._hints:
            if because is None:
                hint.arm(crossings)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep one step of the chain and all the hints going until cancelled."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._chain.run)
            for hint, because in self._hints:
                if because is None:
                    nursery.start_soon(keep_trying, hint.name, self._board, hint.watch)
                else:
                    self._board.set(hint.name, SourceHealth.OFF, because)
            task_status.started()

    @property
    def is_armed(self) -> bool:
        """Whether a step is watching."""
        return self._chain.is_armed

    async def wait_armed(self) -> str:
        """Return the name of the step that is watching; wait while there is none."""
        return await self._chain.wait_armed()


MACHINE_PRESSURE: Final = Path("/proc/pressure/memory")
# One part in ten of the shortest window that every kernel takes.
WINDOW_US: Final = 500_000
STALL_US: Final = WINDOW_US // 10


class PsiHint:
    """Wakes the loop when tasks of the watched cgroups, or of the machine on cgroup v1, stall for memory.

    Some task for `stall_us` within WINDOW_US; in proportion where the kernel grants a longer window only.
    """

    name = PSI

    def __init__(
        self,
        tree: CgroupTree,
        wakes: Wakes,
        board: SourceBoard,
        *,
        machine_pressure: Path = MACHINE_PRESSURE,
        stall_us: int = STALL_US,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._tree = tree
        self._wakes = wakes
        self._board = board
        self._machine_pressure = machine_pressure
        self._stall_us = stall_us
        self._clock_ns = clock_ns
        self._cgroups: frozenset[str] = frozenset({"/"})
        self._other_cgroups = trio.Event()

    def unavailable_because(self) -> str | None:
        """Return why this node can't have it, None where it can."""
        if self._machine_pressure.exists():
            return None
        return f"no {self._machine_pressure}: the kernel lacks CONFIG_PSI or was not booted with psi=1"

    def arm(self, levels: Sequence[MemoryLevel]) -> None:
        """Watch the cgroups of these levels."""
        cgroups = frozenset(level.cgroup for level in levels)
        if cgroups != self._cgroups:
            self._cgroups = cgroups
            self._other_cgroups.set()

    async def watch(self, armed: Callable[[str], None]) -> None:
        """Watch until a pressure file goes away or refuses (OSError)."""
        while True:
            self._other_cgroups = trio.Event()
            with ExitStack() as owned:
                epoll = owned.enter_context(select.epoll())
                paths: dict[int, Path] = {}
                windows: list[str] = []
                for path in self._paths():
                    fd, window_us = _open(path, self._stall_us)
                    # Its end waits for an RCU grace period: 12 to 30 ms in which no wake would be seen.
                    owned.callback(close_behind, fd)
                    # Trio waits for EPOLLIN, which these files always have.
                    epoll.register(fd, select.EPOLLPRI)
                    paths[fd] = path
                    windows.append(f"{path} in {window_us / 1e6:g} s")
                armed(", ".join(windows) or "no levels")
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._keep_waiting, epoll, paths)
                    await self._other_cgroups.wait()
                    nursery.cancel_scope.cancel()

    def _paths(self) -> tuple[Path, ...]:
        """Return the pressure files of the watched cgroups; v1 knows the machine's only."""
        if self._tree.version is CgroupVersion.V1:
            return (self._machine_pressure,)
        return tuple(
            self._machine_pressure if cgroup == "/" else self._tree.path(cgroup) / "memory.pressure"
            for cgroup in sorted(self._cgroups)
        )

    async def _keep_waiting(self, epoll: select.epoll, paths: dict[int, Path]) -> None:
        while True:
            await trio.lowlevel.wait_readable(epoll.fileno())
            # Asking whether a trigger was signalled takes the signal away, and Trio's own epoll has asked:
            # this list is often empty. Only a trigger that is gone still shows.
            for fd, events in epoll.poll(0):
                if events & select.EPOLLERR:
                    raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), str(paths[fd]))
            self._board.count_wake(self.name)
            self._wakes.notify(Wake(source=self.name, kind=WakeKind.MEMORY, at_ns=self._clock_ns()))


def _open(path: Path, stall_us: int) -> tuple[int, int]:
    """Return a trigger's descriptor and the window in microseconds that the kernel granted."""
    try:
        return open_trigger(path, "some", stall_us, WINDOW_US), WINDOW_US
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.EPERM}:
            raise
    stall_us = stall_us * UNPRIVILEGED_WINDOW_US // WINDOW_US
    return open_trigger(path, "some", stall_us, UNPRIVILEGED_WINDOW_US), UNPRIVILEGED_WINDOW_US
