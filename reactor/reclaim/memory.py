"""What is reclaimed of memory: what belongs to no pod, and what pods' cgroups can give without ending.

What belongs to no pod is what dead cgroups left, page cache and slab above the pods. v2: memory.reclaim
(since 5.19) of the dead cgroups, then of the pods' parents; it takes what has not been used for longest, of
live pods too, and keeps to their memory.low. v1: memory.force_empty of dead cgroups alone, since it takes all
that it can get: not of one in which a process lives. No limit is ever lowered for it, and nothing is dropped
for the whole machine (drop_caches).

Pods' cgroups give memory to swap, and page cache that is read again; v2 alone. Only what counts is asked for.
What is available already (page cache that has not been used for long; with `memoryAvailable: memAvailable`
all of it) brings nothing when it is reclaimed, and has to be read from the disk again. Of page cache in use
the kernel gives some if a cgroup has more of it than of the other kind: it then moves pages from the one to
the other (inactive_is_low in mm/vmscan.c).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.kernel.cgroup_memory import MemoryCounters
from reactor.kernel.files import GONE, parse_field, read_file, write_file
from reactor.kernel.memory_control import reclaim, unavailable_because
from reactor.kernel.procfs import PROC
from reactor.kernel.swap import SwapSpace, cgroup_swap, machine_swap
from reactor.model.decisions import Hold
from reactor.model.rules import Firing
from reactor.model.signals import Reclaim, RuleSignal
from reactor.reclaim.runner import ReclaimJob, Taken
from reactor.text import printable

# The kernel does not stop before it has tried all of what it was asked for.
PIECE_BYTES: Final = 16 << 20  # a reclaim of it takes some ms, to a disk some 100 ms
_LEAST_BYTES: Final = 1 << 20  # less is not worth a cgroup's page faults
_MOST_CGROUPS: Final = 256
# What is reclaimed while others take it: a reclaim is no way to keep pods swapping.
_MOST_TIMES: Final = 2


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
        return self.swap_bytes + self.cache_bytes


class MemoryReclaim:
    """Reclaims from cgroups: of pods, of rules, and what belongs to no pod; `parents` are the pods' parents.

    With `counts_cache` page cache in use is not available.
    """

    def __init__(
        self, tree: CgroupTree, parents: Sequence[str] = (), *, counts_cache: bool, proc: Path = PROC
    ) -> None:
        self._tree = tree
        self._parents = tuple(parent for parent in parents if parent != "/")
        self._counts_cache = counts_cache
        self._proc = proc
        self.unavailable_because = unavailable_because(tree)

    def of_no_pod(
        self, asked: Hold, dead: Sequence[str], available_bytes: Callable[[], int | None]
    ) -> ReclaimJob:
        return _job(asked, available_bytes, partial(self._outside, asked.wanted_bytes, dead))

    def before_soft(
        self, asked: Hold, cgroups: Sequence[str], available_bytes: Callable[[], int | None]
    ) -> ReclaimJob:
        """Return the reclaim before a soft eviction: from pod after pod, until enough is available.

        It takes twice what is wanted at the most.
        """
        takes = partial(self._most_of_each, _MOST_TIMES * asked.wanted_bytes, cgroups[:_MOST_CGROUPS])
        return replace(_job(asked, available_bytes, takes), stops_at_enough=True)

    def by_rule(self, firing: Firing) -> ReclaimJob:
        """Return the reclaim of so much of a rule's cgroup; what memory.low and memory.min protect stays."""
        cgroup = firing.cgroup
        spare_bytes = partial(self._spare_bytes, cgroup)
        before_bytes = spare_bytes()
        wanted_bytes, problem = 0, self.unavailable_because
        if before_bytes is None:
            problem = problem or f"the memory of {printable(cgroup)} can't be read"
        elif problem is None:
            wanted_bytes = max(_LEAST_BYTES, int(firing.rule.amount.of(-before_bytes)))

        def takes(taken: Taken) -> Iterator[None]:
            taken.problems += [] if problem is None else [problem]
            yield from self._pieces(cgroup, wanted_bytes, taken, f"from {cgroup}")

        return ReclaimJob(
            kind=Reclaim.RULE,
            signal=RuleSignal.RULE,
            wanted_bytes=wanted_bytes,
            most_seconds=firing.rule.reclaim_seconds,
            available_bytes=spare_bytes,
            takes=takes,
            stopped_because="not all of it: memory of the node is short, or being freed",
        )

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

    def _outside(self, wanted_bytes: int, dead: Sequence[str], taken: Taken) -> Iterator[None]:
        v2 = self._tree.version is CgroupVersion.V2
        for cgroup in (*dead, *(self._parents if v2 else ())):
            left_bytes = wanted_bytes - sum(taken.bytes.values())
            if left_bytes <= 0:
                return
            if v2:
                yield from self._pieces(cgroup, left_bytes, taken, f"from {cgroup}")
            else:
                yield
                with _named(taken):
                    taken.add(f"from {cgroup}", self._emptied_bytes(cgroup))

    def _emptied_bytes(self, cgroup: str) -> int:
        """Reclaim all that a dead cgroup of v1 still holds; what may be in use stays as it is."""
        if self._tree.processes(cgroup):
            return 0
        before_bytes = _usage_bytes(self._tree, cgroup)
        write_file(self._tree.path(cgroup) / "memory.force_empty", "0")
        return before_bytes - _usage_bytes(self._tree, cgroup)

    def _most_of_each(self, left_bytes: int, cgroups: Sequence[str], taken: Taken) -> Iterator[None]:
        for one in self.most_first(cgroups):
            for to_swap, helps_bytes, idle_bytes in (
                (True, one.swap_bytes, 0),
                (False, one.cache_bytes, one.idle_cache_bytes),
            ):
                useful_bytes = min(helps_bytes, left_bytes)
                if useful_bytes:
                    # What is idle goes first, and counts for nothing.
                    source = f"{'to swap' if to_swap else 'of page cache'} from {one.cgroup}"
                    before_bytes = taken.bytes.get(source, 0)
                    yield from self._pieces(
                        one.cgroup, useful_bytes + idle_bytes, taken, source, to_swap=to_swap
                    )
                    left_bytes -= max(0, taken.bytes.get(source, 0) - before_bytes - idle_bytes)

    def _pieces(
        self, cgroup: str, wanted_bytes: int, taken: Taken, source: str, *, to_swap: bool = False
    ) -> Iterator[None]:
        """Take so much of a cgroup, until the kernel finds no more; yield before each piece."""
        while wanted_bytes > 0:
            yield
            piece_bytes, freed_bytes = min(PIECE_BYTES, wanted_bytes), 0
            with _named(taken):
                freed_bytes = self.take(cgroup, piece_bytes, to_swap=to_swap)
            taken.add(source, freed_bytes)
            if freed_bytes < piece_bytes:
                return
            wanted_bytes -= piece_bytes

    def _spare_bytes(self, cgroup: str) -> int | None:
        """Return what the cgroup holds, below zero: the less it holds the more is available."""
        try:
            return -_usage_bytes(self._tree, cgroup)
        except (OSError, ReactorError):
            return None

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


def _job(
    asked: Hold, available_bytes: Callable[[], int | None], takes: Callable[[Taken], Iterator[None]]
) -> ReclaimJob:
    return ReclaimJob(
        kind=asked.kind,
        signal=asked.signal,
        wanted_bytes=asked.wanted_bytes,
        most_seconds=asked.until_seconds - asked.began_seconds,
        available_bytes=available_bytes,
        takes=takes,
    )


@contextmanager
def _named(taken: Taken) -> Iterator[None]:
    """Have what fails be a problem, but that the cgroup is gone."""
    try:
        yield
    except (OSError, ReactorError) as error:
        if not isinstance(error, OSError) or error.errno not in GONE:
            taken.problems.append(str(error))


def _usage_bytes(tree: CgroupTree, cgroup: str) -> int:
    with closing(MemoryCounters(tree, cgroup)) as counters:
        return counters.usage_bytes()
