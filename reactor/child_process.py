"""A process beside the guard, the steward or the watch of logind, and our end of the socket pair to it.

Only its start takes a thread. It ends when the guard does: it finds the pair closed, and writes what it was
still given.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Protocol, Self

import trio

from reactor.kernel.libc import spawn
from reactor.kernel.scheduling import following
from reactor.processes import child_environment, ended_text
from reactor.threads import in_thread

_REAP_SECONDS: Final = 2.0
# Not passed on: the service manager hears the guard alone. Of the others the steward needs how it logs, the
# time zone, the API server's address in a pod, the node's name, and what a credentials plugin goes by.
_KEPT_BACK: Final = ("NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC")


class Cgroups(Protocol):
    """Where such a process is put."""

    def make(self) -> None:
        """Make the cgroup if it is not there."""

    def adopt(self, pid: int) -> None:
        """Put the process into it."""


class ChildProcess:
    """One such process, from `start` to `end`."""

    def __init__(self, ours: socket.socket, pid: int) -> None:
        self.pid = pid
        self.connection = trio.socket.from_stdlib_socket(ours)
        self._status: int | None = None

    @classmethod
    async def start(
        cls, command: Sequence[str], fds: Sequence[int] = (), cgroups: Cgroups | None = None
    ) -> Self:
        """Start one, in its cgroup where it has one. Raises OSError where that can't be done.

        `fds` are passed on, and are its last arguments.

        In a thread, and there by C without the interpreter's lock: until the child has its own image the
        parent waits for it, and the child is at ordinary priority, on CPUs that others may have. On two CPUs
        with 24 processes at work a loop in real time that starts it itself was held up for 35 ms (median), by
        subprocess in a thread, which holds the lock, for 1.5 ms, so for 0.6 ms, as by nothing at all.
        """
        limiter = trio.CapacityLimiter(1)  # waits for no other thread, which may hang
        return cls(*await in_thread(following(_spawn), command, fds, cgroups, limiter=limiter))

    async def end(self, patience_seconds: float = 0.0) -> str:
        """Close the pair, and kill the process where it has not ended in time; return how it ended."""
        self.connection.close()
        with trio.CancelScope(shield=True):
            if not await self._wait(patience_seconds):
                os.kill(self.pid, signal.SIGKILL)
                await self._wait(_REAP_SECONDS)
        return "does not end although it was killed" if self._status is None else ended_text(self._status)

    async def _wait(self, seconds: float) -> bool:
        """Return whether it ended in time, and reap it then: until then its number is no other's."""
        with suppress(OSError):  # if no descriptor is left, what is found below has to do
            pidfd = os.pidfd_open(self.pid)
            try:
                with trio.move_on_after(seconds):
                    await trio.lowlevel.wait_readable(pidfd)
            finally:
                os.close(pidfd)
        if self._status is None:
            with trio.move_on_after(_REAP_SECONDS):  # where a thread can be started
                self._status = await in_thread(_reap, self.pid, limiter=trio.CapacityLimiter(1))
        return self._status is not None


def _reap(pid: int) -> int | None:
    """Return the exit status of a process that has ended, None of another.

    At ordinary priority: the kernel spins in wait4 while a thread of the process still lets go of what of it
    was read in /proc (shrink_dcache_parent). A loop in real time that had preempted that thread spun until it
    was throttled, for 0.95 s.
    """
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def _spawn(command: Sequence[str], fds: Sequence[int], cgroups: Cgroups | None) -> tuple[socket.socket, int]:
    """Start a process; return our end of the pair, and its process id. Raises OSError."""
    if cgroups is not None:
        cgroups.make()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    ours.setblocking(False)  # noqa: FBT003 - its one argument
    passed_on = {name: value for name, value in os.environ.items() if name not in _KEPT_BACK}
    try:
        with theirs:
            pid = spawn(
                (*command, *map(str, fds)),
                {**passed_on, **child_environment()},
                stdin_fd=theirs.fileno(),
                inherited_fds=fds,
            )
    except BaseException:
        ours.close()
        raise
    if cgroups is not None:
        cgroups.adopt(pid)
    return ours, pid
