from __future__ import annotations

from contextlib import suppress
from mmap import PAGESIZE

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.errors import KernelInterfaceError
from reactor.kernel.cgroup import CgroupVersion
from reactor.kernel.swap_traffic import SwapTraffic, parse_swap_traffic, read_swap_traffic

VMSTAT = b"nr_free_pages 9\npswpin 3\npswpout 5\npgfault 7\n"


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
