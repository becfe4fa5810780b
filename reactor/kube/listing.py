"""A List's JSON, split into its items as it arrives: never more in memory than the largest item.

A node's pods are a few megabytes of JSON and ten times that as Python values; one pod is a few kilobytes.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Generator, Iterator, Mapping
from typing import Any, Final

_WHITESPACE: Final = " \t\n\r"
_LARGEST_CHARACTERS: Final = 8 << 20
_ACCEPTED: Final = "a List's JSON object, whole, with metadata.resourceVersion"
_MORE: Final = object()  # what the parser yields where it needs more text
_Result = Any
_Parser = Generator[Any, None, _Result]


class ListError(ValueError):
    """What arrives is no List."""


class ListReader:
    """Takes pieces of the JSON; gives each item once it is whole. The other keys are in `fields`."""

    def __init__(self, *, largest_characters: int = _LARGEST_CHARACTERS) -> None:
        self.fields: dict[str, Any] = {}
        self.is_whole = False
        self._largest = largest_characters
        self._decoder = json.JSONDecoder()
        self._utf8 = codecs.getincrementaldecoder("utf-8")()
        self._text = ""
        self._at = 0
        self._parser = self._object()

    @property
    def resource_version(self) -> str:
        """Return the List's version. Raises ListError where it has none, or is not whole."""
        metadata = self.fields.get("metadata")
        version = metadata.get("resourceVersion") if isinstance(metadata, Mapping) else None
        if not self.is_whole or not isinstance(version, str):
            raise ListError(
                f"got {self.fields!r:.200}, {'whole' if self.is_whole else 'cut short'}; {_ACCEPTED}"
            )
        return version

    def feed(self, piece: bytes) -> Iterator[Any]:
        """Yield the items that this piece completes. Raises ListError."""
        try:
            self._text = self._text[self._at :] + self._utf8.decode(piece)
        except UnicodeDecodeError as error:
            raise ListError(f"got {error.reason}; accepted: UTF-8") from error
        self._at = 0
        if len(self._text) > self._largest:
            raise ListError(f"got an item of more than {self._largest} characters; accepted: a smaller one")
        for item in self._parser:
            if item is _MORE:
                return
            yield item

    def _object(self) -> _Parser:
        yield from self._one_of("{")
        while True:
            key = yield from self._value()
            if not isinstance(key, str):
                raise ListError(f"got {key!r:.80} for a key; accepted: {_ACCEPTED}")
            yield from self._one_of(":")
            if key == "items" and (yield from self._next_character()) == "[":
                yield from self._items()
            else:
                self.fields[key] = yield from self._value()
            if (yield from self._one_of(",}")) == "}":
                break
        self.is_whole = True

    def _items(self) -> _Parser:
        self._at += 1
        if (yield from self._next_character()) == "]":
            self._at += 1
            return
        while True:
            yield (yield from self._value())
            if (yield from self._one_of(",]")) == "]":
                return

    def _value(self) -> _Parser:
        """Return the next value, once what follows it is there too: a number's next digit may be to come."""
        while True:
            yield from self._next_character()
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except RecursionError as error:
                raise ListError(f"got endless nesting; accepted: {_ACCEPTED}") from error
            except ValueError:
                end = len(self._text)
            if end < len(self._text):
                self._at = end
                return value
            yield _MORE

    def _one_of(self, accepted: str) -> _Parser:
        character = yield from self._next_character()
        if character not in accepted:
            raise ListError(f"got {self._text[self._at : self._at + 40]!r}; accepted: {_ACCEPTED}")
        self._at += 1
        return character

    def _next_character(self) -> _Parser:
        while True:
            while self._at < len(self._text) and self._text[self._at] in _WHITESPACE:
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            yield _MORE
