"""Cgroups on this machine's kernel, where the memory controller is on v1."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from reactor.kernel.cgroup import CgroupTree, own_cgroup
from reactor.kernel.cgroup_memory import MemoryCounters
from tests.support.this_machine import lift_quotas


@pytest.fixture
def tree(v1_tree: CgroupTree) -> CgroupTree:
    return v1_tree


@pytest.fixture
def cgroup(tree: CgroupTree) -> Iterator[str]:
    name = f"/reactor-test-{os.getpid()}"
    directory = tree.memory_root / name[1:]
    directory.mkdir()
    yield name
    if directory.exists():
        directory.rmdir()


def test_own_cgroup_holds_this_process(tree: CgroupTree) -> None:
    own = own_cgroup(tree)
    assert own is not None
    assert os.getpid() in tree.processes(own)


def test_limits_are_read_back(tree: CgroupTree, cgroup: str) -> None:
    assert tree.memory_limit_bytes(cgroup) is None
    assert 0 == tree.memory_request_bytes(cgroup)
    tree.set_memory_limit(cgroup, 64 << 20)
    tree.set_memory_request(cgroup, 32 << 20)
    assert 64 << 20 == tree.memory_limit_bytes(cgroup)
    assert 32 << 20 == tree.memory_request_bytes(cgroup)
    tree.set_memory_limit(cgroup, None)
    assert tree.memory_limit_bytes(cgroup) is None


def test_quota_is_set_and_lifted_in_the_subtree(tree: CgroupTree) -> None:
    if tree.cpu_root is None:
        pytest.skip("the cpu controller is not mounted; mount it")
    name = f"/reactor-test-{os.getpid()}"
    inner = tree.path(f"{name}/inner", "cpu")
    inner.mkdir(parents=True)
    try:
        tree.set_cpu_quota(name, 10_000)
        tree.set_cpu_quota(f"{name}/inner", 1_000)
        assert 2 == lift_quotas(tree, name)
        assert 0 == lift_quotas(tree, name)
    finally:
        inner.rmdir()
        inner.parent.rmdir()


def test_counters_follow_an_allocation(tree: CgroupTree, cgroup: str) -> None:
    code = f"""
import sys
open("{tree.path(cgroup)}/cgroup.procs", "w").write("0")
held = bytearray(32 << 20)
print(flush=True)
sys.stdin.read()
"""
    counters = MemoryCounters(tree, cgroup)
    assert 0 == counters.working_set_bytes()
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert [child.pid] == tree.processes(cgroup)
        assert 32 << 20 <= counters.working_set_bytes() <= 64 << 20
        child.communicate(b"")
    counters.close()


def test_counters_of_a_removed_cgroup_say_so(tree: CgroupTree, cgroup: str) -> None:
    counters = MemoryCounters(tree, cgroup)
    tree.path(cgroup).rmdir()
    with pytest.raises(OSError, match=cgroup) as caught:
        counters.usage_bytes()
    assert errno.ENODEV == caught.value.errno
    counters.close()
    with pytest.raises(FileNotFoundError, match=cgroup):
        MemoryCounters(tree, cgroup)


def test_refused_limit_names_the_file(tree: CgroupTree, cgroup: str) -> None:
    with pytest.raises(OSError, match=r"memory\.soft_limit_in_bytes"):
        tree.set_memory_request(cgroup, -5)
