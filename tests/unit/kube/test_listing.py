from __future__ import annotations

import json
import tracemalloc
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.kube.listing import ListError, ListReader
from reactor.kube.oversized import oversized, oversized_event

pytestmark = pytest.mark.suite("hostile peers")

_ITEMS = st.lists(
    st.dictionaries(
        st.text(max_size=8), st.one_of(st.text(max_size=8), st.integers(), st.none()), max_size=3
    ),
    max_size=5,
)


def _read(text: bytes, size: int) -> tuple[list[Any], ListReader]:
    reader = ListReader()
    items = [item for at in range(0, len(text), size) for item in reader.feed(text[at : at + size])]
    return [*items, *reader.finish()], reader


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
    assert "PodList" == reader.fields["kind"]


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


def pod(name: str, **more: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": "7", **more}
    return {"metadata": metadata, "spec": {"containers": [{"name": "main"}]}}


def pods(*items: Any) -> bytes:
    return json.dumps({"metadata": {"resourceVersion": "12"}, "items": items}).encode()


@pytest.mark.parametrize("size", [1, 100, 1460])
def test_however_it_is_cut_a_list_is_decoded_in_linear_time(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = pods(pod("annotated", annotations={f"tenant.example/{n}": "x" for n in range(2000)}), pod("other"))
    decoded = [0]

    class Counting(json.JSONDecoder):
        def raw_decode(self, s: str, idx: int = 0) -> tuple[Any, int]:
            decoded[0] += len(s) - idx
            return super().raw_decode(s, idx)

    monkeypatch.setattr("reactor.kube.listing.DECODER", Counting())
    found, reader = _read(text, size)
    assert ["annotated", "other"] == [one["metadata"]["name"] for one in found]
    assert "12" == reader.resource_version
    assert decoded[0] < 6 * len(text)


@pytest.mark.parametrize("size", [1, 7, 1000, 10_000])
def test_item_that_is_too_large_is_known_by_its_name_and_costs_no_other_one_its_place(size: int) -> None:
    large = pod("large", annotations={"a": 'x"\\{[' * 1000, "b": [[["]"]]]})
    text = pods(pod("first"), large, pod("last"))
    reader = ListReader(largest_characters=2000)
    found = [one for at in range(0, len(text), size) for one in reader.feed(text[at : at + size])]
    found += reader.finish()
    assert ["first", "large", "last"] == [one["metadata"]["name"] for one in found]
    assert "12" == reader.resource_version
    whole = size > len(text)
    assert whole or ("annotations" not in found[1]["metadata"] and "characters" in repr(found[1]["spec"]))
    assert "uid-large" == found[1]["metadata"]["uid"]


def test_item_of_too_many_values_is_passed_over_before_they_fill_the_memory() -> None:
    text = pods(pod("dense", annotations={"a": [[]] * 600_000}), pod("other"))
    reader, found = ListReader(), []
    tracemalloc.start()
    try:
        for at in range(0, len(text), 65536):
            found += reader.feed(text[at : at + 65536])
        found += reader.finish()
        assert tracemalloc.get_traced_memory()[1] < 60 << 20
    finally:
        tracemalloc.stop()
    assert ["dense", "other"] == [one["metadata"]["name"] for one in found]
    assert reader.is_whole


def test_what_else_a_list_says_is_not_kept() -> None:
    text = json.dumps({**{f"{n}": "x" * 1000 for n in range(100)}, "metadata": {"resourceVersion": "3"}})
    reader = _read(text.encode(), 1000)[1]
    assert {"metadata": {"resourceVersion": "3"}} == reader.fields


@pytest.mark.parametrize(
    "item", [b"1" * 5000, b'{"a": 1, "a": 2}', b"[" * 100_000], ids=["digits", "a key twice", "depth"]
)
def test_item_that_is_no_json_as_it_is_accepted_is_no_list(item: bytes) -> None:
    with pytest.raises(ListError):
        _read(b'{"items": [' + item + b", {}]}", 65536)


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_arbitrary_beginnings_of_oversized_objects_raise_nothing(first: bytes, rest: bytes) -> None:
    text = (b'{"metadata": {' + first).decode(errors="replace") + rest.decode(errors="replace")
    assert set(oversized(text)["metadata"]) <= {"name", "namespace", "uid", "resourceVersion"}
    assert {"metadata", "spec"} == set(oversized_event(text)["object"])
