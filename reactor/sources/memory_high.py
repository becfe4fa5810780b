"""Memory thresholds on cgroup v2 without eBPF: memory.high at the next level, and its events.

Past memory.high the cgroup reclaims and is throttled, so page cache must not be held at it:
reads would be 4 times slower (measured). At an event the fresh working set shows which of the two has grown.
At a hard threshold it stays for a second at the most, while the loop kills a pod; for page cache and
for soft thresholds it is restored at once. Then the counters are read until usage is calm, and memory.high is
set to the next level. The operator's own value is restored at the end (`kernel.memory_control`).

The kernel reports no event if usage has met a level before the write of memory.high is done, and a pass may
observe usage in a dip below a level that holds it. So usage is read after each write, and while a level stays
met the loop is woken again.

systemd writes its own memory.high whenever it realizes a cgroup again: after a daemon-reload, with the next
unit that starts in the slice. So the file itself is watched as well, and the level set again.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Final

import trio

from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_memory import MemoryCounters
from reactor.kernel.directories import watch_modifications
from reactor.kernel.files import OwnedDescriptor, drain
from reactor.kernel.mem_available import counters_of
from reactor.kernel.memory_control import BorrowedHigh, BorrowedHighs
from reactor.model.quantity import format_bytes
from reactor.sources.catalogue import MEMORY_HIGH, NO_LEVELS
from reactor.sources.levels import (
    DRIFT_BYTES,
    CgroupsStep,
    MemoryLevel,
    News,
    needs_rearming,
    watermarks_of,
)
from reactor.sources.wakes import Wakes
from reactor.threads import in_thread

THROTTLED_SECONDS: Final = 1.0
CALM_SECONDS: Final = 1.0
LOOK_SECONDS: Final = 0.02
# After how long the loop is woken again for levels that stay met: twice as long each time.
_AGAIN_SECONDS: Final = 1.0
_AGAIN_AT_MOST_SECONDS: Final = 10.0
# How often another writer of memory.high is answered.
_ANSWER_SECONDS: Final = 0.1
# memory.high holds usage at the level, not past it, and the counters lag by the kernel's batches.
_SLACK_BYTES: Final = 1 << 20


class MemoryHigh(CgroupsStep):
    """Wakes the loop when a cgroup's usage meets its memory.high and the working set is at a threshold."""

    name = MEMORY_HIGH
    lacking = "memory.high"

    def __init__(self, tree: CgroupTree, wakes: Wakes, highs: BorrowedHighs) -> None:
        super().__init__(tree, wakes)
        self._highs = highs
        self._guards: dict[str, _Guard] = {}

    def arm(self, levels: Sequence[MemoryLevel]) -> None:
        """Watch these levels and no others, but early ones. Returns at once."""
        super().arm(levels)
        for cgroup, guard in self._guards.items():
            guard.arm(self._levels.get(cgroup, []))

    async def _watch_cgroups(self, armed: Callable[[str], None]) -> None:
        """Watch them; always restores memory.high."""
        self._guards = self._new_guards(armed)
        try:
            async with trio.open_nursery() as nursery:
                for guard in self._guards.values():
                    nursery.start_soon(guard.run)
        finally:
            self._guards = {}

    def _new_guards(self, armed: Callable[[str], None]) -> dict[str, _Guard]:
        details: dict[str, str] = {}

        def report(cgroup: str, detail: str) -> None:
            details[cgroup] = f"{cgroup} {detail}"
            armed("; ".join(details.values()))

        if not self._levels:
            armed(NO_LEVELS)
        guarded = {cgroup: levels for cgroup, levels in self._levels.items() if cgroup != "/"}
        if self._levels and not guarded:
            raise OSError(
                errno.EOPNOTSUPP, "the root cgroup has no memory.high (name a nodeCgroup below it)", "/"
            )
        return {
            cgroup: _Guard(
                self._tree,
                cgroup,
                self._highs.of(self._tree.path(cgroup)),
                levels,
                self._wake,
                partial(report, cgroup),
            )
            for cgroup, levels in guarded.items()
        }


