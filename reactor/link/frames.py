"""Frames: what the guard sends to the steward, documents in pieces of bounded size."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from reactor.errors import ReactorError

VERSION: Final = 1
_HEADER: Final = struct.Struct("=BBBxIQ")
_PIECE_BYTES: Final = 32 << 10  # far below what a socket takes at once by default (208 KiB)
FRAME_BYTES: Final = _HEADER.size + _PIECE_BYTES
# A decision over 1,000 pods takes 0.4 MiB.
LONGEST_BYTES: Final = 16 << 20


class FrameError(ReactorError):
    """A frame is not of the fixed form."""


class FrameKind(IntEnum):
    """What a document is. Each is JSON, but for the orders."""

    ORDERS = 1
    """What the steward works by (`reactor.link.orders`); the first ones are what it starts with."""
    LINE = 2
    """A line of the journal, in its place `number`; kept by the guard until it is taken."""
    NOTE = 3
    """A decision as it stands while its line is not written yet."""
    ANSWER = 4
    """The answer to the request of this `number`."""
    LOOK = 5
    """All filesystems are to be observed now; answered by LOOKED with this `number`."""
    RECLAIM = 6
    """`kind` is to be given back on `filesystems`; answered by a ReclaimOver with this `number`."""
    EMPTY = 7
    """The emptyDir at `path`, whose pod had `cgroup`, is to be emptied; answered as RECLAIM is."""
    PLACES = 8
    """Which places are to be counted from now on (`reactor.link.orders`)."""
    COUNT = 9
    """All places are to be counted, `urgent` or not; answered by COUNTED unless `number` is 0."""
    STOP = 10
    """The runtime is to stop the containers of the pod `uid`, `grace_seconds` at the most; so answered."""
    REPORT = 11
    """What the API server is to hear (`reactor.guard.cluster_reports`); answered by REPORTED, `number`."""
    LEAVE = 12
    """The guard is about to end: what was set on the node is to be removed unless there is a successor. One
    waits for the guard's end where `stands_by`. Answered as RECLAIM is."""


@dataclass(frozen=True, slots=True)
class Message:
    """A document as it was sent."""

    kind: FrameKind
    number: int
    content: bytes


def write_frames(message: Message) -> Iterator[bytes]:
    """Yield the frames of a message. Raises FrameError for one that is too long."""
    content = message.content
    if len(content) > LONGEST_BYTES:
        raise FrameError(f"got {len(content)} bytes; accepted: {LONGEST_BYTES} at the most")
    start = 0
    while True:
        end = start + _PIECE_BYTES
        is_last = end >= len(content)
        yield _HEADER.pack(VERSION, message.kind, is_last, 0, message.number) + content[start:end]
        if is_last:
            return
        start = end


class Assembly:
    """Puts frames together again; one message's frames come one after the other."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._of: tuple[FrameKind, int] | None = None
        self._bytes = 0

    def take(self, raw: bytes) -> Message | None:
        """Return the message that this frame completes, None where more follow. Raises FrameError."""
        if not _HEADER.size <= len(raw) <= FRAME_BYTES:
            raise FrameError(f"got {len(raw)} bytes; accepted: {_HEADER.size} to {FRAME_BYTES}")
        version, kind, is_last, reserved, number = _HEADER.unpack_from(raw)
        if version != VERSION or reserved:
            raise FrameError(f"got version {version}; accepted: {VERSION}")
        if not FrameKind.ORDERS <= kind <= FrameKind.LEAVE:
            raise FrameError(f"got kind {kind}; accepted: {FrameKind.ORDERS:d} to {FrameKind.LEAVE:d}")
        of = (FrameKind(kind), number)
        if self._of not in {None, of}:
            raise FrameError(f"got a frame of {of} within {self._of}")
        self._of = of
        self._pieces.append(raw[_HEADER.size :])
        self._bytes += len(raw) - _HEADER.size
        if self._bytes > LONGEST_BYTES:
            raise FrameError(f"got more than {LONGEST_BYTES} bytes")
        if not is_last:
            return None
        message = Message(*of, b"".join(self._pieces))
        self._pieces, self._of, self._bytes = [], None, 0
        return message
