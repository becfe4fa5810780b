"""Objects that are larger than any the API server stores: known by their names, and passed over otherwise.

Only an aggregated or a false server sends such. One of them must not cost the list of all the others,
and a pod must not vanish from it by being large: it is there without a spec.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from reactor.bounded_json import DECODER

LARGEST_CHARACTERS: Final = 4 << 20
"""Of one object. The server's store takes 1.5 MiB, its requests 3 MiB."""

PREFIX_CHARACTERS: Final = 64 << 10
"""How much of an object is looked through for its name: a server writes it before all that tenants do."""

_NAMED: Final = frozenset({"name", "namespace", "uid", "resourceVersion"})


class Oversized:
    """Stands where a specification would: nothing can be read of it."""

    def __repr__(self) -> str:
        """Return what it was, for the problem that names it."""
        return f"an object of more than {LARGEST_CHARACTERS} characters"


def oversized(prefix: str) -> Mapping[str, Any]:
    """Return the object that begins so, with what its beginning tells of its identity and no more."""
    return {"metadata": dict(_scalars(prefix, ("metadata",))), "spec": Oversized()}


def oversized_event(prefix: str) -> Mapping[str, Any]:
    """Return the watch event that begins so, likewise."""
    kind = _scalars(prefix, ()).get("type", "")
    metadata = _scalars(prefix, ("object", "metadata"))
    return {"type": kind, "object": {"metadata": metadata, "spec": Oversized()}}


def _scalars(text: str, path: tuple[str, ...]) -> dict[str, str]:
    """Return the texts by their keys in the object at a path, as far as they come before anything else.

    Of what is no JSON there are none.
    """
    found: dict[str, str] = {}
    try:
        at = _after(text, 0, "{")
        for name in path:
            while (key := _key(text, at))[0] != name:
                _, at = DECODER.raw_decode(text, _past(text, key[1]))
                at = _after(text, at, ",")
            at = _after(text, key[1], "{")
        while True:
            name, at = _key(text, at)
            at = _past(text, at)
            if text[at] != '"':
                return found
            value, at = DECODER.raw_decode(text, at)
            if name in _NAMED or not path:
                found[name] = value
            at = _after(text, at, ",")
    except (ValueError, TypeError, IndexError, RecursionError):
        return found


def _key(text: str, at: int) -> tuple[str, int]:
    """Return the key that comes next, and where what follows its colon begins."""
    key, end = DECODER.raw_decode(text, _past(text, at))
    if not isinstance(key, str):
        raise TypeError(key)
    return key, _after(text, end, ":")


def _after(text: str, at: int, accepted: str) -> int:
    at = _past(text, at)
    if text[at] != accepted:
        raise ValueError(accepted)
    return at + 1


def _past(text: str, at: int) -> int:
    while text[at] in " \t\r\n":
        at += 1
    return at
