"""What the daemon and the walker say to each other: small messages of fixed form, each a datagram.

The daemon names places by numbers that it never uses twice, and believes nothing of what comes back before
it was looked at (`read_report`): the walker reads what tenants wrote, and may be taken over by then.
"""

from __future__ import annotations

import errno
import os
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

_LARGEST: Final = 1 << 62
LONGEST_PATH: Final = 4095  # PATH_MAX, without its end
_ADD: Final = struct.Struct("=BII")
_NUMBERED: Final = struct.Struct("=BI")
_REPORT: Final = struct.Struct("=BIQQQQIi")

LONGEST_REQUEST: Final = _ADD.size + LONGEST_PATH
REPORT_BYTES: Final = _REPORT.size


class MessageError(ValueError):
    """A message is not of the fixed form."""


@dataclass(frozen=True, slots=True)
class Add:
    """Know a place from now on; all places of one `pod` take their turns together."""

    place: int
    pod: int
    path: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget a place."""

    place: int


@dataclass(frozen=True, slots=True)
class Look:
    """Count all places, of which those under way are only continued; answered by LOOKED with its number."""

    number: int


@dataclass(frozen=True, slots=True)
class Hurry:
    """Take a larger share of the CPU until all is counted."""


Request = Add | Drop | Look | Hurry


class Kind(IntEnum):
    """What a report is about."""

    ALIVE = 1
    """A step at `place` has taken `nanoseconds` so far."""
    SO_FAR = 2
    """Of `place` so much has been counted, in `directories` directories."""
    COUNTED = 3
    """`place` takes so much; `unreadable` entries could not be read, the last for `error_number`."""
    FAILED = 4
    """`place` can't be read, for `error_number`."""
    LOOKED = 5
    """Look number `place` is over, after `nanoseconds` of CPU; what takes long is continued."""
    IDLE = 6
    """Nothing is under way any more: said after each request, at once or when what it began is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What the walker says; what a kind does not speak of is 0."""

    kind: Kind
    place: int = 0
    used_bytes: int = 0
    inodes: int = 0
    directories: int = 0
    nanoseconds: int = 0
    unreadable: int = 0
    error_number: int = 0


def write_request(request: Request) -> bytes:
    """Return a request's bytes. Raises MessageError for a path that is longer than any can be."""
    match request:
        case Add(place, pod, path):
            name = os.fsencode(path)
            if len(name) > LONGEST_PATH:
                raise MessageError(f"got a path of {len(name)} bytes; accepted: up to {LONGEST_PATH}")
            return _ADD.pack(1, place, pod) + name
        case Drop(place):
            return _NUMBERED.pack(2, place)
        case Look(number):
            return _NUMBERED.pack(3, number)
        case Hurry():
            return _NUMBERED.pack(4, 0)


def read_request(raw: bytes) -> Request:
    """Return the request that was written. Raises MessageError."""
    if len(raw) > _ADD.size and raw[0] == 1:
        _, place, pod = _ADD.unpack_from(raw)
        return Add(place, pod, os.fsdecode(raw[_ADD.size :]))
    if len(raw) == _NUMBERED.size:
        kind, number = _NUMBERED.unpack(raw)
        found: dict[int, Request] = {2: Drop(number), 3: Look(number), 4: Hurry()}
        if kind in found:
            return found[kind]
    raise MessageError(f"got {raw[:40]!r}; accepted: a request")


def write_report(report: Report) -> bytes:
    """Return a report's bytes; amounts beyond all that a disk can hold are cut."""
    return _REPORT.pack(
        report.kind,
        report.place,
        min(report.used_bytes, _LARGEST),
        min(report.inodes, _LARGEST),
        min(report.directories, _LARGEST),
        min(report.nanoseconds, _LARGEST),
        min(report.unreadable, (1 << 32) - 1),
        report.error_number,
    )


def read_report(raw: bytes) -> Report:
    """Return the report in a datagram. Raises MessageError for anything that is not exactly one."""
    if len(raw) != _REPORT.size:
        raise MessageError(f"got {len(raw)} bytes; accepted: {_REPORT.size}")
    kind, place, used_bytes, inodes, directories, nanoseconds, unreadable, number = _REPORT.unpack(raw)
    if not Kind.ALIVE <= kind <= Kind.IDLE:
        raise MessageError(f"got kind {kind}; accepted: {Kind.ALIVE:d} to {Kind.IDLE:d}")
    if max(used_bytes, inodes, directories, nanoseconds) > _LARGEST:
        raise MessageError("got an amount above 2^62; accepted: one that a disk can hold")
    if number != 0 and number not in errno.errorcode:
        raise MessageError(f"got error {number}; accepted: an error number of this kernel's, or 0")
    return Report(
        kind=Kind(kind),
        place=place,
        used_bytes=used_bytes,
        inodes=inodes,
        directories=directories,
        nanoseconds=nanoseconds,
        unreadable=unreadable,
        error_number=number,
    )
