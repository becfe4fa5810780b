from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reactor.errors import KernelInterfaceError
from reactor.kernel.files import (
    READ_BYTES,
    KernelFile,
    parse_field,
    parse_integer,
    read_file,
    read_own,
    unescape_mount,
    write_file,
)
from tests.support.this_machine import open_descriptors


def test_held_file_shows_new_content_with_each_read(tmp_path: Path) -> None:
    path = tmp_path / "memory.current"
    path.write_text("1\n")
    with KernelFile(path) as held:
        assert b"1\n" == held.read()
        path.write_text("2\n")
        assert b"2\n" == held.read()


def test_closed_file_touches_no_reused_descriptor(tmp_path: Path) -> None:
    path = tmp_path / "memory.current"
    path.write_text("1\n")
    held = KernelFile(path)
    held.close()
    with KernelFile(path) as reuser:  # takes the number that was closed
        held.close()
        with pytest.raises(OSError, match=r"memory\.current"):
            held.read()
        assert b"1\n" == reuser.read()


def test_dropped_file_leaves_no_descriptor(tmp_path: Path) -> None:
    path = tmp_path / "memory.current"
    path.write_text("1\n")
    before = open_descriptors()
    KernelFile(path)
    assert before == open_descriptors()


@pytest.mark.parametrize("reading", [read_file, KernelFile])
def test_symlink_is_not_followed(tmp_path: Path, reading: type[KernelFile]) -> None:
    (tmp_path / "secret").write_text("1\n")
    (tmp_path / "memory.current").symlink_to("secret")
    with pytest.raises(OSError, match=r"memory\.current"):
        reading(tmp_path / "memory.current")


def test_reading_a_directory_names_it(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match=tmp_path.name):
        read_file(tmp_path)


def test_no_more_than_a_byte_past_the_limit_of_a_file_of_ours_is_read(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.touch(0o600)
    path.write_bytes(b"123456")
    assert read_own(path, 4) == b"12345"


def test_long_files_are_read_to_their_end(tmp_path: Path) -> None:
    content = b"1234567\n" * READ_BYTES
    (tmp_path / "cgroup.procs").write_bytes(content)
    assert content == read_file(tmp_path / "cgroup.procs")


def test_refused_write_names_the_file() -> None:
    with pytest.raises(OSError, match="/proc/self/oom_score_adj"):
        write_file("/proc/self/oom_score_adj", "many")


@given(st.integers(min_value=0, max_value=2**64 - 1))
def test_whole_numbers_are_read_back(number: int) -> None:
    assert number == parse_integer(f"{number}\n".encode(), "x")
    assert number == parse_field(f"a 1\nb {number}\nc 2\n".encode(), b"b", "x")
    assert number == parse_field(f"b {number}\n".encode(), b"b", "x")


@pytest.mark.parametrize(
    "raw", [b"", b"\n", b"-1", b"+1", b"1_0", b"1 2", b"max", b"0x1", b"9" * 21, b"\xd9\xa3", b"1e3"]
)
def test_what_is_no_whole_number_is_refused(raw: bytes) -> None:
    with pytest.raises(KernelInterfaceError, match="whole number"):
        parse_integer(raw, "memory.current")


@pytest.mark.parametrize(
    "raw",
    [b"", b"total_file 1\n", b"file", b"file ", b"file 12", b"anon 1\nfile 12", b"file \n", b"file -1\n"],
)
def test_missing_or_cut_off_line_is_refused(raw: bytes) -> None:
    """A number without its end of line may be the first half of a larger one."""
    with pytest.raises(KernelInterfaceError, match=r"memory\.stat.*'file'"):
        parse_field(raw, b"file", "memory.stat")


def test_line_is_not_mistaken_for_one_that_ends_like_it() -> None:
    assert 7 == parse_field(b"total_file 1\nworkingset_file 2\nfile 7\n", b"file", "x")


@given(st.binary())
@example(b"inactive_file " + b"1" * 5000 + b"\n")
def test_arbitrary_bytes_are_refused_by_name_only(raw: bytes) -> None:
    for parse in (parse_integer, lambda raw, name: parse_field(raw, b"inactive_file", name)):
        try:
            number = parse(raw, "x")
        except KernelInterfaceError:
            continue
        assert 0 <= number < 10**20


@given(st.binary())
def test_mount_fields_survive_escaping(raw: bytes) -> None:
    escaped = b"".join(b"\\%03o" % byte if byte in b" \t\n\\#" else bytes([byte]) for byte in raw)
    assert raw == unescape_mount(escaped)


@given(st.binary())
def test_any_mount_field_can_be_unescaped(raw: bytes) -> None:
    assert len(unescape_mount(raw)) <= len(raw)
