"""What the guard and the process that watches logind send each other: datagrams of one fixed form.

    to the guard      inhibited, not inhibited, preparing, cancelled, a problem
    from the guard    go on: what was to be done before the shutdown is done

The text of a problem is shown, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Final

from reactor.forms import Form, number, text

_VERSION: Final = 2
MOST_SECONDS: Final = 7 * 24 * 3600
GO_ON: Final = bytes((_VERSION, 255))


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
    seconds: Annotated[int, number("I", MOST_SECONDS)] = 0
    text: Annotated[str, text(400)] = ""


def _problem(news: ShutdownNews) -> str | None:
    if news.seconds and news.kind is not ShutdownNewsKind.INHIBITED:
        return f"got {news.seconds} seconds with {news.kind.name}; accepted: with INHIBITED"
    if news.text and news.kind is not ShutdownNewsKind.PROBLEM:
        return f"got a text with {news.kind.name}; accepted: with PROBLEM"
    return None


_NEWS: Final = Form(ShutdownNews, prefix=bytes((_VERSION,)), check=_problem)
LONGEST_BYTES: Final = _NEWS.most_bytes
write_news = _NEWS.write
read_news = _NEWS.read
