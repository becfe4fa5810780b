"""Frames: what the guard sends to the steward, documents in pieces of bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Final, NamedTuple

from reactor.forms import U64, Form, FormError, content

_VERSION: Final = 2
_PIECE_BYTES: Final = 32 << 10  # far below what a socket takes at once by default (208 KiB)
# A decision over 1,000 pods takes 0.4 MiB.
LONGEST_BYTES: Final = 16 << 20


class FrameKind(IntEnum):
    """What a document is. Each is JSON, but for the orders and the places."""

    ORDERS = 1
    """What the steward works by (`reactor.link.orders`); the first ones are what it starts with."""
    LINE = 2
    """A line of the journal, in its place `number`; kept by the guard until it is taken."""
    ANSWER = 4
    """The answer to the request of this `number`."""
    OBSERVE = 5
    """All filesystems are to be observed now; answered by OBSERVED with this `number`."""
    RECLAIM = 6
    """`kind` is to be reclaimed on `filesystems`; answered by a ReclaimOver with this `number`."""
    EMPTY = 7
    """The emptyDir at `path`, whose pod had `cgroup`, is to be emptied; answered as RECLAIM is."""
    PLACES = 8
    """Which places are to be counted from now on (`reactor.link.orders`)."""
    COUNT = 9
    """All places are to be counted, `urgent` or not; answered by COUNTED unless `number` is 0."""
    STOP = 10
    """The runtime is to stop the containers of the pod `uid`, `grace_seconds` at the most; so answered."""
    REPORT = 11
    """What the API server is to receive (`reactor.guard.outbox`); answered by REPORTED, `number`."""
    LEAVE = 12
    """The guard is about to end: what was set on the node is to be removed unless there is a successor. One
    waits for the guard's end where `stands_by`. Answered as RECLAIM is."""
    BEFORE = 13
    """The hooks before a soft eviction are to run, for `seconds` at the most; answered as RECLAIM is."""
    PODS = 14
    """Which pods there are, or with `number` 1 which a near crossing would evict (`reactor.blackbox`)."""


@dataclass(frozen=True, slots=True)
class Message:
    """A document as it was sent."""

    kind: FrameKind
    number: int
    content: bytes


class _Frame(NamedTuple):
    kind: FrameKind
    number: U64
    is_last: bool
    content: Annotated[bytes, content(_PIECE_BYTES)]


_FRAME: Final = Form(_Frame, prefix=bytes((_VERSION,)))
FRAME_BYTES: Final = _FRAME.most_bytes


def write_frames(message: Message) -> Iterator[bytes]:
    """Yield the frames of a message. Raises FormError for one that is too long."""
    size = len(message.content)
    if size > LONGEST_BYTES:
        raise FormError(f"got {size} bytes; accepted: {LONGEST_BYTES} at the most")
    for start in range(0, max(1, size), _PIECE_BYTES):
        end = start + _PIECE_BYTES
        yield _FRAME.write(_Frame(message.kind, message.number, end >= size, message.content[start:end]))


class Assembly:
    """Puts frames together again; one message's frames come one after the other."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._of: tuple[FrameKind, int] | None = None
        self._bytes = 0

    def take(self, raw: bytes) -> Message | None:
        """Return the message that this frame completes, None where more follow. Raises FormError."""
        frame = _FRAME.read(raw)
        of = (frame.kind, frame.number)
        if self._of not in {None, of}:
            raise FormError(f"got a frame of {of} within {self._of}")
        self._of = of
        self._pieces.append(frame.content)
        self._bytes += len(frame.content)
        if self._bytes > LONGEST_BYTES:
            raise FormError(f"got more than {LONGEST_BYTES} bytes")
        if not frame.is_last:
            return None
        message = Message(*of, b"".join(self._pieces))
        self._pieces, self._of, self._bytes = [], None, 0
        return message
