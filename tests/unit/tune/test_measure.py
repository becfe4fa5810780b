from pathlib import Path

import pytest

from reactor.config.settings import settings_from_text
from reactor.errors import RefusedError
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.kernel.procfs import parse_swap
from reactor.model.settings import Settings
from reactor.testbed.crossing import memory_pressure_percent
from reactor.tune.measure import check_calm, facts, huge_pages, watermarks_bytes

MIB = 1 << 20
ZONES = b"""Node 0, zone      DMA
  pages free     2816
        boost    6
        min      10
        low      13
        high     16
        spanned  4095
  pagesets
    cpu: 0
              count:    0
              high:     99
              high_min: 6
Node 0, zone    DMA32
        high     240
"""


def a_node(root: Path, *, available_mib: int, pressure: float) -> CgroupTree:
    proc = root / "proc"
    (proc / "pressure").mkdir(parents=True)
    kib = available_mib * 1024
    total_kib = 8192 * 1024
    (proc / "meminfo").write_text(
        f"MemTotal: {total_kib} kB\nMemFree: {kib} kB\nMemAvailable: {kib} kB\nBuffers: 0 kB\n"
        f"Cached: 0 kB\nInactive(file): 0 kB\nAnonPages: {total_kib - kib} kB\n"
    )
    (proc / "pressure/memory").write_text(f"some avg10={pressure} avg60=0.00 avg300=0.00 total=1\n")
    return CgroupTree(version=CgroupVersion.V2, memory_root=root)


def test_the_reserve_is_every_zones_high_watermark_without_boost_and_no_cpus_list() -> None:
    assert 250 * 4096 == watermarks_bytes(ZONES)
    assert 0 == watermarks_bytes(b"")


def test_swap_is_the_machines_and_none_where_the_kernel_has_none(tmp_path: Path) -> None:
    meminfo = b"MemTotal: 9 kB\nSwapTotal:       2097152 kB\nSwapFree: 1024 kB\n"
    assert (2 << 30, 1 << 20) == parse_swap(meminfo)
    assert (0, 0) == parse_swap(b"MemTotal: 9 kB\n")
    tree = a_node(tmp_path, available_mib=4096, pressure=0)
    (tmp_path / "proc/zoneinfo").write_bytes(ZONES)
    with (tmp_path / "proc/meminfo").open("a") as file:
        file.write("SUnreclaim: 0 kB\nSwapTotal: 1024 kB\nSwapFree: 512 kB\n")
    found = facts(tree, Settings(), tmp_path)
    assert (4096 * MIB, MIB, MIB // 2) == (found.available_bytes, found.swap_bytes, found.swap_free_bytes)


def test_reserve_of_a_machine_has_what_the_kernel_itself_holds_of_it(tmp_path: Path) -> None:
    """It counts as available, and no pod can have it."""
    tree = a_node(tmp_path, available_mib=4096, pressure=0)
    proc = tmp_path / "proc"
    with (proc / "meminfo").open("a") as file:
        file.write(f"SUnreclaim: {1024 * 1024} kB\n")
    (proc / "zoneinfo").write_bytes(ZONES)
    found = facts(tree, Settings(), tmp_path).reserve
    assert 1024 * MIB == found.kernel_bytes
    assert found.total_bytes == 1024 * MIB + found.watermark_bytes + found.batch_bytes + found.daemon_bytes


def test_reserve_of_a_virtual_node_has_nothing_of_the_kernels(tmp_path: Path) -> None:
    tree = a_node(tmp_path, available_mib=1024, pressure=0)
    (tmp_path / "node").mkdir()
    texts = {"memory.current": "1", "memory.stat": "inactive_file 0", "memory.max": "max", "cpu.stat": ""}
    for name, text in texts.items():
        (tmp_path / "node" / name).write_text(f"{text}\n")
    assert 0 == facts(tree, Settings(node_cgroup="/node"), tmp_path).reserve.kernel_bytes


def test_who_is_given_huge_pages_is_the_word_in_brackets(tmp_path: Path) -> None:
    assert "never" == huge_pages(tmp_path)
    directory = tmp_path / "sys/kernel/mm/transparent_hugepage"
    directory.mkdir(parents=True)
    (directory / "enabled").write_text("always [madvise] never\n")
    assert "madvise" == huge_pages(tmp_path)


def test_a_calm_node_is_measured(tmp_path: Path) -> None:
    tree = a_node(tmp_path, available_mib=4096, pressure=0.3)
    check_calm(tree, Settings(), tmp_path / "proc")


def test_a_node_without_room_is_refused(tmp_path: Path) -> None:
    tree = a_node(tmp_path, available_mib=1100, pressure=0)
    with pytest.raises(RefusedError, match="1100 MiB of memory available, and measuring may take 1280 MiB"):
        check_calm(tree, Settings(), tmp_path / "proc")


def test_a_node_in_pressure_is_refused(tmp_path: Path) -> None:
    tree = a_node(tmp_path, available_mib=1900, pressure=12.5)
    with pytest.raises(RefusedError, match=r"stalled 12\.5 % of the last ten seconds"):
        check_calm(tree, Settings(), tmp_path / "proc")


def test_a_pod_that_stalls_at_its_own_limit_is_no_pressure_on_a_node_with_memory_left(tmp_path: Path) -> None:
    tree = a_node(tmp_path, available_mib=4096, pressure=12.5)
    check_calm(tree, Settings(), tmp_path / "proc")


def test_a_kernel_that_counts_no_pressure_is_measured(tmp_path: Path) -> None:
    assert 0 == memory_pressure_percent(tmp_path)


def test_a_node_whose_own_threshold_would_be_crossed_is_refused(tmp_path: Path) -> None:
    tree = a_node(tmp_path, available_mib=2048, pressure=0)
    low = settings_from_text("evictionHard: {memory.available: 900Mi}", "x")
    check_calm(tree, low, tmp_path / "proc")
    high = settings_from_text("evictionHard: {memory.available: 1100Mi}", "x")
    with pytest.raises(RefusedError, match=r"memory\.available<1100Mi: 2048 MiB are available"):
        check_calm(tree, high, tmp_path / "proc")
    elsewhere = settings_from_text(
        "{evictionHard: {memory.available: 1100Mi}, reactor: {nodeCgroup: /x}}", "x"
    )
    check_calm(tree, elsewhere, tmp_path / "proc")
