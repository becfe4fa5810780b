from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reactor.errors import KernelInterfaceError, RefusedError
from reactor.kernel.cgroup import UNLIMITED_BYTES, CgroupTree, CgroupVersion, own_cgroup
from reactor.kernel.cgroup_memory import MemoryCounters
from tests.support.this_machine import lift_quotas, open_descriptors

if TYPE_CHECKING:
    from tests.unit.conftest import FakeTree, FakeTreeMaker


def mounts(tmp_path: Path, *lines: str) -> Path:
    (tmp_path / "mounts").write_text("".join(f"{line}\n" for line in lines))
    return tmp_path / "mounts"


def test_hybrid_machine_counts_as_what_its_memory_controller_is_on(tmp_path: Path) -> None:
    (tmp_path / "v2").mkdir()
    (tmp_path / "v2/cgroup.controllers").write_text("pids hugetlb\n")
    tree = CgroupTree.discover(
        mounts(
            tmp_path,
            f"cgroup {tmp_path}/memory cgroup rw,memory 0 0",
            f"cgroup {tmp_path}/cpu cgroup rw,cpu,cpuacct 0 0",
            f"cgroup2 {tmp_path}/v2 cgroup2 rw 0 0",
        )
    )
    expected = CgroupTree(
        version=CgroupVersion.V1,
        memory_root=tmp_path / "memory",
        pids_root=tmp_path / "v2",
        cpu_root=tmp_path / "cpu",
    )
    assert expected == tree


