"""Armed memory levels: what the loop asks to be woken at, and when a watch has to be registered again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from reactor.kernel.mem_available import Watermarks
from reactor.model.quantity import format_bytes
from reactor.model.signals import Signal
from reactor.model.thresholds import Threshold

DRIFT_BYTES: Final = 1 << 20
_DRIFT_SHARE: Final = 200  # one part in 200 is 0.5 %

FLOOR: Final = 100
BRIM: Final = 101

LevelKey = tuple[Signal, str, Threshold, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLevel:
    """The usage at which a memory threshold will be crossed: capacity - threshold + inactive file.

    `cgroup` is relative to the hierarchy's root, "/" the machine itself. `working_set_bytes` is the same
    crossing without the page cache (capacity - threshold), which holds however far the cache moves; where
    it is None only the usage is known. An early level lies `place_ahead` rungs (1: the farthest) ahead of
    the crossing: its wake is for preparing victims, and nothing is crossed there. FLOOR and BRIM are early
    levels for another reason: a level that the page cache has lifted is stale as soon as the cache is gone,
    and no event reports that. At the floor (capacity - threshold) a pass observes the level again before
    usage can have reached any lower one, and at the brim, close to the capacity, once more.

    With `watermarks` memory counts as MemAvailable: `working_set_bytes` is what that leaves of the capacity,
    `capacity_bytes`.
    """

    signal: Signal
    cgroup: str
    level_bytes: int
    threshold: Threshold
    working_set_bytes: int | None = None
    place_ahead: int = 0
    watermarks: Watermarks | None = None
    capacity_bytes: int = 0

    @property
    def is_early(self) -> bool:
        """Return whether nothing is crossed at this level yet."""
        return self.place_ahead > 0

    @property
    def key(self) -> LevelKey:
        """Return what stays the same when the level moves."""
        return (self.signal, self.cgroup, self.threshold, self.place_ahead)

    def is_past(self, *, usage_bytes: int, inactive_file_bytes: int) -> bool:
        """Return whether fresh counters are at the level; all that counts as available is `inactive_file`."""
        if self.working_set_bytes is None:
            return usage_bytes >= self.level_bytes
        return usage_bytes - inactive_file_bytes >= self.working_set_bytes


def needs_rearming(armed_bytes: int, wanted_bytes: int, *, fired: bool) -> bool:
    """Return whether a watch armed at one level no longer serves for another.

    A watch that is too low wakes early, which costs one pass: it may lag by 0.5 % (1 MiB at the least).
    Too high wakes late, so a wanted level below it is followed at 1 MiB. A watch that has fired and is too
    low is spent: usage may stand between the two, and will not cross the armed one again on its way up.
    """
    drift_bytes = wanted_bytes - armed_bytes
    if fired and drift_bytes > 0:
        return True
    if drift_bytes < 0:
        return -drift_bytes > DRIFT_BYTES
    return drift_bytes > max(DRIFT_BYTES, armed_bytes // _DRIFT_SHARE)


def describe_levels(levels: Iterable[MemoryLevel]) -> str:
    """Return the levels as one line for an operator: `/node memory.available<100Mi at 412Mi`.

    Early ones go without saying.
    """
    return ", ".join(
        f"{level.cgroup} {level.threshold} at {format_bytes(level.level_bytes)}"
        for level in levels
        if not level.is_early
    )


def with_room_for(levels: Sequence[MemoryLevel], most: int) -> list[MemoryLevel]:
    """Return at most so many of one cgroup's levels, in their order.

    Crossings go first, then the lowest floor, then what comes nearest before the first crossing.
    """
    first_bytes = min((level.level_bytes for level in levels if not level.is_early), default=0)
    floors = [level for level in levels if level.place_ahead == FLOOR]
    lowest = min(floors, key=lambda level: level.level_bytes, default=None)
    wanted = sorted(
        levels,
        key=lambda level: (level.is_early, level is not lowest, abs(first_bytes - level.level_bytes)),
    )[:most]
    return [level for level in levels if level in wanted]


def watermarks_of(levels: Iterable[MemoryLevel]) -> Watermarks | None:
    """Return by which watermarks memory counts at these levels of one cgroup, None where by none."""
    return next((level.watermarks for level in levels), None)


def levels_by_cgroup(levels: Iterable[MemoryLevel]) -> dict[str, list[MemoryLevel]]:
    """Return the levels of each cgroup, for sources that watch a cgroup once for all of them."""
    found: dict[str, list[MemoryLevel]] = {}
    for level in levels:
        found.setdefault(level.cgroup, []).append(level)
    return found
