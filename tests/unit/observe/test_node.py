from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reactor.kernel.cgroup import CgroupVersion
from reactor.model.settings import MemoryAvailable, Settings
from reactor.model.signals import Signal
from reactor.model.thresholds import Observation
from reactor.observe.node import NodeObserver
from tests.support.this_machine import open_descriptors

if TYPE_CHECKING:
    from tests.unit.conftest import FakeTree, FakeTreeMaker

MIB = 1 << 20
KIB = 1 << 10
TOTAL_BYTES = 4096 * MIB


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    proc = tmp_path / "proc"
    (proc / "sys/kernel").mkdir(parents=True)
    (proc / "self").mkdir()
    meminfo(proc)
    shutil.copyfile("/proc/self/mountinfo", proc / "self/mountinfo")
    (proc / "loadavg").write_text("0.00 0.00 0.00 1/300 4242\n")
    (proc / "sys/kernel/pid_max").write_text("32768\n")
    (proc / "sys/kernel/threads-max").write_text("1000\n")
    return proc


def meminfo(proc: Path, **mib: int) -> None:
    """Write a machine of 4 GiB: 1024 MiB free, 900 anonymous, 700 page cache, 612 of it inactive."""
    given = {"Buffers": 100, "Cached": 600, "Inactive(file)": 612, "AnonPages": 900, "Hugetlb": 0} | mib
    lines = {"MemTotal": TOTAL_BYTES // MIB, "MemFree": 1024, "MemAvailable": 2000, **given}
    text = "".join(f"{name}: {amount * KIB} kB\n" for name, amount in lines.items())
    (proc / "meminfo").write_text(text)


@pytest.fixture
def virtual(fake: FakeTree) -> FakeTree:
    """Return a virtual node of 512 MiB with one parent of pods."""
    fake.add("/node", usage_bytes=300 * MIB, inactive_file_bytes=100 * MIB)
    fake.add("/node/pods", usage_bytes=250 * MIB, inactive_file_bytes=90 * MIB)
    fake.tree.set_memory_limit("/node", 512 * MIB)
    return fake


def observer(fake: FakeTree, proc: Path, **given_settings: object) -> NodeObserver:
    return NodeObserver(fake.tree, Settings(**given_settings), proc=proc)  # type: ignore[arg-type]


def virtual_observer(fake: FakeTree, proc: Path) -> NodeObserver:
    return observer(fake, proc, node_cgroup="/node", pod_parents=("/node/pods",))


def expected(available_mib: int, capacity_mib: int, inactive_mib: int) -> Observation:
    return Observation(
        available=available_mib * MIB, capacity=capacity_mib * MIB, inactive_file_bytes=inactive_mib * MIB
    )


def test_virtual_node_has_its_limit_as_capacity(virtual: FakeTree, proc: Path) -> None:
    node = virtual_observer(virtual, proc)
    found = node.memory()
    assert expected(312, 512, 100) == found[Signal.MEMORY_AVAILABLE]
    assert expected(352, 512, 90) == found[Signal.ALLOCATABLE_MEMORY_AVAILABLE]
    assert {} == node.problems


def test_each_call_reads_afresh(virtual: FakeTree, proc: Path) -> None:
    node = virtual_observer(virtual, proc)
    node.memory()
    virtual.counters("/node", usage_bytes=500 * MIB, inactive_file_bytes=0)
    virtual.tree.set_memory_limit("/node", 600 * MIB)
    assert expected(100, 600, 0) == node.memory()[Signal.MEMORY_AVAILABLE]


def test_allocatable_capacity_is_the_parents_own_limit_where_lower(virtual: FakeTree, proc: Path) -> None:
    virtual.tree.set_memory_limit("/node/pods", 400 * MIB)
    found = virtual_observer(virtual, proc).memory()
    assert expected(240, 400, 90) == found[Signal.ALLOCATABLE_MEMORY_AVAILABLE]
    virtual.tree.set_memory_limit("/node/pods", 700 * MIB)
    found = virtual_observer(virtual, proc).memory()
    assert expected(352, 512, 90) == found[Signal.ALLOCATABLE_MEMORY_AVAILABLE]


def test_allocatable_capacity_is_what_is_not_reserved_where_the_parent_has_no_limit(
    virtual: FakeTree, proc: Path
) -> None:
    given = {"node_cgroup": "/node", "reserved_memory_bytes": 112 * MIB}
    for parents, inactive_mib, available_mib in ((("/node/pods",), 90, 240), (("/node",), 100, 200)):
        found = observer(virtual, proc, pod_parents=parents, **given).memory()
        assert expected(312, 512, 100) == found[Signal.MEMORY_AVAILABLE]
        assert expected(available_mib, 400, inactive_mib) == found[Signal.ALLOCATABLE_MEMORY_AVAILABLE]
    virtual.tree.set_memory_limit("/node/pods", 450 * MIB)
    found = observer(virtual, proc, pod_parents=("/node/pods",), **given).memory()
    assert expected(290, 450, 90) == found[Signal.ALLOCATABLE_MEMORY_AVAILABLE]


def test_limit_above_the_node_cgroup_bounds_its_capacity(fake: FakeTree, proc: Path) -> None:
    fake.add("/slice")
    fake.add("/slice/node", usage_bytes=100 * MIB)
    fake.tree.set_memory_limit("/slice", 256 * MIB)
    found = observer(fake, proc, node_cgroup="/slice/node").memory()
    assert {Signal.MEMORY_AVAILABLE: expected(156, 256, 0)} == found


def test_node_without_any_limit_has_the_machines_memory(fake: FakeTree, proc: Path) -> None:
    fake.add("/node", usage_bytes=96 * MIB)
    found = observer(fake, proc, node_cgroup="/node").memory()
    assert expected(4000, 4096, 0) == found[Signal.MEMORY_AVAILABLE]


def test_machine_on_v1_is_read_from_the_root_cgroup(make_tree: FakeTreeMaker, proc: Path) -> None:
    fake = make_tree(CgroupVersion.V1)
    fake.add("/", usage_bytes=1000 * MIB, inactive_file_bytes=400 * MIB)
    assert expected(3496, 4096, 400) == observer(fake, proc).memory()[Signal.MEMORY_AVAILABLE]


def test_machine_on_v2_uses_what_its_processes_and_files_do(make_tree: FakeTreeMaker, proc: Path) -> None:
    """The root of v2 has no memory.current: usage is anonymous memory and page cache, whatever is free."""
    fake = make_tree(CgroupVersion.V2)
    assert expected(4096 - 988, 4096, 612) == observer(fake, proc).memory()[Signal.MEMORY_AVAILABLE]


def test_slab_of_a_machine_on_v2_counts_as_available(make_tree: FakeTreeMaker, proc: Path) -> None:
    """A million negative dentries: 512 MiB less are free, and no process and no file uses any more."""
    fake = make_tree(CgroupVersion.V2)
    fake.file("/", "memory.stat", f"anon {900 * MIB}\nfile {700 * MIB}\ninactive_file {612 * MIB}\n")
    node = observer(fake, proc)
    before = node.memory()[Signal.MEMORY_AVAILABLE]
    meminfo(proc, MemFree=512, SReclaimable=512)
    assert before == node.memory()[Signal.MEMORY_AVAILABLE]


def test_page_cache_of_a_machine_on_v2_is_used_once_it_is_active(
    make_tree: FakeTreeMaker, proc: Path
) -> None:
    node = observer(make_tree(CgroupVersion.V2), proc)
    before = node.memory()[Signal.MEMORY_AVAILABLE].available
    meminfo(proc, MemFree=824, Cached=800, **{"Inactive(file)": 812})
    assert before == node.memory()[Signal.MEMORY_AVAILABLE].available
    meminfo(proc, MemFree=824, Cached=800)
    assert before - 200 * MIB == node.memory()[Signal.MEMORY_AVAILABLE].available


def test_machine_on_v2_does_not_depend_on_what_cgroups_have_added_up(
    make_tree: FakeTreeMaker, proc: Path
) -> None:
    """The root's memory.stat may be behind, and is not there where the controller is not."""
    fake = make_tree(CgroupVersion.V2)
    node = observer(fake, proc)
    before = node.memory()
    assert Signal.MEMORY_AVAILABLE in before
    fake.file("/", "memory.stat", f"anon {4000 * MIB}\nfile {4000 * MIB}\ninactive_file 0\n")
    assert before == node.memory()
    assert {} == node.problems


@pytest.mark.parametrize("version", list(CgroupVersion))
def test_capacity_of_the_machine_is_without_huge_pages(
    make_tree: FakeTreeMaker, proc: Path, version: CgroupVersion
) -> None:
    """As the kubelet has it (HugepageAwareEviction): only who asks for huge pages can have them."""
    fake = make_tree(version)
    fake.add("/", usage_bytes=1600 * MIB, inactive_file_bytes=612 * MIB)
    meminfo(proc, Hugetlb=1024)
    node = observer(fake, proc, pod_parents=("/pods",), reserved_memory_bytes=200 * MIB)
    fake.add("/pods", usage_bytes=500 * MIB)
    found = node.memory()
    assert expected(3072 - 988, 3072, 612) == found[Signal.MEMORY_AVAILABLE]
    assert expected(3072 - 200 - 500, 2872, 0) == found[Signal.ALLOCATABLE_MEMORY_AVAILABLE]
    fake.tree.set_memory_limit("/pods", 3500 * MIB)
    assert expected(3000, 3500, 0) == node.memory()[Signal.ALLOCATABLE_MEMORY_AVAILABLE]
    fake.tree.set_memory_limit("/pods", 2000 * MIB)
    assert expected(1500, 2000, 0) == node.memory()[Signal.ALLOCATABLE_MEMORY_AVAILABLE]


@pytest.mark.parametrize("version", list(CgroupVersion))
def test_huge_pages_taken_while_the_node_is_guarded_are_seen(
    make_tree: FakeTreeMaker, proc: Path, version: CgroupVersion
) -> None:
    fake = make_tree(version)
    fake.add("/", usage_bytes=1600 * MIB, inactive_file_bytes=612 * MIB)
    node = observer(fake, proc)
    assert 4096 * MIB == node.memory()[Signal.MEMORY_AVAILABLE].capacity
    meminfo(proc, Hugetlb=1000)
    node.processes()  # at each housekeeping
    assert 3096 * MIB == node.memory()[Signal.MEMORY_AVAILABLE].capacity


def test_limit_of_a_virtual_node_is_its_capacity_whatever_huge_pages_there_are(
    virtual: FakeTree, proc: Path
) -> None:
    meminfo(proc, Hugetlb=3900)
    assert expected(312, 512, 100) == virtual_observer(virtual, proc).memory()[Signal.MEMORY_AVAILABLE]


def test_machine_on_v2_whose_huge_pages_leave_less_than_is_used_has_nothing_available(
    make_tree: FakeTreeMaker, proc: Path
) -> None:
    meminfo(proc, Hugetlb=3500)
    found = observer(make_tree(CgroupVersion.V2), proc).memory()[Signal.MEMORY_AVAILABLE]
    assert expected(0, 596, 612) == found
    assert found.absurdity is None


def test_parents_are_summed_and_nested_ones_counted_once(fake: FakeTree, proc: Path) -> None:
    fake.add("/node")
    for cgroup, usage_mib in {"/a": 100, "/a/b": 50, "/c": 200}.items():
        fake.add(cgroup, usage_bytes=usage_mib * MIB)
    node = observer(fake, proc, node_cgroup="/node", pod_parents=("/a/b", "/a", "/c", "/c", "/missing"))
    assert expected(3796, 4096, 0) == node.memory()[Signal.ALLOCATABLE_MEMORY_AVAILABLE]
    for cgroup in ("/a", "/c"):
        fake.tree.set_memory_limit(cgroup, 250 * MIB)
    assert expected(200, 500, 0) == node.memory()[Signal.ALLOCATABLE_MEMORY_AVAILABLE]


def test_node_without_a_parent_of_pods_has_nothing_allocatable(fake: FakeTree, proc: Path) -> None:
    fake.add("/node")
    node = observer(fake, proc, node_cgroup="/node", pod_parents=("/missing",))
    assert {Signal.MEMORY_AVAILABLE} == node.memory().keys()
    assert "/missing" in node.problems[Signal.ALLOCATABLE_MEMORY_AVAILABLE]


def test_virtual_node_that_does_not_exist_yet_says_so_in_words(fake: FakeTree, proc: Path) -> None:
    node = observer(fake, proc, node_cgroup="/late", pod_parents=("/late",))
    assert {} == node.memory()
    words = "the cgroup /late (nodeCgroup) does not exist: no pod is guarded until it does"
    assert {Signal.MEMORY_AVAILABLE: words} == node.problems
    fake.add("/late")
    assert Signal.MEMORY_AVAILABLE in node.memory()
    assert {} == node.problems


def test_usage_above_the_limit_leaves_nothing_available(virtual: FakeTree, proc: Path) -> None:
    virtual.counters("/node", usage_bytes=600 * MIB, inactive_file_bytes=0)
    found = virtual_observer(virtual, proc).memory()[Signal.MEMORY_AVAILABLE]
    assert expected(0, 512, 0) == found
    assert found.absurdity is None


def test_usage_above_what_the_machine_has_stays_absurd(virtual: FakeTree, proc: Path) -> None:
    """An absurd statistic is unknown, never pressure: it must not be smoothed into one."""
    virtual.counters("/node", usage_bytes=TOTAL_BYTES + 1, inactive_file_bytes=0)
    assert virtual_observer(virtual, proc).memory()[Signal.MEMORY_AVAILABLE].absurdity is not None


@pytest.mark.parametrize("garbage", [b"", b"-1\n", b"\xff", b"12 13\n", b"total_inactive_file 1"])
@pytest.mark.parametrize("which", ["usage", "stat", "limit"])
def test_garbage_leaves_the_signal_unobserved_and_is_named(
    virtual: FakeTree, proc: Path, garbage: bytes, which: str
) -> None:
    v2 = virtual.tree.version is CgroupVersion.V2
    names = {
        "usage": "memory.current" if v2 else "memory.usage_in_bytes",
        "stat": "memory.stat",
        "limit": "memory.max" if v2 else "memory.limit_in_bytes",
    }
    node = virtual_observer(virtual, proc)
    node.memory()
    virtual.file("/node", names[which], garbage)
    assert Signal.MEMORY_AVAILABLE not in node.memory()
    assert f"/node/{names[which]}" in node.problems[Signal.MEMORY_AVAILABLE]
    virtual.counters("/node", usage_bytes=0, inactive_file_bytes=0)
    virtual.tree.set_memory_limit("/node", 512 * MIB)
    assert expected(512, 512, 0) == node.memory()[Signal.MEMORY_AVAILABLE]
    assert {} == node.problems


@pytest.mark.parametrize("which", ["memory.stat", "limit"])
def test_cgroup_with_a_file_missing_is_named_and_leaves_no_descriptor(
    virtual: FakeTree, proc: Path, which: str
) -> None:
    v2 = virtual.tree.version is CgroupVersion.V2
    name = which if which != "limit" else "memory.max" if v2 else "memory.limit_in_bytes"
    (virtual.directory("/node") / name).unlink()
    node = virtual_observer(virtual, proc)
    before = open_descriptors()
    assert {} == node.memory()
    assert name in node.problems[Signal.MEMORY_AVAILABLE]
    assert before == open_descriptors()


def test_counter_that_fails_to_be_read_is_opened_again(virtual: FakeTree, proc: Path) -> None:
    """A directory in its place opens, and gives an error at each read, as a dying disk or kernel might."""
    path = virtual.directory("/node") / "memory.stat"
    content = path.read_bytes()
    path.unlink()
    path.mkdir()
    node = virtual_observer(virtual, proc)
    assert {} == node.memory() == node.memory()
    assert "memory.stat" in node.problems[Signal.MEMORY_AVAILABLE]
    path.rmdir()
    path.write_bytes(content)
    assert Signal.MEMORY_AVAILABLE in node.memory()
    assert {} == node.problems


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(usage=st.binary(max_size=30), stat=st.binary(max_size=60), meminfo=st.binary(max_size=60))
def test_arbitrary_kernel_files_never_raise(
    virtual: FakeTree, proc: Path, usage: bytes, stat: bytes, meminfo: bytes
) -> None:
    v2 = virtual.tree.version is CgroupVersion.V2
    virtual.file("/node", "memory.current" if v2 else "memory.usage_in_bytes", usage)
    virtual.file("/node", "memory.stat", b"inactive_file " + stat)
    node = virtual_observer(virtual, proc)
    node.memory()
    node.close()
    (proc / "loadavg").write_bytes(meminfo)
    node.processes()


def test_garbage_meminfo_leaves_memory_unobserved(virtual: FakeTree, proc: Path) -> None:
    node = virtual_observer(virtual, proc)
    (proc / "meminfo").write_text("MemTotal: many kB\n")
    assert {} == node.memory()
    assert "meminfo" in node.problems[Signal.MEMORY_AVAILABLE]


def test_node_cgroup_outside_the_tree_is_a_problem_and_no_crash(fake: FakeTree, proc: Path) -> None:
    node = observer(fake, proc, node_cgroup="/../etc")
    assert {} == node.memory()
    assert {} == node.processes()
    assert {"memory.available", "pid.available"} == set(map(str, node.problems))


def test_process_ids_are_the_machines_where_the_node_has_no_limit(virtual: FakeTree, proc: Path) -> None:
    limitless = {Signal.PID_AVAILABLE: Observation(available=700, capacity=1000)}
    assert limitless == virtual_observer(virtual, proc).processes()
    assert limitless == observer(virtual, proc).processes()


def test_process_ids_are_the_node_cgroups_where_it_has_a_limit(virtual: FakeTree, proc: Path) -> None:
    virtual.file("/node", "pids.max", "100\n", "pids")
    virtual.file("/node", "pids.current", "120\n", "pids")
    found = virtual_observer(virtual, proc).processes()
    assert {Signal.PID_AVAILABLE: Observation(available=0, capacity=100)} == found


@pytest.mark.parametrize(
    ("pid_max", "threads_max", "most"), [(32768, 1000, 1000), (900, 1000, 900), (900, 2000, 900)]
)
def test_the_machine_can_have_as_many_tasks_as_the_smaller_limit(
    fake: FakeTree, proc: Path, pid_max: int, threads_max: int, most: int
) -> None:
    (proc / "sys/kernel/pid_max").write_text(f"{pid_max}\n")
    (proc / "sys/kernel/threads-max").write_text(f"{threads_max}\n")
    found = observer(fake, proc).processes()
    assert {Signal.PID_AVAILABLE: Observation(available=most - 300, capacity=most)} == found


def test_this_kernels_process_ids_are_understood(fake: FakeTree) -> None:
    (found,) = observer(fake, Path("/proc")).processes().values()
    assert 0 < found.available < found.capacity


def test_process_ids_follow_a_limit_that_comes_and_changes(virtual: FakeTree, proc: Path) -> None:
    """Its files are held open."""
    node = virtual_observer(virtual, proc)
    (machine,) = node.processes().values()
    assert (machine.capacity, node.processes_of) == (1000, "/")
    for most in (100, 50):
        virtual.file("/node", "pids.max", f"{most}\n", "pids")
        virtual.file("/node", "pids.current", "20\n", "pids")
        held = open_descriptors()
        assert {Signal.PID_AVAILABLE: Observation(available=most - 20, capacity=most)} == node.processes()
        assert node.processes_of == "/node"
    assert held == open_descriptors()
    virtual.file("/node", "pids.max", "max\n", "pids")
    assert {Signal.PID_AVAILABLE: machine} == node.processes()


@pytest.fixture(autouse=True)
def _no_descriptor_is_left() -> Iterator[None]:
    before = open_descriptors()
    yield
    assert before == open_descriptors()


ZONE = """\
Node 0, zone   Normal
        low      {low}
        high     5120
        managed  1000000
        protection: (0, 0)
"""


def write_zoneinfo(proc: Path, low_mib: int) -> None:
    (proc / "zoneinfo").write_text(ZONE.format(low=low_mib * MIB // os.sysconf("SC_PAGE_SIZE")))


def test_machine_is_counted_as_mem_available_where_asked_for(make_tree: FakeTreeMaker, proc: Path) -> None:
    """On both versions what MemAvailable leaves of the capacity is used, whatever the usage says."""
    write_zoneinfo(proc, 10)
    for version, usage_mib in ((CgroupVersion.V1, 1500), (CgroupVersion.V2, 1600)):
        fake = make_tree(version)
        fake.add("/", usage_bytes=1500 * MIB, inactive_file_bytes=400 * MIB)
        node = observer(fake, proc, memory_available=MemoryAvailable.MEM_AVAILABLE)
        found = node.memory()[Signal.MEMORY_AVAILABLE]
        assert (2000 * MIB, 4096 * MIB) == (found.available, found.capacity)
        assert (usage_mib - 2096) * MIB == found.inactive_file_bytes
        assert found.is_mem_available
        assert {} == node.problems
        node.close()


def test_virtual_node_has_its_cache_available_but_for_the_low_watermark(
    make_tree: FakeTreeMaker, proc: Path
) -> None:
    fake = make_tree(CgroupVersion.V2)
    fake.add("/node", usage_bytes=400 * MIB)
    fake.tree.set_memory_limit("/node", 512 * MIB)
    fake.file("/node", "memory.stat", f"inactive_file {50 * MIB}\nactive_file {250 * MIB}\n")
    write_zoneinfo(proc, 10)
    node = observer(
        fake,
        proc,
        node_cgroup="/node",
        pod_parents=("/node",),
        memory_available=MemoryAvailable.MEM_AVAILABLE,
    )
    for signal, seen in node.memory().items():
        assert (512 - 400 + 290) * MIB == seen.available, signal
        assert 290 * MIB == seen.inactive_file_bytes
    write_zoneinfo(proc, 40)
    node.processes()  # the housekeeping
    assert (512 - 400 + 260) * MIB == node.memory()[Signal.MEMORY_AVAILABLE].available


def test_machine_whose_zones_are_not_reported_is_not_observed(fake: FakeTree, proc: Path) -> None:
    fake.add("/", usage_bytes=1500 * MIB)
    node = observer(fake, proc, memory_available=MemoryAvailable.MEM_AVAILABLE)
    assert {} == node.memory()
    assert "zoneinfo" in node.problems[Signal.MEMORY_AVAILABLE]


def test_swap_is_the_machines_or_what_the_virtual_node_may_have(make_tree: FakeTreeMaker, proc: Path) -> None:
    fake = make_tree(CgroupVersion.V2)
    fake.add("/node")
    meminfo(proc, SwapTotal=1000, SwapFree=700)
    assert {Signal.SWAP_AVAILABLE: Observation(available=700 * MIB, capacity=1000 * MIB)} == observer(
        fake, proc
    ).swap()
    fake.file("/node", "memory.swap.max", f"{200 * MIB}\n")
    fake.file("/node", "memory.swap.current", f"{50 * MIB}\n")
    virtual = observer(fake, proc, node_cgroup="/node")
    assert {Signal.SWAP_AVAILABLE: Observation(available=150 * MIB, capacity=200 * MIB)} == virtual.swap()
    assert {} == virtual.problems


def test_node_without_swap_has_no_such_signal_and_says_so(fake: FakeTree, proc: Path) -> None:
    node = observer(fake, proc)
    assert {} == node.swap()
    assert {Signal.SWAP_AVAILABLE: "the node has no swap: its thresholds are never met"} == node.problems


def test_whether_the_machine_has_swap_is_observed_with_its_processes(fake: FakeTree, proc: Path) -> None:
    node = observer(fake, proc)
    found = []
    for total in (0, 1000, 0):
        meminfo(proc, SwapTotal=total, SwapFree=0)
        node.processes()
        found.append(node.has_swap)
    assert [False, True, False] == found


def test_swap_that_can_not_be_read_is_a_problem(fake: FakeTree, proc: Path) -> None:
    node = observer(fake, proc, node_cgroup="/gone")
    assert {} == node.swap()
    assert Signal.SWAP_AVAILABLE in node.problems
