"""What the memory of a cgroup is made of: what its processes hold, and what the kernel keeps for them.

Read for people, never on the way to a kill. Source: Documentation/admin-guide/cgroup-v2.rst (memory.stat);
on v1 the kernel's own memory stands in memory.kmem.usage_in_bytes, and shmem is a part of the cache.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Self

from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree, CgroupVersion
from reactor.kernel.files import parse_field, parse_integer, read_file


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryKinds:
    """Memory in bytes; inactive page cache, which counts as available, is none of it.

    `kernel_bytes` are slab, stacks, page tables and the like; of them on v2 only slab, where the kernel tells
    no more (before 5.18). The usage of the machine, unlike that of any other cgroup, is without them.
    """

    anonymous_bytes: int = 0
    shared_bytes: int = 0
    active_file_bytes: int = 0
    kernel_bytes: int = 0

    @classmethod
    def of(cls, tree: CgroupTree, cgroup: str) -> Self:
        """Return those of a cgroup and below. Raises OSError where it is gone, RefusedError for its path."""
        directory = tree.path(cgroup)
        stat = read_file(directory / "memory.stat")
        if tree.version is CgroupVersion.V2:
            kernel_bytes = _field(stat, b"kernel") or _field(stat, b"slab")
            names = (b"anon", b"shmem", b"active_file")
        else:
            kernel_bytes = 0
            with suppress(OSError, ReactorError):  # without kernel memory accounting
                path = directory / "memory.kmem.usage_in_bytes"
                kernel_bytes = parse_integer(read_file(path), str(path))
            names = (b"total_rss", b"total_shmem", b"total_active_file")
        anonymous_bytes, shared_bytes, active_file_bytes = (_field(stat, name) for name in names)
        return cls(
            anonymous_bytes=anonymous_bytes,
            shared_bytes=shared_bytes,
            active_file_bytes=active_file_bytes,
            kernel_bytes=kernel_bytes,
        )

    def without(self, others: Iterable[MemoryKinds]) -> MemoryKinds:
        """Return what is left of each kind without those, 0 at the least: they were not read at one time."""
        left = {field.name: getattr(self, field.name) for field in fields(self)}
        for other in others:
            left = {name: amount - getattr(other, name) for name, amount in left.items()}
        return MemoryKinds(**{name: max(0, amount) for name, amount in left.items()})


def _field(stat: bytes, key: bytes) -> int:
    with suppress(ReactorError):  # a kind that this kernel does not tell
        return parse_field(stat, key, "memory.stat")
    return 0
