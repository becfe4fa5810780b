"""The shape of JSON documents: each key's path with its types, and the words where a word is one of a few."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, Final

# The keys below these are no words of ours: names of pods, signals, sources and problems.
_NAMED_BY_DATA: Final = frozenset(
    {"absurd", "annotations", "observations", "problems", "such_as", "watches", "counted"}
)
# Strings of which each is one of a few.
_WORDS: Final = frozenset(
    {"kind", "killed_by", "victim", "preference", "phase", "limited_by", "state", "unit"}
)

Shape = dict[str, str]


def shape(documents: Iterable[Any]) -> Shape:
    """Return the shape of documents of one kind: what a key is in any of them."""
    found: dict[str, set[str]] = {}
    for document in documents:
        for path, what in _walk("", "", document):
            found.setdefault(path, set()).add(what)
    return {path: " | ".join(sorted(found[path])) for path in sorted(found)}


def _walk(path: str, key: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        yield path or ".", "object"
        for name, one in value.items():
            shown = "*" if key in _NAMED_BY_DATA else str(name)
            yield from _walk(f"{path}.{shown}", shown, one)
    elif isinstance(value, list | tuple):
        yield path, "list"
        for one in value:
            yield from _walk(f"{path}[]", key, one)
    else:
        yield path, _type_of(key, value)


def _type_of(key: str, value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, Enum):
        return f"one of: {', '.join(str(one) for one in type(value))}"
    if isinstance(value, str) and key in _WORDS:
        return f"word: {value}"
    return {bool: "boolean", int: "integer", float: "number", str: "string"}[type(value)]
