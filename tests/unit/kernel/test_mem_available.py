from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.errors import KernelInterfaceError
from reactor.kernel.cgroup import CgroupVersion
from reactor.kernel.cgroup_memory import MemoryCounters
from reactor.kernel.mem_available import (
    AvailableCounters,
    MachineCounters,
    Watermarks,
    counters_of,
    parse_watermarks,
    reclaimable_bytes,
)
from reactor.kernel.procfs import parse_meminfo

if TYPE_CHECKING:
    from tests.unit.conftest import FakeTree, FakeTreeMaker

MIB = 1 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")
ZONES = b"""\
Node 0, zone      DMA
  per-node stats
      nr_inactive_anon 54321
  pages free     3840
        boost    0
        min      11
        low      14
        high     17
        spanned  4095
        present  3998
        managed  3840
        cma      0
        protection: (0, 2899, 24095, 24095)
      nr_free_pages 3840
  pagesets
    cpu: 0
              count:    0
              high:     0
Node 0, zone   Normal
  pages free     10
        min      8000
        low      10000
        high     12000
        managed  5000000
        protection: (0, 0, 0, 0)
Node 0, zone  Movable
  pages free     0
        min      32
        low      32
        high     32
        managed  0
        protection: (0, 0, 0, 0)
"""


def test_watermarks_are_the_sum_of_all_zones() -> None:
    """Of a zone no more is reserved than it has: DMA all of its 3,840 pages, Movable none."""
    found = parse_watermarks(ZONES)
    assert (14 + 10000 + 32) * PAGE == found.low_bytes
    assert (3840 + 12000 + 0) * PAGE == found.reserved_bytes


@pytest.mark.parametrize("raw", [b"", b"MemTotal: 1 kB\n", ZONES.replace(b"managed", b"managing")])
def test_what_is_no_zoneinfo_is_refused(raw: bytes) -> None:
    with pytest.raises(KernelInterfaceError):
        parse_watermarks(raw)


@given(st.binary(max_size=400))
def test_any_bytes_are_watermarks_or_refused(raw: bytes) -> None:
    try:
        found = parse_watermarks(ZONES + raw)
    except KernelInterfaceError:
        return
    assert found.low_bytes >= 0


def test_this_machines_mem_available_comes_out() -> None:
    """The formula is the kernel's: free, cache and slab come to MemAvailable, but for drift meanwhile."""
    watermarks = parse_watermarks(Path("/proc/zoneinfo").read_bytes())
    raw = Path("/proc/meminfo").read_bytes()
    fields = {line.split(b":")[0]: int(line.split()[1]) * 1024 for line in raw.splitlines()}
    counted = (
        fields[b"MemFree"]
        - watermarks.reserved_bytes
        + reclaimable_bytes(
            fields[b"Active(file)"] + fields[b"Inactive(file)"],
            fields.get(b"KReclaimable", fields[b"SReclaimable"]),
            watermarks.low_bytes,
        )
    )
    machine = parse_meminfo(raw)
    assert abs(counted - (machine.available_bytes or 0)) < machine.total_bytes // 50


@pytest.mark.parametrize(
    ("file_mib", "slab_mib", "expected_mib"), [(300, 0, 260), (60, 0, 30), (300, 100, 320)]
)
def test_half_of_each_kind_or_the_low_watermark_stays(
    file_mib: int, slab_mib: int, expected_mib: int
) -> None:
    assert expected_mib * MIB == reclaimable_bytes(file_mib * MIB, slab_mib * MIB, 40 * MIB)


def stat(fake: FakeTree, **mib: int) -> None:
    prefix = "" if fake.tree.version is CgroupVersion.V2 else "total_"
    lines = [
        f"{'' if name == 'slab_reclaimable' else prefix}{name} {amount * MIB}\n"
        for name, amount in mib.items()
    ]
    fake.file("/pod", "memory.stat", "anon 1\n" + "".join(lines))


def test_active_cache_and_slab_of_a_cgroup_count_as_available(make_tree: FakeTreeMaker) -> None:
    for version, expected_mib in ((CgroupVersion.V2, 360 - 20 + 50 - 20), (CgroupVersion.V1, 360 - 20)):
        fake = make_tree(version)
        fake.add("/pod", usage_bytes=500 * MIB)
        stat(fake, inactive_file=60, active_file=300, slab_reclaimable=50)
        with closing(AvailableCounters(fake.tree, "/pod", 20 * MIB)) as counters:
            assert expected_mib * MIB == counters.available_cache_bytes()
            assert (500 - expected_mib) * MIB == counters.working_set_bytes()
        with closing(counters_of(fake.tree, "/pod", None)) as counters:
            assert 440 * MIB == counters.working_set_bytes()


def test_cgroup_without_a_figure_for_slab_has_none(make_tree: FakeTreeMaker) -> None:
    fake = make_tree(CgroupVersion.V2)
    fake.add("/pod", usage_bytes=500 * MIB)
    stat(fake, inactive_file=60, active_file=300)
    with closing(counters_of(fake.tree, "/pod", Watermarks())) as counters:
        assert 140 * MIB == counters.working_set_bytes()


def test_machines_usage_less_its_available_cache_is_what_mem_available_leaves(
    make_tree: FakeTreeMaker, tmp_path: Path
) -> None:
    """The kernel's own memory is in no usage, and not available: the cache may come out below zero."""
    fake = make_tree(CgroupVersion.V1)
    fake.add("/", usage_bytes=1000 * MIB)
    for available_mib in (3500, 2500):
        meminfo = f"MemTotal: {4096 << 10} kB\nMemFree: 0 kB\nMemAvailable: {available_mib << 10} kB\n"
        (tmp_path / "meminfo").write_text(meminfo)
        with closing(MachineCounters(fake.tree, tmp_path)) as counters:
            assert (4096 - available_mib) * MIB == 1000 * MIB - counters.available_cache_bytes()


def test_machine_without_mem_available_is_refused(make_tree: FakeTreeMaker, tmp_path: Path) -> None:
    fake = make_tree(CgroupVersion.V1)
    fake.add("/", usage_bytes=1)
    with pytest.raises(FileNotFoundError):
        MachineCounters(fake.tree, tmp_path)
    (tmp_path / "meminfo").write_text("MemTotal: 4096 kB\nMemFree: 0 kB\n")
    with closing(MachineCounters(fake.tree, tmp_path)) as counters, pytest.raises(KernelInterfaceError):
        counters.available_cache_bytes()


def test_machine_is_distinguished_from_a_cgroup(make_tree: FakeTreeMaker) -> None:
    fake = make_tree(CgroupVersion.V1)
    fake.add("/", usage_bytes=1)
    for watermarks, kind in ((None, MemoryCounters), (Watermarks(), MachineCounters)):
        with closing(counters_of(fake.tree, "/", watermarks)) as counters:
            assert type(counters) is kind
