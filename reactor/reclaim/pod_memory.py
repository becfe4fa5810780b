"""What the pods' own cgroups can give back without ending: memory to swap, page cache that is read again.

Only what counts is asked for. What is available already (page cache that has not been used for long; with
`memoryAvailable: memAvailable` all of it) brings nothing when it is reclaimed, and has to be read from the
disk again. Of page cache in use the kernel gives some where a cgroup has more of it than of the other kind:
it then moves pages from the one to the other (inactive_is_low in mm/vmscan.c).

Reads and reclaims block: in a thread. v2 alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree, MemoryCounters
from reactor.kernel.files import parse_field, read_file
from reactor.kernel.memory_reclaim import reclaim
from reactor.kernel.procfs import PROC
from reactor.kernel.swap import SwapSpace, cgroup_swap, machine_swap

PIECE_BYTES: Final = 16 << 20  # a reclaim of it takes some ms, to a disk some 100 ms
_LEAST_BYTES: Final = 1 << 20  # less is not worth a cgroup's page faults


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaimable:
    """What a cgroup could give: `swap_bytes` to swap, `cache_bytes` of page cache in use.

    The kernel takes the `idle_cache_bytes`, which count as available already, before any in use.
    """

    cgroup: str
    swap_bytes: int
    cache_bytes: int
    idle_cache_bytes: int

    @property
    def helps_bytes(self) -> int:
        """Return by how much more would be available."""
        return self.swap_bytes + self.cache_bytes


class PodReclaim:
    """Reclaims from pods' cgroups. With `counts_cache` page cache in use is not available as it is."""

    def __init__(self, tree: CgroupTree, *, counts_cache: bool, proc: Path = PROC) -> None:
        self._tree = tree
        self._counts_cache = counts_cache
        self._proc = proc

    def most_first(self, cgroups: Iterable[str]) -> Sequence[Reclaimable]:
        """Return what these cgroups could give, those that could give most first; others are absent."""
        try:
            machine = machine_swap(self._proc)
        except (OSError, ReactorError):
            machine = SwapSpace(total_bytes=0, free_bytes=0)
        found = []
        for cgroup in cgroups:
            try:
                one = self._reclaimable(cgroup, machine)
            except (OSError, ReactorError):  # gone, or without a memory controller
                continue
            if one.helps_bytes >= _LEAST_BYTES:
                found.append(one)
        return sorted(found, key=lambda one: (-one.helps_bytes, one.cgroup))

    def take(self, cgroup: str, wanted_bytes: int, *, to_swap: bool) -> int:
        """Reclaim so much; return how much that came to, less where no more was found.

        Raises OSError with the path, and ReactorError.
        """
        with closing(MemoryCounters(self._tree, cgroup)) as counters:
            before_bytes = counters.usage_bytes()
            if reclaim(self._tree, cgroup, wanted_bytes, to_swap=to_swap):
                return wanted_bytes
            return min(max(0, before_bytes - counters.usage_bytes()), wanted_bytes - 1)

    def _reclaimable(self, cgroup: str, machine: SwapSpace) -> Reclaimable:
        path = f"{self._tree.path(cgroup)}/memory.stat"
        stat = read_file(path)
        anonymous, active, idle = (
            sum(parse_field(stat, key, path) for key in keys)
            for keys in ((b"inactive_anon", b"active_anon"), (b"active_file",), (b"inactive_file",))
        )
        free_bytes = cgroup_swap(self._tree, cgroup, machine).free_bytes if machine.free_bytes else 0
        return Reclaimable(
            cgroup=cgroup,
            swap_bytes=min(anonymous, free_bytes),
            cache_bytes=active if self._counts_cache and active > idle else 0,
            idle_cache_bytes=idle,
        )
