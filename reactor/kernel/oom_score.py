"""oom_score_adj of other processes: read, written, and whose it is.

A process is opened by its directory below /proc: what is read and written through the descriptor is of that
process, never of a later one of the same id (ESRCH). Who opens it by an id that was found in a list of
processes has to check the list, or the start time, once it is open.

Who may write what (__set_oom_adj(), fs/proc/base.c): the kernel keeps beside each score the value that a
writer with CAP_SYS_RESOURCE set last (`oom_score_adj_min`); children inherit both. Nobody without that
capability goes below it (EACCES), and who lacks it doesn't move it. A score is never below it. So

    without CAP_SYS_RESOURCE   a score can be raised and lowered again to what it was, but not below; the
                               process itself can lower its score again, too
    with it                    everything can be written. What was raised can't be lowered again without the
                               capability: by the process itself, or by a writer that has lost it since
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

from reactor.errors import KernelInterfaceError
from reactor.kernel.files import close_descriptor, parse_integer
from reactor.kernel.procfs import PROC

_FILE: Final = "oom_score_adj"
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_STAT_BYTES: Final = 4096


class Birth(NamedTuple):
    """When a process was started, in clock ticks since boot, its parent if that lives, size and session."""

    start_ticks: int
    parent: int
    resident_pages: int
    session: int


def open_process(pid: int, proc: Path | str = PROC) -> int:
    """Return a descriptor of a process, for the caller to close. Raises OSError where it is gone."""
    return os.open(f"{proc}/{pid}", _DIRECTORY)


def read_score(process: int) -> int:
    """Return a process's score, -1000 to 1000. Raises OSError: ESRCH where it is gone; ValueError."""
    return int(_read(process, _FILE, 16))


def write_score(process: int, score: int) -> None:
    """Set a process's score. Raises OSError: EACCES where that takes CAP_SYS_RESOURCE."""
    fd = os.open(_FILE, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, dir_fd=process)
    try:
        os.write(fd, str(score).encode())
    finally:
        close_descriptor(fd)


def read_birth(process: int) -> Birth:
    """Return when and by whom a process was started, its size and session.

    Raises OSError, KernelInterfaceError.
    """
    raw = _read(process, "stat", _STAT_BYTES)
    # The name comes in brackets and may hold anything, brackets and blanks included.
    fields = raw.rpartition(b")")[2].split()
    if len(fields) < 22:
        raise KernelInterfaceError("/proc/PID/stat", raw[:64], "24 fields and more")
    return Birth(*(parse_integer(fields[at], "/proc/PID/stat") for at in (19, 1, 21, 3)))


def _read(process: int, name: str, most_bytes: int) -> bytes:
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=process)
    try:
        return os.read(fd, most_bytes)
    finally:
        close_descriptor(fd)
