from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.kube.listing import ListError, ListReader

_ITEMS = st.lists(
    st.dictionaries(
        st.text(max_size=8), st.one_of(st.text(max_size=8), st.integers(), st.none()), max_size=3
    ),
    max_size=5,
)


def _read(text: bytes, size: int) -> tuple[list[Any], ListReader]:
    reader = ListReader()
    items = [item for at in range(0, len(text), size) for item in reader.feed(text[at : at + size])]
    return items, reader


@given(items=_ITEMS, size=st.integers(1, 64), ascii_only=st.booleans(), indent=st.sampled_from([None, 1]))
def test_a_list_is_the_same_however_it_is_cut(
    items: list[Any], size: int, *, ascii_only: bool, indent: int | None
) -> None:
    document = {"kind": "PodList", "metadata": {"resourceVersion": "12"}, "items": items, "n": 1234}
    text = json.dumps(document, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "surrogatepass")
    try:
        text.decode()
    except UnicodeDecodeError:
        return
    found, reader = _read(text, size)
    assert items == found
    assert "12" == reader.resource_version
    assert 1234 == reader.fields["n"]


def test_items_come_before_the_list_has_ended() -> None:
    reader = ListReader()
    assert [{"a": 1}] == list(reader.feed(b'{"metadata": {}, "items": [{"a": 1}, {"b"'))
    assert not reader.is_whole
    assert [{"b": 2}] == list(reader.feed(b": 2}]}"))
    assert reader.is_whole


def test_go_writes_an_empty_list_as_null() -> None:
    found, reader = _read(b'{"metadata":{"resourceVersion":"3"},"items":null}', 1000)
    assert [] == found
    assert "3" == reader.resource_version


@pytest.mark.parametrize(
    "text", [b"[]", b"<html>", b'{"items": [1 2]}', b'{1: 2, "a": 3}', b'{"a" 1, }', b"\xff\xfe"]
)
def test_what_is_no_list_is_refused(text: bytes) -> None:
    with pytest.raises(ListError):
        _ = _read(text, 1000)[1].resource_version


@pytest.mark.parametrize(
    "text",
    [b'{"metadata":{"resourceVersion":"3"},"items":[{}', b'{"items":[]}', b'{"metadata":[],"items":[]}'],
)
def test_a_list_cut_short_or_without_a_version_has_none(text: bytes) -> None:
    with pytest.raises(ListError):
        _ = _read(text, 7)[1].resource_version


def test_an_endless_item_is_refused_before_it_fills_the_memory() -> None:
    reader = ListReader(largest_characters=1000)
    list(reader.feed(b'{"items": ["'))
    for _ in range(9):
        list(reader.feed(b"a" * 100))
    with pytest.raises(ListError, match="more than 1000 characters"):
        list(reader.feed(b"a" * 100))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_nothing_else(text: bytes) -> None:
    with suppress(ListError):
        _ = _read(text, 16)[1].resource_version