@dataclass(eq=False)
class _Guard:
    """One cgroup, its memory.high and its levels."""

    tree: CgroupTree
    cgroup: str
    high: BorrowedHigh
    levels: list[MemoryLevel]
    wake: Callable[[MemoryLevel], None]
    armed: Callable[[str], None]

    def __post_init__(self) -> None:
        self._directory = self.tree.path(self.cgroup)
        self._standing: MemoryLevel | None = None
        self._news = News(_AGAIN_SECONDS, _AGAIN_AT_MOST_SECONDS)
        self._moved = trio.Event()

    def arm(self, levels: list[MemoryLevel]) -> None:
        self.levels = levels
        standing = self._standing
        wanted = next((level for level in levels if standing and level.key == standing.key), None)
        if (
            standing is None
            or wanted is None
            or needs_rearming(standing.level_bytes, wanted.level_bytes, fired=False)
        ):
            self._moved.set()

    async def run(self) -> None:
        """Guard until cancelled, or until the cgroup fails (OSError)."""
        with (
            closing(counters_of(self.tree, self.cgroup, watermarks_of(self.levels))) as counters,
            # memory.events also counts those of pods: one past its own memory.high (MemoryQoS) has many.
            OwnedDescriptor(watch_modifications(self._directory / "memory.events.local")) as events,
            OwnedDescriptor(watch_modifications(self.high.path)) as writes,
        ):
            try:
                await in_thread(self.high.restore)  # what a killed daemon left
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._answer_writes, writes.fileno())
                    while True:
                        if await self._set_next(counters) or await self._wait_for_event(events.fileno()):
                            await self._observe_until_calm(counters)
            finally:
                with trio.CancelScope(shield=True):
                    await self._release()

    async def _answer_writes(self, writes_fd: int) -> None:
        """Have the level set again when another process has written memory.high."""
        while True:
            await trio.lowlevel.wait_readable(writes_fd)
            drain(writes_fd)
            if self._standing is not None and not self.high.stands():
                self._moved.set()
            await trio.sleep(_ANSWER_SECONDS)

    async def _set_next(self, counters: MemoryCounters) -> bool:
        """Set memory.high to the lowest level that usage has not met yet; return whether it has by now."""
        self._moved = trio.Event()
        self._note_past(counters)
        usage_bytes = counters.usage_bytes() + _SLACK_BYTES
        ahead = [level for level in self.levels if level.level_bytes > usage_bytes]
        following = min(ahead, key=lambda level: level.level_bytes, default=None)
        if following is None:
            await self._release()
            self.armed("is past its levels")
            return False
        # Assigned first: even if the write is cancelled or fails halfway, it is restored.
        self._standing = following
        if await in_thread(self.high.set, following.level_bytes):
            self.armed(f"{following.threshold} at {format_bytes(following.level_bytes)}")
        else:
            self.armed("has a lower memory.high already")
        # Whatever was charged before the value counted, or was reclaimed by the write itself, is no event.
        return counters.usage_bytes() + _SLACK_BYTES >= following.level_bytes

    async def _wait_for_event(self, events_fd: int) -> bool:
        """Wait until an event is counted, and return True, or until the next level is to be set again."""
        with trio.move_on_after(CALM_SECONDS if self._news.met or not self._standing else float("inf")):
            async with trio.open_nursery() as nursery:

                async def until_moved() -> None:
                    await self._moved.wait()
                    nursery.cancel_scope.cancel()

                nursery.start_soon(until_moved)
                await trio.lowlevel.wait_readable(events_fd)
                nursery.cancel_scope.cancel()
        return drain(events_fd)

    async def _observe_until_calm(self, counters: MemoryCounters) -> None:
        """Observe until usage stands still, throttled only at a hard threshold, and not for long."""
        began = calm_since = trio.current_time()
        usage_before = counters.usage_bytes()
        while True:
            hard_is_past = self._note_past(counters)
            now = trio.current_time()
            if not hard_is_past or now - began > THROTTLED_SECONDS:
                await self._release()
            usage_bytes = counters.usage_bytes()
            if abs(usage_bytes - usage_before) > DRIFT_BYTES:
                usage_before, calm_since = usage_bytes, now
            if self._standing is None and (now - calm_since > CALM_SECONDS):
                return
            await trio.sleep(LOOK_SECONDS)

    def _note_past(self, counters: MemoryCounters) -> bool:
        """Wake the loop for levels that are met and were not, again once they are passed, and while they are.

        Where usage is held at a level the pass may find it a page short, and evict no pod; it goes on once
        memory.high is restored. Returns whether a hard level is met.
        """
        usage_bytes, inactive_file_bytes = counters.usage_bytes(), counters.available_cache_bytes()
        met = {
            (level.key, slack_bytes): level
            for level in self.levels
            for slack_bytes in (_SLACK_BYTES, 0)
            if level.is_past(usage_bytes=usage_bytes + slack_bytes, inactive_file_bytes=inactive_file_bytes)
        }
        for noted in self._news.of(met):
            self.wake(met[noted])
        return any(level.threshold.is_hard for level in met.values())

    async def _release(self) -> None:
        if self._standing is not None:
            await in_thread(self.high.restore)
            self._standing = None
