"""A List's JSON, split into its items as it arrives: never more in memory than the largest item.

A node's pods are a few megabytes of JSON and ten times that as Python values; one pod is a few kilobytes.
However it is cut into pieces, what arrives is decoded in linear time: what was not whole is tried again only
once twice as much of it is there. An item beyond all bounds is passed over but for its name (`oversized`).
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Generator, Iterator, Mapping
from typing import Any, Final

from reactor.bounded_json import DECODER, MOST_VALUES
from reactor.kube.oversized import LARGEST_CHARACTERS, PREFIX_CHARACTERS, oversized

_WHITESPACE: Final = " \t\n\r"
_ACCEPTED: Final = "a List's JSON object, whole, with metadata.resourceVersion"
_KEPT: Final = frozenset({"kind", "apiVersion", "metadata", "code", "message", "reason", "status"})
_BRACKET_OR_TEXT: Final = re.compile(r'["{}\[\]]')
_END_OF_TEXT: Final = re.compile(r'["\\]')
_MORE: Final = object()  # what the parser yields where it needs more text
_Result = Any
_Parser = Generator[Any, None, _Result]


class ListError(ValueError):
    """What arrives is no List."""


class ListReader:
    """Takes pieces of the JSON and gives the items that are whole; `finish` gives those that are left.

    What else a list has to say of itself is in `fields`.
    """

    def __init__(self, *, largest_characters: int = LARGEST_CHARACTERS) -> None:
        self.fields: dict[str, Any] = {}
        self.is_whole = False
        self._largest = largest_characters
        self._utf8 = codecs.getincrementaldecoder("utf-8")()
        self._text = ""
        self._at = 0
        self._pieces: list[str] = []  # what has come since; joined to the text when there is enough
        self._waiting = 0
        self._needed = 0
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
        """Yield items that are whole by now. Raises ListError."""
        self._take(piece, final=False)
        if len(self._text) - self._at + self._waiting >= self._needed:
            yield from self._read()

    def finish(self) -> Iterator[Any]:
        """Yield the items that are left, since nothing more will come. Raises ListError."""
        self._take(b"", final=True)
        yield from self._read()

    def _take(self, piece: bytes, *, final: bool) -> None:
        try:
            text = self._utf8.decode(piece, final)
        except UnicodeDecodeError as error:
            raise ListError(f"got {error.reason}; accepted: UTF-8") from error
        self._pieces.append(text)
        self._waiting += len(text)

    def _read(self) -> Iterator[Any]:
        self._text = "".join((self._text[self._at :], *self._pieces))
        self._at, self._waiting = 0, 0
        self._pieces.clear()
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
                value = yield from self._value()
                if key in _KEPT:
                    self.fields[key] = value
            if (yield from self._one_of(",}")) == "}":
                break
        self.is_whole = True

    def _items(self) -> _Parser:
        self._at += 1
        if (yield from self._next_character()) == "]":
            self._at += 1
            return
        while True:
            yield (yield from self._value(is_item=True))
            if (yield from self._one_of(",]")) == "]":
                return

    def _value(self, *, is_item: bool = False) -> _Parser:
        """Return the next value, once what follows it is there too: a number's next digit may be to come."""
        while True:
            first = yield from self._next_character()
            if not self._has_too_many_values():
                try:
                    value, end = DECODER.raw_decode(self._text, self._at)
                except RecursionError as error:
                    raise ListError(f"got endless nesting; accepted: {_ACCEPTED}") from error
                except json.JSONDecodeError:
                    end = len(self._text)
                except ValueError as error:
                    raise ListError(f"got {error!s:.200}") from error
                if end < len(self._text):
                    self._at, self._needed = end, 0
                    return value
                present = len(self._text) - self._at
                if present <= self._largest:
                    self._needed = min(2 * present, self._largest + 1)
                    yield _MORE
                    continue
            if not is_item or first != "{":
                raise ListError(
                    f"got a value of more than {self._largest} characters; accepted: a smaller one"
                )
            return (yield from self._passed_over())

    def _has_too_many_values(self) -> bool:
        """Return whether the value that comes next, which was not whole before, is too much to decode."""
        text, at = self._text, self._at
        if not self._needed or len(text) - at <= MOST_VALUES:
            return False
        return sum(text.count(mark, at) for mark in ",[{") > MOST_VALUES

    def _passed_over(self) -> _Parser:
        """Pass over the object that comes next; return what its beginning tells of it."""
        self._needed = 0
        found = oversized(self._text[self._at : self._at + PREFIX_CHARACTERS])
        depth, is_text = 0, False
        while True:
            match = (_END_OF_TEXT if is_text else _BRACKET_OR_TEXT).search(self._text, self._at)
            if match is None:
                self._at = len(self._text)
                yield _MORE
                continue
            character, self._at = match[0], match.end()
            if character == "\\":
                while self._at >= len(self._text):
                    yield _MORE
                self._at += 1
            elif character == '"':
                is_text = not is_text
            else:
                depth += 1 if character in "{[" else -1
                if depth == 0:
                    return found

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
