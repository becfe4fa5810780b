"""Reclaim of memory that belongs to no pod: what dead cgroups left, page cache and slab above the pods.

v2: memory.reclaim (since 5.19) of the dead cgroups, then of the pods' parents; it takes what has not been
used for longest, of live pods too, and keeps to their memory.low. v1: memory.force_empty of dead cgroups
alone, since it takes all that it can get: not of one in which a process lives. No limit is ever lowered for
it, and nothing is dropped for the whole machine (drop_caches).
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Sequence
from typing import Final

from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree, MemoryCounters
from reactor.kernel.cgroup_files import CgroupVersion
from reactor.kernel.files import GONE, write_file
from reactor.model.amounts import bytes_text
from reactor.reclaim.reclaims import ReclaimReport

# The kernel does not stop before it has tried all of what it was asked for.
_PIECE_BYTES: Final = 32 << 20


class CgroupReclaim:
    """Reclaims from cgroups, in a thread that is not the loop's. Never raises.

    `parents` are the pods' parents. `clock_seconds` may be any clock.
    """

    def __init__(
        self,
        tree: CgroupTree,
        parents: Sequence[str],
        *,
        clock_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tree = tree
        self._parents = tuple(parent for parent in parents if parent != "/")
        self._clock_seconds = clock_seconds

    def run(self, wanted_bytes: int, dead: Sequence[str], most_seconds: float) -> ReclaimReport:
        """Reclaim so much, from `dead` cgroups first, until that is enough or time is up."""
        until_seconds = self._clock_seconds() + most_seconds
        did: list[str] = []
        problems: list[str] = []
        left_bytes = wanted_bytes
        v2 = self._tree.version is CgroupVersion.V2
        for cgroup in (*dead, *(self._parents if v2 else ())):
            if left_bytes <= 0 or self._clock_seconds() >= until_seconds:
                break
            try:
                freed_bytes = self._reclaim(cgroup, left_bytes, until_seconds) if v2 else self._empty(cgroup)
            except (OSError, ReactorError) as error:
                if not isinstance(error, OSError) or error.errno not in GONE:
                    problems.append(str(error))
                continue
            if freed_bytes > 0:
                did.append(f"{bytes_text(freed_bytes)} from {cgroup}")
            left_bytes -= freed_bytes
        return ReclaimReport(did=tuple(did), problems=tuple(problems))

    def _reclaim(self, cgroup: str, wanted_bytes: int, until_seconds: float) -> int:
        path = self._tree.path(cgroup) / "memory.reclaim"
        before_bytes = self._usage_bytes(cgroup)
        freed_bytes = 0
        while freed_bytes < wanted_bytes and self._clock_seconds() < until_seconds:
            piece_bytes = min(_PIECE_BYTES, wanted_bytes - freed_bytes)
            try:
                write_file(path, str(piece_bytes))
            except OSError as error:
                if error.errno != errno.EAGAIN:  # the kernel found less than that
                    raise
                return before_bytes - self._usage_bytes(cgroup)
            freed_bytes = max(freed_bytes + piece_bytes, before_bytes - self._usage_bytes(cgroup))
        return freed_bytes

    def _empty(self, cgroup: str) -> int:
        """Reclaim all that a dead cgroup of v1 still holds; what may be in use stays as it is."""
        if self._tree.processes(cgroup):
            return 0
        before_bytes = self._usage_bytes(cgroup)
        write_file(self._tree.path(cgroup) / "memory.force_empty", "0")
        return before_bytes - self._usage_bytes(cgroup)

    def _usage_bytes(self, cgroup: str) -> int:
        counters = MemoryCounters(self._tree, cgroup)
        try:
            return counters.usage_bytes()
        finally:
            counters.close()
