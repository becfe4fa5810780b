"""A write to a control file that a thread waiting inside the kernel makes, without the interpreter.

The thread sits in splice(2) from a pipe to the file (which control files take since 5.12). A write to
the pipe returns at once: it waits neither for the file's own write, which may take long, nor for the
interpreter's lock to change hands (0.3 ms for a few system calls of another thread, measured).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread, get_native_id
from typing import Final

from reactor.kernel.scheduling import follow_main_thread, make_normal

_PAUSE_SECONDS: Final = 0.02  # the caller was in a hurry and needs the interpreter now
_LENGTH: Final = 21  # a limit has up to 20 digits


def padded(text: str) -> bytes:
    """Return a limit for writing, always of one length; the kernel strips the blanks.

    So the reader of the pipe separates one text from the next, and the file may be any file: no reader finds
    it empty, or the end of a longer value.
    """
    return text.ljust(_LENGTH - 1).encode() + b"\n"


class ReadyWrite:
    """One control file, held open. To be used from one thread. Raises OSError with the path at construction.

    Failed writes are not reported: `look` is called after each write, in the thread, to read the file.
    """

    def __init__(self, path: Path, look: Callable[[], object]) -> None:
        self._look = look
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        self._pipe, self._own_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._own_end, False)
        self._thread_id: int | None = None
        self._asked = 0
        self._made = 0
        self._thread = Thread(target=self._keep_writing, name="reactor-ready-write", daemon=True)
        self._thread.start()

    def read(self) -> bytes:
        """Return the file's present content. Raises OSError: ENODEV once its cgroup is gone."""
        return os.pread(self._fd, _LENGTH, 0).strip()

    def write(self, text: str) -> None:
        """Have this written, and return at once."""
        self._asked += 1
        os.write(self._own_end, padded(text))

    @property
    def is_writing(self) -> bool:
        """Return whether a write that was asked for has not been made yet."""
        return self._asked != self._made

    def lower(self) -> None:
        """Take real-time priority from a write that is still under way."""
        if self.is_writing and self._thread_id is not None:
            make_normal(self._thread_id)

    def close(self) -> None:
        """Have the thread end, once it has made what was asked for; harmless when repeated."""
        own_end, self._own_end = self._own_end, -1
        if own_end >= 0:
            os.close(own_end)

    def join(self, timeout_seconds: float) -> None:
        """Wait until the thread has ended, but not for ever."""
        self._thread.join(timeout_seconds)

    def _keep_writing(self) -> None:
        self._thread_id = get_native_id()
        try:
            while True:
                follow_main_thread()  # which may have become real-time since
                if not self._write_next():
                    return
                self._made += 1
                time.sleep(_PAUSE_SECONDS)
                self._look()
        finally:
            os.close(self._pipe)
            os.close(self._fd)

    def _write_next(self) -> bool:
        """Make the next write; return False at the end."""
        try:
            return os.splice(self._pipe, self._fd, _LENGTH, offset_dst=0) > 0
        except OSError:  # refused by the file, or as a way of writing to it: the text is still in the pipe
            text = os.read(self._pipe, _LENGTH)
            with suppress(OSError):
                os.pwrite(self._fd, text, 0)
            return bool(text)
