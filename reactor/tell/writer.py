"""A thread that writes lines for a loop that must never wait for a disk or a pipe.

Why a thread of its own, and why this queue: `SimpleQueue.put` takes no lock that another thread could be
preempted with, and a write(2) to a full, slow or hung target blocks only the writer. The queue is
bounded by dropping, and what is dropped is counted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Final

from reactor.kernel.scheduling import follow_main_thread

_LOG: Final = logging.getLogger("reactor.writer")

Line = Callable[[], bytes]

_QUEUED_LINES: Final = 256


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
