"""The kernel's OOM kills by eBPF: a record of each, written before the victim dies; no cost when idle."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial

import trio

from reactor.errors import ReactorError
from reactor.kernel.bpf.loaders import absent_because, open_oom_probe
from reactor.kernel.bpf.records import OomRecord
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_files import CgroupVersion
from reactor.model.oom import OomKill
from reactor.model.settings import EbpfLoader
from reactor.sources.catalogue import EBPF_OOM
from reactor.sources.ebpf_probe import PAGE_BYTES, Probe, opened, take_records
from reactor.sources.oom_scope import GuardedNode
from reactor.sources.wakes import SourceBoard


class EbpfOom:
    """Tells of every OOM kill that concerns the guarded node."""

    name = EBPF_OOM

    def __init__(
        self,
        tree: CgroupTree,
        node: GuardedNode,
        board: SourceBoard,
        tell: Callable[[OomKill], None],
        loader: EbpfLoader = EbpfLoader.AUTO,
        *,
        open_probe: Callable[[], Probe[OomRecord]] | None = None,
        absent: Callable[[], str | None] | None = None,
    ) -> None:
        self._tree = tree
        self._node = node
        self._board = board
        self._tell = tell
        interrupt = trio.from_thread.check_cancelled
        self._open_probe = open_probe or partial(open_oom_probe, loader, interrupt=interrupt)
        self._absent = absent or partial(absent_because, "oom", loader)
        self._probe: Probe[OomRecord] | None = None
        self._root_id = 0
        self._untold: list[OomKill] = []
        self._taken = trio.Event()

    def unavailable_because(self) -> str | None:
        """Return why this node can't have it, None where it may be tried."""
        if self._tree.version is CgroupVersion.V1:
            return "the memory controller is on cgroup v1: eBPF would take 6 MiB for this alone"
        return self._absent()

    async def watch(self, armed: Callable[[str], None]) -> None:
        """Tell of kills until the probe fails (OSError, BpfError)."""
        self._root_id = os.stat(self._tree.memory_root).st_ino
        async with opened(self._open_probe) as probe:
            self._probe = probe
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._keep_reporting)
                    armed("; ".join(filter(None, ("each kill, with its victim", probe.made_by))))
                    await take_records(probe, self._heed, partial(self._board.count_lost, self.name))
            finally:
                self._probe = None

    def take_now(self) -> Sequence[OomKill] | None:
        """Return the kills that were not reported yet; they are reported soon. None while nothing watches.

        For a pass that is about to choose a victim: the records lie in memory, and reading them takes no
        system call.
        """
        if self._probe is None:
            return None
        try:
            found = self._kills(self._probe.take())
        except (OSError, ReactorError):
            return None  # its own task meets the same, and says so
        if found:
            self._untold += found
            self._taken.set()
        return found

    async def _keep_reporting(self) -> None:
        while True:
            await self._taken.wait()
            self._taken = trio.Event()
            while self._untold:
                self._tell(self._untold.pop(0))

    def _heed(self, records: Sequence[OomRecord]) -> None:
        for kill in self._kills(records):
            self._tell(kill)

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
