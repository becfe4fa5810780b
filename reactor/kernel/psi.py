"""Pressure stall information. Source: Documentation/accounting/psi.rst, kernel/sched/psi.c.

A trigger is an open pressure file that was written `some STALL_US WINDOW_US`; it is signalled as EPOLLPRI,
once in a window at most, and lives until the descriptor is closed. Windows are 500 ms to 10 s before 6.12
and may be shorter since; without CAP_SYS_RESOURCE only multiples of 2 s are taken (6.5).
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final, Literal, NamedTuple

from reactor.errors import KernelInterfaceError
from reactor.kernel.files import with_path

UNPRIVILEGED_WINDOW_US: Final = 2_000_000
PRESSURE: Final = Path("/proc/pressure")
_LINE: Final = re.compile(
    rb"^(some|full) avg10=(\d{1,3}\.\d\d) avg60=(\d{1,3}\.\d\d) avg300=\d{1,3}\.\d\d total=(\d{1,20})$",
    re.MULTILINE,
)


class Pressure(NamedTuple):
    """One line of a pressure file: averages in percent, and all stalls so far in seconds."""

    avg10: float
    avg60: float
    total_seconds: float


def parse_pressure(raw: bytes, interface: str) -> dict[str, Pressure]:
    """Return the lines `some` and `full` of a pressure file; a kernel may have no `full` for the CPU.

    Raises KernelInterfaceError where there is neither.
    """
    found = {
        kind.decode(): Pressure(float(avg10), float(avg60), int(total) / 1e6)
        for kind, avg10, avg60, total in _LINE.findall(raw)
    }
    if not found:
        raise KernelInterfaceError(interface, raw[:64], "lines such as 'some avg10=0.00 ... total=0'")
    return found


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
