"""One collection followed for as long as the program lives: listed, then watched from where the list ended.

The watch is resumed from the last version seen (bookmarks move it on where nothing changes); where the server
has forgotten that version (410) the collection is listed again. Documents are handed on one by one and not
kept here. Source: kubernetes.io/docs/reference/using-api/api-concepts, client-go's reflector.

A list comes from the server's cache wherever it can. From etcd the server has to read the pods of the whole
cluster for those of one node, and after a restart of the server every node asks at once.

    the first list     resourceVersion=0: any version that is in the cache
    a later one        the last version seen, or a newer one, so that nothing older comes back; without a
                       limit, with which servers before 1.31 bypass the cache
    no such version    (410; 504 where it is "too large", as after etcd was restored) the newest, from etcd
"""

from __future__ import annotations

import codecs
import json
import random
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import Any, Final, Protocol

import trio

from reactor.backoff import Backoff
from reactor.kube.client import ApiClient
from reactor.kube.errors import (
    ApiError,
    BusyError,
    ExpiredError,
    UnreachableError,
    VersionTooLargeError,
)
from reactor.text import DECODER, MOST_VALUES, JsonError, loads

LARGEST_CHARACTERS: Final = 4 << 20
"""Of one object. The server's store takes 1.5 MiB, its requests 3 MiB."""

PREFIX_CHARACTERS: Final = 64 << 10
"""How much of an object is searched for its name: a server writes it before all that tenants do."""

_NAMED: Final = frozenset({"name", "namespace", "uid", "resourceVersion"})


class Oversized:
    """Stands where a specification would: nothing can be read of it."""

    def __repr__(self) -> str:
        """Return what it was, for the problem that names it."""
        return f"an object of more than {LARGEST_CHARACTERS} characters"


def oversized(prefix: str) -> Mapping[str, Any]:
    """Return the object that begins so, with what its beginning shows of its identity and no more."""
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
        """Pass over the object that comes next; return what its beginning shows of it."""
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


_PAGE: Final = "100"
_SILENCE_SECONDS: Final = 30.0
_WATCH_SECONDS: Final = (240.0, 480.0)  # spread, so that a cluster's watches don't end together
_SLACK_SECONDS: Final = 15.0
_LARGEST_EVENT_BYTES: Final = LARGEST_CHARACTERS
_LIST_SECONDS: Final = 120.0  # for all of it, however it drips
_MOST_ITEMS: Final = 20_000  # of one list: a node has some hundreds of pods, and 12,500 that have ended
_WORK_SECONDS: Final = 0.005
_LONGEST_REST_SECONDS: Final = 0.5
_STOOD_SECONDS: Final = 5.0  # a watch that ends sooner than this is one that failed
_EXPIRED: Final = 410


class Sink(Protocol):
    """Takes what is found. Nothing here may raise, and nothing may keep the documents."""

    def listing(self) -> None:
        """Note that a list begins."""

    def take(self, document: Any) -> None:
        """Note an object that is there, or has changed."""

    def drop(self, document: Any) -> None:
        """Note an object that is gone."""

    def listed(self) -> None:
        """Note that the list has ended: what was not taken since it began is gone."""


