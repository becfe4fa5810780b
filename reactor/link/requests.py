"""Requests: what the steward sends to the guard. Four fixed forms, checked as a stranger's.

    request        24 bytes: a question, or how far the steward has come
    space          48 bytes: what is left of a filesystem
    reclaim over   24 bytes, and up to 4 KiB of lines for an operator: what a reclaim has done
    usages         what up to 128 places take (`reactor.link.usages`)
    piece          24 bytes, and up to 2 KiB of a listing of a Kubernetes node's pods (see listings.py)

None orders a kill. Which pods there are the guard sees in the cgroup tree; a listing says what they ask for.
The lines are shown, no more.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from reactor.link.usages import USAGES_KIND, Usages, UsagesError, read_usages, write_usages
from reactor.model.signals import Filesystem, Layout

VERSION: Final = 1
MOST_PLACES: Final = 200
_REQUEST: Final = struct.Struct("=BBHIQQ")
_SPACE: Final = struct.Struct("=BBBBIQQQQQ")
_OVER: Final = struct.Struct("=BBBBIQQ")
_PIECE: Final = struct.Struct("=BBBBIQQ")
_TEXT_BYTES: Final = 4096
_MOST_LINES: Final = 16
_LINE_BYTES: Final = 200
PIECE_BYTES: Final = 2 << 10  # of specs that are new to the guard reading one takes 0.7 ms
MOST_LISTED_BYTES: Final = 4 << 20
LONGEST_BYTES: Final = _OVER.size + _TEXT_BYTES
_LARGEST: Final = 1 << 53
_LARGEST_AMOUNT: Final = 1 << 62
_HAS_BYTES: Final = 1
_HAS_INODES: Final = 2
_FILESYSTEMS: Final = tuple(Filesystem)
_LAYOUTS: Final = tuple(Layout)


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
    LOOKED = 8
    """All filesystems have been observed, as the frame of this `number` asked for."""
    DISK_WAKE = 9
    """A filesystem's threshold has come to be met or ceased to be: the guard is to make a pass."""
    FILLING = 10
    """A filesystem's threshold is near at the present rate."""
    LAYOUT = 11
    """The devices show the layout of number `places`, under the orders of this `number`."""
    COUNTED = 14
    """All places have been counted, as the frame of this `number` asked for."""
    REPORTED = 16
    """The report of this `number` will reach the API server, though the steward ends."""
    PODS_HEARD = 17
    """Where `places` is 1: the listing of specs of this `number` has all pods, and changes are heard of."""


_SPACE_KIND: Final = 12
_OVER_KIND: Final = 13
_PIECE_KIND: Final = 18

