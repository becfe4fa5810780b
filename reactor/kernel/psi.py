"""Pressure stall information. Source: Documentation/accounting/psi.rst, kernel/sched/psi.c.

A trigger is an open pressure file that was written `some STALL_US WINDOW_US`; it is signalled as EPOLLPRI,
once in a window at most, and lives until the descriptor is closed. Windows are 500 ms to 10 s before 6.12
and may be shorter since; without CAP_SYS_RESOURCE only multiples of 2 s are taken (6.5).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from reactor.errors import KernelInterfaceError
from reactor.kernel.files import with_path

UNPRIVILEGED_WINDOW_US: Final = 2_000_000
_ACCEPTED: Final = "`some avg10=0.00 avg60=0.00 avg300=0.00 total=0` and a line `full` like it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """How long tasks stood still: shares of the last 10, 60 and 300 s, and in all since boot."""

    avg10_percent: float
    avg60_percent: float
    avg300_percent: float
    total_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """Some task stalled; all of them did (None: the file has no such line, as for the cpu before 5.13)."""

    some: Stall
    full: Stall | None


def parse_pressure(raw: bytes, interface: str) -> Pressure:
    """Return what a pressure file says. Raises KernelInterfaceError where it is not as documented."""
    stalls: dict[bytes, Stall] = {}
    for line in raw.splitlines():
        kind, _, fields = line.partition(b" ")
        stalls[kind] = _parse_stall(fields, interface)
    if b"some" not in stalls:
        raise KernelInterfaceError(interface, raw[:64], _ACCEPTED)
    return Pressure(some=stalls[b"some"], full=stalls.get(b"full"))


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


def _parse_stall(fields: bytes, interface: str) -> Stall:
    try:
        values = dict(field.split(b"=") for field in fields.split())
        return Stall(
            avg10_percent=_parse_percent(values[b"avg10"]),
            avg60_percent=_parse_percent(values[b"avg60"]),
            avg300_percent=_parse_percent(values[b"avg300"]),
            total_us=int(values[b"total"]) if values[b"total"].isdigit() else _refuse(values[b"total"]),
        )
    except (KeyError, ValueError):
        raise KernelInterfaceError(interface, fields[:64], _ACCEPTED) from None


def _parse_percent(word: bytes) -> float:
    whole, dot, hundredths = word.partition(b".")
    if not (whole.isdigit() and dot and hundredths.isdigit() and len(word) <= 8):
        _refuse(word)
    return float(word)


def _refuse(word: bytes) -> int:
    raise ValueError(word)
