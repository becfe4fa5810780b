"""Frees a victim's memory in our own context: not bound to the victim's CPU share or priority.

process_mrelease(2) works only while the victim is not exiting yet (ESRCH otherwise), and a victim that has a
CPU starts to exit within 50 us of its SIGKILL. So a thread is waiting already: starting one takes longer than
that, and may fail where a fork bomb has the last process id. On two busy CPUs 400 MiB are free after 30 ms
where it comes in time, and after 100 ms and more where the victim frees them in its own turn.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable
from queue import SimpleQueue
from typing import Final

from reactor.act.processes import close_all
from reactor.kernel import libc
from reactor.kernel.scheduling import follow_main_thread

_END_SECONDS: Final = 2.0


class MemoryRelease:
    """Frees memory in a thread of its own, started once and for all. Never raises: it is only a help."""

    def __init__(self) -> None:
        self._given = SimpleQueue[list[int] | None]()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Have the thread wait; harmless when repeated, and tried again where none could be started."""
        if self._thread is None:
            thread = threading.Thread(target=self._keep_releasing, name="reactor-release", daemon=True)
            with contextlib.suppress(RuntimeError):  # a fork bomb has the last process id
                thread.start()
                self._thread = thread

    def release(self, pidfds: Iterable[int]) -> None:
        """Free the memory of these processes, which have been sent SIGKILL; returns at once."""
        self.start()
        if self._thread is None:
            return
        own: list[int] = []  # the thread may be at it for longer than the caller holds its descriptors
        with contextlib.suppress(OSError):
            own.extend(os.dup(fd) for fd in pidfds)
        self._given.put(own)

    def close(self) -> None:
        """End the thread, and wait for that while it is not busy for long. Harmless when repeated."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._given.put(None)
            thread.join(_END_SECONDS)

    def _keep_releasing(self) -> None:
        while True:
            follow_main_thread()  # which may have become real-time since
            pidfds = self._given.get()
            if pidfds is None:
                return
            for fd in pidfds:
                with contextlib.suppress(OSError):
                    libc.process_mrelease(fd)
            close_all(pidfds)
