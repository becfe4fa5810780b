from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.kernel.overlay import parse_upper_directory, read_upper_directory

OVERLAY = (
    b"509 430 0:52 / / rw,relatime master:1 - overlay overlay "
    b"rw,lowerdir=/s/10/fs:/s/9/fs,upperdir=/s/a\\040b/fs,workdir=/s/11/work\n"
)
OTHER = b"510 509 0:53 / /proc rw - proc proc rw\n"


def test_what_a_container_writes_lies_in_the_upper_directory_of_its_root() -> None:
    assert parse_upper_directory(OVERLAY + OTHER) == "/s/a b/fs"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        OTHER,
        OTHER.replace(b"/proc rw", b"/ rw"),
        OVERLAY.replace(b" / / ", b" / /mnt "),
        OVERLAY.replace(b",upperdir=/s/a\\040b/fs", b""),
        OVERLAY + OTHER.replace(b"/proc rw", b"/ rw"),  # hidden by what was mounted over it
    ],
)
def test_a_root_that_is_no_writable_overlay_has_none(raw: bytes) -> None:
    assert parse_upper_directory(raw) is None


@given(st.binary(max_size=200))
def test_no_mount_table_is_too_broken_to_be_read(raw: bytes) -> None:
    assert parse_upper_directory(raw) is None  # none of so few bytes, drawn blindly, is an overlay


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_what_stands_around_an_overlay_does_not_change_where_it_is(before: bytes, after: bytes) -> None:
    broken = [raw.replace(b" / ", b" /x ") + b"\n" for raw in (before, after)]
    assert parse_upper_directory(broken[0] + OVERLAY + broken[1]) == parse_upper_directory(OVERLAY)


def test_a_process_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_upper_directory(1, tmp_path)
