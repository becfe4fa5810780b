"""What the chain for the kernel's OOM kills is made of: eBPF, and the kernel's counters."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from itertools import islice
from typing import Final

import trio

from reactor.backoff import next_beat
from reactor.errors import ReactorError
from reactor.kernel.bpf.loaders import open_oom_probe
from reactor.kernel.bpf.probes import OomRecords
from reactor.kernel.bpf.records import OomRecord
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupVersion, walk
from reactor.kernel.files import PAGE_BYTES, KernelFile, LastingFile
from reactor.kernel.oom import limit_was_met, machine_kills, own_kills, subtree_kills, subtree_limits_met
from reactor.kernel.procfs import PROC
from reactor.model.kills import OomKill, OomScope
from reactor.sources.catalogue import EBPF_OOM, OOM_COUNTERS
from reactor.sources.chain import Step
from reactor.sources.ebpf_watch import MACHINE, EbpfStep, take_records
from reactor.threads import in_thread

_PATH_MAX: Final = 4096
_MOST_CGROUPS: Final = 4096  # 0.1 s

ReportKill = Callable[[OomKill], None]


# Whose limit it was that the kernel killed at, as seen from the node that is guarded.


class GuardedNode:
    """The node, "/" for the machine itself, and the parents of pods in it."""

    def __init__(self, node: str, parents: Iterable[str]) -> None:
        self.node = node
        found = {node}
        for parent in parents:
            cgroup = parent
            while cgroup != node and CgroupTree.contains(node, cgroup):
                found.add(cgroup)
                cgroup = os.path.dirname(cgroup)
        found.discard(MACHINE)
        self.cgroups = tuple(sorted(found))

    @property
    def is_machine(self) -> bool:
        return self.node == MACHINE

    def holds(self, cgroup: str | None) -> bool:
        """Return whether a cgroup is the node or lies in it; where it is not known, whether all do."""
        return self.is_machine or (cgroup is not None and CgroupTree.holds(self.node, cgroup))

    def scope(self, *, at_a_limit: bool, limit: str | None, victim: str | None) -> OomScope | None:
        """Return whose limit it was; None for what happened outside the node altogether.

        `limit` is the cgroup whose limit was met, None where its path is not known or where, without
        `at_a_limit`, the machine itself ran out.
        """
        if limit in self.cgroups or (self.is_machine and not at_a_limit):
            return OomScope.NODE
        if at_a_limit and self.holds(limit):
            return OomScope.OWN_LIMIT
        return OomScope.ABOVE_NODE if self.holds(victim) else None


@dataclass(eq=False)
class OomCounters(Step[None]):
    """Counts the kills since they were last counted, if any; `limits_met` counts OOMs at guarded limits."""

    name = OOM_COUNTERS

    tree: CgroupTree
    node: GuardedNode
    limits_met: Callable[[], int]
    report: ReportKill
    _: KW_ONLY
    interval_seconds: float
    vmstat: KernelFile = field(default_factory=partial(LastingFile, PROC / "vmstat"))

    async def watch(self, armed: Callable[[str], None]) -> None:
        """Read the counters until they can't be read (OSError, KernelInterfaceError)."""
        met = self.limits_met()
        kills, limits = await in_thread(self._counted)  # the walk may be long
        armed(f"counted every {self.interval_seconds:g} s, without victims")
        while True:
            await next_beat(self.interval_seconds)
            if self._kills() <= kills:
                continue
            met_before, met = met, self.limits_met()
            kills_before, limits_before = kills, limits
            kills, limits = await in_thread(self._counted)
            risen = Counter(limits) - Counter(limits_before)
            judge = partial(self._judged, kills - kills_before, risen, at_guarded=met > met_before)
            new, scope = await in_thread(judge)
            if new:
                at_ns = time.monotonic_ns()
                self.report(OomKill(source=self.name, scope=scope, at_ns=at_ns, kills=new))

    def _kills(self) -> int:
        """Return how many kills there were in the node; on v1, on the machine."""
        if self.node.is_machine or self.tree.version is CgroupVersion.V1:
            return machine_kills(self.vmstat)
        return subtree_kills(self.tree, self.node.node)

    def _counted(self) -> tuple[int, dict[str, int]]:
        """Return the kills, and by cgroup how often limits were met; on v1, how many were killed in it."""
        kills = self._kills()
        if self.tree.version is CgroupVersion.V1:
            return kills, dict(self._own_kills())
        tops = [self.node.node]
        if self.node.is_machine:
            tops = [f"/{name}" for name in self.tree.children("/")]
        met: dict[str, int] = {}
        for top in tops:
            with suppress(OSError, ReactorError):  # gone, or not there yet
                met[top] = subtree_limits_met(self.tree, top)
        return kills, met

    def _judged(self, new: int, risen: Mapping[str, int], *, at_guarded: bool) -> tuple[int, OomScope]:
        """Return how many kills there were, and at whose limit the worst of them was."""
        is_v1 = self.tree.version is CgroupVersion.V1
        if is_v1 and not self.node.is_machine:
            new = sum(risen.values()) or int(at_guarded)
        if at_guarded:
            return new, OomScope.NODE
        if risen and (not is_v1 or all(map(self._was_at_a_limit, risen))):
            return new, OomScope.OWN_LIMIT
        if is_v1:
            return new, OomScope.UNKNOWN
        return new, OomScope.NODE if self.node.is_machine else OomScope.ABOVE_NODE

    def _was_at_a_limit(self, cgroup: str) -> bool:
        """Return whether a victim's cgroup, or one above it in the node, was ever at its limit."""
        while cgroup not in {"/", self.node.node}:
            if cgroup not in self.node.cgroups:
                with suppress(OSError, ReactorError):
                    if limit_was_met(self.tree, cgroup):
                        return True
            cgroup = os.path.dirname(cgroup)
        return False

    def _own_kills(self) -> Iterator[tuple[str, int]]:
        """Yield the cgroups of the node in which processes were killed, and how many of their own.

        Tenants make cgroups as they like: only the first so many are read, and those of pods come before what
        lies in them. A path that is longer than a path may be is passed over: it was made to be.
        """
        try:
            node = self.tree.open(self.node.node)
        except (OSError, ReactorError):  # gone meanwhile
            return
        with node, closing(walk(node, lambda _cgroup, _error: None)) as directories:
            for directory in islice(directories, _MOST_CGROUPS):
                if len(directory.cgroup) < _PATH_MAX:
                    with suppress(OSError, ReactorError):
                        if kills := own_kills(directory):
                            yield directory.cgroup, kills