QUESTIONS: Final = frozenset(
    {RequestKind.STATUS, RequestKind.EXPLAIN, RequestKind.TOP, RequestKind.SCRAPE, RequestKind.HEALTH}
)
_KINDS: Final = frozenset(RequestKind)
_MOST_PLACES: Final = {
    RequestKind.TOP: MOST_PLACES,
    RequestKind.LAYOUT: len(_LAYOUTS),
    RequestKind.PODS_HEARD: 1,
}
_UNNUMBERED: Final = frozenset({RequestKind.ALIVE, RequestKind.DISK_WAKE, RequestKind.FILLING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the steward says; what a kind does not speak of is 0. A question's `number` is its answer's."""

    kind: RequestKind
    number: int = 0
    lost: int = 0
    places: int = 0

    @property
    def layout(self) -> Layout:
        """Return the layout that LAYOUT speaks of."""
        return _LAYOUTS[self.places - 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What `filesystems`, which lie in one place, were seen to have left at `at_ns` (CLOCK_MONOTONIC).

    `order` is the number of the orders by which that was observed. None: not known.
    """

    order: int
    filesystems: tuple[Filesystem, ...]
    at_ns: int
    available_bytes: int | None = None
    capacity_bytes: int | None = None
    inodes_free: int | None = None
    inodes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimOver:
    """What was asked for is over: what it `did`, and its `problems`, by lines; None: nothing was to do."""

    number: int
    did: tuple[str, ...] | None = None
    problems: tuple[str, ...] = ()


class Section(IntEnum):
    """What a listing is of; see `reactor.link.listings`."""

    SPECS = 1
    RUNTIME = 2
    FILES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A piece of the listing of this `number`, which has `total_bytes`; the first one has the `index` 0."""

    section: Section
    number: int
    index: int
    total_bytes: int
    is_last: bool
    content: bytes


def layout_number(layout: Layout) -> int:
    """Return a layout's number."""
    return _LAYOUTS.index(layout) + 1


def write_request(request: Request | Space | ReclaimOver | Usages | Piece) -> bytes:
    """Return a request's bytes; lines beyond the bounds are cut."""
    match request:
        case Request():
            return _REQUEST.pack(VERSION, request.kind, request.places, 0, request.number, request.lost)
        case Space():
            mask = sum(1 << _FILESYSTEMS.index(filesystem) for filesystem in request.filesystems)
            has_bytes = request.available_bytes is not None and request.capacity_bytes is not None
            has_inodes = request.inodes_free is not None and request.inodes is not None
            return _SPACE.pack(
                *(VERSION, _SPACE_KIND, mask, has_bytes * _HAS_BYTES | has_inodes * _HAS_INODES),
                *(request.order, request.at_ns),
                *((request.available_bytes, request.capacity_bytes) if has_bytes else (0, 0)),
                *((request.inodes_free, request.inodes) if has_inodes else (0, 0)),
            )
        case ReclaimOver():
            did, problems = (_cut(lines or ()) for lines in (request.did, request.problems))
            text = "\n".join((*did, *problems)).encode(errors="backslashreplace")
            has_report = request.did is not None
            head = (VERSION, _OVER_KIND, len(did), len(problems), has_report, request.number, 0)
            return _OVER.pack(*head) + text
        case Usages():
            return write_usages(request)
        case Piece():
            piece_head = (VERSION, _PIECE_KIND, request.section, request.is_last, request.index)
            return _PIECE.pack(*piece_head, request.number, request.total_bytes) + request.content


def read_request(raw: bytes) -> Request | Space | ReclaimOver | Usages | Piece:
    """Return the request in a datagram. Raises RequestError for anything that is not exactly one."""
    if len(raw) < _REQUEST.size or raw[0] != VERSION:
        raise RequestError(f"got {len(raw)} bytes, {raw[:1]!r}; accepted: {_REQUEST.size}, version {VERSION}")
    if raw[1] == _SPACE_KIND:
        return _read_space(raw)
    if raw[1] == _OVER_KIND:
        return _read_over(raw)
    if raw[1] == USAGES_KIND:
        try:
            return read_usages(raw)
        except UsagesError as error:
            raise RequestError(str(error)) from None
    if raw[1] == _PIECE_KIND:
        return _read_piece(raw)
    return _read_request(raw)


def _read_request(raw: bytes) -> Request:
    if len(raw) != _REQUEST.size:
        raise RequestError(f"got {len(raw)} bytes; accepted: {_REQUEST.size}")
    _, kind, places, reserved, number, lost = _REQUEST.unpack(raw)
    if kind not in _KINDS or reserved:
        raise RequestError(f"got kind {kind}, reserved {reserved}; accepted: 1 to {_PIECE_KIND}, 0")
    most = _MOST_PLACES.get(RequestKind(kind), 0)
    if places > most or (kind == RequestKind.LAYOUT and not places):
        raise RequestError(f"got {places} places; accepted: up to {most} of kind {kind}")
    if number > (0 if kind in _UNNUMBERED else _LARGEST):
        raise RequestError(f"got number {number} of kind {kind}; accepted: up to 2^53, of some 0")
    if lost > (number if kind == RequestKind.TAKEN else 0):
        raise RequestError(f"got {lost} lost lines; accepted: up to the place, of TAKEN alone")
    return Request(kind=RequestKind(kind), number=number, lost=lost, places=places)


def _read_space(raw: bytes) -> Space:
    if len(raw) != _SPACE.size:
        raise RequestError(f"got {len(raw)} bytes; accepted: {_SPACE.size}")
    _, _, mask, flags, order, at_ns, *amounts = _SPACE.unpack(raw)
    if not 0 < mask < 1 << len(_FILESYSTEMS) or flags > _HAS_BYTES | _HAS_INODES:
        raise RequestError(f"got filesystems {mask:#x}, flags {flags:#x}; accepted: of those that there are")
    available_bytes, capacity_bytes, inodes_free, inodes = amounts
    if max(*amounts, at_ns) > _LARGEST_AMOUNT:
        raise RequestError("got an amount above 2^62; accepted: one that a disk can hold")
    has_bytes, has_inodes = bool(flags & _HAS_BYTES), bool(flags & _HAS_INODES)
    if (not has_bytes and available_bytes | capacity_bytes) or (not has_inodes and inodes_free | inodes):
        raise RequestError("got an amount that is said not to be known; accepted: 0")
    return Space(
        order=order,
        filesystems=tuple(one for number, one in enumerate(_FILESYSTEMS) if mask & 1 << number),
        at_ns=at_ns,
        available_bytes=available_bytes if has_bytes else None,
        capacity_bytes=capacity_bytes if has_bytes else None,
        inodes_free=inodes_free if has_inodes else None,
        inodes=inodes if has_inodes else None,
    )


def _read_over(raw: bytes) -> ReclaimOver:
    if not _OVER.size <= len(raw) <= LONGEST_BYTES:
        raise RequestError(f"got {len(raw)} bytes; accepted: {_OVER.size} to {LONGEST_BYTES}")
    _, _, did, problems, has_report, number, reserved = _OVER.unpack_from(raw)
    if max(did, problems) > _MOST_LINES or has_report > 1 or number > _LARGEST or reserved:
        raise RequestError(f"got {did} and {problems} lines, number {number}; accepted: up to {_MOST_LINES}")
    text = raw[_OVER.size :]
    lines = text.decode(errors="backslashreplace").split("\n") if did + problems else []
    if len(lines) != did + problems or (text and not lines) or (lines and not has_report):
        raise RequestError(f"got {len(lines)} lines; accepted: {did + problems}, those that are counted")
    if not has_report:
        return ReclaimOver(number=number)
    return ReclaimOver(number=number, did=tuple(lines[:did]), problems=tuple(lines[did:]))


def _read_piece(raw: bytes) -> Piece:
    if len(raw) > _PIECE.size + PIECE_BYTES:
        raise RequestError(f"got {len(raw)} bytes; accepted: {_PIECE.size} to {_PIECE.size + PIECE_BYTES}")
    _, _, section, is_last, index, number, total_bytes = _PIECE.unpack_from(raw)
    if not Section.SPECS <= section <= Section.FILES or is_last > 1:
        raise RequestError(f"got section {section}, last {is_last}; accepted: 1 to 3, 0 or 1")
    if not 0 < number <= _LARGEST or total_bytes > MOST_LISTED_BYTES or index > total_bytes:
        raise RequestError(
            f"got listing {number} of {total_bytes} bytes, piece {index}; accepted: up to {MOST_LISTED_BYTES}"
        )
    return Piece(
        section=Section(section),
        number=number,
        index=index,
        total_bytes=total_bytes,
        is_last=bool(is_last),
        content=raw[_PIECE.size :],
    )


def _cut(lines: tuple[str, ...]) -> tuple[str, ...]:
    """Return lines that fit: eight of them, each of one line, and how many more there are."""
    most = _MOST_LINES // 2
    shown = [
        " ".join(line.split()).encode(errors="backslashreplace")[:_LINE_BYTES].decode(errors="ignore")
        for line in lines[:most]
    ]
    return (*shown, f"and {len(lines) - most} more") if len(lines) > most else tuple(shown)
