from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.errors import KernelInterfaceError
from reactor.kernel.procfs import (
    parse_kernel_memory,
    parse_loadavg_tasks,
    parse_meminfo,
    parse_memory_in_use,
    parse_start_ticks,
    parse_status,
    read_meminfo,
    read_name,
    read_oom_score_adj,
    read_start_ticks,
    read_status,
    read_task_count,
)

MEMINFO = (
    b"MemTotal:       2048 kB\nMemFree:         512 kB\nMemAvailable:   1024 kB\nBuffers: 1 kB\n"
    b"Cached:          300 kB\nSwapCached:       16 kB\nActive:            9 kB\nInactive:        7 kB\n"
    b"Inactive(anon):    3 kB\nInactive(file):  100 kB\nAnonPages:       400 kB\nKReclaimable:   60 kB\n"
    b"SReclaimable:     50 kB\nSUnreclaim:       40 kB\nKernelStack:       6 kB\nPageTables:        8 kB\n"
    b"SecPageTables:     2 kB\nVmallocUsed:      20 kB\nPercpu:            3 kB\nHugetlb:         256 kB\n"
)
STATUS = (
    b"Name:\tkthreadd\nState:\tS (sleeping)\nVmRSS:\t  24000 kB\nThreads:\t3\nCapEff:\t000001ffffffffff\n"
)


def test_meminfo_is_in_bytes() -> None:
    found = parse_meminfo(MEMINFO)
    assert (2 << 20, 512 << 10, 1 << 20) == (found.total_bytes, found.free_bytes, found.available_bytes)


def test_capacity_is_what_ordinary_pages_can_have() -> None:
    assert (2048 - 256) << 10 == parse_meminfo(MEMINFO).capacity_bytes
    none = parse_meminfo(MEMINFO.replace(b"Hugetlb:", b"Other:"))
    assert (0, none.total_bytes) == (none.huge_pages_bytes, none.capacity_bytes)


def test_machine_without_room_beside_its_huge_pages_has_no_capacity() -> None:
    assert 0 == parse_meminfo(MEMINFO.replace(b"256 kB", b"4096 kB")).capacity_bytes


def test_usage_is_anonymous_memory_and_all_page_cache() -> None:
    """Neither swap cache nor inactive anonymous memory is taken for what it is not."""
    found = parse_memory_in_use(MEMINFO)
    assert ((400 + 300 + 1) << 10, 100 << 10) == (found.usage_bytes, found.inactive_file_bytes)


@pytest.mark.parametrize("label", [b"AnonPages:", b"Cached:", b"Buffers:", b"Inactive(file):"])
def test_usage_without_one_of_its_parts_is_refused(label: bytes) -> None:
    with pytest.raises(KernelInterfaceError, match="meminfo"):
        parse_memory_in_use(MEMINFO.replace(b"\n" + label, b"\nOther:"))


def test_kernel_holds_what_it_reports_and_can_not_reclaim() -> None:
    """MemFree is without the free pages that CPUs keep for themselves: those are no kernel memory."""
    assert (40 + 20 + 8 + 2 + 3) << 10 == parse_kernel_memory(MEMINFO)
    more_is_free = MEMINFO.replace(b"MemFree:         512 kB", b"MemFree:         100 kB")
    assert parse_kernel_memory(MEMINFO) == parse_kernel_memory(more_is_free)


def test_kinds_of_memory_that_the_kernel_does_not_tell_are_left_out() -> None:
    before_5_3 = MEMINFO.replace(b"VmallocUsed:      20", b"VmallocUsed:       0")
    assert (40 + 6 + 8 + 2 + 3) << 10 == parse_kernel_memory(before_5_3)
    assert 40 << 10 == parse_kernel_memory(b"MemTotal: 9 kB\nSUnreclaim: 40 kB\n")
    with pytest.raises(KernelInterfaceError, match="meminfo"):
        parse_kernel_memory(b"MemTotal: 9 kB\n")


