"""Requests: what the steward sends to the guard. One fixed form of 24 bytes, checked as a stranger's.

No request carries text, names a pod, or changes whom the guard evicts: the steward asks for documents, and
says how far it has come with the journal.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

VERSION: Final = 1
MOST_PLACES: Final = 200
_REQUEST: Final = struct.Struct("=BBHIQQ")
REQUEST_BYTES: Final = _REQUEST.size
_LARGEST: Final = 1 << 53


class RequestError(ValueError):
    """A request is not of the fixed form, or says what can't be."""


class RequestKind(IntEnum):
    """What a request is about."""

    ALIVE = 1
    """The steward's loop runs."""
    TAKEN = 2
    """The journal's lines up to the place `number` are done with; `lost` of them could not be written."""
    STATUS = 3
    EXPLAIN = 4
    TOP = 5
    """The status with the first `places` of the order of eviction."""
    SCRAPE = 6
    HEALTH = 7


QUESTIONS: Final = frozenset(RequestKind) - {RequestKind.ALIVE, RequestKind.TAKEN}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the steward says; what a kind does not speak of is 0. A question's `number` is its answer's."""

    kind: RequestKind
    number: int = 0
    lost: int = 0
    places: int = 0


def write_request(request: Request) -> bytes:
    """Return a request's bytes."""
    return _REQUEST.pack(VERSION, request.kind, request.places, 0, request.number, request.lost)


def read_request(raw: bytes) -> Request:
    """Return the request in a datagram. Raises RequestError for anything that is not exactly one."""
    if len(raw) != REQUEST_BYTES:
        raise RequestError(f"got {len(raw)} bytes; accepted: {REQUEST_BYTES}")
    version, kind, places, reserved, number, lost = _REQUEST.unpack(raw)
    if version != VERSION or reserved:
        raise RequestError(f"got version {version}, reserved {reserved}; accepted: {VERSION}, 0")
    if not RequestKind.ALIVE <= kind <= RequestKind.HEALTH:
        raise RequestError(f"got kind {kind}; accepted: {RequestKind.ALIVE:d} to {RequestKind.HEALTH:d}")
    if places > (MOST_PLACES if kind == RequestKind.TOP else 0):
        raise RequestError(f"got {places} places; accepted: up to {MOST_PLACES}, of TOP alone")
    if number > _LARGEST or (kind == RequestKind.ALIVE and number):
        raise RequestError(f"got number {number}; accepted: up to 2^53, 0 of ALIVE")
    if lost > (number if kind == RequestKind.TAKEN else 0):
        raise RequestError(f"got {lost} lost lines; accepted: up to the place, of TAKEN alone")
    return Request(kind=RequestKind(kind), number=number, lost=lost, places=places)
