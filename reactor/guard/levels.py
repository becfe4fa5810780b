"""Which usage the kernel is to wake the loop at, for each memory threshold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree, CgroupVersion, MemoryCounters
from reactor.kernel.mem_available import Watermarks
from reactor.model.settings import Settings
from reactor.model.signals import MEMORY_SIGNALS, Signal
from reactor.model.thresholds import Observation, Threshold
from reactor.policy import memory_level
from reactor.policy.forecast import ahead_bytes
from reactor.sources.levels import BRIM, DRIFT_BYTES, FLOOR, MemoryLevel
from reactor.sources.processes import ProcessLevels


class Counted(Protocol):
    """Says how memory counts."""

    @property
    def watermarks(self) -> Watermarks | None:
        """The machine's, where memory counts as MemAvailable; None where it does not."""


class MemoryLevels:
    """Turns memory thresholds into levels: the node's on the node's cgroup, allocatable ones on the pods'.

    Where pods live below several parents no one counter holds their sum. Each parent is then given all that
    is left of the whole as its own: whichever takes it first wakes the loop, which is early, never late.
    """

    def __init__(
        self,
        tree: CgroupTree,
        settings: Settings,
        node: Counted | None = None,
    ) -> None:
        self._tree = tree
        self._node_counted = node
        self._thresholds = [
            threshold for threshold in settings.eviction.thresholds if threshold.signal in MEMORY_SIGNALS
        ]
        self._node = settings.node_cgroup or "/"
        parents = settings.measured_parents
        self._parents = tuple(
            parent
            for parent in dict.fromkeys(parents)
            if not any(tree.contains(other, parent) for other in parents)
        )
        self._counters: dict[str, MemoryCounters] = {}

    def of(self, memory: Mapping[Signal, Observation]) -> list[MemoryLevel]:
        """Return the levels for the memory signals as observed; a signal that is unknown has none.

        The counters of hard ones are open from then on: a crossing that is imminent has no time for it.
        """
        levels = [
            level
            for threshold in self._thresholds
            if (seen := memory.get(threshold.signal)) is not None and seen.absurdity is None
            for level in (
                *self._levels(threshold, seen),
                *self._early(threshold, seen),
                *self._rungs(threshold, seen),
            )
        ]
        crossings = (level for level in levels if level.threshold.is_hard and not level.is_early)
        for cgroup in {level.cgroup for level in crossings} - {"/"}:
            with suppress(OSError, ReactorError):
                self._opened(cgroup)
        return levels

    def close(self) -> None:
        """Close every descriptor."""
        while self._counters:
            self._counters.popitem()[1].close()

    def _levels(self, threshold: Threshold, seen: Observation) -> Iterator[MemoryLevel]:
        level_bytes = _crossing_bytes(threshold, seen)
        if level_bytes is not None:
            yield from self._placed(threshold, seen, level_bytes)

    def _placed(self, threshold: Threshold, seen: Observation, level_bytes: int) -> Iterator[MemoryLevel]:
        """Yield a usage of the node, or of all pods, as a level on each cgroup to be watched for it."""
        working_set_bytes = seen.capacity - int(threshold.value.of(seen.capacity))
        for cgroup, shift_bytes in self._places(threshold.signal, seen):
            yield MemoryLevel(
                signal=threshold.signal,
                cgroup=cgroup,
                level_bytes=max(0, level_bytes - shift_bytes),
                threshold=threshold,
                working_set_bytes=working_set_bytes if shift_bytes == 0 else None,
                watermarks=None if self._node_counted is None else self._node_counted.watermarks,
                capacity_bytes=seen.capacity,
            )

    def _early(self, threshold: Threshold, seen: Observation) -> Iterator[MemoryLevel]:
        """Yield the levels at which victims are prepared for a hard threshold."""
        if not threshold.is_hard:
            return
        for place, distance_bytes in enumerate(ahead_bytes(seen.capacity), start=1):
            for level in self._levels(threshold, seen):
                working_set_bytes = level.working_set_bytes
                yield replace(
                    level,
                    level_bytes=max(0, level.level_bytes - distance_bytes),
                    working_set_bytes=None
                    if working_set_bytes is None
                    else max(0, working_set_bytes - distance_bytes),
                    place_ahead=place,
                )

    def _rungs(self, threshold: Threshold, seen: Observation) -> Iterator[MemoryLevel]:
        """Yield where a level that the page cache has lifted is to be observed again; see MemoryLevel."""
        crossing_bytes = _crossing_bytes(threshold, seen)
        if crossing_bytes is None or not threshold.is_hard:
            return
        floor_bytes = seen.capacity - int(threshold.value.of(seen.capacity))
        for place, rung_bytes in ((FLOOR, floor_bytes), (BRIM, _brim_bytes(threshold, seen))):
            if crossing_bytes - rung_bytes <= DRIFT_BYTES:
                continue
            for level in self._placed(threshold, seen, rung_bytes):
                # What is watched by its working set no page cache lifts.
                if level.cgroup != "/" or self._tree.version is CgroupVersion.V1:
                    yield replace(level, working_set_bytes=None, place_ahead=place)

    def _places(self, signal: Signal, seen: Observation) -> Iterator[tuple[str, int]]:
        """Yield each cgroup to watch for a signal, and how much of the usage lies elsewhere, in bytes."""
        if signal is Signal.MEMORY_AVAILABLE:
            yield self._node, 0
        elif len(self._parents) == 1:
            yield self._parents[0], 0
        else:
            used_bytes = seen.capacity - seen.available + (seen.inactive_file_bytes or 0)
            for parent in self._parents:
                own_bytes = self.usage_bytes(parent)
                if own_bytes is not None:
                    yield parent, max(0, used_bytes - own_bytes)

    def usage_bytes(self, cgroup: str) -> int | None:
        """Return a cgroup's usage by a descriptor held open, None where it has none."""
        try:
            return self._opened(cgroup).usage_bytes()
        except (OSError, ReactorError):
            # Not there (yet), or recreated: opened again at the next pass.
            gone = self._counters.pop(cgroup, None)
            if gone is not None:
                gone.close()
            return None

    def _opened(self, cgroup: str) -> MemoryCounters:
        """Return a cgroup's counters, opened where they are not yet. Raises OSError, RefusedError."""
        if cgroup not in self._counters:
            self._counters[cgroup] = MemoryCounters(self._tree, cgroup)
        return self._counters[cgroup]


