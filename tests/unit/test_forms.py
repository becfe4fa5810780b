"""The codec of all fixed forms: what is written is read, any bytes are within all bounds or refused."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.forms import U16, U64, Amount, Form, FormError, Forms, content, number, rows, text, texts


class Colour(IntEnum):
    RED = 1
    BLUE = 200


class Row(NamedTuple):
    place: Annotated[int, number("I", 9, least=2)]
    name: Annotated[str, text(5, errors="strict")]


@dataclass(frozen=True, slots=True, kw_only=True)
class All:
    colour: Colour
    is_so: bool
    small: U16
    seconds: Annotated[float, number("d", 10.0, least=0.5)]
    amount: Amount | None
    note: Annotated[str, text(8)] | None
    path: Annotated[str, text(12, errors="surrogateescape", is_cut=False)]
    words: Annotated[tuple[str, ...], texts(3, 20, end="\n", errors="replace")] | None
    raw: Annotated[bytes, content(6)]
    rows: Annotated[tuple[Row, ...], rows(Row, 3, least=1)]


@dataclass(frozen=True, slots=True)
class Ping:
    number: U64


@dataclass(frozen=True, slots=True)
class Nothing:
    pass


def _problem(ping: Ping) -> str | None:
    return "got 13; accepted: another number" if ping.number == 13 else None


ALL = Form(All, prefix=b"\7")
EITHER = Forms[Ping | Nothing](3, {Ping: _problem, Nothing: None})
SHORT = st.text(alphabet="aä\0€", max_size=2)
VALUES = st.builds(
    All,
    colour=st.sampled_from(Colour),
    is_so=st.booleans(),
    small=st.integers(0, (1 << 16) - 1),
    seconds=st.floats(0.5, 10.0),
    amount=st.none() | st.integers(0, 1 << 62),
    note=st.none() | SHORT,
    path=st.binary(max_size=12).map(lambda raw: raw.decode(errors="surrogateescape")),
    words=st.none() | st.lists(SHORT, max_size=3).map(tuple),
    raw=st.binary(max_size=6),
    rows=st.lists(
        st.builds(Row, st.integers(2, 9), st.text(alphabet="aä", max_size=2)), min_size=1, max_size=3
    ).map(tuple),
)
ONE = All(
    colour=Colour.RED,
    is_so=True,
    small=1,
    seconds=1.0,
    amount=None,
    note=None,
    path="",
    words=(),
    raw=b"",
    rows=(Row(2, "a"),),
)


@given(VALUES)
def test_value_is_read_as_it_was_written_within_the_bytes_that_are_announced(value: All) -> None:
    raw = ALL.write(value)
    assert len(raw) <= ALL.most_bytes
    assert value == ALL.read(raw)
    assert (value, 2 + len(raw)) == ALL.read_at(b"xx" + raw + b"yy", 2)


@given(st.binary(max_size=90), VALUES, st.integers(0, 90))
def test_any_bytes_are_a_value_within_all_bounds_or_refused(noise: bytes, value: All, at: int) -> None:
    whole = ALL.write(value)
    for raw in (
        noise,
        b"\7" + noise,
        whole[:at],
        whole[:at] + noise,
        whole[:at] + noise + whole[at + len(noise) :],
    ):
        with suppress(FormError):
            found = ALL.read(raw)
            assert 0.5 <= found.seconds <= 10.0
            assert found.amount is None or found.amount <= 1 << 62
            assert found.words is None or len(found.words) <= 3
            assert 1 <= len(found.rows) <= 3
            assert all(2 <= row.place <= 9 for row in found.rows)
        with suppress(FormError):
            EITHER.read(raw)


@given(st.text(max_size=30))
def test_text_that_is_too_long_is_cut_and_others_are_refused(long: str) -> None:
    note = ALL.read(ALL.write(ALL.read(ALL.write(_with(note=long))))).note or ""
    assert len(note.encode()) <= 24  # a character that was cut is replaced
    if len(long.encode(errors="surrogateescape")) > 12:
        with pytest.raises(FormError, match="accepted: up to 12"):
            ALL.write(_with(path=long))


def _with(**changed: object) -> All:
    fields = {name: getattr(ONE, name) for name in All.__dataclass_fields__}
    return All(**{**fields, **changed})


def test_amount_that_is_too_large_to_be_is_cut() -> None:
    assert 1 << 62 == ALL.read(ALL.write(_with(amount=1 << 63))).amount


@pytest.mark.parametrize(
    ("changed", "accepted"),
    [
        ({"seconds": math.nan}, "0.5 to 10.0"),
        ({"seconds": 11.0}, "0.5 to 10.0"),
        ({"colour": 7}, "1, 200"),
        ({"is_so": 2}, "0, 1"),
        ({"rows": ()}, "1 to 3"),
        ({"rows": (Row(2, ""),) * 4}, "1 to 3"),
        ({"rows": (Row(1, ""),)}, "2 to 9"),
        ({"words": ("a\nb",)}, "without"),
        ({"words": ("",) * 4}, "up to 3"),
        ({"raw": bytes(7)}, "up to 6"),
    ],
)
def test_what_can_not_be_is_refused_with_what_is_accepted(changed: dict[str, object], accepted: str) -> None:
    with pytest.raises(FormError, match=accepted):
        ALL.read(ALL.write(_with(**changed)))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\3",
        b"\2\1" + bytes(8),
        b"\3\0" + bytes(8),
        b"\3\3" + bytes(8),
        b"\3\1" + bytes(7),
        b"\3\1" + bytes(9),
        b"\3\2\0",
        EITHER.write(Ping(13)),
    ],
)
def test_message_of_no_known_form_is_refused(raw: bytes) -> None:
    with pytest.raises(FormError, match="accepted"):
        EITHER.read(raw)


@pytest.mark.parametrize("message", [Ping(5), Nothing()])
def test_message_of_one_of_several_forms_is_read_as_it_was_written(message: Ping | Nothing) -> None:
    assert message == EITHER.read(EITHER.write(message))
    assert EITHER.most_bytes == 10


def test_text_that_is_no_utf_8_is_refused_where_it_has_to_be() -> None:
    with pytest.raises(FormError, match="accepted: UTF-8"):
        ALL.read(ALL.write(ONE)[:-1] + b"\xff")
