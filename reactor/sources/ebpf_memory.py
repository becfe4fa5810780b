"""Memory thresholds on cgroup v2, which has no events for them: eBPF programs at the kernel's page counters.

The kernel reports a crossing 4-250 KiB past the level, and also reclaim at a limit, when usage stands still
and only the working set grows. On the machine itself anonymous and file pages without the inactive ones are
watched, which is the working set: page cache does not move its levels at all. What wakes the loop there is
what a pass reads from /proc/meminfo (reactor/observe/memory.py).
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

import trio

from reactor.kernel.bpf.loaders import open_memory_probe
from reactor.kernel.bpf.records import LEVELS_PER_WATCH, Level, NodeCounting
from reactor.kernel.cgroup_memory import MemoryCounters
from reactor.kernel.mem_available import counters_of
from reactor.model.settings import EbpfLoader
from reactor.model.signals import Signal
from reactor.model.wakes import WakeKind
from reactor.sources.catalogue import EBPF
from reactor.sources.ebpf_watch import (
    MACHINE,
    PAGE_BYTES,
    Crossing,
    EbpfSource,
    EbpfWatch,
    WatchProbe,
    of_probe,
)
from reactor.sources.levels import (
    DRIFT_BYTES,
    MemoryLevel,
    describe_levels,
    levels_by_cgroup,
    needs_rearming,
    watermarks_of,
    with_room_for,
)

# While the working set stays past the same thresholds, reclaim wakes the loop again at this distance only.
_REPEAT_SECONDS: Final = 0.1
_STEP_PAGES: Final = DRIFT_BYTES // PAGE_BYTES
_ONCE_PAGES: Final = 1 << 48  # an early level is reported once on the way up
# A level fires again once usage was this far below it: charges come in batches of up to 2 MiB.
_REARM_BYTES: Final = 2 << 20
_REARM_SHARE: Final = 200

_Levels = Sequence[MemoryLevel]


class MemoryProbe(WatchProbe, Protocol):
    """A probe for the memory of cgroups and of the machine."""

    def prepare_node(self, *, mem_available: bool = False) -> None:
        """Make watches on the node possible, by its working set or as MemAvailable counts."""

    def watch_node(
        self, watch_id: int, levels: Sequence[Level], counting: NodeCounting | None = None
    ) -> None:
        """Watch the node at these levels, by its working set or as MemAvailable counts."""


class _MemoryWatch(EbpfWatch[_Levels]):
    """Watches a cgroup by its counters, the machine without any."""

    def __init__(self, cgroup: str, watch_id: int, address: int, counters: MemoryCounters | None) -> None:
        super().__init__(cgroup, watch_id, address)
        self._counters = counters
        self._past = 0
        self._quiet_until = float("-inf")

    def serves(self, armed: _Levels, wanted: _Levels) -> bool:
        if _counting(armed) != _counting(wanted):
            return False
        return [level.key for level in armed] == [level.key for level in wanted] and not any(
            needs_rearming(self._fire_bytes(before), self._fire_bytes(level), fired=place in self.reported)
            for place, (before, level) in enumerate(zip(armed, wanted, strict=True))
        )

    def pack(self, wanted: _Levels) -> list[Crossing]:
        usage_bytes = 0 if self._counters is None else self._counters.usage_bytes()
        return [
            Crossing(level=self._kernel_level(level, usage_bytes), key=level.key, signal=level.signal)
            for level in wanted
        ]

    def check(self) -> None:
        if self._counters is not None:
            self._counters.usage_bytes()

    def crossed_by_reclaim(self) -> Signal | None:
        """Return the signal of a level that the working set is at, though usage stands at a limit."""
        past: list[MemoryLevel] = []
        with suppress(OSError):  # a cgroup that is gone: its removal is reported too
            past = self._levels_past()
        now = trio.current_time()
        is_new = bool(past) and (len(past) > self._past or now >= self._quiet_until)
        self._past = len(past)
        if not is_new:
            return None
        self._quiet_until = now + _REPEAT_SECONDS
        return past[0].signal

    def close(self) -> None:
        if self._counters is not None:
            self._counters.close()

    def _kernel_level(self, level: MemoryLevel, usage_bytes: int) -> Level:
        """Return a level in pages. Compared is `available < threshold`: one page past it is the first."""
        fire_bytes = self._fire_bytes(level)
        fire, usage = fire_bytes // PAGE_BYTES + 1, usage_bytes // PAGE_BYTES
        rearm_bytes = max(_REARM_BYTES, fire_bytes // _REARM_SHARE)
        return Level(
            fire=fire,
            rearm=max(0, fire - rearm_bytes // PAGE_BYTES),
            step=_ONCE_PAGES if level.is_early else _STEP_PAGES,
            reported=usage if usage >= fire else None,
        )

    def _fire_bytes(self, level: MemoryLevel) -> int:
        """Return the value at which a level fires: usage, or for the machine the working set."""
        if self._counters is None and level.working_set_bytes is not None:
            return level.working_set_bytes
        return level.level_bytes

    def _levels_past(self) -> list[MemoryLevel]:
        if self._counters is None:
            return []
        usage_bytes, inactive_bytes = self._counters.usage_bytes(), self._counters.available_cache_bytes()
        return [
            level
            for level in self.wanted or ()
            if not level.is_early
            and level.is_past(usage_bytes=usage_bytes, inactive_file_bytes=inactive_bytes)
        ]


class EbpfMemory(EbpfSource[MemoryProbe, _Levels]):
    """Wakes the loop when usage crosses a level upwards."""

    name = EBPF
    kind = WakeKind.MEMORY
    bpf_object = "memory"
    on_v1 = "the memory controller is on cgroup v1, which has thresholds of its own"
    without_levels = "no levels"

    def arm(self, levels: Sequence[MemoryLevel]) -> None:
        """Watch these levels and no others. Returns at once; arming goes on behind it."""
        by_cgroup = levels_by_cgroup(levels)
        self._want({cgroup: with_room_for(found, LEVELS_PER_WATCH) for cgroup, found in by_cgroup.items()})

    @staticmethod
    def _load(loader: EbpfLoader) -> MemoryProbe:
        # The compiler of BCC is killed when the daemon ends or is reloaded.
        return open_memory_probe(loader, interrupt=trio.from_thread.check_cancelled)

    async def _begin(self, probe: MemoryProbe, cgroup: str, watch_id: int) -> _MemoryWatch:
        if cgroup == MACHINE:
            counting = _counting(self._wanted.get(MACHINE, ()))
            await of_probe(probe, partial(probe.prepare_node, mem_available=counting is not None))
            return _MemoryWatch(cgroup, watch_id, 0, None)
        directory = self._tree.path(cgroup)
        addresses = await of_probe(probe, partial(probe.counters, directory))
        if not addresses.memory:
            raise OSError(errno.ENODEV, "the cgroup has no memory controller", str(directory))
        counters = counters_of(self._tree, cgroup, watermarks_of(self._wanted.get(cgroup, ())))
        return _MemoryWatch(cgroup, watch_id, addresses.memory, counters)

    def _watch_machine(self, probe: MemoryProbe, watch_id: int, levels: Sequence[Level]) -> None:
        probe.watch_node(watch_id, levels, _counting(self._wanted.get(MACHINE, ())) if levels else None)

    def _described(self, watches: Sequence[EbpfWatch[_Levels]]) -> str:
        return describe_levels(level for watch in watches for level in watch.wanted or ())


def _counting(levels: _Levels) -> NodeCounting | None:
    """Return how the machine's memory counts at these levels, None where by the working set."""
    watermarks = watermarks_of(levels)
    if watermarks is None:
        return None
    return NodeCounting(
        total=levels[0].capacity_bytes // PAGE_BYTES,
        reserved=watermarks.reserved_bytes // PAGE_BYTES,
        low=watermarks.low_bytes // PAGE_BYTES,
    )
