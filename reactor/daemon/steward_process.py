"""The steward as a process, and the guard's end of the socket pair to it. No thread takes part.

The steward ends when the guard does: it finds the pair closed, and writes what it was still given.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

import trio

from reactor.errors import ReactorError

COMMAND: Final = (sys.executable, "-P", "-m", "reactor.steward")
_REAP_SECONDS: Final = 2.0
# What it is told of the environment: how it logs, how it finds the time zone.
_PASSED_ON: Final = ("JOURNAL_STREAM", "TZ")


class StewardError(ReactorError):
    """The steward ended, hangs, or can't be started."""


class StewardProcess:
    """One steward, from its start to `end`. Raises OSError where none can be started."""

    def __init__(self, command: Sequence[str], listener: socket.socket | None) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        ours.setblocking(False)  # noqa: FBT003 - its one argument
        fds = () if listener is None else (listener.fileno(),)
        try:
            with theirs:
                # The interpreter is away for the 2 ms that the kernel takes to replace the child's image.
                self._process = subprocess.Popen(
                    (*command, *map(str, fds)),
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    cwd="/",
                    env={
                        "PYTHONPATH": os.pathsep.join(filter(os.path.isabs, sys.path)),
                        "LC_ALL": "C.UTF-8",
                        **{name: os.environ[name] for name in _PASSED_ON if name in os.environ},
                    },
                    pass_fds=fds,
                )
        except BaseException:
            ours.close()
            raise
        self.pid = self._process.pid
        self.connection = trio.socket.from_stdlib_socket(ours)

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
        if status < 0:
            return f"killed by signal {-status} ({signal.strsignal(-status)})"
        return f"ended with status {status}"

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
