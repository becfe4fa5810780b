"""Memory levels: which usage the loop is to be woken at, and when a watch has to be registered again."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import ClassVar, Final, TypeVar

import trio

from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree, CgroupVersion
from reactor.kernel.cgroup_memory import MemoryCounters
from reactor.kernel.files import LastingFile, parse_integer
from reactor.kernel.mem_available import Watermarks
from reactor.model.quantity import format_bytes
from reactor.model.settings import Settings
from reactor.model.signals import MEMORY_SIGNALS, Signal
from reactor.model.thresholds import Observation, Threshold
from reactor.model.wakes import WakeKind
from reactor.policy.forecast import ahead_bytes
from reactor.sources.catalogue import BY_NAME
from reactor.sources.chain import Chain, Step
from reactor.sources.wakes import Wakes

DRIFT_BYTES: Final = 1 << 20
_DRIFT_SHARE: Final = 200  # one part in 200 is 0.5 %

# While the working set stays past the same thresholds, reclaim wakes the loop again at this distance only.
RECLAIM_SECONDS: Final = 0.1, 0.1
_Met = TypeVar("_Met", bound=Hashable)

FLOOR: Final = 100
BRIM: Final = 101

LevelKey = tuple[Signal, str, Threshold, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLevel:
    """The usage past which a memory threshold is crossed: capacity - threshold + inactive file.

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
        """Return whether fresh counters are past it; all that counts as available is `inactive_file`."""
        if self.working_set_bytes is None:
            return usage_bytes > self.level_bytes
        return usage_bytes - inactive_file_bytes > self.working_set_bytes


MemoryChain = Chain[Sequence[MemoryLevel]]


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


class News:
    """Which of what is met is worth a wake: what was not `met` before, or after a while all of it.

    That takes twice as long each time, up to the longest.
    """

    def __init__(self, first_seconds: float, longest_seconds: float) -> None:
        self.met: AbstractSet[Hashable] = frozenset()
        self._first_seconds, self._longest_seconds = first_seconds, longest_seconds
        self._again_at = self._again_seconds = 0.0

    def of(self, met: Collection[_Met]) -> list[_Met]:
        """Return what is worth a wake of what is met now."""
        now = trio.current_time()
        news = [one for one in met if one not in self.met]
        if news:
            self._again_seconds = self._first_seconds
        elif now >= self._again_at:
            news = list(met)
            self._again_seconds = min(2 * self._again_seconds, self._longest_seconds)
        if news:
            self._again_at = now + self._again_seconds
        self.met = set(met)
        return news


def signal_past(levels: Iterable[MemoryLevel], counters: MemoryCounters, news: News) -> Signal | None:
    """Return the signal of a level that the working set is newly at, but early ones, though usage stands.

    Raises OSError if the cgroup is gone.
    """
    usage_bytes, cache_bytes = counters.usage_bytes(), counters.available_cache_bytes()
    past = [
        one.key
        for one in levels
        if not one.is_early and one.is_past(usage_bytes=usage_bytes, inactive_file_bytes=cache_bytes)
    ]
    return next((signal for signal, *_ in news.of(past)), None)


class MemoryStep(Step[Sequence[MemoryLevel]]):
    """A source that wakes the loop for levels of memory."""

    lacking: ClassVar[str]  # what the other version of cgroups has not

    def __init__(self, tree: CgroupTree, wakes: Wakes) -> None:
        self._tree = tree
        self._wakes = wakes

    def unavailable_because(self) -> str | None:
        """Return why this node can't have it, None where it can be tried."""
        if self._tree.version is BY_NAME[self.name].version:
            return None
        return f"the memory controller is on cgroup {self._tree.version}, which has no {self.lacking}"

    def _wake(self, *levels: MemoryLevel) -> None:
        self._wakes.wake(self.name, WakeKind.MEMORY, *(level.signal for level in levels))


class CgroupsStep(MemoryStep):
    """One that begins anew when its levels are those of other cgroups."""

    def __init__(self, tree: CgroupTree, wakes: Wakes) -> None:
        super().__init__(tree, wakes)
        self._levels: dict[str, list[MemoryLevel]] = {}
        self._other_cgroups = trio.Event()

    def arm(self, levels: Sequence[MemoryLevel]) -> None:
        """Watch these levels and no others, but early ones. Returns at once."""
        before = self._levels.keys()
        self._levels = levels_by_cgroup(level for level in levels if not level.is_early)
        if before != self._levels.keys():
            self._other_cgroups.set()

    async def watch(self, armed: Callable[[str], None]) -> None:
        """Watch until a cgroup or the interface fails (OSError)."""
        while True:
            self._other_cgroups = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch_cgroups, armed)
                await self._other_cgroups.wait()
                nursery.cancel_scope.cancel()

    @abstractmethod
    async def _watch_cgroups(self, armed: Callable[[str], None]) -> None:
        """Watch the cgroups of these levels."""


def watermarks_of(levels: Iterable[MemoryLevel]) -> Watermarks | None:
    return next((level.watermarks for level in levels), None)


