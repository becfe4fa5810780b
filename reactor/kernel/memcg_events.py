"""cgroup v1 memory events on eventfds. Source: Documentation/admin-guide/cgroup-v1/memory.rst, 9 and 11.

A usage threshold fires when usage_in_bytes crosses the level, upwards or downwards, checked once in 128
pages charged or uncharged on a CPU; and once more when the cgroup is removed. The caller has to check whether
usage is past the level already: 6.18 gives no event for that at registration.

A registration ends when its eventfd is closed, and lives on without the file it was made through. It waits
for an RCU grace period (16 ms at the median, 32 ms at most on two CPUs): call these from a worker thread.
"""

from __future__ import annotations

import os
from pathlib import Path

from reactor.kernel.files import PAGE_BYTES, write_file


def register_usage_level(directory: Path, level_bytes: int) -> int:
    """Return a non-blocking eventfd that is signalled when the cgroup's usage passes the level, either way.

    A usage at the level is not past it: the kernel is given the next page. `directory` is the cgroup's.
    Raises OSError with the path: ENOENT or ENODEV where the cgroup is gone, ENOSPC or ENOMEM where the kernel
    has no room. The caller closes the descriptor.
    """
    return _register(directory, "memory.usage_in_bytes", str(level_bytes + PAGE_BYTES))


def register_reclaim(directory: Path) -> int:
    """Return a non-blocking eventfd that is signalled while memory is reclaimed from the cgroup or below.

    About once in 512 pages that reclaim scanned (mm/vmpressure.c), whether or not anything listens
    further down. Raises OSError as `register_usage_level`.
    """
    return _register(directory, "memory.pressure_level", "low,hierarchy")


def register_oom(directory: Path) -> int:
    """Return a non-blocking eventfd that counts OOMs at the limit of the cgroup or of one above it.

    Limits below do not count, nor does the machine running out. Raises OSError as `register_usage_level`.
    """
    return _register(directory, "memory.oom_control", "")


def _register(directory: Path, name: str, arguments: str) -> int:
    event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    try:
        target_fd = os.open(directory / name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            write_file(directory / "cgroup.event_control", f"{event_fd} {target_fd} {arguments}")
        finally:
            os.close(target_fd)
    except BaseException:
        os.close(event_fd)
        raise
    return event_fd