def test_meminfo_without_memavailable_says_so() -> None:
    assert parse_meminfo(MEMINFO.replace(b"MemAvailable:", b"Other:")).available_bytes is None


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"MemTotal:       2048 kB\n",
        b"MemTotal: 2048\nMemFree: 512 kB\n",
        b"MemTotal: -1 kB\nMemFree: 512 kB\n",
        b"MemTotal: 2048 kB\nMemFree: 51",
        b"MemTotal: 2048 kB\nMemFree: 512 kB\nMemAvailable: much kB\n",
    ],
)
def test_broken_meminfo_is_refused(raw: bytes) -> None:
    with pytest.raises(KernelInterfaceError, match="meminfo"):
        parse_meminfo(raw)


def test_tasks_are_the_total_of_the_fourth_field() -> None:
    assert 87 == parse_loadavg_tasks(b"1.71 0.48 0.16 1/87 8147\n")


@pytest.mark.parametrize(
    "raw", [b"", b"1.71 0.48 0.16 1 8147\n", b"1.71 0.48 0.16 1/-7 8147\n", b"1.71 0.48 0.16 1/8"]
)
def test_broken_loadavg_is_refused(raw: bytes) -> None:
    with pytest.raises(KernelInterfaceError, match="loadavg"):
        parse_loadavg_tasks(raw)


def test_status_is_read() -> None:
    found = parse_status(STATUS)
    assert (24000 << 10, 3, (1 << 41) - 1) == (found.resident_bytes, found.threads, found.capabilities)


def test_kernel_threads_have_no_memory() -> None:
    assert 0 == parse_status(b"Name:\tkthreadd\nThreads:\t1\nCapEff:\t00\n").resident_bytes


@pytest.mark.parametrize("raw", [b"", b"Threads:\t1\nCapEff:\tall\n", b"Threads:\tx\nCapEff:\t0\n"])
def test_broken_status_is_refused(raw: bytes) -> None:
    with pytest.raises(KernelInterfaceError, match="status"):
        parse_status(raw)


@pytest.mark.parametrize("name", [b"sh", b"a b) c", b"((", b") 7 7"])
def test_start_of_a_process_is_found_whatever_its_name_is(name: bytes) -> None:
    raw = b"12 (%b) S 1 12 12 0 -1 4194304 96 0 1 0 0 0 0 0 20 0 1 0 4711 2400000 100" % name
    assert 4711 == parse_start_ticks(raw)


@pytest.mark.parametrize("raw", [b"", b"12 (sh", b"12 (sh) S 1 2 3", b"12 (a) " + b"x " * 30])
def test_broken_stat_is_refused(raw: bytes) -> None:
    with pytest.raises(KernelInterfaceError):
        parse_start_ticks(raw)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="loadavg"):
        read_task_count(tmp_path)


def test_this_kernel_is_understood() -> None:
    assert 0 < read_meminfo().free_bytes <= read_meminfo().total_bytes
    assert 0 < read_task_count()
    assert read_status().threads >= 1
    assert 0 < read_start_ticks(pid=1) <= read_start_ticks()
    assert read_status().resident_bytes > 0


@given(st.one_of(st.binary(), st.builds(lambda cut: (MEMINFO + STATUS)[:cut], st.integers(0, 500))))
def test_arbitrary_bytes_are_refused_by_name_only(raw: bytes) -> None:
    for parse in (
        parse_meminfo,
        parse_memory_in_use,
        parse_kernel_memory,
        parse_loadavg_tasks,
        parse_status,
        parse_start_ticks,
    ):
        try:
            parse(raw)
        except KernelInterfaceError:
            continue


@pytest.mark.parametrize("score", [-1000, -998, 0, 1000])
def test_a_processs_score_may_be_negative(tmp_path: Path, score: int) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/oom_score_adj").write_text(f"{score}\n")
    assert score == read_oom_score_adj(7, tmp_path)


@pytest.mark.parametrize("raw", ["", "-", "1.5", "12345", "x"])
def test_a_score_that_is_no_number_is_refused(tmp_path: Path, raw: str) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/oom_score_adj").write_text(raw)
    with pytest.raises(KernelInterfaceError, match="-1000 to 1000"):
        read_oom_score_adj(7, tmp_path)


def test_a_processs_name_is_read_whatever_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/comm").write_bytes(b"a (\xff) b\n")
    assert read_name(7, tmp_path) == "a (\ufffd) b"
