import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.text import printable

pytestmark = pytest.mark.suite("hostile objects")


@given(st.text(st.characters(exclude_categories=()), max_size=60))
def test_whatever_comes_in_what_comes_out_is_one_printable_line_of_utf_8(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert shown.encode().decode() == shown
    assert printable(shown) == shown


@given(st.binary(max_size=60))
def test_any_name_of_a_file_can_be_printed(name: bytes) -> None:
    assert printable(os.fsdecode(name)).isprintable()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("web.service", "web.service"),
        ("naïve 网", "naïve 网"),
        (r"dev-disk-by\x2duuid.swap", r"dev-disk-by\x2duuid.swap"),
        ("\x1b[2Jevil", r"\x1b[2Jevil"),
        ("one\nPod two was evicted", r"one\x0aPod two was evicted"),
        ("a\u202eb", r"a\u202eb"),
        ("\x9b31m", r"\x9b31m"),
        (os.fsdecode(b"\xff\xfe"), r"\xff\xfe"),
        ("\U000e0001", r"\U000e0001"),
    ],
)
def test_what_is_printable_stays_and_what_is_not_is_written_as_its_escape(text: str, shown: str) -> None:
    assert shown == printable(text)
