"""Every cgroup's memory.high in this process, and what daemons that were killed have left behind.

Source: cgroup-v2.rst; see memory_high.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Lock

from reactor.errors import KernelInterfaceError
from reactor.kernel.files import read_file
from reactor.kernel.memory_high import BY, BorrowedHigh, remembered
from reactor.kernel.procfs import PROC, read_start_ticks


class BorrowedHighs:
    """Every cgroup's memory.high in this process, one object each."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._owner = f"{os.getpid()}:{read_start_ticks(proc)}"
        self._lock = Lock()
        self._highs: dict[Path, BorrowedHigh] = {}

    def of(self, directory: Path) -> BorrowedHigh:
        """Return the memory.high of the cgroup with this directory, which need not exist."""
        with self._lock:
            if directory not in self._highs:
                self._highs[directory] = BorrowedHigh(directory, owner=self._owner)
            return self._highs[directory]

    def put_back_abandoned(self, root: Path) -> list[str]:
        """Put back what daemons that have ended left anywhere below `root`; return a line for each.

        An attribute counts only on a cgroup of root's or our own: a tenant must not be able to lift the
        memory.high of its cgroup by writing one. What a running daemon has borrowed stays as it is.
        """
        lines = []
        for directory in _own_directories(root):
            try:
                words = remembered(directory)
                if words and not self._is_borrowed(words):
                    present = read_file(directory / "memory.high").decode("ascii", "replace").strip()
                    self.of(directory).put_back("nobody")
                    if present in words[1:]:
                        lines.append(f"{directory}/memory.high is {words[0]} again, as before a crash")
            except (OSError, KernelInterfaceError) as error:
                lines.append(f"{directory}/memory.high was not put back after a crash: {error}")
        return lines

    def _is_borrowed(self, words: list[str]) -> bool:
        owner = words[-1].removeprefix(BY)
        pid, _, started = owner.partition(":")
        try:
            return pid.isdecimal() and str(read_start_ticks(self._proc, int(pid))) == started
        except (OSError, KernelInterfaceError):
            return False


def _own_directories(root: Path) -> Iterator[Path]:
    """Yield the directories at and below `root` that belong to root or to us.

    Not by os.walk, which recurses, and ends at some 1,000 levels with what called it. Where a path is longer
    than a path may be (PATH_MAX) no reactor has borrowed anything.
    """
    waiting = [os.fspath(root)]
    while waiting:
        spelled = waiting.pop()
        with suppress(OSError):  # gone meanwhile
            if os.lstat(spelled).st_uid in {0, os.geteuid()}:
                yield Path(spelled)
            with os.scandir(spelled) as entries:
                below = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
            waiting += reversed(below)
