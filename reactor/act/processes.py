"""Processes held through pidfds: opened, waited on, and descriptors in reserve to open them with.

A process id may be reused between the reading of `cgroup.procs` and a kill(2). A pidfd names one process
for good, but pidfd_open(2) itself takes an id: so each id is opened first, and signalled only if it is
still listed in the cgroup afterwards. What the pidfd then names was in the cgroup while we held it.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import trio

from reactor.kernel.files import close_descriptor

NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})
_NOBODY: Final = frozenset({errno.ESRCH, errno.EINVAL})  # gone, or no process's own id
HELD: Final = 64  # pidfds kept of a pod, to be waited on


class Opened(NamedTuple):
    """Pidfds by process id, how many ids were tried, and those that were refused."""

    pidfds: dict[int, int]
    tried: int
    refused: dict[int, OSError]


def open_pidfds(pids: Sequence[int]) -> Opened:
    """Return pidfds of these processes. One that is gone is absent.

    Stops early where the process has no file descriptors left. Raises OSError where there was not even one.
    """
    opened: dict[int, int] = {}
    refused: dict[int, OSError] = {}
    for tried, pid in enumerate(pids):
        try:
            opened[pid] = os.pidfd_open(pid)
        except OSError as error:
            if error.errno in _NOBODY:
                continue
            if error.errno not in NO_DESCRIPTORS:
                refused[pid] = error
            elif opened:
                return Opened(opened, tried, refused)
            else:
                raise
    return Opened(opened, len(pids), refused)


async def wait_exited(pidfds: Collection[int]) -> None:
    """Wait until every process has exited, its memory given back.

    A pidfd turns readable in exit_notify(), after exit_mm(): by then its pages are uncharged
    (kernel/exit.c). A cgroup.procs that is empty says less: it drops a process before exit_mm().
    """
    for fd in pidfds:
        await trio.lowlevel.wait_readable(fd)


class Reserve:
    """Descriptors kept open for nothing, so that there are some when a kill needs them.

    A process that has used up its own must still be able to kill: to list a cgroup, to freeze it, and to
    hold a few pidfds at a time.
    """

    _SIZE: Final = 8

    def __init__(self) -> None:
        self._fds: list[int] = []
        self.fill()

    def fill(self) -> bool:
        """Take descriptors again; return whether there were enough."""
        with contextlib.suppress(OSError):
            if not self._fds:
                self._fds.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
            while len(self._fds) < self._SIZE:
                self._fds.append(os.dup(self._fds[0]))
        return len(self._fds) == self._SIZE

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Let the body have them."""
        self.close()
        try:
            yield
        finally:
            self.fill()

    def close(self) -> None:
        """Give them up; harmless when repeated."""
        close_all(self._fds)
        self._fds.clear()

    def __del__(self) -> None:
        self.close()


def close_all(pidfds: Iterable[int]) -> None:
    """Close the pidfds. One that can't be closed keeps no other open."""
    for fd in pidfds:
        close_descriptor(fd)
