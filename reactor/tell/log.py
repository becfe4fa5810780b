"""Log lines on standard error, for journald, a runtime's pipe or a terminal; none of them is waited for.

A stuck journald or a full pipe must not stop the loop. What can't be written at once waits, bounded, and no
thread holds the interpreter's lock for it; standard error in a file has a thread, because its disk may hang.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import stat
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from io import FileIO
from queue import SimpleQueue
from threading import Thread
from typing import Final, Self

import trio

from reactor.kernel.scheduling import follow_main_thread
from reactor.text import printable

_LOG: Final = logging.getLogger("reactor.writer")
Line = Callable[[], bytes]
_QUEUED_LINES: Final = 256

_CLOSE_SECONDS: Final = 1.0
_MOST_LINES: Final = 1024
# syslog's priorities, which journald takes off the front of a line: sd-daemon(3).
_PRIORITIES: Final = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3}


# A thread that writes lines for a loop that must never wait for a disk or a pipe.
#
# Why a thread of its own, and why this queue: `SimpleQueue.put` takes no lock that another thread could be
# preempted with, and a write(2) to a full, slow or hung target blocks only the writer. The queue is bounded
# by dropping, and what is dropped is counted.
class LineWriter:
    """Takes lines as functions that make them (called in the thread) and gives them to `sink`, in order.

    `sink` deals with its OSErrors itself. A line that can't be made is a defect of ours: it is lost, counted
    and logged, and the next one is written.
    """

    def __init__(self, name: str, sink: Callable[[bytes], None], *, limit: int = _QUEUED_LINES) -> None:
        self._name = name
        self._sink = sink
        self._limit = limit
        self._queue: SimpleQueue[Line | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._is_wanted = False
        self.lost = 0

    def start(self) -> None:
        """Start the thread; lines put before are kept.

        Where no thread can be started, by a node that has no process id left, the next line tries again.
        """
        self._is_wanted = True
        self._start_thread()

    def put(self, line: Line) -> bool:
        """Queue a line; return False, and count it as lost, where the queue is full. Never blocks."""
        if self._queue.qsize() >= self._limit:
            self.lost += 1
            return False
        self._queue.put(line)
        if self._is_wanted and not self._is_alive():
            self._start_thread()
        return True

    def close(self, timeout_seconds: float) -> bool:
        """Write what is queued and end the thread; return False where that takes longer than allowed."""
        self._is_wanted = False
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join(timeout_seconds)
        return not self._is_alive()

    def _is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _start_thread(self) -> None:
        # A daemon thread: one that hangs in write(2) must not keep the process from ending.
        thread = Thread(target=self._run, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # EAGAIN of clone(2)
            return
        self._thread = thread

    def _run(self) -> None:
        while (line := self._queue.get()) is not None:
            try:
                follow_main_thread()  # which may have become real-time since
                self._sink(line())
            except Exception:  # noqa: BLE001 - the thread has to outlive whatever one line holds
                self.lost += 1
                _LOG.exception("%s: a line was lost", self._name)


# Lines for a pipe, a socket or a terminal that must never be waited for, written without a thread.
#
# O_NONBLOCK belongs to the open file, which others share (a shell, the steward). So a pipe or a terminal is
# opened once more by /proc/self/fd, and a socket, which can't be, is sent to with MSG_DONTWAIT. For a file
# on a disk there is neither; it blocks while the disk does (`LineWriter` has a thread for that).
class NonblockingWriter:
    """Writes lines at once where there is room, the others in their order as soon as there is.

    Lines may come from any thread; those of others than the one that made this are written by that one, soon
    where Trio runs in it, else with its next line or at the end. `lost` counts those that found `limit` lines
    waiting, or nothing to be written to. The descriptor is this writer's own.
    """

    def __init__(self, target: FileIO | socket.socket, limit: int) -> None:
        self.lost = 0
        self._target = target
        # Others have a socket's open file too, and may want it to block.
        self._send: Callable[[bytes], int | None] = (
            target.write if isinstance(target, FileIO) else partial(_send, target)
        )
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
                return cls(socket.socket(fileno=os.dup(fd)), limit)
            if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
                return cls(FileIO(os.open(f"/proc/self/fd/{fd}", flags), "wb"), limit)
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
                written = self._send(line)
            except OSError:  # there is nowhere left to say so
                self.lost += 1
                written = len(line)
            if written is None:
                self._drain_soon()
                return
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


def _send(target: socket.socket, line: bytes) -> int | None:
    """Return how much was sent, None if that would block, as a raw file does. Raises OSError."""
    try:
        return target.send(line, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return None


class QueuedLog(logging.Handler):
    """Hands formatted records to a writer that never blocks; those without room are counted and dropped."""

    def __init__(self, fd: int, *, for_journald: bool) -> None:
        super().__init__()
        self._for_journald = for_journald
        self._unsayable = 0
        self._writer = NonblockingWriter.to(fd, _MOST_LINES) or _BesideLoop(fd)
        self.setFormatter(
            logging.Formatter("%(message)s" if for_journald else "%(asctime)s %(levelname)s %(message)s")
        )

    @property
    def lost(self) -> int:
        """Return how many records were dropped."""
        return self._writer.lost + self._unsayable

    def createLock(self) -> None:  # noqa: N802 (logging's own name)
        """Do without a lock: a preempted thread must not hold one against the loop."""
        self.lock = None

    def handle(self, record: logging.LogRecord) -> bool:
        """Emit a record unless a filter drops it.

        The inherited method takes the lock; since Python 3.13 it does not ask whether there is one.
        """
        wanted = bool(self.filter(record))
        if wanted:
            self.emit(record)
        return wanted

    def emit(self, record: logging.LogRecord) -> None:
        """Queue one record. One that can't be formatted is a defect of ours: it is lost, and counted."""
        try:
            text = printable(self.format(record).replace("\n", "; "))
        except Exception:  # noqa: BLE001 - what is logged is on no way to a kill, and must not end one
            self._unsayable += 1
            return
        if self._for_journald:
            text = f"<{_PRIORITIES.get(record.levelno, 5)}>{text}"
        self._writer.put(text.encode(errors="replace") + b"\n")

    def close(self) -> None:
        """Write what is queued, waiting no longer than a second."""
        self._writer.close(_CLOSE_SECONDS)
        super().close()


class _BesideLoop:
    """Writes lines to a descriptor that may block, in a thread."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._writer = LineWriter("reactor-log", self._write, limit=_MOST_LINES)
        self._writer.start()
        self._unwritten = 0

    @property
    def lost(self) -> int:
        """Return how many lines were dropped, or could not be written."""
        return self._writer.lost + self._unwritten

    def put(self, line: bytes) -> bool:
        """Queue a line; return False where there is no room."""
        return self._writer.put(lambda: line)

    def close(self, timeout_seconds: float) -> bool:
        """Write what waits, for as long as that; return False where some is left."""
        return self._writer.close(timeout_seconds)

    def _write(self, line: bytes) -> None:
        try:
            while line:
                line = line[os.write(self._fd, line) :]
        except OSError:
            self._unwritten += 1  # standard error is gone: there is nowhere left to say so


def log_to_stderr() -> QueuedLog:
    """Send reactor's log lines to standard error and return what writes them; close it at the end."""
    log = QueuedLog(sys.stderr.fileno(), for_journald="JOURNAL_STREAM" in os.environ)
    logger = logging.getLogger("reactor")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(log)
    return log
