"""The smallest document that still differs in the same way."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from tests.upstream.differential.words import Json

_Path = tuple[str | int, ...]
_AT_ONCE = 12
_KEPT: Final = frozenset(
    {
        "apiVersion",
        "kind",
        "steps",
        "at",
        "metadata",
        "name",
        "namespace",
        "uid",
        "podRef",
        "spec",
        "evictionHard",
        "kubeletConfiguration",
        "images",
        "node",
        "filesystems",
        "dedicatedImageFs",
        "splitImageFs",
        "id",
        "sizeBytes",
        "availableBytes",
        "capacityBytes",
    }
)


def shrink(
    document: Json, differing: Callable[[Sequence[Json]], Sequence[bool]], *, seconds: float = 15.0
) -> Json:
    """Return the document with all left out that the difference does not need, as far as the time goes.

    `differing` tells of several documents at once which still differ in the same way.
    """
    end = time.monotonic() + seconds
    left = _outer_first(document)
    while left and time.monotonic() < end:
        batch, left = left[:_AT_ONCE], left[_AT_ONCE:]
        smaller = [made for path in batch if (made := _without(document, path)) is not None and made["steps"]]
        hit = next((made for made, does in zip(smaller, differing(smaller), strict=True) if does), None)
        if hit is not None:
            document = hit
            left = [path for path in _outer_first(document) if len(path) >= len(batch[0])]
    return document


def _outer_first(document: Json) -> list[_Path]:
    return sorted(_paths(document), key=len)


def _paths(value: Any, path: _Path = ()) -> Iterator[_Path]:
    """Yield the way to each thing that may be left out."""
    keys: Sequence[str | int] = list(reversed(range(len(value)))) if isinstance(value, list) else [*value]
    for key in keys:
        is_needed = (
            key in _KEPT or (not path and key == "pods") or (key == "containers" and path[-1:] == ("spec",))
        )
        if not is_needed:
            yield (*path, key)
        if isinstance(value[key], dict | list):
            yield from _paths(value[key], (*path, key))


def _without(document: Json, path: _Path) -> Json | None:
    """Return the document without the thing at this path, None where that is gone already."""
    made = copy.deepcopy(document)
    at: Any = made
    try:
        for key in path[:-1]:
            at = at[key]
        del at[path[-1]]
    except (KeyError, IndexError):
        return None
    return made
