"""What the chain for the kernel's OOM kills is made of: eBPF, and the kernel's counters.

By eBPF there is a record of each kill, written before the victim dies; it costs nothing when idle. The
counters are read with the housekeeping and name no victim. On v2 they show whose limit was met. On v1 an
eventfd shows whether it was the node's or that of a parent of pods; for other limits it is only known whether
the victim's cgroup, if it still exists, was ever at its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import Final

import trio

from reactor.backoff import next_beat
from reactor.errors import ReactorError
from reactor.kernel.bpf.loaders import absent_because, open_oom_probe
from reactor.kernel.bpf.probes import OomRecords
from reactor.kernel.bpf.records import OomRecord
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupVersion, walk
from reactor.kernel.memcg_events import register_oom
from reactor.kernel.oom import (
    limit_was_met,
    machine_kills,
    own_kills,
    own_limit_met,
    subtree_kills,
    subtree_limits_met,
)
from reactor.kernel.procfs import PROC
from reactor.model.kills import OomKill, OomScope
from reactor.model.settings import EbpfLoader
from reactor.sources.catalogue import EBPF_OOM, OOM_COUNTERS, SourceBoard
from reactor.sources.ebpf_watch import PAGE_BYTES, opened, take_records
from reactor.threads import in_thread

_MACHINE: Final = "/"
_PATH_MAX: Final = 4096
_READ_BYTES: Final = 8

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
        found.discard(_MACHINE)
        self.cgroups = tuple(sorted(found))

    @property
    def is_machine(self) -> bool:
        return self.node == _MACHINE

    def holds(self, cgroup: str | None) -> bool:
        """Return whether a cgroup is the node or lies in it; where it is not known, whether all do."""
        if cgroup is None:
            return self.is_machine
        return self.is_machine or cgroup == self.node or CgroupTree.contains(self.node, cgroup)

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
class OomCounters:
    """Counts the kills since they were last counted, if any."""

    name = OOM_COUNTERS

    tree: CgroupTree
    node: GuardedNode
    report: Callable[[OomKill], None]
    _: KW_ONLY
    interval_seconds: float
    proc: Path = PROC

    def unavailable_because(self) -> str | None:
        """Return None: what the counters need every supported kernel has."""
        return None

    async def watch(self, armed: Callable[[str], None]) -> None:
        """Read the counters until they can't be read (OSError, KernelInterfaceError)."""
        with ExitStack() as owned:
            count: _CountV1 | _CountV2
            if self.tree.version is CgroupVersion.V2:
                count = _CountV2(self.tree, self.node, self.proc)
            else:
                count = _CountV1(self.tree, self.node, self.proc, owned)
            # A registration waits for an RCU grace period, and the walk may be long.
            await in_thread(count.begin)
            armed(f"counted every {self.interval_seconds:g} s, without victims")
            while True:
                await next_beat(self.interval_seconds)
                if count.has_new():
                    kills, scope = await in_thread(count.since)
                    if kills:
                        at_ns = time.monotonic_ns()
                        self.report(OomKill(source=self.name, scope=scope, at_ns=at_ns, kills=kills))


class _CountV2:
    def __init__(self, tree: CgroupTree, node: GuardedNode, proc: Path) -> None:
        self._tree = tree
        self._node = node
        self._proc = proc
        self._kills = 0
        self._guarded = 0
        self._limits = 0

    def begin(self) -> None:
        """Take the counters as they stand."""
        self._kills = self._kills_now()
        self._guarded, self._limits = self._limits_met()

    def has_new(self) -> bool:
        """Return whether there were any since the last time; reads one file."""
        return self._kills_now() > self._kills

    def since(self) -> tuple[int, OomScope]:
        """Return how many kills there were since the last time, and at whose limit the worst of them was."""
        kills = self._kills_now()
        new, self._kills = kills - self._kills, kills
        if new <= 0:
            return 0, OomScope.UNKNOWN
        guarded_before, limits_before = self._guarded, self._limits
        self._guarded, self._limits = self._limits_met()
        if self._guarded > guarded_before:
            return new, OomScope.NODE
        if self._limits > limits_before:
            return new, OomScope.OWN_LIMIT
        return new, OomScope.NODE if self._node.is_machine else OomScope.ABOVE_NODE

    def _kills_now(self) -> int:
        if self._node.is_machine:
            return machine_kills(self._proc)
        return subtree_kills(self._tree, self._node.node)

    def _limits_met(self) -> tuple[int, int]:
        """Return how often reclaim could not keep a limit: the guarded ones, and all in the node."""
        guarded = sum(_counted(own_limit_met, self._tree, self._node.cgroups))
        tops = (
            [f"/{name}" for name in self._tree.children("/")] if self._node.is_machine else [self._node.node]
        )
        return guarded, sum(_counted(subtree_limits_met, self._tree, tops))


