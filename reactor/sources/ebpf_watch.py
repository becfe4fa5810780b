"""One eBPF watch as the memory source keeps it: what is armed, what was told, and whether it still serves."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Final

from reactor.kernel.bpf.records import Level
from reactor.kernel.cgroup import MemoryCounters
from reactor.sources.levels import DRIFT_BYTES, MemoryLevel, needs_rearming

PAGE_BYTES: Final = os.sysconf("SC_PAGESIZE")
_STEP_PAGES: Final = DRIFT_BYTES // PAGE_BYTES
_ONCE_PAGES: Final = 1 << 48  # an early level is told of once on the way up
# A level fires anew once usage was this far below it: charges come in batches of up to 2 MiB.
_REARM_BYTES: Final = 2 << 20
_REARM_SHARE: Final = 200


class EbpfWatch:
    """One cgroup's watch in the kernel, or the node's (address 0, no counters of its own)."""

    def __init__(self, cgroup: str, watch_id: int, address: int, counters: MemoryCounters | None) -> None:
        self.cgroup = cgroup
        self.watch_id = watch_id
        self.address = address
        self.levels: tuple[MemoryLevel, ...] = ()
        self.told: frozenset[int] = frozenset()
        self.past = 0
        self.quiet_until = float("-inf")
        self._counters = counters

    def fire_bytes(self, level: MemoryLevel) -> int:
        """Return the value at which a level fires: usage, or for the node the working set."""
        if self._counters is None and level.working_set_bytes is not None:
            return level.working_set_bytes
        return level.level_bytes

    def usage_bytes(self) -> int | None:
        """Return the cgroup's usage, None for the node. Raises OSError, ENODEV once the cgroup is gone."""
        return None if self._counters is None else self._counters.usage_bytes()

    def serves(self, wanted: Sequence[MemoryLevel]) -> bool:
        """Return whether what is armed will do for these levels."""
        return [level.key for level in self.levels] == [level.key for level in wanted] and not any(
            needs_rearming(self.fire_bytes(armed), self.fire_bytes(level), fired=place in self.told)
            for place, (armed, level) in enumerate(zip(self.levels, wanted, strict=True))
        )

    def packed(self, wanted: Iterable[MemoryLevel], usage_bytes: int | None) -> list[Level]:
        """Return the levels as the kernel wants them; what is past already has been told."""
        return [
            _kernel_level(self.fire_bytes(level), usage_bytes, _ONCE_PAGES if level.is_early else _STEP_PAGES)
            for level in wanted
        ]

    def signals_past(self) -> list[MemoryLevel]:
        """Return the levels that the working set, read anew, is at."""
        if self._counters is None:
            return []
        usage_bytes, inactive_bytes = self._counters.usage_bytes(), self._counters.inactive_file_bytes()
        return [
            level
            for level in self.levels
            if not level.is_early
            and level.is_past(usage_bytes=usage_bytes, inactive_file_bytes=inactive_bytes)
        ]

    def close(self) -> None:
        """Close the counters."""
        if self._counters is not None:
            self._counters.close()


def _kernel_level(fire_bytes: int, usage_bytes: int | None, step_pages: int) -> Level:
    """Return a level in pages. What is compared is `available < threshold`: one page past it is the first."""
    fire = fire_bytes // PAGE_BYTES + 1
    usage = 0 if usage_bytes is None else usage_bytes // PAGE_BYTES
    rearm_bytes = max(_REARM_BYTES, fire_bytes // _REARM_SHARE)
    return Level(
        fire=fire,
        rearm=max(0, fire - rearm_bytes // PAGE_BYTES),
        step=step_pages,
        told=usage if usage >= fire else None,
    )
