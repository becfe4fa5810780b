"""No forks in a cgroup while it is killed process by process: its limit of processes is nought for that long.

A freezer does the same, but systemd makes no freezer cgroups on v1. Without either, a fork bomb on a slow
machine was ahead of the signals for 22 s. Source: Documentation/admin-guide/cgroup-v1/pids.rst: a limit below
the present number ends nobody, and fork(2) fails with EAGAIN.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.files import GONE


@contextmanager
def without_forks(tree: CgroupTree, cgroup: str, report: Callable[[str], None]) -> Iterator[None]:
    """Let nobody in the cgroup fork during the body; afterwards it has the limit that it had.

    Without a pids controller, or where it refuses, the body runs as well; a refusal goes to `report` as one
    line, except that the cgroup is gone.
    """
    fd, before = -1, b""
    if tree.pids_root is not None:
        path = tree.path(cgroup, "pids") / "pids.max"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            before = os.read(fd, 64).strip()
            os.pwrite(fd, b"0", 0)
        except OSError as error:
            if error.errno not in GONE:
                report(f"{path}: {error.strerror}; killing among forks")
    try:
        yield
    finally:
        if fd >= 0:
            with suppress(OSError):  # removed meanwhile
                os.pwrite(fd, before, 0)
            os.close(fd)
