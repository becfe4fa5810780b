"""JSON of peers, at a bounded price: what it may come to in memory is known before it is decoded.

A value takes some 60 to 250 bytes once it is decoded, however few it had: `[[],[],…` grows thirtyfold. What
is too deep, too long a number, no UTF-8, or says something twice, is one error.
"""

from __future__ import annotations

import json
from typing import Any, Final

from reactor.errors import ReactorError

MOST_VALUES: Final = 250_000
"""More than an object of the API server can have, which is at most 1.5 MiB: some 25 MiB."""

_LONGEST_SHOWN: Final = 80


class JsonError(ReactorError, ValueError):
    """What came is not JSON as it is accepted here."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise JsonError("got a key twice in one object; accepted: each key once")
    return found


DECODER: Final = json.JSONDecoder(object_pairs_hook=_unique)
"""Refuses what says something twice: two readers could understand it differently."""


def loads(raw: bytes | bytearray, *, most_values: int = MOST_VALUES) -> Any:
    """Return the JSON value in `raw`. Raises JsonError."""
    # Every value but the first of an object or a list is behind a comma.
    values = raw.count(b",") + raw.count(b"[") + raw.count(b"{")
    if values > most_values:
        raise JsonError(f"got {values} values; accepted: at most {most_values}")
    try:
        return DECODER.decode(raw.decode())
    except JsonError:
        raise
    except RecursionError as error:
        raise JsonError("got endless nesting; accepted: JSON of finite depth") from error
    except ValueError as error:
        shown = bytes(raw[:_LONGEST_SHOWN])
        raise JsonError(f"got {shown!r} ({error!s:.{_LONGEST_SHOWN}}); accepted: JSON") from error
