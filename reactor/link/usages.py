"""What places take: the steward's observations of pods' files, many in a datagram of fixed form.

    16 bytes       version, kind, how many places (1 to 128), when it was observed
    24 bytes each  the place's number, what is known of it, bytes and inodes

The guard has given each place its number, and takes nothing of a number that it has not given.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

VERSION: Final = 1
USAGES_KIND: Final = 15
MOST_USAGES: Final = 128
_HEAD: Final = struct.Struct("=BBHIQ")
_USAGE: Final = struct.Struct("=IIQQ")
_LARGEST_AMOUNT: Final = 1 << 62


class UsagesError(ValueError):
    """A datagram is not of the fixed form."""


class UsageKind(IntEnum):
    """What is known of a place."""

    COUNTED = 1
    """All that lies there was counted, or is as it was when it was counted."""
    SO_FAR = 2
    """A count is under way and has found so much: the place takes no less."""
    NOT_COUNTED = 3
    """No count is under way any more; the last whole one stands while it is fresh."""


class PlaceUsage(NamedTuple):
    """What a place takes, by the number that the guard has given it. A tuple, since there are thousands."""

    place: int
    kind: UsageKind
    used_bytes: int = 0
    inodes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Usages:
    """What places take; none of it was observed before `at_ns` (CLOCK_MONOTONIC)."""

    at_ns: int
    places: tuple[PlaceUsage, ...]


def write_usages(usages: Usages) -> bytes:
    """Return the bytes of what 1 to 128 places take; amounts beyond all that a disk can hold are cut."""
    head = _HEAD.pack(VERSION, USAGES_KIND, len(usages.places), 0, usages.at_ns)
    return head + b"".join(
        _USAGE.pack(
            one.place, one.kind, min(one.used_bytes, _LARGEST_AMOUNT), min(one.inodes, _LARGEST_AMOUNT)
        )
        for one in usages.places
    )


def read_usages(raw: bytes) -> Usages:
    """Return what is in a datagram. Raises UsagesError for anything that is not exactly of the form."""
    if len(raw) < _HEAD.size:
        raise UsagesError(f"got {len(raw)} bytes; accepted: {_HEAD.size} and more")
    version, kind, count, reserved, at_ns = _HEAD.unpack_from(raw)
    if (version, kind, reserved) != (VERSION, USAGES_KIND, 0) or at_ns > _LARGEST_AMOUNT:
        raise UsagesError(f"got version {version}, kind {kind}; accepted: {VERSION}, {USAGES_KIND}")
    if not 1 <= count <= MOST_USAGES or len(raw) != _HEAD.size + count * _USAGE.size:
        raise UsagesError(f"got {count} places in {len(raw)} bytes; accepted: 1 to {MOST_USAGES}")
    places = []
    for number, known, used_bytes, inodes in _USAGE.iter_unpack(raw[_HEAD.size :]):
        if not number or not UsageKind.COUNTED <= known <= UsageKind.NOT_COUNTED:
            raise UsagesError(f"got kind {known} of place {number}; accepted: 1 to 3, of places from 1 on")
        most = 0 if known == UsageKind.NOT_COUNTED else _LARGEST_AMOUNT
        if used_bytes > most or inodes > most:
            raise UsagesError(f"got {max(used_bytes, inodes)} of kind {known}; accepted: up to {most}")
        places.append(PlaceUsage(number, UsageKind(known), used_bytes, inodes))
    return Usages(at_ns=at_ns, places=tuple(places))
