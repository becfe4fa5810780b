"""No forks in a cgroup while it is killed process by process: its limit of processes is 0 for that long.

A freezer does the same, but systemd makes no freezer cgroups on v1. Without either, a fork bomb on a slow
machine was ahead of the signals for 22 s. Source: Documentation/admin-guide/cgroup-v1/pids.rst: a limit below
the present number ends no process, and fork(2) fails with EAGAIN.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from reactor.kernel.cgroup_directory import CgroupDirectory
from reactor.kernel.files import GONE, close_descriptor

_LIMIT: Final = "pids.max"


@contextmanager
def without_forks(directory: CgroupDirectory | None, report: Callable[[str], None]) -> Iterator[None]:
    """Let no process in the cgroup fork during the body; afterwards it has the limit that it had.

    `directory` is the one in the pids controller's hierarchy. Without it (None), or where it refuses, the
    body runs as well; a refusal goes to `report` as one line, except that the cgroup is gone.
    """
    fd, before = -1, b""
    if directory is not None:
        try:
            fd = directory.open_file(_LIMIT, os.O_RDWR)
            before = os.read(fd, 64).strip()
            os.pwrite(fd, b"0", 0)
        except OSError as error:
            if error.errno not in GONE:
                report(f"{directory.cgroup}/{_LIMIT}: {error.strerror}; killing among forks")
    try:
        yield
    finally:
        if fd >= 0:
            if before:  # never a limit that was not read
                with suppress(OSError):  # removed meanwhile
                    os.pwrite(fd, before, 0)
            close_descriptor(fd)