def test_v2_machine_has_one_root(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids\n")
    tree = CgroupTree.discover(mounts(tmp_path, f"cgroup2 {tmp_path} cgroup2 rw 0 0"))
    assert CgroupVersion.V2 == tree.version
    assert {tmp_path} == {tree.memory_root, tree.pids_root, tree.cpu_root, tree.freezer_root}


@pytest.mark.parametrize("controllers", [None, "", "cpu pids\n"])
def test_machine_without_a_memory_controller_is_refused(tmp_path: Path, controllers: str | None) -> None:
    if controllers is not None:
        (tmp_path / "cgroup.controllers").write_text(controllers)
    with pytest.raises(KernelInterfaceError, match="memory controller"):
        CgroupTree.discover(mounts(tmp_path, f"cgroup2 {tmp_path} cgroup2 rw 0 0"))


def test_cgroup_maps_to_its_directory_in_each_hierarchy(make_tree: FakeTreeMaker) -> None:
    fake = make_tree(CgroupVersion.V1)
    assert fake.tree.memory_root / "a/b" == fake.tree.path("/a/b")
    assert fake.tree.cpu_root is not None
    assert fake.tree.cpu_root / "a" == fake.tree.path("/a", "cpu")
    assert fake.tree.memory_root == fake.tree.path("/")


@pytest.mark.parametrize(
    ("mode", "owner", "is_private"),
    [(0o200, 0, True), (0o644, 0, False), (0o222, 0, False), (0o200, 1000, False)],
)
def test_a_file_that_others_than_root_may_open_is_none_to_be_locked(
    fake: FakeTree, mode: int, owner: int, *, is_private: bool
) -> None:
    name = "memory.force_empty" if fake.tree.version is CgroupVersion.V1 else "memory.reclaim"
    assert fake.tree.open_private("/node") is None
    path = fake.tree.path("/node") / name
    path.parent.mkdir()
    path.touch()
    path.chmod(mode)
    if owner and os.geteuid() != 0:
        pytest.skip("takes root, to have the file belong to another user")
    if owner:
        os.chown(path, owner, owner)
    fd = fake.tree.open_private("/node")
    assert is_private is (fd is not None)
    if fd is not None:
        os.close(fd)


def test_controller_that_is_not_mounted_is_refused(tmp_path: Path) -> None:
    tree = CgroupTree(version=CgroupVersion.V1, memory_root=tmp_path)
    with pytest.raises(RefusedError, match="freezer"):
        tree.path("/a", "freezer")
    assert not tree.exists("/a", "freezer")


def test_symlink_is_refused_wherever_it_leads(fake: FakeTree) -> None:
    fake.add("/pods/a")
    (fake.directory("/pods") / "out").symlink_to("/etc")
    (fake.directory("/pods") / "in").symlink_to("a")
    (fake.directory("/pods") / "loop").symlink_to("loop")
    for name in ("out", "in", "loop", "out/x"):
        with pytest.raises(RefusedError, match="symlink"):
            fake.tree.path(f"/pods/{name}")
    assert ("a",) == fake.tree.children("/pods")


def test_root_that_is_reached_through_a_symlink_is_taken(tmp_path: Path) -> None:
    (tmp_path / "real/a").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    tree = CgroupTree(version=CgroupVersion.V2, memory_root=tmp_path / "link")
    assert tree.path("/a").samefile(tmp_path / "real/a")


def test_children_are_the_directories_below_in_order(fake: FakeTree) -> None:
    for name in ("b", "a", "c"):
        fake.add(f"/pods/{name}")
    assert ("a", "b", "c") == fake.tree.children("/pods")
    assert fake.tree.exists("/pods/a")
    assert not fake.tree.exists("/pods/d")
    with pytest.raises(FileNotFoundError, match="/gone"):
        fake.tree.children("/gone")


@pytest.mark.parametrize(
    ("parent", "cgroup", "inside"),
    [
        ("/", "/a", True),
        ("/a", "/a/b", True),
        ("/a", "/a", False),
        ("/a", "/ab", False),
        ("/a", "/a/../b", False),
        ("/a/..", "/a/../b", False),
        ("/a/b", "/a", False),
        ("/", "/", False),
    ],
)
def test_cgroup_is_contained_only_strictly_below(parent: str, cgroup: str, *, inside: bool) -> None:
    assert inside == CgroupTree.contains(parent, cgroup)


def test_limits_are_read_and_set(fake: FakeTree) -> None:
    fake.add("/pod")
    assert fake.tree.memory_limit_bytes("/pod") is None
    assert 0 == fake.tree.memory_request_bytes("/pod")
    fake.tree.set_memory_limit("/pod", 512 << 20)
    fake.tree.set_memory_request("/pod", 128 << 20)
    fake.file("/pod", "pids.current", "3\n", "pids")
    assert 512 << 20 == fake.tree.memory_limit_bytes("/pod")
    assert 128 << 20 == fake.tree.memory_request_bytes("/pod")
    assert 3 == fake.tree.pids_current("/pod")


def test_unlimited_is_written_as_each_version_has_it(fake: FakeTree) -> None:
    v2 = fake.tree.version is CgroupVersion.V2
    fake.add("/pod")
    fake.tree.set_memory_limit("/pod", None)
    fake.tree.set_cpu_quota("/pod", None)
    assert ("max" if v2 else "-1") == fake.read("/pod", "memory.max" if v2 else "memory.limit_in_bytes")
    quota = fake.read("/pod", "cpu.max" if v2 else "cpu.cfs_quota_us", "cpu")
    assert ("max 100000" if v2 else "-1") == quota


def test_root_and_unmirrored_cgroups_have_no_limits(fake: FakeTree) -> None:
    assert fake.tree.memory_limit_bytes("/") is None
    assert 0 == fake.tree.memory_request_bytes("/")
    assert fake.tree.pids_current("/elsewhere") is None
    assert fake.tree.pids_current("/") is None


def test_limit_of_a_vanished_cgroup_is_an_error(fake: FakeTree) -> None:
    with pytest.raises(FileNotFoundError, match="/gone"):
        fake.tree.memory_limit_bytes("/gone")


def test_request_on_v2_is_low_then_min(make_tree: FakeTreeMaker) -> None:
    fake = make_tree(CgroupVersion.V2)
    fake.add("/pod")
    fake.file("/pod", "memory.min", "5\n")
    assert 5 == fake.tree.memory_request_bytes("/pod")
    fake.file("/pod", "memory.low", "7\n")
    assert 7 == fake.tree.memory_request_bytes("/pod")
    fake.file("/pod", "memory.low", "max\n")
    assert UNLIMITED_BYTES == fake.tree.memory_request_bytes("/pod")


@pytest.mark.parametrize("garbage", [b"", b"x\n", b"-5\n", b"\xff\xfe", b"1 2\n"])
def test_garbage_in_a_limit_is_refused_by_name(fake: FakeTree, garbage: bytes) -> None:
    fake.add("/pod")
    for name in ("memory.max", "memory.limit_in_bytes"):
        fake.file("/pod", name, garbage)
    with pytest.raises(KernelInterfaceError, match="/pod/memory"):
        fake.tree.memory_limit_bytes("/pod")


def test_quota_is_lifted_in_the_whole_subtree(fake: FakeTree) -> None:
    v2 = fake.tree.version is CgroupVersion.V2
    for cgroup in ("/pod", "/pod/a", "/pod/a/b", "/other"):
        fake.add(cgroup)
    for cgroup in ("/pod", "/pod/a/b", "/other"):
        fake.tree.set_cpu_quota(cgroup, 1000)
    assert 2 == lift_quotas(fake.tree, "/pod")
    quotas = [
        fake.read(cgroup, "cpu.max" if v2 else "cpu.cfs_quota_us", "cpu").split()[0]
        for cgroup in ("/pod", "/pod/a", "/pod/a/b", "/other")
    ]
    unlimited = "max" if v2 else "-1"
    assert [unlimited, unlimited, unlimited, "1000"] == quotas


def test_nothing_is_lifted_where_there_is_no_quota(fake: FakeTree) -> None:
    fake.add("/pod")
    assert 0 == lift_quotas(fake.tree, "/pod")


def test_processes_are_those_of_the_subtree_each_once(fake: FakeTree) -> None:
    for cgroup, pids in {"/pod": "1\n2\n", "/pod/a": "0\n3\n", "/pod/a/b": "2\n4\n", "/other": "5\n"}.items():
        fake.add(cgroup)
        fake.file(cgroup, "cgroup.procs", pids)
    assert [1, 2, 3, 4] == sorted(fake.tree.processes("/pod"))
    assert [] == fake.tree.processes("/gone")


def test_working_set_is_usage_without_inactive_page_cache(fake: FakeTree) -> None:
    fake.add("/pod", usage_bytes=1000, inactive_file_bytes=300)
    counters = MemoryCounters(fake.tree, "/pod")
    assert (1000, 300, 700) == (
        counters.usage_bytes(),
        counters.available_cache_bytes(),
        counters.working_set_bytes(),
    )
    fake.counters("/pod", usage_bytes=100, inactive_file_bytes=300)
    assert 0 == counters.working_set_bytes()
    fake.counters("/pod", usage_bytes=0, inactive_file_bytes=0)
    assert 0 == counters.working_set_bytes()
    counters.close()


@pytest.mark.parametrize("garbage", [b"", b"total_inactive_file 12", b"\0" * 64, b"inactive_file x\n"])
def test_garbage_counters_are_refused_by_name(fake: FakeTree, garbage: bytes) -> None:
    fake.add("/pod", usage_bytes=1)
    fake.file("/pod", "memory.stat", garbage)
    counters = MemoryCounters(fake.tree, "/pod")
    with pytest.raises(KernelInterfaceError, match=r"/pod/memory\.stat"):
        counters.working_set_bytes()
    counters.close()


def test_counters_of_half_a_cgroup_leave_no_descriptor(fake: FakeTree) -> None:
    fake.add("/pod")
    (fake.directory("/pod") / "memory.stat").unlink()
    before = open_descriptors()
    with pytest.raises(FileNotFoundError, match=r"memory\.stat"):
        MemoryCounters(fake.tree, "/pod")
    assert before == open_descriptors()


def test_closed_counters_read_nothing(fake: FakeTree) -> None:
    fake.add("/pod")
    counters = MemoryCounters(fake.tree, "/pod")
    counters.close()
    counters.close()
    with pytest.raises(OSError, match="/pod/memory"):
        counters.usage_bytes()


def test_own_cgroup_of_a_process_that_is_gone_is_unknown(fake: FakeTree, tmp_path: Path) -> None:
    assert own_cgroup(fake.tree, tmp_path / "cgroup-of-nobody") is None
