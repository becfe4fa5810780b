"""Log lines on standard error, for journald, a runtime's pipe or a terminal; none of them is waited for.

A stuck journald or a full pipe must not stop the loop. What can't be written at once waits, bounded, and no
thread holds the interpreter's lock for it; standard error in a file has a thread, because its disk may hang.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from typing import Final

from reactor.tell.nonblocking import NonblockingWriter
from reactor.tell.writer import LineWriter
from reactor.text import printable

_CLOSE_SECONDS: Final = 1.0
_MOST_LINES: Final = 1024
# syslog's priorities, which journald takes off the front of a line: sd-daemon(3).
_PRIORITIES: Final = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3}


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


def log_to_stderr(environment: Mapping[str, str] = os.environ) -> QueuedLog:
    """Send reactor's log lines to standard error and return what writes them; close it at the end."""
    log = QueuedLog(sys.stderr.fileno(), for_journald="JOURNAL_STREAM" in environment)
    logger = logging.getLogger("reactor")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(log)
    return log
