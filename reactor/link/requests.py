"""Requests: what the steward sends to the guard, in five fixed forms, validated as untrusted input.

None orders a kill. Which pods there are the guard sees in the cgroup tree; a listing says what they ask for.
The lines of a reclaim are shown, no more. A place counts only if the guard has given it its number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Final, NamedTuple

from reactor.forms import (
    LARGEST_AMOUNT,
    U16,
    U32,
    U64,
    Amount,
    Field,
    FormError,
    Forms,
    choice,
    content,
    number,
    rows,
    texts,
)
from reactor.model.signals import Filesystem, Layout

MOST_PLACES: Final = 200
MOST_USAGES: Final = 128
PIECE_BYTES: Final = 2 << 10  # of specs that are new to the guard reading one takes 0.7 ms
MOST_LISTED_BYTES: Final = 4 << 20
_VERSION: Final = 2
_MOST_LINES: Final = 16
_LINE_BYTES: Final = 200
_LARGEST: Final = 1 << 53
_FILESYSTEMS: Final = tuple(Filesystem)
_LAYOUTS: Final = tuple(Layout)


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
    OBSERVED = 8
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
    PODS_COMPLETE = 17
    """Where `places` is 1: the listing of specs of this `number` has all pods, and changes arrive."""


QUESTIONS: Final = frozenset(
    {RequestKind.STATUS, RequestKind.EXPLAIN, RequestKind.TOP, RequestKind.SCRAPE, RequestKind.HEALTH}
)
_MOST_PLACES: Final = {
    RequestKind.TOP: MOST_PLACES,
    RequestKind.LAYOUT: len(_LAYOUTS),
    RequestKind.PODS_COMPLETE: 1,
}
_UNNUMBERED: Final = frozenset({RequestKind.ALIVE, RequestKind.DISK_WAKE, RequestKind.FILLING})


def _read_filesystems(mask: int) -> tuple[Filesystem, ...]:
    if not 0 < mask < 1 << len(_FILESYSTEMS):
        raise FormError(f"got filesystems {mask:#x}; accepted: one at least, of those that there are")
    return tuple(one for place, one in enumerate(_FILESYSTEMS) if mask & 1 << place)


def _write_filesystems(found: Sequence[Filesystem]) -> int:
    return sum(1 << _FILESYSTEMS.index(one) for one in found)


def _write_lines(lines: Sequence[str]) -> bytes:
    """Return lines cut to fit: eight of them, each of one line, and how many more there are."""
    most = _MOST_LINES // 2
    shown = [
        " ".join(line.split()).encode(errors="backslashreplace")[:_LINE_BYTES].decode(errors="ignore")
        for line in lines[:most]
    ]
    if len(lines) > most:
        shown.append(f"and {len(lines) - most} more")
    return "".join(f"{line}\n" for line in shown).encode()


_LINES: Final = texts(_MOST_LINES, _MOST_LINES * (_LINE_BYTES + 1), end="\n", errors="backslashreplace")
_Lines = Annotated[tuple[str, ...], _LINES._replace(write=_write_lines)]
_Number = Annotated[int, number("Q", _LARGEST)]
_At = Annotated[int, number("Q", LARGEST_AMOUNT)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the steward says; what a kind does not speak of is 0. A question's `number` is its answer's."""

    kind: RequestKind
    number: U64 = 0
    lost: U64 = 0
    places: U16 = 0

    @property
    def layout(self) -> Layout:
        return _LAYOUTS[self.places - 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What `filesystems`, which lie in one place, were seen to have left at `at_ns` (CLOCK_MONOTONIC).

    `order` is the number of the orders by which that was observed. None: not known.
    """

    order: U32
    filesystems: Annotated[tuple[Filesystem, ...], Field("B", _read_filesystems, _write_filesystems)]
    at_ns: _At
    available_bytes: Amount | None = None
    capacity_bytes: Amount | None = None
    inodes_free: Amount | None = None
    inodes: Amount | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimOver:
    """What was asked for is over: what it `did`, and its `problems`, by lines; None: nothing was to do."""

    number: _Number
    did: _Lines | None = None
    problems: _Lines = ()


class Section(IntEnum):
    """What a listing is of; see `reactor.link.listings`."""

    SPECS = 1
    RUNTIME = 2
    FILES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A piece of the listing of this `number`, which has `total_bytes`; the first one has the `index` 0."""

    section: Section
    number: Annotated[int, number("Q", _LARGEST, least=1)]
    index: U32
    total_bytes: Annotated[int, number("I", MOST_LISTED_BYTES)]
    is_last: bool
    content: Annotated[bytes, content(PIECE_BYTES)]


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

    place: Annotated[int, number("I", (1 << 32) - 1, least=1)]
    kind: Annotated[UsageKind, choice(UsageKind, "I")]
    used_bytes: Amount = 0
    inodes: Amount = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Usages:
    """What places take; none of it was observed before `at_ns` (CLOCK_MONOTONIC)."""

    at_ns: _At
    places: Annotated[tuple[PlaceUsage, ...], rows(PlaceUsage, MOST_USAGES, least=1)]


def layout_number(layout: Layout) -> int:
    return _LAYOUTS.index(layout) + 1


def _request_problem(request: Request) -> str | None:
    kind = request.kind
    most = _MOST_PLACES.get(kind, 0)
    if request.places > most or (kind is RequestKind.LAYOUT and not request.places):
        return f"got {request.places} places; accepted: up to {most} of kind {kind}"
    if request.number > (0 if kind in _UNNUMBERED else _LARGEST):
        return f"got number {request.number} of kind {kind}; accepted: up to 2^53, of some 0"
    if request.lost > (request.number if kind is RequestKind.TAKEN else 0):
        return f"got {request.lost} lost lines; accepted: up to the place, of TAKEN alone"
    return None


def _space_problem(space: Space) -> str | None:
    of_bytes, of_inodes = (space.available_bytes, space.capacity_bytes), (space.inodes_free, space.inodes)
    if of_bytes.count(None) == 1 or of_inodes.count(None) == 1:
        return "got an amount without the other; accepted: both what is left and the whole, or neither"
    return None


def _over_problem(over: ReclaimOver) -> str | None:
    if over.did is None and over.problems:
        return "got problems of what was not done; accepted: none"
    return None


def _piece_problem(piece: Piece) -> str | None:
    if piece.index > piece.total_bytes:
        return f"got piece {piece.index} of {piece.total_bytes} bytes; accepted: up to that number"
    return None


def _usages_problem(usages: Usages) -> str | None:
    if any(one.kind is UsageKind.NOT_COUNTED and one.used_bytes | one.inodes for one in usages.places):
        return "got an amount of a place that is not counted; accepted: 0"
    return None


_REQUESTS: Final = Forms[Request | Space | ReclaimOver | Piece | Usages](
    _VERSION,
    {
        Request: _request_problem,
        Space: _space_problem,
        ReclaimOver: _over_problem,
        Piece: _piece_problem,
        Usages: _usages_problem,
    },
)
LONGEST_BYTES: Final = _REQUESTS.most_bytes
read_request = _REQUESTS.read
write_request = _REQUESTS.write
