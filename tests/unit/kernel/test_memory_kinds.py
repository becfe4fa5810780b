"""What memory is made of, by the files of either version."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.kernel.cgroup_memory import MemoryKinds

V2_STAT = "anon 10\nfile 60\nkernel 5\nshmem 20\ninactive_file 7\nactive_file 30\nslab 4\n"
V1_STAT = "rss 1\ntotal_rss 10\ntotal_shmem 20\ntotal_inactive_file 7\ntotal_active_file 30\n"
WHOLE = MemoryKinds(
    anonymous_bytes=10, shared_bytes=20, active_file_bytes=30, kernel_bytes=5, inactive_file_bytes=7
)


def test_kinds_are_those_of_the_subtree(fake) -> None:
    fake.add("/node")
    v2 = fake.tree.version is CgroupVersion.V2
    fake.file("/node", "memory.stat", V2_STAT if v2 else V1_STAT)
    fake.file("/node", "memory.kmem.usage_in_bytes", "5\n")
    assert WHOLE == MemoryKinds.of(fake.tree, "/node")


def test_kinds_that_a_kernel_does_not_tell_are_none(fake) -> None:
    fake.add("/node")
    v2 = fake.tree.version is CgroupVersion.V2
    fake.file("/node", "memory.stat", "anon 10\nslab 4\n" if v2 else "total_rss 10\n")
    assert MemoryKinds(anonymous_bytes=10, kernel_bytes=4 if v2 else 0) == MemoryKinds.of(fake.tree, "/node")


def test_cgroup_that_is_not_there_is_an_error(fake) -> None:
    with pytest.raises(FileNotFoundError):
        MemoryKinds.of(fake.tree, "/node")


def test_what_others_hold_is_taken_off_and_nothing_is_below_zero() -> None:
    left = replace(WHOLE, anonymous_bytes=0, shared_bytes=12)
    assert left == WHOLE.without(
        [MemoryKinds(anonymous_bytes=8, shared_bytes=8), MemoryKinds(anonymous_bytes=8)]
    )
