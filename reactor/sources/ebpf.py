"""Memory thresholds on cgroup v2, which has no events for them: eBPF programs at the kernel's page counters.

One watch a cgroup, with all its levels. The kernel tells of a crossing 4-250 KiB past the level, and again at
doubling distances while usage rises on; of memory being reclaimed at a limit, when usage stands still and
only the working set grows; and of the cgroup's end. The machine itself ("/") has no counter: there the
kernel's free and inactive file pages are watched, so that page cache does not move its levels at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, Protocol, Self

import trio

from reactor.errors import ReactorError
from reactor.kernel.bpf.loaders import absent_because, open_memory_probe
from reactor.kernel.bpf.records import LEVELS_PER_WATCH, Level, RecordKind, WatchRecord
from reactor.kernel.cgroup import CgroupTree, MemoryCounters
from reactor.kernel.cgroup_files import CgroupVersion
from reactor.kernel.procfs import PROC, read_meminfo
from reactor.model.settings import EbpfLoader
from reactor.model.wakes import Wake, WakeKind
from reactor.sources.attempts import failure_text
from reactor.sources.catalogue import EBPF
from reactor.sources.ebpf_probe import WatchProbe, of_probe, opened, take_records
from reactor.sources.ebpf_watch import PAGE_BYTES, EbpfWatch
from reactor.sources.levels import MemoryLevel, describe_levels, levels_by_cgroup, with_room_for
from reactor.sources.wakes import SourceBoard, Wakes

NODE: Final = "/"
# While the working set stays past the same thresholds, reclaim wakes the loop again at this distance only.
_REPEAT_SECONDS: Final = 0.1


class MemoryProbe(WatchProbe, Protocol):
    """A probe for the memory of cgroups and of the machine."""

    def prepare_node(self) -> None:
        """Make watches on the node possible."""

    def watch_node(self, watch_id: int, levels: Sequence[Level], *, capacity_pages: int) -> None:
        """Watch the node at these levels."""


def _absent_because() -> str | None:
    return absent_because("memory")


class EbpfMemory:
    """Wakes the loop when usage crosses a level upwards; a wake's time is that of the crossing itself.

    `open_probe` loads the programs; it and the probe's `counters` are called in a worker thread.
    """

    name = EBPF

    def __init__(
        self,
        tree: CgroupTree,
        wakes: Wakes,
        board: SourceBoard,
        *,
        open_probe: Callable[[], MemoryProbe] = open_memory_probe,
        absent: Callable[[], str | None] = _absent_because,
        proc: Path = PROC,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._tree = tree
        self._wakes = wakes
        self._board = board
        self._open_probe = open_probe
        self._absent = absent
        self._proc = proc
        self._clock_ns = clock_ns
        self._wanted: dict[str, list[MemoryLevel]] = {}
        self._watches: dict[str, EbpfWatch] = {}
        self._refused: dict[str, str] = {}
        self._next_id = 1
        self._moved = trio.Event()

    @classmethod
    def loaded_by(cls, loader: EbpfLoader, tree: CgroupTree, wakes: Wakes, board: SourceBoard) -> Self:
        """Return the source with the loader that the configuration names."""
        # The compiler of BCC is ended when the daemon ends, or is given another configuration.
        open_probe = partial(open_memory_probe, loader, interrupt=trio.from_thread.check_cancelled)
        return cls(
            tree, wakes, board, open_probe=open_probe, absent=partial(absent_because, "memory", loader)
        )

    def unavailable_because(self) -> str | None:
        """Return why this node can't have it, None where it may be tried."""
        if self._tree.version is CgroupVersion.V1:
            return "the memory controller is on cgroup v1, which has thresholds of its own"
        return self._absent()

    def arm(self, levels: Sequence[MemoryLevel]) -> None:
        """Watch these levels and no others. Returns at once; arming goes on behind it."""
        self._wanted = {
            cgroup: with_room_for(found, LEVELS_PER_WATCH)
            for cgroup, found in levels_by_cgroup(levels).items()
        }
        if self._is_stale():
            self._moved.set()

    async def watch(self, armed: Callable[[str], None]) -> None:
        """Watch until a cgroup or the probe fails (OSError, BpfError); call `armed` at each re-arming."""
        self._refused = {}
        async with opened(self._open_probe) as probe:
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._keep_armed, probe, armed)
                    nursery.start_soon(take_records, probe, self._heed, self._count_lost)
            finally:
                while self._watches:
                    self._watches.popitem()[1].close()

    async def _keep_armed(self, probe: MemoryProbe, armed: Callable[[str], None]) -> None:
        while True:
            self._moved = trio.Event()
            for cgroup in self._watches.keys() - self._wanted.keys():
                self._drop(probe, self._watches.pop(cgroup))
            for cgroup in tuple(self._wanted):
                if cgroup in self._wanted and not self._is_armed(cgroup):
                    await self._arm_or_refuse(probe, cgroup)
            armed(self._detail(probe.made_by))
            if not self._is_stale():
                await self._moved.wait()

    def _is_stale(self) -> bool:
        return bool(self._watches.keys() - self._wanted.keys()) or not all(map(self._is_armed, self._wanted))

    def _is_armed(self, cgroup: str) -> bool:
        if cgroup in self._refused:
            return True
        watch = self._watches.get(cgroup)
        return watch is not None and watch.serves(self._wanted[cgroup])

    async def _arm_or_refuse(self, probe: MemoryProbe, cgroup: str) -> None:
        """Arm a cgroup. What is refused for the node alone leaves the others watched."""
        try:
            watch = self._watches.get(cgroup) or await self._begin(probe, cgroup)
            self._write(probe, watch)
        except ReactorError as error:
            if cgroup != NODE or len(self._wanted) == 1:
                raise
            self._refused[cgroup] = failure_text(error)

    async def _begin(self, probe: MemoryProbe, cgroup: str) -> EbpfWatch:
        watch_id, self._next_id = self._next_id, self._next_id + 1
        if cgroup == NODE:
            await of_probe(probe, probe.prepare_node)
            watch = EbpfWatch(cgroup, watch_id, 0, None)
        else:
            directory = self._tree.path(cgroup)
            addresses = await of_probe(probe, partial(probe.counters, directory))
            if not addresses.memory:
                raise OSError(19, "the cgroup has no memory controller", str(directory))
            watch = EbpfWatch(cgroup, watch_id, addresses.memory, MemoryCounters(self._tree, cgroup))
        self._watches[cgroup] = watch
        return watch

    def _write(self, probe: MemoryProbe, watch: EbpfWatch) -> None:
        """Give the kernel the levels that are wanted by now, and look whether usage is past one already."""
        wanted = tuple(self._wanted.get(watch.cgroup, ()))
        told_before = {watch.levels[place].key for place in watch.told}
        usage_bytes = watch.usage_bytes()
        levels = watch.packed(wanted, usage_bytes)
        if watch.cgroup == NODE:
            capacity_pages = read_meminfo(self._proc).total_bytes // PAGE_BYTES
            probe.watch_node(watch.watch_id, levels, capacity_pages=capacity_pages)
        else:
            probe.watch(watch.address, watch.watch_id, levels)
            try:
                watch.usage_bytes()
            except OSError:
                # The cgroup went before the watch was made, so the kernel did not take the watch with it,
                # and its counter's memory may become another's.
                self._drop(probe, self._watches.pop(watch.cgroup))
                raise
        watch.levels = wanted
        watch.told = frozenset(place for place, level in enumerate(levels) if level.told is not None)
        for place in watch.told:
            if wanted[place].key not in told_before:
                self._notify(self._wake(wanted[place], self._clock_ns()))

    def _heed(self, records: Sequence[WatchRecord]) -> None:
        by_id = {watch.watch_id: watch for watch in self._watches.values()}
        wakes = [
            self._heed_one(watch, record)
            for record in records
            if (watch := by_id.get(record.watch_id)) is not None
        ]
        self._notify(*wakes)

    def _heed_one(self, watch: EbpfWatch, record: WatchRecord) -> Wake | None:
        if record.kind is RecordKind.RECLAIM:
            return self._look(watch, record)
        if record.kind is RecordKind.REMOVED:
            self._forget(watch)
            return self._wake(None, record.at_ns)
        if record.level < len(watch.levels):
            watch.told |= {record.level}
            return self._wake(watch.levels[record.level], record.at_ns)
        return None

    def _look(self, watch: EbpfWatch, record: WatchRecord) -> Wake | None:
        """Return a wake if the working set is at a level, though usage stands at a limit."""
        wake = None
        past: list[MemoryLevel] = []
        with suppress(OSError):  # a cgroup that is gone: its removal is told too
            past = watch.signals_past()
        now = trio.current_time()
        if past and (len(past) > watch.past or now >= watch.quiet_until):
            watch.quiet_until = now + _REPEAT_SECONDS
            wake = self._wake(past[0], record.at_ns)
        watch.past = len(past)
        return wake

    def _count_lost(self, lost: int) -> None:
        self._board.count_lost(self.name, lost)
        for watch in tuple(self._watches.values()):
            try:
                watch.usage_bytes()
            except (OSError, ReactorError):
                self._forget(watch)  # its removal may have been among them
        # Whatever else they said, it is there to be observed.
        self._notify(self._wake(None, self._clock_ns()))

    def _forget(self, watch: EbpfWatch) -> None:
        """Let go of a watch that the kernel has removed, and have its cgroup armed anew if there is one."""
        if self._watches.get(watch.cgroup) is watch:
            del self._watches[watch.cgroup]
            watch.close()
        self._moved.set()

    def _drop(self, probe: MemoryProbe, watch: EbpfWatch) -> None:
        watch.close()
        if watch.cgroup == NODE:
            probe.watch_node(watch.watch_id, [], capacity_pages=0)
        else:
            probe.unwatch(watch.address)

    def _detail(self, made_by: str) -> str:
        detail = describe_levels(level for watch in self._watches.values() for level in watch.levels)
        refused = [f"not {cgroup}: {why}" for cgroup, why in self._refused.items()]
        return "; ".join([detail or "no levels", *([made_by] if made_by else []), *refused])

    def _wake(self, level: MemoryLevel | None, at_ns: int) -> Wake:
        signal = None if level is None else level.signal
        return Wake(source=self.name, kind=WakeKind.MEMORY, at_ns=at_ns, signal=signal)

    def _notify(self, *wakes: Wake | None) -> None:
        """Wake the loop once for all of them."""
        given = [wake for wake in wakes if wake is not None]
        if given:
            self._wakes.notify(*given)
        for _ in given:
            self._board.count_wake(self.name)
