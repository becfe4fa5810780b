"""The counters of the kernel's OOM killer: how many kills, and roughly at whose limit.

/proc/vmstat (`oom_kill`, since 4.13) counts the kills of the whole machine. On v2 memory.events counts those
of a cgroup's subtree, and `oom` in memory.events.local how often reclaim could not keep it below its own
limit. On v1 memory.oom_control counts the kills of the cgroup alone; an eventfd on the same file shows whose
limit it was (`memcg_events.register_oom`). Sources: Documentation/admin-guide/cgroup-v2.rst,
cgroup-v1/memory.rst.
"""

from __future__ import annotations

import os
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from reactor.kernel.cgroup_directory import CgroupDirectory, CgroupVersion, walk
from reactor.kernel.files import GONE, KernelFile, close_descriptor, parse_field, parse_integer, read_file
from reactor.kernel.procfs import PROC, stat_fields

if TYPE_CHECKING:
    from reactor.kernel.cgroup import CgroupTree

_FILE: Final = "oom_score_adj"
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_STAT_BYTES: Final = 4096


def machine_kills(vmstat: KernelFile) -> int:
    """Return how many processes were killed on the machine so far, at whatever limit, by /proc/vmstat."""
    return parse_field(vmstat.read(), b"oom_kill", vmstat.path)


def subtree_kills(tree: CgroupTree, cgroup: str) -> int:
    """Return how many processes were killed in a cgroup of v2 and below it. Raises OSError."""
    return _field(tree.path(cgroup) / "memory.events", b"oom_kill")


def subtree_limits_met(tree: CgroupTree, cgroup: str) -> int:
    """Return how often a cgroup of v2, or one below it, was out of memory at its limit. Raises OSError."""
    return _field(tree.path(cgroup) / "memory.events", b"oom")


def own_kills(directory: CgroupDirectory) -> int:
    """Return how many of a v1 cgroup's own processes were killed. Raises OSError where it is gone."""
    name = "memory.oom_control"
    return parse_field(directory.read(name), b"oom_kill", f"{directory.cgroup}/{name}")


def kills_within(directory: CgroupDirectory, version: CgroupVersion, most_cgroups: int) -> tuple[int, int]:
    """Return how many processes were killed in a cgroup and below it, and how many cgroups were read.

    On v1 each cgroup counts its own, and no more than `most_cgroups` are read. Raises OSError where the
    cgroup is gone.
    """
    if version is CgroupVersion.V2:
        name = "memory.events"
        return parse_field(directory.read(name), b"oom_kill", f"{directory.cgroup}/{name}"), 1
    counted = []
    with closing(walk(directory, lambda _cgroup, _error: None)) as found:
        for one in islice(found, most_cgroups):
            try:
                counted.append(own_kills(one))
            except OSError as error:
                if one is directory or error.errno not in GONE:
                    raise
    return sum(counted), max(1, len(counted))


def limit_was_met(tree: CgroupTree, cgroup: str) -> bool:
    """Return whether a v1 cgroup has ever been at its own limit, if only with page cache. Raises OSError."""
    path = tree.path(cgroup) / "memory.failcnt"
    return parse_integer(read_file(path), str(path)) > 0


def _field(path: Path, key: bytes) -> int:
    return parse_field(read_file(path), key, str(path))


# oom_score_adj of other processes: read, written, and whose it is.
#
# A process is opened by its directory below /proc: what is read and written through the descriptor is of that
# process, never of a later one of the same id (ESRCH). Who opens it by an id that was found in a list of
# processes has to check the list, or the start time, once it is open.
#
# Who may write what (__set_oom_adj(), fs/proc/base.c): the kernel keeps beside each score the value that a
# writer with CAP_SYS_RESOURCE set last (`oom_score_adj_min`); children inherit both. Nobody without that
# capability goes below it (EACCES), and who lacks it doesn't move it. A score is never below it. So
#
#     without CAP_SYS_RESOURCE   a score can be raised and lowered again to what it was, but not below; the
#                                process itself can lower its score again, too
#     with it                    everything can be written. What was raised can't be lowered again without the
#                                capability: by the process itself, or by a writer that has lost it since


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
    return Birth(*stat_fields(_read(process, "stat", _STAT_BYTES), (19, 1, 21, 3), "/proc/PID/stat"))


def _read(process: int, name: str, most_bytes: int) -> bytes:
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=process)
    try:
        return os.read(fd, most_bytes)
    finally:
        close_descriptor(fd)
