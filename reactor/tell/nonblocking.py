"""Lines for a pipe, a socket or a terminal that must never be waited for, written without a thread.

O_NONBLOCK belongs to the open file, which others share (a shell, the steward). So a pipe or a terminal is
opened once more by /proc/self/fd, and a socket, which can't be, is sent to with MSG_DONTWAIT. For a file on a
disk there is neither; it blocks while the disk does (`LineWriter` has a thread for that).
"""

from __future__ import annotations

import os
import select
import socket
import stat
import threading
from collections import deque
from contextlib import suppress
from typing import Self

import trio


class _File:
    """An open file in which nothing blocks."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def write(self, line: bytes) -> int:
        """Write, and return how much. Raises BlockingIOError, OSError."""
        return os.write(self._fd, line)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        os.close(fd)


class _Socket:
    """A stream socket of which others have the open file too, and may want it to block."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)

    def fileno(self) -> int:
        return self._socket.fileno()

    def write(self, line: bytes) -> int:
        """Send, and return how much. Raises BlockingIOError, OSError."""
        return self._socket.send(line, socket.MSG_DONTWAIT)

    def close(self) -> None:
        self._socket.close()


class NonblockingWriter:
    """Writes lines at once where there is room, the others in their order as soon as there is.

    Lines may come from any thread; those of others than the one that made this are written by that one, soon
    where Trio runs in it, else with its next line or at the end. `lost` counts those that found `limit` lines
    waiting, or nothing to be written to. The descriptor is this writer's own.
    """

    def __init__(self, target: _File | _Socket, limit: int) -> None:
        self.lost = 0
        self._target = target
        self._limit = limit
        self._waiting: deque[bytes] = deque()
        self._thread_id = threading.get_ident()
        self._token: trio.lowlevel.TrioToken | None = None
        self._is_draining = False

    @classmethod
    def to(cls, fd: int, limit: int) -> Self | None:
        """Return a writer to what a descriptor is open on, None where that may block."""
        try:
            mode = os.fstat(fd).st_mode
            if stat.S_ISSOCK(mode):
                return cls(_Socket(os.dup(fd)), limit)
            if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
                return cls(_File(os.open(f"/proc/self/fd/{fd}", flags)), limit)
        except OSError:  # another user's pipe, one without a reader, no /proc
            return None
        return None

    def put(self, line: bytes) -> bool:
        """Write a line, or keep it; return False, and count it as lost, where too many wait. Never blocks."""
        if len(self._waiting) >= self._limit:
            self.lost += 1
            return False
        self._waiting.append(line)
        if threading.get_ident() == self._thread_id:
            self._write()
        elif self._token is not None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._write, idempotent=True)
        return True

    def close(self, timeout_seconds: float) -> bool:
        """Write what waits, for as long as that; return False where some is left, which is lost."""
        is_written = self.flush(timeout_seconds)
        self._waiting.clear()
        self._limit = 0
        self._target.close()
        return is_written

    def flush(self, timeout_seconds: float) -> bool:
        """Write what waits, for as long as that; return False where some is left."""
        writable = select.poll()
        writable.register(self._target.fileno(), select.POLLOUT)
        self._write()
        while self._waiting and writable.poll(timeout_seconds * 1000):
            self._write()
        return not self._waiting

    def _write(self) -> None:
        while self._waiting:
            line = self._waiting[0]
            try:
                written = self._target.write(line)
            except BlockingIOError:
                self._drain_soon()
                return
            except OSError:  # there is nowhere left to say so
                self.lost += 1
                written = len(line)
            if written < len(line):
                self._waiting[0] = line[written:]
            else:
                self._waiting.popleft()
        if self._token is None and trio.lowlevel.in_trio_run():
            self._token = trio.lowlevel.current_trio_token()

    def _drain_soon(self) -> None:
        if not self._is_draining and trio.lowlevel.in_trio_run():
            self._is_draining = True
            trio.lowlevel.spawn_system_task(self._drain)

    async def _drain(self) -> None:
        try:
            while self._waiting:
                await trio.lowlevel.wait_writable(self._target.fileno())
                self._write()
        finally:
            self._is_draining = False
