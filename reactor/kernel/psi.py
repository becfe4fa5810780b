"""Pressure stall information. Source: Documentation/accounting/psi.rst, kernel/sched/psi.c.

A trigger is an open pressure file that was written `some STALL_US WINDOW_US`; it is signalled as EPOLLPRI,
once in a window at most, and lives until the descriptor is closed. Windows are 500 ms to 10 s before 6.12
and may be shorter since; without CAP_SYS_RESOURCE only multiples of 2 s are taken (6.5).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Literal

from reactor.kernel.files import with_path

UNPRIVILEGED_WINDOW_US: Final = 2_000_000


def open_trigger(path: Path, kind: Literal["some", "full"], stall_us: int, window_us: int) -> int:
    """Return a descriptor that shows EPOLLPRI when tasks stalled for `stall_us` within `window_us`.

    Raises OSError with the path: EINVAL where the window is refused (a multiple of UNPRIVILEGED_WINDOW_US
    is not, up to 10 s), EOPNOTSUPP where pressure is not accounted (boot with psi=1), ENOENT. The caller
    closes the descriptor. It is always ready as EPOLLIN: wait for it in an epoll of its own.
    """
    fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        # The kernel takes the last byte written for the end of the string, whatever it is.
        os.write(fd, f"{kind} {stall_us} {window_us}\0".encode())
    except OSError as error:
        os.close(fd)
        raise with_path(error, str(path)) from None
    return fd
