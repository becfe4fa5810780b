from __future__ import annotations

import json
import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.errors import ReactorError
from reactor.text import MOST_VALUES, JsonError, loads

pytestmark = pytest.mark.suite("hostile peers")

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(VALUES)
def test_what_was_written_comes_back(value: object) -> None:
    text = json.dumps(value).encode()
    assert value == loads(text)


@given(st.binary())
def test_any_bytes_are_json_or_one_error_of_ours(raw: bytes) -> None:
    with suppress(JsonError):
        loads(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"1" * 5000,
        b"-" + b"9" * 100_000,
        b'"\xff"',
        b'{"a": 1, "a": 2}',
        b'[{"b": {"a": 1, "a": 1}}]',
        b"",
        b"[1] 2",
    ],
    ids=["lists", "objects", "digits", "negative", "no UTF-8", "twice", "twice below", "nothing", "more"],
)
def test_what_is_too_deep_too_long_or_ambiguous_is_one_error_of_ours(raw: bytes) -> None:
    with pytest.raises(ReactorError) as refused:
        loads(raw)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("part", [b"[],", b"{},", b"1,", b'"",'])
def test_what_it_may_come_to_in_memory_is_bounded(part: bytes) -> None:
    raw = b"[" + part * (8 << 20) + b"1]"
    tracemalloc.start()
    try:
        with pytest.raises(JsonError, match=f"at most {MOST_VALUES}"):
            loads(raw)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
