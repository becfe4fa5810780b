"""The brake: memory.high pulled down where a hard threshold is crossed, so that allocators stall meanwhile.

Each pass calls `heed` with the crossed thresholds right before the kill: it never waits. If the level was
prepared (`arm`, after the pass before), that costs the loop one read of memory.high and one write to a pipe;
a thread that waits inside the kernel does the rest (`kernel.ready_write`). Writing memory.high below usage
reclaims before it returns: 2-35 ms in an emulated guest without page cache, 30-100 ms with it. A second
thread prepares, and engages levels that were not prepared; a third releases (`release`). After each of them
memory.high is read again (`kernel.memory_high`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Final

import trio

from reactor.brake.braking import BrakeReading, Braking, braked_bytes
from reactor.brake.release import BrakeRelease
from reactor.errors import ReactorError, RefusedError
from reactor.kernel.cgroup import CgroupTree, own_cgroup
from reactor.kernel.cgroup_files import CgroupVersion
from reactor.kernel.memory_high import BorrowedHigh, BorrowedHighs
from reactor.kernel.ready_write import ReadyWrite
from reactor.kernel.scheduling import follow_main_thread, following
from reactor.threads import in_thread

_LOG: Final = logging.getLogger("reactor.brake")
DEADLINE_SECONDS: Final = 3.0
# What is prepared serves for levels as near as this, and is prepared again for others that are farther.
_NEAR_PERCENT: Final = 1.0
_REARMED_PERCENT: Final = 0.25
_END_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepare:
    """Asks for a value to be made ready, None for none any more."""

    high: BorrowedHigh
    high_bytes: int | None


class Brake:
    """Brakes cgroups, each once in a crossing and for `deadline_seconds` at the most.

    `highs` is shared with the memory-high source, which sets memory.high too. All methods are for Trio's
    thread.
    """

    def __init__(
        self,
        tree: CgroupTree,
        *,
        deadline_seconds: float = DEADLINE_SECONDS,
        proc_cgroup: Path = Path("/proc/self/cgroup"),
    ) -> None:
        self.highs = BorrowedHighs()
        self._tree = tree
        self._proc_cgroup = proc_cgroup
        self._deadline_seconds = deadline_seconds
        self._armed: dict[str, int] = {}  # the level that is prepared for, by cgroup
        self._ready: dict[str, tuple[BorrowedHigh, ReadyWrite]] = {}
        self._crossed: dict[str, Braking] = {}
        # Of this pass: with their deadlines, and to be looked at once more.
        self._begun: list[tuple[Braking, float]] = []
        self._hurried: list[Braking] = []
        self._count = 0
        self._orders: SimpleQueue[Braking | _Prepare | None] = SimpleQueue()
        self._setter = Thread(target=self._keep_setting, name="reactor-brake-on", daemon=True)
        self._releaser = BrakeRelease(self._tell)
        self._token: trio.lowlevel.TrioToken | None = None
        self._own_cgroup: str | None = None
        self._times = 0
        self._problem: str | None = None

    def start(self) -> None:
        """Start the threads, so that none has to be when memory runs out; harmless when repeated."""
        self._problem = unavailable_because(self._tree)
        if self._problem is not None:
            _LOG.warning("brake: %s", self._problem)
        elif self._token is None:
            self._own_cgroup = own_cgroup(self._tree, self._proc_cgroup)
            try:
                self._releaser.start()
                self._setter.start()
            except RuntimeError as error:  # EAGAIN of clone(2): no process id is left for them
                self._problem = f"no brake until the next reload: {error}"
                _LOG.warning("brake: %s", self._problem)
            else:
                self._token = trio.lowlevel.current_trio_token()

    def heed(self, crossed: Mapping[str, int]) -> tuple[Braking, ...]:
        """Engage on cgroups that are newly crossed, release those that no longer are; return what is on.

        `crossed` are the levels in bytes of the hard thresholds crossed, by cgroup. A cgroup whose brake was
        released at its deadline is not braked again before it was below its level. Never blocks; `arm` is
        to follow once the victim is dead.
        """
        if self._token is None:
            return ()
        for _, file in self._ready.values():
            file.lower()  # a write of an earlier pass that reclaims still
        for cgroup in self._crossed.keys() - crossed.keys():
            self._release(self._crossed.pop(cgroup), "the threshold is not crossed any more")
            self._armed.pop(cgroup, None)  # to be prepared again: the file may have changed hands
        for cgroup in crossed.keys() - self._crossed.keys():
            self._begin(cgroup, crossed[cgroup])
        return self._on()

    def arm(self, levels: Mapping[str, int]) -> None:
        """Make ready for these levels in bytes, by cgroup, and for no others; never blocks."""
        if self._token is None:
            return
        while self._hurried:
            self._orders.put(self._hurried.pop())
        while self._begun:
            braking, at_seconds = self._begun.pop()
            self._releaser.release(braking, "its longest time was over", at_seconds)
        for cgroup in (self._armed.keys() | self._ready.keys()) - levels.keys():
            self._forget(cgroup)
        for cgroup, level_bytes in levels.items():
            if not _is_near(level_bytes, self._armed.get(cgroup, 0), _REARMED_PERCENT):
                self._prepare(cgroup, level_bytes)

    def reading(self) -> BrakeReading:
        """Return how the brake stands."""
        on = self._on()
        now_ns = time.monotonic_ns()
        running_ns = sum(now_ns - one.engaged_ns for one in on if one.engaged_ns is not None)
        return BrakeReading(
            on=on,
            times=self._times,
            seconds=self._releaser.seconds + running_ns / 1e9,
            problem=self._releaser.problem or self._problem,
        )

    def close(self) -> None:
        """Put back what is not the operator's, and end the threads; waits for that, but not for ever."""
        if self._token is None:
            return
        for braking in self._crossed.values():
            self._release(braking, "the daemon ends")
        self._crossed.clear()
        files = [file for _, file in self._ready.values()]
        self.arm({})
        self._orders.put(None)
        self._releaser.close(_END_SECONDS)
        self._setter.join(_END_SECONDS)
        for file in files:
            file.join(_END_SECONDS)  # so that its last look puts right what came too late
        self._token = None

    def _on(self) -> tuple[Braking, ...]:
        return tuple(braking for braking in self._crossed.values() if braking.is_on)

    def _begin(self, cgroup: str, level_bytes: int) -> None:
        try:
            high = self._high(cgroup)
        except ReactorError as error:
            self._problem = str(error)
            return
        self._count += 1
        armed_bytes = self._armed.get(cgroup, 0)
        high_bytes = braked_bytes(
            armed_bytes if _is_near(level_bytes, armed_bytes, _NEAR_PERCENT) else level_bytes
        )
        braking = Braking(name=f"brake {self._count}", cgroup=cgroup, high_bytes=high_bytes, high=high)
        self._crossed[cgroup] = braking
        self._begun.append((braking, time.monotonic() + self._deadline_seconds))
        high.want(high_bytes, braking.name)
        if self._hurry(braking):
            braking.engaged_ns = time.monotonic_ns()
            self._hurried.append(braking)
        else:
            self._orders.put(braking)

    def _hurry(self, braking: Braking) -> bool:
        if braking.cgroup not in self._ready:
            return False
        high, file = self._ready[braking.cgroup]
        try:
            return high.hurry(braking.name, file)
        except OSError:  # the cgroup is gone, or another of its name has come
            del self._ready[braking.cgroup]
            file.close()
            return False

    def _prepare(self, cgroup: str, level_bytes: int) -> None:
        self._armed[cgroup] = level_bytes
        try:
            high = self._high(cgroup)
            if cgroup not in self._ready:
                self._ready[cgroup] = (high, ReadyWrite(high.path, high.look_again))
        except ReactorError as error:
            self._problem = str(error)
        except OSError:  # not there (yet): it is engaged without having been prepared
            del self._armed[cgroup]
        else:
            self._orders.put(_Prepare(high=high, high_bytes=braked_bytes(level_bytes)))

    def _forget(self, cgroup: str) -> None:
        self._armed.pop(cgroup, None)
        if cgroup in self._ready:
            high, file = self._ready.pop(cgroup)
            file.close()
            self._orders.put(_Prepare(high=high, high_bytes=None))

    def _high(self, cgroup: str) -> BorrowedHigh:
        own = self._own_cgroup
        if own is not None and (own == cgroup or self._tree.contains(cgroup, own)):
            raise RefusedError(f"{cgroup} is not braked: reactor itself runs in it, and would stall as well")
        return self.highs.of(self._tree.path(cgroup))

    def _release(self, braking: Braking, because: str) -> None:
        if braking.is_on:
            braking.end(because)
            self._releaser.release(braking, because)

    def _keep_setting(self) -> None:
        while True:
            follow_main_thread()  # which may have become real-time since
            order = self._orders.get()
            if order is None:
                return
            if isinstance(order, Braking):
                self._engage(order)
            else:
                with suppress(OSError, ReactorError):  # what comes of it is told where it is engaged
                    order.high.prepare(order.high_bytes)

    def _engage(self, braking: Braking) -> None:
        """Make it true, or see to it that it is."""
        if not braking.is_on:
            return
        if braking.engaged_ns is None:
            braking.engaged_ns = time.monotonic_ns()
        try:
            is_ours = braking.high.make_true()
        except (OSError, ReactorError) as error:
            self._not_engaged(braking, str(error))
            return
        if is_ours or braking.released_because is not None:
            self._times += 1
            self._problem = None
        else:
            self._not_engaged(braking, "the operator's own memory.high is as low")

    def _not_engaged(self, braking: Braking, why: str) -> None:
        braking.engaged_ns = None
        braking.problem = self._problem = why
        self._release(braking, why)

    def _tell(self, braking: Braking) -> None:
        if self._token is not None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(braking.released.set)


async def put_back_abandoned(tree: CgroupTree, highs: BorrowedHighs) -> None:
    """Put back every memory.high that a daemon left behind when it was killed, and log it."""
    if tree.version is CgroupVersion.V2:
        walk = following(highs.put_back_abandoned)
        for line in await in_thread(walk, tree.memory_root, abandon_on_cancel=True):
            _LOG.warning("%s", line)


def unavailable_because(tree: CgroupTree) -> str | None:
    """Return why nothing can be braked on this machine, None where it can."""
    if tree.version is CgroupVersion.V2:
        return None
    return "the memory controller is on cgroup v1, which has no memory.high"


def _is_near(level_bytes: int, armed_bytes: int, percent: float) -> bool:
    return abs(level_bytes - armed_bytes) <= level_bytes * percent / 100
