"""What the guard and the process that watches logind tell each other: datagrams of one fixed form.

    to the guard      inhibited, not inhibited, preparing, cancelled, a problem
    from the guard    go on: what was to be done before the shutdown is done

16 bytes, and up to 400 of text with a problem, which is shown and nothing else.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

VERSION: Final = 1
_FORM: Final = struct.Struct("=BBHIQ")
_TEXT_BYTES: Final = 400
LONGEST_BYTES: Final = _FORM.size + _TEXT_BYTES
MOST_SECONDS: Final = 7 * 24 * 3600
GO_ON: Final = _FORM.pack(VERSION, 255, 0, 0, 0)


class ShutdownNewsError(ValueError):
    """A message is not of the fixed form, or says what can't be."""


class ShutdownNewsKind(IntEnum):
    """What there is to say."""

    INHIBITED = 1
    """logind waits for us before it shuts down, `seconds` at the most."""
    NOT_INHIBITED = 2
    """It would not wait: there is no lock at present."""
    PREPARING = 3
    """A shutdown has begun, and waits for us if there is a lock."""
    CANCELLED = 4
    """That shutdown was cancelled."""
    PROBLEM = 5
    """`text` says what is wrong; empty: nothing is any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownNews:
    """One message to the guard; what a kind does not speak of is 0 and empty."""

    kind: ShutdownNewsKind
    seconds: int = 0
    text: str = ""


def write_news(news: ShutdownNews) -> bytes:
    """Return the message; a text that is too long is cut."""
    text = news.text.encode(errors="replace")[:_TEXT_BYTES]
    return _FORM.pack(VERSION, news.kind, 0, news.seconds, 0) + text


def read_news(raw: bytes) -> ShutdownNews:
    """Return the message. Raises ShutdownNewsError with the accepted form."""
    if not _FORM.size <= len(raw) <= LONGEST_BYTES:
        raise ShutdownNewsError(f"got {len(raw)} bytes; accepted: {_FORM.size} to {LONGEST_BYTES}")
    version, kind, reserved, seconds, also_reserved = _FORM.unpack_from(raw)
    if version != VERSION or reserved or also_reserved:
        raise ShutdownNewsError(f"got version {version}; accepted: {VERSION}")
    if kind not in _KINDS:
        raise ShutdownNewsError(f"got kind {kind}; accepted: {min(_KINDS):d} to {max(_KINDS):d}")
    if seconds > (MOST_SECONDS if kind == ShutdownNewsKind.INHIBITED else 0):
        raise ShutdownNewsError(f"got {seconds} seconds; accepted: {MOST_SECONDS} at the most")
    if len(raw) > _FORM.size and kind != ShutdownNewsKind.PROBLEM:
        raise ShutdownNewsError(f"got a text with {ShutdownNewsKind(kind).name}; accepted: with a problem")
    text = raw[_FORM.size :].decode(errors="replace")
    return ShutdownNews(kind=ShutdownNewsKind(kind), seconds=seconds, text=text)


_KINDS: Final = frozenset(ShutdownNewsKind)