class Watch:
    """Follows `path`, narrowed by `selector` (fieldSelector, labelSelector).

    `problem` says what is wrong at present, None where all is well; `synced` is set by the first list.
    """

    def __init__(
        self,
        client: ApiClient,
        path: str,
        selector: Mapping[str, str],
        sink: Sink,
        *,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._client = client
        self._path = path
        self._selector = dict(selector)
        self._sink = sink
        self._on_change = on_change
        self._version: str | None = None  # the last one seen
        self._is_followed = False  # a watch may go on from that version
        self._is_refused = False  # no list can be had from that version on
        self.synced = trio.Event()
        self.problem: str | None = None
        self.lists = 0

    async def run(self) -> None:
        """Follow until cancelled, whatever the server does."""
        backoff = Backoff()
        while True:
            began = trio.current_time()
            failure: ApiError | None = None
            try:
                if not self._is_followed:
                    with _in_time(f"GET {self._path}"):
                        await self._list()
                await self._watch()
            except ExpiredError:
                self._is_followed = False
            except ApiError as error:
                self.problem, failure = str(error), error
            if trio.current_time() - began >= _STOOD_SECONDS:
                backoff.reset()
            if failure is None:
                await backoff.pause()
            else:
                await self._client.recovery.pause(backoff, failure)

    async def _list(self) -> None:
        """List everything, from the server's cache unless it does not have the version."""
        try:
            await self._list_pages()
        except (ExpiredError, VersionTooLargeError):
            if self._is_refused:
                raise
            self._is_refused = True
            await self._list_pages()
        self._is_followed, self._is_refused = True, False
        self._sink.listed()
        self._heard()
        self.synced.set()

    async def _list_pages(self) -> None:
        """List page by page; each object is handed on as it arrives."""
        self.lists += 1
        self._sink.listing()
        query = {**self._selector, **self._extent()}
        left = _MOST_ITEMS
        while True:
            reader, taken = await _read_page(self._client, self._path, query, self._sink, left)
            left -= max(1, taken)
            metadata = reader.fields.get("metadata")
            going_on = metadata.get("continue") if isinstance(metadata, Mapping) else None
            if not going_on:
                break
            query = {**self._selector, "limit": _PAGE, "continue": str(going_on)}
        try:
            self._version = reader.resource_version
        except ListError as error:
            raise UnreachableError(f"GET {self._path}", str(error)) from error

    def _extent(self) -> Mapping[str, str]:
        """Return from which version on a list is wanted, and how much of it at once."""
        if self._is_refused:
            return {"limit": _PAGE}
        if self._version is None:
            return {"limit": _PAGE, "resourceVersion": "0"}
        return {"resourceVersion": self._version}

    async def _watch(self) -> None:
        """Take changes until the server ends the watch, as it does every few minutes."""
        seconds = random.uniform(*_WATCH_SECONDS)  # noqa: S311 - no secret
        query = {
            **self._selector,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(int(seconds)),
            "resourceVersion": self._version or "0",
        }
        patience = seconds + _SLACK_SECONDS
        courtesy = _Courtesy()
        with trio.move_on_after(patience):
            async with self._client.stream(self._path, query, silence_seconds=patience) as pieces:
                self._heard()
                async with aclosing(_events(pieces, self._path)) as events:
                    async for event in events:
                        courtesy.work_begins()
                        self._take(event)
                        await courtesy.pause()

    def _take(self, event: Mapping[str, Any]) -> None:
        kind, document = event.get("type"), event.get("object")
        if kind == "ERROR":
            raise _error_of(document, self._path)
        version = _version(document)
        if kind not in {"ADDED", "MODIFIED", "DELETED", "BOOKMARK"} or version is None:
            raise UnreachableError(
                f"watch of {self._path}", f"got {event!r:.120}; accepted: a watch event of an object"
            )
        if kind == "DELETED":
            self._sink.drop(document)
        elif kind != "BOOKMARK":
            self._sink.take(document)
        self._version = version
        self._heard()

    def _heard(self) -> None:
        self.problem = None
        self._on_change()


async def read_list(client: ApiClient, path: str, query: Mapping[str, str], sink: Sink) -> ListReader:
    """Hand an answer's items to the sink as they arrive; return what else was in it. Raises ApiError."""
    with _in_time(f"GET {path}"):
        return (await _read_page(client, path, query, sink, _MOST_ITEMS))[0]


async def _read_page(
    client: ApiClient, path: str, query: Mapping[str, str], sink: Sink, most: int
) -> tuple[ListReader, int]:
    """Return what else was in an answer, and how many items it had. Raises ApiError."""
    what = f"GET {path}"
    reader, courtesy, taken = ListReader(), _Courtesy(), 0
    async with client.stream(path, query, silence_seconds=_SILENCE_SECONDS) as pieces:
        try:
            async with aclosing(_batches(reader, pieces)) as batches:
                async for items in batches:
                    courtesy.work_begins()
                    for item in items:
                        taken += 1
                        if taken > most:
                            raise UnreachableError(what, f"got a list of more than {_MOST_ITEMS} items")
                        sink.take(item)
                        await courtesy.pause()
                    await courtesy.pause()
        except ListError as error:
            raise UnreachableError(what, str(error)) from error
    if not reader.is_whole:
        raise UnreachableError(what, "the list was cut short")
    return reader, taken


async def _batches(reader: ListReader, pieces: AsyncIterator[bytes]) -> AsyncGenerator[Iterator[Any]]:
    """Yield, with each piece that arrives, the items that are whole by then."""
    async for piece in pieces:
        yield reader.feed(piece)
    yield reader.finish()


@contextmanager
def _in_time(what: str) -> Iterator[None]:
    """Raise UnreachableError where the block takes longer than a list may."""
    with trio.move_on_after(_LIST_SECONDS) as scope:
        yield
    if scope.cancelled_caught:
        raise UnreachableError(what, f"the list was not whole within {_LIST_SECONDS:g} s")


class _Courtesy:
    """Leaves others half of the time while documents are decoded, however fast they come."""

    def __init__(self) -> None:
        self._worked_seconds = 0.0
        self._began_seconds = 0.0

    def work_begins(self) -> None:
        self._began_seconds = time.perf_counter()

    async def pause(self) -> None:
        """Let others run; begin to work again afterwards."""
        self._worked_seconds += time.perf_counter() - self._began_seconds
        if self._worked_seconds >= _WORK_SECONDS:
            await trio.sleep(min(self._worked_seconds, _LONGEST_REST_SECONDS))
            self._worked_seconds = 0.0
        else:
            await trio.lowlevel.checkpoint()
        self.work_begins()


def _error_of(status: Any, path: str) -> ApiError:
    """Return what an ERROR event, whose object is a v1.Status, comes to."""
    found = status if isinstance(status, Mapping) else {}
    what, why = f"watch of {path}", str(found.get("message", "ended with an error"))
    if found.get("code") == _EXPIRED or found.get("reason") in {"Expired", "Gone"}:
        return ExpiredError(what, why, status=_EXPIRED)
    return BusyError(what, why)


def _version(document: Any) -> str | None:
    metadata = document.get("metadata") if isinstance(document, Mapping) else None
    version = metadata.get("resourceVersion") if isinstance(metadata, Mapping) else None
    return version if isinstance(version, str) and version else None


async def _events(pieces: AsyncIterator[bytes], path: str) -> AsyncGenerator[Mapping[str, Any]]:
    """Yield the events, one JSON line each. Raises UnreachableError for anything else.

    Of a line that is too long to be kept the beginning alone is.
    """
    what = f"watch of {path}"
    buffered = bytearray()
    is_too_long = False
    async for piece in pieces:
        searched = len(buffered)
        buffered += piece
        while (end := buffered.find(b"\n", searched)) >= 0:
            line = bytes(buffered[:end])
            del buffered[: end + 1]
            searched = 0
            if is_too_long or len(line) > _LARGEST_EVENT_BYTES:
                yield oversized_event(line[:PREFIX_CHARACTERS].decode(errors="replace"))
            elif line.strip():
                yield _event(line, what)
            is_too_long = False
        if is_too_long or len(buffered) > _LARGEST_EVENT_BYTES:
            is_too_long = True
            del buffered[PREFIX_CHARACTERS:]


def _event(line: bytes, what: str) -> Mapping[str, Any]:
    try:
        event = loads(line)
    except JsonError as error:
        raise UnreachableError(what, f"{error}; accepted: a line of JSON") from error
    if not isinstance(event, Mapping):
        raise UnreachableError(what, f"got {line[:80]!r}; accepted: a watch event")
    return event