def levels_by_cgroup(levels: Iterable[MemoryLevel]) -> dict[str, list[MemoryLevel]]:
    """Return the levels of each cgroup, for sources that watch a cgroup once for all of them."""
    found: dict[str, list[MemoryLevel]] = {}
    for level in levels:
        found.setdefault(level.cgroup, []).append(level)
    return found


class MemoryLevels:
    """Turns memory thresholds into levels: the node's on the node's cgroup, allocatable ones on the pods'.

    `watermarks` returns the machine's where memory counts as MemAvailable.

    Where pods live below several parents no one counter holds their sum. Each parent is then given all that
    is left of the whole as its own: whichever takes it first wakes the loop, which is early, never late.
    """

    def __init__(
        self,
        tree: CgroupTree,
        settings: Settings,
        watermarks: Callable[[], Watermarks | None] = lambda: None,
    ) -> None:
        self._tree = tree
        self._watermarks = watermarks
        self._thresholds = [
            threshold for threshold in settings.eviction.thresholds if threshold.signal in MEMORY_SIGNALS
        ]
        self._within = settings.time_left_within
        self._node = settings.node_cgroup or "/"
        self._parents = settings.measured_parents
        self._usages: dict[str, LastingFile] = {}

    def of(self, memory: Mapping[Signal, Observation]) -> list[MemoryLevel]:
        """Return the levels for the memory signals as observed; a signal that is unknown has none.

        The usages of hard ones are open from then on: a crossing that is imminent has no time for it.
        """
        levels = [
            level
            for threshold in self._thresholds
            if (seen := memory.get(threshold.signal)) is not None and seen.absurdity is None
            for level in self._levels_of(threshold, seen)
        ]
        crossings = (level for level in levels if level.threshold.is_hard and not level.is_early)
        for cgroup in {level.cgroup for level in crossings} - {"/"}:
            self.usage_bytes(cgroup)
        return levels

    def close(self) -> None:
        """Close every descriptor."""
        while self._usages:
            self._usages.popitem()[1].close()

    def _levels_of(self, threshold: Threshold, seen: Observation) -> Iterator[MemoryLevel]:
        """Yield the crossing, and where victims are prepared for a hard threshold, and a configured one.

        At last where a level that the page cache has lifted is to be observed again; see MemoryLevel.
        """
        crossing_bytes = _crossing_bytes(threshold, seen)
        if crossing_bytes is None:
            return
        places = tuple(self._places(threshold.signal, seen))
        working_set_bytes = seen.capacity - int(threshold.value.of(seen.capacity))

        def placed(usage_bytes: int, ahead: int, place: int) -> Iterator[MemoryLevel]:
            """Yield a usage of the node, or of all pods, as a level on each cgroup to be watched for it."""
            for cgroup, shift_bytes in places:
                # What is watched by its working set no page cache lifts.
                if place >= FLOOR and cgroup == "/" and self._tree.version is CgroupVersion.V2:
                    continue
                yield MemoryLevel(
                    signal=threshold.signal,
                    cgroup=cgroup,
                    level_bytes=max(0, usage_bytes - shift_bytes),
                    threshold=threshold,
                    working_set_bytes=None
                    if place >= FLOOR or shift_bytes
                    else max(0, working_set_bytes - ahead),
                    place_ahead=place,
                    watermarks=self._watermarks(),
                    capacity_bytes=seen.capacity,
                )

        yield from placed(crossing_bytes, 0, 0)
        if not threshold.is_hard:
            return
        within = () if self._within is None else (int(self._within.of(seen.capacity)),)
        for place, ahead in enumerate((*ahead_bytes(seen.capacity), *within), start=1):
            yield from placed(crossing_bytes - ahead, ahead, place)
        for place, rung_bytes in ((FLOOR, working_set_bytes), (BRIM, _brim_bytes(threshold, seen))):
            if crossing_bytes - rung_bytes > DRIFT_BYTES:
                yield from placed(rung_bytes, 0, place)

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
        name = "memory.current" if self._tree.version is CgroupVersion.V2 else "memory.usage_in_bytes"
        try:
            if cgroup not in self._usages:
                self._usages[cgroup] = LastingFile(self._tree.path(cgroup) / name)
            return parse_integer(self._usages[cgroup].read(), name)
        except (OSError, ReactorError):
            return None  # not there (yet)


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


def memory_level(threshold: Threshold, observation: Observation) -> int | None:
    """Return the usage in bytes at which a memory threshold is crossed.

    None where it can't be known, or where the threshold is absurd at this capacity.

    Usage at the crossing is capacity - threshold + inactive file, since what is compared is the working
    set (usage - inactive file). Source: memory_threshold_notifier.go, UpdateThreshold.
    """
    if observation.inactive_file_bytes is None or threshold.is_absurd_at(observation.capacity):
        return None
    wanted = int(threshold.value.of(observation.capacity))
    return observation.capacity - wanted + observation.inactive_file_bytes
