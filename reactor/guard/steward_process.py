"""The steward as a process, and the guard's end of the socket pair to it. Only its start takes a thread.

The steward ends when the guard does: it finds the pair closed, and writes what it was still given.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Final, Self

import trio

from reactor.children import child_environment, ended_text
from reactor.errors import ReactorError
from reactor.kernel.scheduling import following
from reactor.threads import in_thread

COMMAND: Final = (sys.executable, "-P", "-m", "reactor.steward")
_REAP_SECONDS: Final = 2.0
# What it is told of the environment: how it logs, how it finds the time zone.
_PASSED_ON: Final = ("JOURNAL_STREAM", "TZ")


class StewardError(ReactorError):
    """The steward ended, hangs, or can't be started."""


class StewardProcess:
    """One steward, from `start` to `end`."""

    def __init__(self, ours: socket.socket, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid
        self.connection = trio.socket.from_stdlib_socket(ours)

    @classmethod
    async def start(cls, command: Sequence[str], listener: socket.socket | None) -> Self:
        """Start one. Raises OSError where that can't be done.

        In a thread: until the child has its own image the parent waits for it, and the child is at ordinary
        priority. On two CPUs with 24 processes at work that held up a loop in real time for 38 ms; with a
        thread in between for 5 ms.
        """
        limiter = trio.CapacityLimiter(1)  # waits for no other thread, which may hang
        return cls(*await in_thread(following(_spawn), command, listener, limiter=limiter))

    async def end(self, patience_seconds: float = 0.0) -> str:
        """Close the pair, and kill the process where it has not ended in time; return how it ended."""
        self.connection.close()
        with trio.CancelScope(shield=True):
            if not await self._wait(patience_seconds):
                self._process.kill()
                await self._wait(_REAP_SECONDS)
        status = self._process.poll()
        if status is None:
            return "does not end although it was killed"
        return ended_text(status)

    async def _wait(self, seconds: float) -> bool:
        """Return whether it ended in time."""
        try:
            pidfd = os.pidfd_open(self.pid)
        except OSError:  # no descriptor is left: what poll finds has to do
            return self._process.poll() is not None
        try:
            with trio.move_on_after(seconds):
                await trio.lowlevel.wait_readable(pidfd)
        finally:
            os.close(pidfd)
        return self._process.poll() is not None


def _spawn(
    command: Sequence[str], listener: socket.socket | None
) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Start a steward; return our end of the pair, and the process. Raises OSError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    ours.setblocking(False)  # noqa: FBT003 - its one argument
    fds = () if listener is None else (listener.fileno(),)
    try:
        with theirs:
            process = subprocess.Popen(
                (*command, *map(str, fds)),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                cwd="/",
                env={
                    **child_environment(),
                    **{name: os.environ[name] for name in _PASSED_ON if name in os.environ},
                },
                pass_fds=fds,
            )
    except BaseException:
        ours.close()
        raise
    return ours, process