@dataclass(eq=False, kw_only=True)
class EbpfOom(EbpfStep[OomRecords]):
    """Reports every OOM kill that concerns the guarded node; `probe` watches, None if nothing does."""

    name = EBPF_OOM
    bpf_object = "oom"
    load = staticmethod(open_oom_probe)
    on_v1 = "not used on cgroup v1: eBPF would take 6 MiB for this alone"

    node: GuardedNode
    report: ReportKill

    def __post_init__(self) -> None:
        self.probe: OomRecords | None = None
        self._root_id = 0
        self._taken, self._unreported = trio.open_memory_channel[OomKill](math.inf)

    async def watch(self, armed: Callable[[str], None]) -> None:
        """Report kills until the probe fails (OSError, BpfError)."""
        self._root_id = os.stat(self.tree.memory_root).st_ino
        async with self.opened() as probe:
            self.probe = probe
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._keep_reporting)
                    armed("; ".join(filter(None, ("each kill, with its victim", probe.made_by))))
                    lost = partial(self.wakes.board.count_lost, self.name)
                    await take_records(probe, self._on_records, lost)
            finally:
                self.probe = None

    def take_now(self) -> Sequence[OomKill] | None:
        """Return the kills that were not reported yet; they are reported soon. None if that is not known.

        For a pass that is about to choose a victim: the records lie in the memory of the probe that watches,
        and reading them takes no system call.
        """
        try:
            found = None if self.probe is None else self._kills(self.probe.take())
        except (OSError, ReactorError):
            return None  # its own task meets the same, and says so
        for kill in found or ():
            self._taken.send_nowait(kill)
        return found

    async def _keep_reporting(self) -> None:
        async for kill in self._unreported:
            self.report(kill)

    def _on_records(self, records: Sequence[OomRecord]) -> None:
        for kill in self._kills(records):
            self.report(kill)

    def _kills(self, records: Sequence[OomRecord]) -> list[OomKill]:
        kills = (self._kill(record) for record in records)
        return [kill for kill in kills if kill is not None]

    def _kill(self, record: OomRecord) -> OomKill | None:
        """Return what a record says, None where it does not concern the guarded node."""
        at_a_limit = record.limit_cgroup is not None
        limit = record.cgroup_path(self._root_id, record.limit_cgroup) if at_a_limit else None
        victim = record.cgroup_path(self._root_id)
        scope = self.node.scope(at_a_limit=at_a_limit, limit=limit, victim=victim)
        if scope is None:
            return None
        return OomKill(
            source=self.name,
            scope=scope,
            at_ns=record.at_ns,
            pid=record.pid,
            comm=record.comm,
            victim_bytes=record.victim_pages * PAGE_BYTES,
            victim_cgroup=victim,
            limit_cgroup=limit,
            limit_bytes=record.limit_pages * PAGE_BYTES,
            usage_bytes=None if record.usage_pages is None else record.usage_pages * PAGE_BYTES,
        )
