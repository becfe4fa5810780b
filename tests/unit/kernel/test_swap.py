from __future__ import annotations

from contextlib import closing, suppress
from mmap import PAGESIZE
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.errors import KernelInterfaceError
from reactor.kernel.cgroup import CgroupVersion
from reactor.kernel.swap import (
    SwapCounter,
    SwapSpace,
    SwapTraffic,
    cgroup_swap,
    machine_swap,
    parse_swap_traffic,
    read_swap_traffic,
)

if TYPE_CHECKING:
    from tests.unit.conftest import FakeTree, FakeTreeMaker


MIB = 1 << 20
MACHINE = SwapSpace(total_bytes=1000 * MIB, free_bytes=700 * MIB)
UNLIMITED = 9223372036854771712

VMSTAT = b"nr_free_pages 9\npswpin 3\npswpout 5\npgfault 7\n"


def space(total_mib: int, free_mib: int) -> SwapSpace:
    return SwapSpace(total_bytes=total_mib * MIB, free_bytes=free_mib * MIB)


def limited(fake: FakeTree, cgroup: str, limit: str, current_mib: int) -> None:
    fake.add(cgroup)
    fake.file(cgroup, "memory.swap.max", f"{limit}\n")
    fake.file(cgroup, "memory.swap.current", f"{current_mib * MIB}\n")


def test_machine_without_swap_has_none(tmp_path: Path) -> None:
    for text, expected in (
        ("MemTotal: 9 kB\nSwapTotal: 2048 kB\nSwapFree: 1024 kB\n", space(2, 1)),
        ("MemTotal: 9 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n", space(0, 0)),
        ("MemTotal: 9 kB\n", space(0, 0)),
    ):
        (tmp_path / "meminfo").write_text(text)
        assert expected == machine_swap(tmp_path)


@pytest.mark.parametrize(
    ("limit_mib", "current_mib", "expected"),
    [
        (200, 50, (200, 150)),  # its limit
        (200, 260, (200, 0)),  # the limit was lowered below what is swapped out
        (900, 100, (900, 700)),  # more than the machine has free
        (5000, 100, (1000, 700)),  # more than the machine has
        (0, 0, (0, 0)),  # no swap at all
    ],
)
def test_cgroup_has_what_its_limit_and_the_machine_leave(
    make_tree: FakeTreeMaker, limit_mib: int, current_mib: int, expected: tuple[int, int]
) -> None:
    fake = make_tree(CgroupVersion.V2)
    limited(fake, "/node", str(limit_mib * MIB), current_mib)
    assert space(*expected) == cgroup_swap(fake.tree, "/node", MACHINE)


def test_limit_above_the_cgroup_counts_with_all_that_is_below_it(make_tree: FakeTreeMaker) -> None:
    fake = make_tree(CgroupVersion.V2)
    limited(fake, "/slice", str(300 * MIB), 280)
    limited(fake, "/slice/node", "max", 10)
    assert space(300, 20) == cgroup_swap(fake.tree, "/slice/node", MACHINE)


def test_cgroup_whose_swap_is_not_counted_has_the_machines(make_tree: FakeTreeMaker) -> None:
    fake = make_tree(CgroupVersion.V2)
    fake.add("/node")
    assert MACHINE == cgroup_swap(fake.tree, "/node", MACHINE)
    with pytest.raises(FileNotFoundError):
        cgroup_swap(fake.tree, "/gone", MACHINE)
    with pytest.raises(FileNotFoundError):
        SwapCounter(fake.tree, "/node")


@pytest.mark.parametrize("raw", ["", "-1\n", "lots\n", "\xff"])
def test_limit_that_is_no_number_is_refused(make_tree: FakeTreeMaker, raw: str) -> None:
    fake = make_tree(CgroupVersion.V2)
    limited(fake, "/node", raw, 0)
    with pytest.raises(KernelInterfaceError):
        cgroup_swap(fake.tree, "/node", MACHINE)


