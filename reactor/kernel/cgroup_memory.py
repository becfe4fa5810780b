"""One cgroup's memory counters, limit and request, by files held open: v1 and v2 behind one surface."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Self

from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.kernel.files import parse_field, parse_integer, read_file


class MemoryCounters:
    """One cgroup's memory counters, held open: two preads for a fresh working set, no path walk.

    v1 counts the subtree in memory.usage_in_bytes and in the `total_` lines of memory.stat; v2 counts it in
    memory.current and plain memory.stat. With `inode` they are that cgroup's, see `CgroupTree.open`: what is
    ranked by them is what is killed. Raises OSError (with the path; ENODEV once the cgroup is gone)
    and KernelInterfaceError for content that is no counter.
    """

    __slots__ = ("_active_key", "_key", "_shared_key", "_stat", "_usage")

    def __init__(self, tree: CgroupTree, cgroup: str, *, inode: int | None = None) -> None:
        v2 = tree.version is CgroupVersion.V2
        self._key = b"inactive_file" if v2 else b"total_inactive_file"
        self._active_key = b"active_file" if v2 else b"total_active_file"
        self._shared_key = b"shmem" if v2 else b"total_shmem"
        path, usage = tree.spelled(cgroup), "memory.current" if v2 else "memory.usage_in_bytes"
        with tree.open_for(f"{path}/{usage}", cgroup, inode) as directory:  # one for both, whatever its name
            self._usage = directory.kernel_file(usage, path)
            try:
                self._stat = directory.kernel_file("memory.stat", path)
            except OSError:
                self._usage.close()
                raise

    def usage_bytes(self) -> int:
        """Return the memory charged to the cgroup and below, page cache included."""
        return parse_integer(self._usage.read(), self._usage.path)

    def usage_fd(self) -> int:
        """Return the descriptor of the usage, for a reader of many: it is read with pread at offset 0."""
        return self._usage.fileno()

    def available_cache_bytes(self) -> int:
        """Return how much of the usage counts as available.

        For the kubelet that is the page cache that the kernel reclaims before anything else.
        """
        return parse_field(self._stat.read(), self._key, self._stat.path)

    def active_file_bytes(self) -> int:
        """Return the page cache that the working set includes."""
        return parse_field(self._stat.read(), self._active_key, self._stat.path)

    def shared_bytes(self) -> int:
        """Return what lies in tmpfs, in System V and in other shared memory.

        It outlives the processes that wrote it, where a file or a segment holds it.
        """
        return parse_field(self._stat.read(), self._shared_key, self._stat.path)

    def working_set_bytes(self) -> int:
        """Return usage without what counts as available, 0 at the least, as the kubelet reports it.

        The two counters are read one after the other and batched by the kernel, so their difference may
        come out below zero.
        """
        usage_bytes = self.usage_bytes()
        if usage_bytes == 0:
            return 0
        return max(0, usage_bytes - self.available_cache_bytes())

    def close(self) -> None:
        """Close the descriptors; a second time is harmless."""
        self._usage.close()
        self._stat.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryKinds:
    """What kinds of memory a cgroup holds, in bytes; 0 for a kind that the kernel does not show.

    Inactive page cache, which counts as available, is not part of the working set.

    `kernel_bytes` are slab, stacks, page tables and the like; of them on v2 only slab, where the kernel shows
    no more (before 5.18). The usage of the machine, unlike that of any other cgroup, is without them.
    """

    anonymous_bytes: int = 0
    shared_bytes: int = 0
    active_file_bytes: int = 0
    kernel_bytes: int = 0
    inactive_file_bytes: int = 0

    @classmethod
    def of(cls, tree: CgroupTree, cgroup: str) -> Self:
        """Return those of a cgroup and below. Raises OSError where it is gone, RefusedError for its path."""
        directory = tree.path(cgroup)
        stat = read_file(directory / "memory.stat")
        if tree.version is CgroupVersion.V2:
            kernel_bytes = _kind(stat, b"kernel") or _kind(stat, b"slab")
            names = (b"anon", b"shmem", b"active_file", b"inactive_file")
        else:
            kernel_bytes = 0
            with suppress(OSError, ReactorError):  # without kernel memory accounting
                path = directory / "memory.kmem.usage_in_bytes"
                kernel_bytes = parse_integer(read_file(path), str(path))
            names = (b"total_rss", b"total_shmem", b"total_active_file", b"total_inactive_file")
        anonymous, shared, active_file, inactive_file = (_kind(stat, name) for name in names)
        return cls(
            anonymous_bytes=anonymous,
            shared_bytes=shared,
            active_file_bytes=active_file,
            kernel_bytes=kernel_bytes,
            inactive_file_bytes=inactive_file,
        )

    @property
    def working_set_bytes(self) -> int:
        return self.anonymous_bytes + self.shared_bytes + self.active_file_bytes + self.kernel_bytes

    @property
    def charged_bytes(self) -> int:
        """Return what all kinds add up to: the usage, but for what the kernel shows late or not at all."""
        return self.working_set_bytes + self.inactive_file_bytes

    def without(self, others: Iterable[MemoryKinds]) -> MemoryKinds:
        """Return what is left of each kind without those, 0 at the least: they were not read at one time."""
        left = {field.name: getattr(self, field.name) for field in fields(self)}
        for other in others:
            left = {name: amount - getattr(other, name) for name, amount in left.items()}
        return MemoryKinds(**{name: max(0, amount) for name, amount in left.items()})


def _kind(stat: bytes, key: bytes) -> int:
    with suppress(ReactorError):  # a kind that this kernel does not show
        return parse_field(stat, key, "memory.stat")
    return 0