def _crossing_bytes(threshold: Threshold, seen: Observation) -> int | None:
    """Return the usage at which a threshold is crossed, None where that can't be known.

    Where there is so much page cache that usage would have to pass the capacity it is what usage can reach.
    Should the cache go, the level still wakes the loop while there is memory left.
    """
    level_bytes = memory_level(threshold, seen)
    if level_bytes is None or level_bytes < seen.capacity - DRIFT_BYTES:
        return level_bytes
    return _brim_bytes(threshold, seen)


def _brim_bytes(threshold: Threshold, seen: Observation) -> int:
    """Return the usage, close to the capacity, at which there is still time for an eviction."""
    wanted_bytes = int(threshold.value.of(seen.capacity))
    return seen.capacity - min(wanted_bytes // 2, ahead_bytes(seen.capacity)[0])


def process_levels(
    seen: Observation | None, thresholds: Iterable[Threshold], cgroup: str
) -> ProcessLevels | None:
    """Return where a number of tasks crosses the thresholds on pid.available; None where it is not known.

    `cgroup` is whose tasks were counted.
    """
    if seen is None or seen.absurdity is not None:
        return None
    return ProcessLevels(
        cgroup=cgroup,
        limit=seen.capacity,
        used=seen.capacity - seen.available,
        thresholds=tuple(
            one
            for one in thresholds
            if one.signal is Signal.PID_AVAILABLE and not one.is_absurd_at(seen.capacity)
        ),
    )
