"""Which directories the steward counts for the guard: told piece by piece, as pods come and go."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

MOST_PLACES: Final = 256  # in a piece: 40 KiB as a rule, in a fraction of a millisecond


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedPlace:
    """A directory that is counted; `number` is never used twice. All places of a `uid` are one pod's."""

    number: int
    uid: str
    pod: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Directories that are counted from now on, and the numbers of those that are no more."""

    count: tuple[CountedPlace, ...] = ()
    forget: tuple[int, ...] = ()


def write_places(places: Places) -> bytes:
    """Return a piece's bytes; a path's bytes that are no UTF-8 survive as surrogates."""
    count = [(place.number, place.uid, place.pod, place.path) for place in places.count]
    return json.dumps({"count": count, "forget": places.forget}).encode()


def read_places(content: bytes) -> Places:
    """Return what the guard has written. For the steward, which trusts it."""
    document = json.loads(content)
    return Places(
        count=tuple(
            CountedPlace(number=number, uid=uid, pod=pod, path=path)
            for number, uid, pod, path in document["count"]
        ),
        forget=tuple(document["forget"]),
    )
