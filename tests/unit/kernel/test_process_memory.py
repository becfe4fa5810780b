"""What a process holds, out of /proc/PID/status: real ones, those of kernel threads, and hostile names."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.errors import KernelInterfaceError
from reactor.kernel import process_memory
from reactor.kernel.process_memory import parse_process_memory, read_process_memory, read_resident_bytes
from reactor.model.processes import ProcessMemory

STATUS = (
    b"Name:\tIsolated Web Co\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t7\nPid:\t7\nVmPeak:\t   10000 kB\n"
    b"VmRSS:\t    5000 kB\nRssAnon:\t    3000 kB\nRssFile:\t    1900 kB\nRssShmem:\t     100 kB\n"
    b"VmSwap:\t      20 kB\nThreads:\t3\n"
)
KIB = 1024


def test_anonymous_shared_and_swapped_memory_count_and_files_do_not() -> None:
    expected = ProcessMemory(
        pid=7,
        name="Isolated Web Co",
        anonymous_bytes=3000 * KIB,
        shared_bytes=100 * KIB,
        swap_bytes=20 * KIB,
    )
    found = parse_process_memory(STATUS, 7)
    assert expected == found
    assert (3100 * KIB, 3120 * KIB) == (expected.resident_bytes, expected.held_bytes)


def test_without_swap_in_the_kernel_there_is_none() -> None:
    found = parse_process_memory(STATUS.replace(b"VmSwap:\t      20 kB\n", b""), 7)
    assert found is not None
    assert 0 == found.swap_bytes


def test_a_kernel_thread_and_a_zombie_have_no_memory() -> None:
    assert None is parse_process_memory(b"Name:\tkthreadd\nState:\tS (sleeping)\nThreads:\t1\n", 2)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"Nime:\ta\n",
        b"Name:\ta\nRssAnon:\t 1 MB\nRssShmem:\t1 kB\n",
        b"Name:\ta\nRssAnon:\t kB\n",
        b"Name:\ta\nRssAnon:\t -1 kB\n",
        b"Name:\ta\nRssAnon:\t 5 kB",
    ],
)
def test_what_is_no_status_is_refused(raw: bytes) -> None:
    with pytest.raises(KernelInterfaceError):
        parse_process_memory(raw, 1)


@given(st.binary(max_size=200))
def test_no_bytes_make_it_raise_anything_else(raw: bytes) -> None:
    with suppress(KernelInterfaceError):
        parse_process_memory(raw, 1)


def test_this_process_has_its_name_and_holds_something() -> None:
    found = read_process_memory(os.getpid())
    assert found is not None
    assert Path("/proc/self/comm").read_text().rstrip("\n") == found.name
    assert found.anonymous_bytes > 1 << 20


def test_a_name_with_a_lines_end_adds_no_line() -> None:
    before = Path("/proc/self/comm").read_text().rstrip("\n")
    try:
        Path("/proc/self/comm").write_text("a\nRssAnon: 9 k")
        found = read_process_memory(os.getpid())
    finally:
        Path("/proc/self/comm").write_text(before)
    assert found is not None
    assert "\n" not in found.name
    assert found.anonymous_bytes > 1 << 20


def test_a_long_list_of_groups_does_not_hide_what_comes_after_it(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(process_memory, "_READ_BYTES", 512)
    groups = b"Groups:\t" + b" ".join(b"%d" % group for group in range(5000)) + b"\n"
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status").write_bytes(STATUS.replace(b"VmPeak", groups + b"VmPeak"))
    found = read_process_memory(7, tmp_path)
    assert found is not None
    assert 3000 * KIB == found.anonymous_bytes


def test_one_that_is_gone_is_an_error(tmp_path) -> None:
    with pytest.raises(FileNotFoundError):
        read_process_memory(7, tmp_path)


def test_resident_memory_of_this_process_is_what_its_status_says() -> None:
    found = read_process_memory(os.getpid())
    assert found is not None
    assert found.anonymous_bytes // 2 < read_resident_bytes(os.getpid()) < 64 << 30


@pytest.mark.parametrize("raw", [b"", b"5", b"5 x", b"5 -1 3"])
def test_what_is_no_statm_is_refused(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "statm").write_bytes(raw)
    with pytest.raises(KernelInterfaceError):
        read_resident_bytes(7, tmp_path)
