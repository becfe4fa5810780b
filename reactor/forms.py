"""Fixed forms: what two processes of reactor send each other, and what the eBPF programs write.

A form is declared once, by the annotations of a class; writing, reading and all bounds follow from them.

    the prefix  bytes that each message begins with, such as a version
    the head    a number for each field; for texts, bytes and rows it is their length
    the tails   texts, bytes and rows, in the order of their fields

Reading takes any bytes, and returns a value within all bounds, or raises FormError.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, IntEnum
from types import NoneType
from typing import Annotated, Any, Final, Generic, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from reactor.errors import ReactorError

LARGEST_AMOUNT: Final = 1 << 62  # more than a disk can hold
_LARGEST: Final = {"B": (1 << 8) - 1, "H": (1 << 16) - 1, "I": (1 << 32) - 1, "Q": (1 << 64) - 1}
_Value = TypeVar("_Value")


class FormError(ReactorError, ValueError):
    """Bytes are not of the fixed form, or say what can't be; the text has what is accepted."""


class Tail(NamedTuple):
    """What follows the numbers, `most_bytes` at the most.

    `read` is given its number, all bytes and where it begins, and returns what it is and where it ends;
    `write` returns its number and its bytes. Both raise FormError.
    """

    read: Callable[[int, bytes, int], tuple[Any, int]]
    write: Callable[[Any], tuple[int, bytes]]
    most_bytes: int


class Field(NamedTuple):
    """A number of struct's `code`, and its tail if it has one.

    `read` makes the value of the number or the tail, `write` that of the value; both raise FormError for what
    can't be. None: they are the same. A value that `may_be_none` then is the largest number of the code.
    """

    code: str
    read: Callable[[Any], Any] | None = None
    write: Callable[[Any], Any] | None = None
    tail: Tail | None = None
    may_be_none: bool = False


def number(code: str, most: float, *, least: float = 0, is_cut: bool = False) -> Field:
    """Return a number within bounds; `is_cut` if one outside of them is written as the nearest within."""

    def read(value: float) -> float:
        if not least <= value <= most:
            raise FormError(f"got {value}; accepted: {least} to {most}")
        return value

    return Field(code, read, (lambda value: max(least, min(value, most))) if is_cut else None)


class _Known(dict[int, IntEnum]):
    def __missing__(self, value: int) -> IntEnum:
        raise FormError(f"got {value}; accepted: {', '.join(map(str, self))}")


def choice(kinds: type[IntEnum], code: str = "B") -> Field:
    """Return one of an enumeration."""
    return Field(code, _Known((int(one), one) for one in kinds).__getitem__)


def member(of: type[Enum]) -> Field:
    """Return one of an enumeration of texts, by its place in it."""
    places = {one: place for place, one in enumerate(of)}
    known = tuple(of)

    def read(place: int) -> Enum:
        if place >= len(known):
            raise FormError(f"got {place} of {len(known)}; accepted: the place of one")
        return known[place]

    return Field("B", read, places.__getitem__)


def content(most_bytes: int, code: str = "H") -> Field:
    """Return bytes, which are not cut."""

    def read(length: int, raw: bytes, at: int) -> tuple[bytes, int]:
        if length > most_bytes or at + length > len(raw):
            raise FormError(f"got {len(raw) - at} of {length} bytes; accepted: up to {most_bytes}")
        return raw[at : at + length], at + length

    def write(value: bytes) -> tuple[int, bytes]:
        if len(value) > most_bytes:
            raise FormError(f"got {len(value)} bytes; accepted: up to {most_bytes}")
        return len(value), value

    return Field(code, tail=Tail(read, write, most_bytes))


def _decoded(raw: bytes, errors: str) -> str:
    try:
        return raw.decode(errors=errors)
    except UnicodeDecodeError:
        raise FormError(f"got {raw!r:.80}; accepted: UTF-8") from None


def text(most_bytes: int, code: str = "H", *, errors: str = "replace", is_cut: bool = True) -> Field:
    """Return a text in UTF-8, which is cut in writing unless a longer one is to be refused."""

    def write(value: str) -> bytes:
        return value.encode(errors=errors)[: most_bytes if is_cut else None]

    return content(most_bytes, code)._replace(read=lambda raw: _decoded(raw, errors), write=write)


def matching(form: re.Pattern[str], most_bytes: int) -> Field:
    """Return a text in ASCII of this form."""

    def read(raw: bytes) -> str:
        found = raw.decode("ascii", errors="replace")
        if form.fullmatch(found) is None:
            raise FormError(f"got {raw[:40]!r}; accepted: {form.pattern}")
        return found

    return content(most_bytes, "B")._replace(read=read, write=str.encode)


def texts(most: int, most_bytes: int, code: str = "H", *, end: str, errors: str) -> Field:
    """Return a tuple of texts, each followed by `end`, which is in none of them."""

    def read(raw: bytes) -> tuple[str, ...]:
        *found, tail = _decoded(raw, errors).split(end)
        if tail or len(found) > most:
            raise FormError(f"got {len(found)} texts and {tail!r:.80}; accepted: up to {most}, ended ones")
        return tuple(found)

    def write(values: Sequence[str]) -> bytes:
        if len(values) > most or any(end in value for value in values):
            raise FormError(f"got {len(values)} texts; accepted: up to {most} without {end!r}")
        return "".join(f"{value}{end}" for value in values).encode(errors=errors)

    return content(most_bytes, code)._replace(read=read, write=write)


