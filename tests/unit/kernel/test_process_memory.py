"""What a process holds, out of /proc/PID/status: real ones, those of kernel threads, and hostile names."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.errors import KernelInterfaceError
from reactor.kernel import procfs
from reactor.kernel.procfs import (
    MemoryUnknownError,
    parse_process_memory,
    read_process_memory,
    read_resident_bytes,
)
from reactor.model.kills import ProcessMemory
from tests.support.processes import hold_leaderless

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
    monkeypatch.setattr(procfs, "_READ_BYTES", 512)
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


@pytest.fixture
def leaderless() -> Iterator[int]:
    """Return a process of 30 MiB whose main thread has exited."""
    with subprocess.Popen(hold_leaderless(30), stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout
            assert child.stdout.readline()
            yield child.pid
        finally:
            child.kill()


def test_a_process_whose_main_thread_has_exited_holds_what_its_other_threads_do(leaderless: int) -> None:
    found = read_process_memory(leaderless)
    assert found is not None
    assert leaderless == found.pid
    assert found.anonymous_bytes > 30 << 20
    assert found.name == Path(f"/proc/{leaderless}/comm").read_text().rstrip("\n")


def test_a_process_that_has_exited_and_is_not_waited_for_holds_nothing() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    try:
        assert read_process_memory(child) is None
    finally:
        os.waitpid(child, 0)


def thread(directory: Path, number: int, status: bytes, flags: int = 0x400040) -> None:
    """Make a thread of a process in files, its leader a zombie."""
    task = directory / "7" / "task" / str(number)
    task.mkdir(parents=True)
    (task / "status").write_bytes(status)
    (task / "stat").write_bytes(b"%d (a) S 1 7 7 0 -1 %d 0\n" % (number, flags))


ZOMBIE = b"Name:\ta\nState:\tZ (zombie)\nThreads:\t3\n"


def test_threads_that_are_exiting_hold_nothing_and_the_next_is_read(tmp_path: Path) -> None:
    thread(tmp_path, 7, ZOMBIE)
    thread(tmp_path, 8, b"Name:\tb\nState:\tR (running)\n", flags=0x400044)
    thread(tmp_path, 9, STATUS)
    (tmp_path / "7" / "status").write_bytes(ZOMBIE)
    found = read_process_memory(7, tmp_path)
    assert found is not None
    assert ("a", 3000 * KIB) == (found.name, found.anonymous_bytes)


def test_where_all_threads_are_exiting_the_process_holds_nothing(tmp_path: Path) -> None:
    thread(tmp_path, 7, ZOMBIE)
    thread(tmp_path, 8, b"Name:\tb\nState:\tX (dead)\n", flags=0x400044)
    (tmp_path / "7" / "status").write_bytes(ZOMBIE)
    assert read_process_memory(7, tmp_path) is None


@pytest.mark.parametrize("what", ["unreadable", "too many"])
def test_of_a_process_none_of_whose_threads_can_be_read_it_is_not_known(tmp_path: Path, what: str) -> None:
    for number in range(7, 200 if what == "too many" else 9):
        thread(tmp_path, number, ZOMBIE, flags=0x400044)
    if what == "unreadable":
        (tmp_path / "7" / "task" / "8" / "status").write_bytes(b"nonsense")
    (tmp_path / "7" / "status").write_bytes(ZOMBIE)
    with pytest.raises(MemoryUnknownError, match="main thread"):
        read_process_memory(7, tmp_path)
