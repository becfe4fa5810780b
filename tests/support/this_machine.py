"""What tests need of this machine: where it is missing they are skipped, and say what would help."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from reactor.errors import ReactorError
from reactor.kernel.bpf.libbpf import LIBRARY
from reactor.kernel.cgroup import CgroupTree, lift_cpu_quota
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.kernel.files import parse_field
from reactor.testbed.allocator import compiled_tool
from reactor.testbed.virtual_node import VirtualNode

V1_ROOT = Path("/sys/fs/cgroup/memory")

needs_memcg_v1 = pytest.mark.skipif(
    os.geteuid() != 0 or not (V1_ROOT / "cgroup.event_control").exists(),
    reason="needs root and the memory controller on cgroup v1 (boot with systemd.unified_cgroup_hierarchy=0)",
)


def _has_libbpf() -> bool:
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True


needs_libbpf = pytest.mark.skipif(not _has_libbpf(), reason="no libbpf.so.1: apt-get install libbpf1")


def cgroup_tree() -> CgroupTree:
    """Return the hierarchies of this machine, as root."""
    if os.geteuid():
        pytest.skip("needs root: run `sudo make kernel-tests`")
    try:
        return CgroupTree.discover()
    except ReactorError as error:
        pytest.skip(f"needs a mounted memory controller: {error}")


def allocator() -> Path:
    """Return the laboratory's compiled tool; see reactor.testbed.allocator."""
    try:
        return compiled_tool()
    except ReactorError as error:
        pytest.skip(f"needs a C compiler: {error}")


@contextmanager
def virtual_node(test: str, mib: int) -> Iterator[VirtualNode]:
    """Yield a virtual node of the test's own."""
    name = f"reactor-test-{os.getpid()}-{abs(hash(test)) % 10_000}"
    with VirtualNode(cgroup_tree(), mib << 20, name) as made:
        yield made


def open_descriptors() -> int:
    """Return how many descriptors this process has open, without those that wait for the collector."""
    gc.collect()  # one that closes an earlier test's in between would look like a descriptor too few
    gc.freeze()  # all that is left is in use; after some thousand tests each search takes 0.15 s without this
    return len(os.listdir("/proc/self/fd"))


@contextmanager
def no_descriptor_to_spare() -> Iterator[None]:
    """Have this process open no more descriptors than it has by now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    last_fd = os.open("/dev/null", os.O_RDONLY)  # the lowest number that is free
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (last_fd + 1, hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(last_fd)


def remove_cgroup(directory: Path) -> None:
    """Remove a cgroup whose last process may still be on its way out."""
    deadline = time.monotonic() + 10
    while directory.exists():
        try:
            directory.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def oom_killed_in(node: VirtualNode, cgroup: str) -> int:
    """Return how many of a cgroup's own processes the kernel's OOM killer has killed."""
    name = "memory.events.local" if node.tree.version is CgroupVersion.V2 else "memory.oom_control"
    with node.tree.open(cgroup) as directory:
        return parse_field(directory.read(name), b"oom_kill", f"{directory.cgroup}/{name}")


def lift_quotas(tree: CgroupTree, cgroup: str) -> int:
    """Take the CPU quotas off a cgroup and what is below it; return how many that were."""
    with tree.open(cgroup, "cpu") as directory:
        return lift_cpu_quota(directory, tree.version)


@contextmanager
def without_descriptors() -> Iterator[None]:
    """Let no file be opened inside the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