class _CountV1:
    def __init__(self, tree: CgroupTree, node: GuardedNode, proc: Path, owned: ExitStack) -> None:
        self._tree = tree
        self._node = node
        self._proc = proc
        self._owned = owned
        self._guarded: list[int] = []
        self._machine = 0
        self._cgroups: dict[str, int] = {}

    def begin(self) -> None:
        for cgroup in self._node.cgroups:
            with suppress(OSError):  # a parent of pods that does not exist yet
                event_fd = register_oom(self._tree.path(cgroup))
                self._owned.callback(os.close, event_fd)
                self._guarded.append(event_fd)
        self._machine = machine_kills(self._proc)
        self._cgroups = dict(self._walk())

    def has_new(self) -> bool:
        return machine_kills(self._proc) > self._machine

    def since(self) -> tuple[int, OomScope]:
        machine = machine_kills(self._proc)
        on_machine, self._machine = machine - self._machine, machine
        if on_machine <= 0:
            return 0, OomScope.UNKNOWN
        before, self._cgroups = self._cgroups, dict(self._walk())
        struck = {
            cgroup: kills - before.get(cgroup, 0)
            for cgroup, kills in self._cgroups.items()
            if kills > before.get(cgroup, 0)
        }
        at_guarded = self._guarded_met()
        kills = on_machine if self._node.is_machine else sum(struck.values()) or int(at_guarded)
        if at_guarded:
            return kills, OomScope.NODE
        at_a_limit = bool(struck) and all(map(self._was_at_a_limit, struck))
        return kills, OomScope.OWN_LIMIT if at_a_limit else OomScope.UNKNOWN

    def _guarded_met(self) -> bool:
        met = False
        for event_fd in self._guarded:
            with suppress(BlockingIOError):
                os.read(event_fd, _READ_BYTES)
                met = True
        return met

    def _was_at_a_limit(self, cgroup: str) -> bool:
        """Return whether a victim's cgroup, or one above it in the node, was ever at its limit."""
        while cgroup not in {"/", self._node.node}:
            if cgroup not in self._node.cgroups:
                with suppress(OSError, ReactorError):
                    if limit_was_met(self._tree, cgroup):
                        return True
            cgroup = os.path.dirname(cgroup)
        return False

    def _walk(self) -> Iterator[tuple[str, int]]:
        """Yield each cgroup of the node and how many of its own processes were killed.

        A cgroup whose path is longer than a path may be is passed over, however deep: it was made to be.
        """
        try:
            node = self._tree.open(self._node.node)
        except (OSError, ReactorError):  # gone meanwhile
            return
        with node, closing(walk(node, lambda _cgroup, _error: None)) as directories:
            for directory in directories:
                if len(directory.cgroup) < _PATH_MAX:
                    with suppress(OSError, ReactorError):
                        yield directory.cgroup, own_kills(directory)


def _counted(
    count: Callable[[CgroupTree, str], int],
    tree: CgroupTree,
    cgroups: Iterator[str] | list[str] | tuple[str, ...],
) -> Iterator[int]:
    for cgroup in cgroups:
        with suppress(OSError, ReactorError):  # gone, or not there yet
            yield count(tree, cgroup)


class EbpfOom:
    """Reports every OOM kill that concerns the guarded node; `probe` watches, None if nothing does."""

    name = EBPF_OOM

    def __init__(
        self,
        tree: CgroupTree,
        node: GuardedNode,
        board: SourceBoard,
        report: Callable[[OomKill], None],
        loader: EbpfLoader = EbpfLoader.AUTO,
        *,
        open_probe: Callable[[], OomRecords] | None = None,
        absent: Callable[[], str | None] | None = None,
    ) -> None:
        self._tree = tree
        self._node = node
        self._board = board
        self._report = report
        interrupt = trio.from_thread.check_cancelled
        self._open_probe = open_probe or partial(open_oom_probe, loader, interrupt=interrupt)
        self._absent = absent or partial(absent_because, "oom", loader)
        self.probe: OomRecords | None = None
        self._root_id = 0
        self._unreported: list[OomKill] = []
        self._taken = trio.Event()

    def unavailable_because(self) -> str | None:
        """Return why this node can't have it, None where it may be tried."""
        if self._tree.version is CgroupVersion.V1:
            return "not used on cgroup v1: eBPF would take 6 MiB for this alone"
        return self._absent()

    async def watch(self, armed: Callable[[str], None]) -> None:
        """Report kills until the probe fails (OSError, BpfError)."""
        self._root_id = os.stat(self._tree.memory_root).st_ino
        async with opened(self._open_probe) as probe:
            self.probe = probe
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._keep_reporting)
                    armed("; ".join(filter(None, ("each kill, with its victim", probe.made_by))))
                    await take_records(probe, self._on_records, partial(self._board.count_lost, self.name))
            finally:
                self.probe = None

    def take_now(self, probe: OomRecords) -> Sequence[OomKill] | None:
        """Return the kills that were not reported yet; they are reported soon. None if that fails.

        For a pass that is about to choose a victim: the records lie in the memory of the `probe` that
        watches, and reading them takes no system call.
        """
        try:
            found = self._kills(probe.take())
        except (OSError, ReactorError):
            return None  # its own task meets the same, and says so
        if found:
            self._unreported += found
            self._taken.set()
        return found

    async def _keep_reporting(self) -> None:
        while True:
            await self._taken.wait()
            self._taken = trio.Event()
            while self._unreported:
                self._report(self._unreported.pop(0))

    def _on_records(self, records: Sequence[OomRecord]) -> None:
        for kill in self._kills(records):
            self._report(kill)

    def _kills(self, records: Sequence[OomRecord]) -> list[OomKill]:
        kills = (self._kill(record, self._root_id) for record in records)
        return [kill for kill in kills if kill is not None]

    def _kill(self, record: OomRecord, root_id: int) -> OomKill | None:
        """Return what a record says, None where it does not concern the guarded node."""
        at_a_limit = record.limit_cgroup is not None
        limit = record.cgroup_path(root_id, record.limit_cgroup) if at_a_limit else None
        victim = record.cgroup_path(root_id)
        scope = self._node.scope(at_a_limit=at_a_limit, limit=limit, victim=victim)
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