@pytest.mark.parametrize(
    ("memory_limit", "both_limit", "expected"),
    [
        (512 * MIB, 712 * MIB, (200, 170)),
        (512 * MIB, 512 * MIB, (0, 0)),
        (512 * MIB, UNLIMITED, (1000, 700)),
        (UNLIMITED, UNLIMITED, (1000, 700)),
    ],
)
def test_cgroup_of_v1_may_swap_what_both_limits_leave(
    make_tree: FakeTreeMaker, memory_limit: int, both_limit: int, expected: tuple[int, int]
) -> None:
    fake = make_tree(CgroupVersion.V1)
    fake.add("/node")
    limits = f"hierarchical_memory_limit {memory_limit}\nhierarchical_memsw_limit {both_limit}\n"
    fake.file("/node", "memory.stat", f"cache 1\n{limits}total_swap {30 * MIB}\n")
    assert space(*expected) == cgroup_swap(fake.tree, "/node", MACHINE)
    fake.file("/node", "memory.stat", "cache 1\n")
    assert MACHINE == cgroup_swap(fake.tree, "/node", MACHINE)


def test_swap_of_a_cgroup_is_read_afresh(make_tree: FakeTreeMaker) -> None:
    v2, v1 = make_tree(CgroupVersion.V2), make_tree(CgroupVersion.V1)
    limited(v2, "/pod", "max", 7)
    v1.add("/pod")
    v1.file("/pod", "memory.stat", f"cache 1\nswap 1\ntotal_swap {7 * MIB}\n")
    for fake in (v2, v1):
        with closing(SwapCounter(fake.tree, "/pod")) as counter:
            assert 7 * MIB == counter.swapped_bytes()
    with closing(SwapCounter(v2.tree, "/pod")) as counter:
        v2.file("/pod", "memory.swap.current", f"{9 * MIB}\n")
        assert 9 * MIB == counter.swapped_bytes()
    v1.file("/pod", "memory.stat", "cache 1\n")
    with closing(SwapCounter(v1.tree, "/pod")) as counter, pytest.raises(KernelInterfaceError):
        counter.swapped_bytes()


def traffic(in_pages: int, out_pages: int) -> SwapTraffic:
    return SwapTraffic(in_bytes=in_pages * PAGESIZE, out_bytes=out_pages * PAGESIZE)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (VMSTAT, traffic(3, 5)),
        (VMSTAT + b"zswpin 10\nzswpout 20\n", traffic(13, 25)),  # zswap's own
        (b"pswpin 1\npswpout 0\n", traffic(1, 0)),
        (b"anon 1\nzswpin 10\nzswpout 20\n", None),  # a memory.stat before 6.13
        (b"pswpin 1\n", None),
        (b"", None),
    ],
)
def test_traffic_is_what_has_gone_to_swap_and_come_back(raw: bytes, expected: SwapTraffic | None) -> None:
    assert parse_swap_traffic(raw, "f") == expected


def test_both_directions_make_up_the_traffic() -> None:
    assert traffic(3, 5).total_bytes == 8 * PAGESIZE


def test_line_without_a_number_is_refused_by_its_file() -> None:
    with pytest.raises(KernelInterfaceError, match="f"):
        parse_swap_traffic(b"pswpin x\npswpout 5\n", "f")


@given(st.binary(max_size=200))
def test_no_content_is_anything_but_traffic_none_or_refused(raw: bytes) -> None:
    with suppress(KernelInterfaceError):
        parse_swap_traffic(raw, "f")


def test_machines_and_cgroups_are_read(make_tree, tmp_path) -> None:
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "vmstat").write_bytes(VMSTAT)
    fake = make_tree(CgroupVersion.V2)
    fake.add("/node")
    fake.file("/node", "memory.stat", "anon 1\npswpin 1\npswpout 2\n")
    assert read_swap_traffic(None, None, proc=proc) == traffic(3, 5)
    assert read_swap_traffic(fake.tree, "/", proc=proc) == traffic(3, 5)
    assert read_swap_traffic(fake.tree, "/node", proc=proc) == traffic(1, 2)


def test_it_says_where_the_kernel_does_not_count_it(make_tree, tmp_path) -> None:
    old, v1 = make_tree(CgroupVersion.V2), make_tree(CgroupVersion.V1)
    for fake in (old, v1):
        fake.add("/node")
    with pytest.raises(KernelInterfaceError, match=r"6\.13"):
        read_swap_traffic(old.tree, "/node")
    with pytest.raises(KernelInterfaceError, match="cgroup v2"):
        read_swap_traffic(v1.tree, "/node")
    (tmp_path / "vmstat").write_text("nr_free_pages 9\n")
    with pytest.raises(KernelInterfaceError, match="pswpin"):
        read_swap_traffic(None, None, proc=tmp_path)
    with pytest.raises(FileNotFoundError):
        read_swap_traffic(old.tree, "/gone")
