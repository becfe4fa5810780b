"""What the main process of a pod says of itself: its name, and whether the kernel may kill it for memory.

The main process is the first one that is listed directly in the pod's cgroup: on cgroup v2 the one that has
been there for longest, on v1 the one of the lowest id. Its oom_score_adj is -1000 by who may do that: to go
below what a process was given takes CAP_SYS_RESOURCE (proc(5)). Its name anybody chooses.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

from reactor.errors import KernelInterfaceError, ReactorError
from reactor.kernel.files import parse_integer
from reactor.kernel.procfs import PROC, read_name, read_oom_score_adj

NEVER_KILLED: Final = -1000
_FIRST_BYTES: Final = 32


class MainProcess(NamedTuple):
    """A pod's main process; its `name` is empty where there is none, None where it is not known."""

    name: str | None = None
    is_unkillable: bool = False


UNKNOWN: Final = MainProcess()
_NONE: Final = MainProcess("")


def read_main_process(directory: str, proc: Path = PROC, *, with_name: bool) -> MainProcess:
    """Return what the main process in a cgroup's directory says of itself; UNKNOWN where it can't be read.

    Reads three files, of the list of processes its beginning: it may be as long as a tenant likes.
    """
    try:
        pid = _first_pid(f"{directory}/cgroup.procs")
        if not pid:  # none, or one of another pid namespace
            return _NONE
        name = read_name(pid, proc) if with_name else None
        return MainProcess(name, read_oom_score_adj(pid, proc) == NEVER_KILLED)
    except (OSError, ReactorError):
        return UNKNOWN


def _first_pid(path: str) -> int:
    """Return the first process of a list, 0 where there is none. Raises OSError, KernelInterfaceError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        raw = os.read(fd, _FIRST_BYTES)
    finally:
        os.close(fd)
    first, end, _ = raw.partition(b"\n")
    if raw and not end:
        raise KernelInterfaceError(path, raw, "process ids, one a line")
    return parse_integer(first, path) if first else 0
