"""The memory of one cgroup that is watched for as long as the daemon runs: the node, a parent of pods."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass

from reactor.kernel.cgroup import CgroupTree, CgroupVersion, MemoryCounters
from reactor.kernel.cgroup_files import parse_limit
from reactor.kernel.files import KernelFile


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReading:
    """What a cgroup uses and may use, in bytes; None without a limit.

    `own_limit_bytes` is set on the cgroup itself, `limit_bytes` is the lowest from there up to the root.
    """

    usage_bytes: int
    inactive_file_bytes: int
    own_limit_bytes: int | None
    limit_bytes: int | None


class CgroupMemory:
    """One cgroup's counters and limits, held open; opened again where the cgroup was removed and made again.

    Reading raises OSError (with the path; ENOENT where the cgroup doesn't exist now), KernelInterfaceError
    for content that makes no sense, RefusedError for a path that is not plain.
    """

    def __init__(self, tree: CgroupTree, cgroup: str) -> None:
        self._tree = tree
        self.cgroup = cgroup
        self._counters: MemoryCounters | None = None
        self._limits: tuple[KernelFile, ...] = ()

    def read(self) -> MemoryReading:
        """Return the present reading."""
        if self._counters is not None:
            try:
                return self._read(self._counters)
            except OSError as error:
                self.close()
                if error.errno != errno.ENODEV:
                    raise
        return self._read(self._open())

    def close(self) -> None:
        """Close the descriptors; the next reading opens them again."""
        for limit in self._limits:
            limit.close()
        self._limits = ()
        if self._counters is not None:
            self._counters.close()
            self._counters = None

    def _read(self, counters: MemoryCounters) -> MemoryReading:
        limits = [parse_limit(limit.read(), limit.path) for limit in self._limits]
        return MemoryReading(
            usage_bytes=counters.usage_bytes(),
            inactive_file_bytes=counters.inactive_file_bytes(),
            own_limit_bytes=limits[0] if limits else None,
            limit_bytes=min((limit for limit in limits if limit is not None), default=None),
        )

    def _open(self) -> MemoryCounters:
        counters = MemoryCounters(self._tree, self.cgroup)
        try:
            self._limits = tuple(self._limit_files())
        except OSError:
            counters.close()
            raise
        self._counters = counters
        return counters

    def _limit_files(self) -> Iterator[KernelFile]:
        """Yield the limit file of the cgroup and of each above it; the root of v2 has none."""
        name = "memory.max" if self._tree.version is CgroupVersion.V2 else "memory.limit_in_bytes"
        cgroup = self.cgroup
        while cgroup != "/":
            yield KernelFile(self._tree.path(cgroup) / name)
            cgroup = os.path.dirname(cgroup)
