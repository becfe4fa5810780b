"""Memory pressure as a hint: tasks stall because memory is short, so the loop makes a pass.

Pressure comes late (65-230 ms) or never where memory runs out without reclaim, and it comes with memory
free: it wakes the loop and says nothing about what to do. Acting on it alone has killed control planes.
"""

from __future__ import annotations

import errno
import os
import select
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import trio

from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.kernel.psi import UNPRIVILEGED_WINDOW_US, open_trigger
from reactor.model.wakes import Wake, WakeKind
from reactor.sources.catalogue import PSI, SourceBoard
from reactor.sources.levels import MemoryLevel
from reactor.sources.wakes import Wakes
from reactor.threads import close_behind

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