def rows(of: type[Any], most: int, *, least: int = 0) -> Field:
    """Return a tuple of values of a class that is a form."""
    form = Form(of)

    def read(count: int, raw: bytes, at: int) -> tuple[tuple[Any, ...], int]:
        if not least <= count <= most:
            raise FormError(f"got {count} rows; accepted: {least} to {most}")
        found = []
        for _ in range(count):
            value, at = form.read_at(raw, at)
            found.append(value)
        return tuple(found), at

    def write(values: Sequence[Any]) -> tuple[int, bytes]:
        return len(values), b"".join(map(form.write, values))

    return Field("H", tail=Tail(read, write, most * form.most_bytes))


U16 = Annotated[int, Field("H")]
U32 = Annotated[int, Field("I")]
U64 = Annotated[int, Field("Q")]
Amount = Annotated[int, number("Q", LARGEST_AMOUNT, is_cut=True)]


class Form(Generic[_Value]):
    """The form of a class whose annotations are Fields, enumerations or truth values, or one of them or None.

    `head` is the layout of its numbers, `most_bytes` the length of the longest message.
    `check` returns what is wrong with a value whose fields are within their bounds, None if nothing is.
    """

    def __init__(
        self, of: type[_Value], *, prefix: bytes = b"", check: Callable[[_Value], str | None] | None = None
    ) -> None:
        fields = {name: _field(hint) for name, hint in get_type_hints(of, include_extras=True).items()}
        self._prefix = prefix
        self._check = check
        self._fields = fields
        self.head = struct.Struct("=" + "".join(field.code for field in fields.values()))
        of_tuple: Callable[[Sequence[Any]], _Value] | None = getattr(of, "_make", None)
        self._make = of_tuple or (lambda found: of(**dict(zip(fields, found, strict=True))))
        each = tuple(enumerate(fields.values()))
        self._nones = [(place, _LARGEST[one.code]) for place, one in each if one.may_be_none]
        self._tails = [(place, one.tail) for place, one in each if one.tail is not None]
        self._reads = [(place, one.read) for place, one in each if one.read is not None]
        self._least_bytes = len(prefix) + self.head.size
        self.most_bytes = self._least_bytes + sum(tail.most_bytes for _, tail in self._tails)

    def write(self, value: _Value) -> bytes:
        """Return the bytes. Raises FormError for what is too long and may not be cut."""
        numbers, tails = [], [self._prefix, b""]
        for name, field in self._fields.items():
            found = getattr(value, name)
            if found is None and field.may_be_none:
                found = _LARGEST[field.code]
            else:
                found = found if field.write is None else field.write(found)
                if field.tail is not None:
                    found, tail = field.tail.write(found)
                    tails.append(tail)
            numbers.append(found)
        tails[1] = self.head.pack(*numbers)
        return b"".join(tails)

    def read(self, raw: bytes) -> _Value:
        """Return the value that all of these bytes are. Raises FormError."""
        value, end = self.read_at(raw, 0)
        if end != len(raw):
            raise FormError(f"got {len(raw)} bytes; accepted: {end}")
        return value

    def read_at(self, raw: bytes, at: int) -> tuple[_Value, int]:
        """Return the value that begins there, and where it ends. Raises FormError."""
        end = at + self._least_bytes
        if end > len(raw) or not raw.startswith(self._prefix, at):
            got = f"{len(raw) - at} bytes, {raw[at : at + len(self._prefix)]!r}"
            raise FormError(f"got {got}; accepted: {self._least_bytes} and more, {self._prefix!r} first")
        found: list[Any] = list(self.head.unpack_from(raw, end - self.head.size))
        for place, none in self._nones:
            if found[place] == none:
                found[place] = None
        for place, tail in self._tails:
            if found[place] is not None:
                found[place], end = tail.read(found[place], raw, end)
        for place, read in self._reads:
            if found[place] is not None:
                found[place] = read(found[place])
        value = self._make(found)
        problem = None if self._check is None else self._check(value)
        if problem is not None:
            raise FormError(problem)
        return value, end


def _field(hint: Any) -> Field:
    """Return what an annotation stands for."""
    if get_origin(hint) is Annotated:
        field: Field = hint.__metadata__[0]
        return field
    if hint is bool:
        return Field("B", _truth)
    if isinstance(hint, type):
        return choice(hint)
    (inner,) = (_field(one) for one in get_args(hint) if one is not NoneType)
    return inner._replace(may_be_none=True)


def _truth(value: int) -> bool:
    if value > 1:
        raise FormError(f"got {value}; accepted: 0, 1")
    return bool(value)


class Forms(Generic[_Value]):
    """Messages of one of several forms, each with its check: a byte of the version, and one of the form."""

    def __init__(self, version: int, forms: Mapping[type[Any], Callable[[Any], str | None] | None]) -> None:
        self._by_class = {
            of: Form(of, prefix=bytes((version, place)), check=check)
            for place, (of, check) in enumerate(forms.items(), 1)
        }
        self._by_place = tuple(self._by_class.values())
        self._version = version
        self.most_bytes = max(form.most_bytes for form in self._by_place)

    def write(self, message: _Value) -> bytes:
        """Return the bytes. Raises FormError for what is too long and may not be cut."""
        return self._by_class[type(message)].write(message)

    def read(self, raw: bytes) -> _Value:
        """Return the message that these bytes are. Raises FormError for anything that is not exactly one."""
        if len(raw) < 2 or raw[0] != self._version or not 1 <= raw[1] <= len(self._by_place):
            accepted = f"version {self._version}, forms 1 to {len(self._by_place)}"
            raise FormError(f"got {len(raw)} bytes, {raw[:2]!r}; accepted: {accepted}")
        message: _Value = self._by_place[raw[1] - 1].read(raw)
        return message
