"""The brake: memory.high pulled down where a hard threshold is crossed, so that allocators stall meanwhile.

`heed` is told in every pass what is crossed, and never waits: threads of the brake's own write memory.high.
One writes what is engaged, since such a write may reclaim before it returns (2-35 ms in an emulated guest
without page cache to find, 30-100 ms with). Another writes what is released, so that it never waits for the
first, and keeps the deadline whatever becomes of the loop.

How low: an allocator past memory.high sleeps after every 64 pages that it is charged, by the square of how
far usage is past it: 64 s x (excess / memory.high)^2, and not at all where that is 10 ms or less, which it is
up to an excess of 1.3 % (calculate_high_delay and its callers in mm/memcontrol.c). At the level that was
crossed itself the allocators would therefore go on for another 200 MiB on a node of 16 GiB before anything
held them up. 4 % below it they sleep 0.1 s for each 256 KiB from the crossing on. Measured on 6.12, in a
guest, a level of 412 MiB, one pod growing at full speed while another of 330 MiB dies: 3.0 MiB past the
level without a brake, 1.7 MiB with memory.high at the level, 0.2 MiB with it 4 % below; the dying pod's
memory was back after 134, 220 and 130 ms, which is within the noise: a fatal signal ends the sleep, and who
is dying is charged past memory.high. At 10 % below allocators slept on for 0.7 s after the release.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from mmap import PAGESIZE
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread, get_native_id
from typing import Final

import trio

from reactor.errors import ReactorError, RefusedError
from reactor.kernel.cgroup import CgroupTree, own_cgroup
from reactor.kernel.cgroup_files import CgroupVersion
from reactor.kernel.memory_high import BorrowedHigh, BorrowedHighs
from reactor.kernel.scheduling import follow_main_thread, following, make_normal

_LOG: Final = logging.getLogger("reactor.brake")
DEADLINE_SECONDS: Final = 3.0
BELOW_PERCENT: Final = 4  # of the level
_AGAIN_SECONDS: Final = 0.5
_END_SECONDS: Final = 2.0


@dataclass(slots=True, kw_only=True)
class Braking:
    """One cgroup's brake, from the crossing on; filled in as it happens. Instants are CLOCK_MONOTONIC ns.

    `name` is its own among those that want memory.high: a late release must not take the next one's away.
    `engaged_ns` is when memory.high was about to be written, None where that came to nothing (`problem`
    says why); `released` is set once the operator's value is back.
    """

    name: str
    cgroup: str
    high_bytes: int
    high: BorrowedHigh
    engaged_ns: int | None = None
    released_ns: int | None = None
    released_because: str | None = None
    problem: str | None = None
    released: trio.Event = field(default_factory=trio.Event)

    @property
    def is_on(self) -> bool:
        """Return whether memory.high is not the operator's yet, or again."""
        return self.released_ns is None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrakeReading:
    """How the brake stands: what is on, how often it was on and for how long in all, why it failed last."""

    on: tuple[Braking, ...] = ()
    times: int = 0
    seconds: float = 0.0
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Release:
    """Asks for a release, at once or at the latest by then; None of both ends the thread."""

    braking: Braking | None = None
    because: str = ""
    at_seconds: float = 0.0


class Brake:
    """Brakes cgroups, each once in a crossing and for `deadline_seconds` at the most.

    `highs` is for whoever else sets memory.high in this process.
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
        self._crossed: dict[str, Braking] = {}
        self._engagements: SimpleQueue[Braking | None] = SimpleQueue()
        self._releases: SimpleQueue[_Release] = SimpleQueue()
        # Daemon threads: one that hangs in a write must not keep the process from ending.
        self._setter = Thread(target=self._keep_engaging, name="reactor-brake-on", daemon=True)
        self._releaser = Thread(target=self._keep_releasing, name="reactor-brake-off", daemon=True)
        self._writing: int | None = None  # the kernel's id of the thread that is inside a write
        self._token: trio.lowlevel.TrioToken | None = None
        self._own_cgroup: str | None = None
        self._begun = 0
        self._times = 0
        self._seconds = 0.0
        self._problem: str | None = None

    def start(self) -> None:
        """Start the threads, so that none has to be when memory runs out; harmless when repeated."""
        self._problem = unavailable_because(self._tree)
        if self._problem is not None:
            _LOG.warning("brake: %s", self._problem)
        elif self._token is None:
            self._own_cgroup = own_cgroup(self._tree, self._proc_cgroup)
            self._token = trio.lowlevel.current_trio_token()
            self._setter.start()
            self._releaser.start()

    def heed(self, crossed: Mapping[str, int]) -> tuple[Braking, ...]:
        """Engage on cgroups that are newly crossed, release those that no longer are; return what is on.

        `crossed` are the levels in bytes of the hard thresholds crossed, by cgroup. A cgroup whose brake was
        released at its deadline is not braked again before it was below its level. Never blocks.
        """
        if self._token is None:
            return ()
        for cgroup in self._crossed.keys() - crossed.keys():
            self._release(self._crossed.pop(cgroup), "the threshold is not crossed any more")
        writing = self._writing
        if writing is not None:
            make_normal(writing)  # it reclaims since the last pass
        for cgroup in crossed.keys() - self._crossed.keys():
            self._begin(cgroup, crossed[cgroup])
        return self._on()

    def reading(self) -> BrakeReading:
        """Return how the brake stands."""
        on = self._on()
        now_ns = time.monotonic_ns()
        running_ns = sum(now_ns - one.engaged_ns for one in on if one.engaged_ns is not None)
        return BrakeReading(
            on=on, times=self._times, seconds=self._seconds + running_ns / 1e9, problem=self._problem
        )

    def close(self) -> None:
        """Put back what is not the operator's, and end the threads; waits for that, but not for ever."""
        for braking in self._crossed.values():
            self._release(braking, "the daemon ends")
        self._crossed.clear()
        self._releases.put(_Release())
        self._engagements.put(None)
        if self._token is not None:
            self._releaser.join(_END_SECONDS)
            self._setter.join(_END_SECONDS)  # so that its last look puts right what it set too late

    def _on(self) -> tuple[Braking, ...]:
        return tuple(braking for braking in self._crossed.values() if braking.is_on)

    def _begin(self, cgroup: str, level_bytes: int) -> None:
        try:
            high = self._high(cgroup)
        except ReactorError as error:
            self._problem = str(error)
            return
        self._begun += 1
        high_bytes = level_bytes * (100 - BELOW_PERCENT) // 100 // PAGESIZE * PAGESIZE
        braking = Braking(name=f"brake {self._begun}", cgroup=cgroup, high_bytes=high_bytes, high=high)
        self._crossed[cgroup] = braking
        high.want(high_bytes, braking.name)
        self._engagements.put(braking)
        at_seconds = time.monotonic() + self._deadline_seconds
        self._releases.put(_Release(braking=braking, because="its time was over", at_seconds=at_seconds))

    def _high(self, cgroup: str) -> BorrowedHigh:
        own = self._own_cgroup
        if own is not None and (own == cgroup or self._tree.contains(cgroup, own)):
            raise RefusedError(f"{cgroup} is not braked: reactor itself lives in it, and would stall as well")
        return self.highs.of(self._tree.path(cgroup))

    def _release(self, braking: Braking, because: str) -> None:
        if braking.is_on:
            braking.high.want(None, braking.name)
            self._releases.put(_Release(braking=braking, because=because))

    def _keep_engaging(self) -> None:
        while True:
            follow_main_thread()  # which may have become real-time since
            braking = self._engagements.get()
            if braking is None:
                return
            if not braking.is_on:
                continue
            self._writing = get_native_id()
            try:
                self._engage(braking)
            except (OSError, ReactorError) as error:
                self._not_engaged(braking, str(error))
            finally:
                self._writing = None

    def _engage(self, braking: Braking) -> None:
        braking.engaged_ns = time.monotonic_ns()
        self._times += 1
        if not braking.high.make_true() and braking.is_on:
            self._not_engaged(braking, "the operator's own memory.high is as low")
        else:
            self._problem = None

    def _not_engaged(self, braking: Braking, why: str) -> None:
        braking.engaged_ns = None
        braking.problem = self._problem = why
        self._times -= 1
        self._release(braking, why)

    def _keep_releasing(self) -> None:
        waiting: list[_Release] = []
        ended = False
        while waiting or not ended:
            try:
                order = self._releases.get(timeout=_until_next(waiting))
                ended |= order.braking is None
                waiting.append(order)
            except Empty:
                pass
            now_seconds = time.monotonic()
            due = [one for one in waiting if one.at_seconds <= now_seconds]
            waiting = [one for one in waiting if one.at_seconds > now_seconds]
            waiting += [one for order in due if (one := self._put_back(order)) is not None]
            waiting = [one for one in waiting if one.braking is not None and one.braking.is_on]

    def _put_back(self, order: _Release) -> _Release | None:
        """Put the operator's value back; return when to try again, None where that isn't needed."""
        braking = order.braking
        if braking is None or not braking.is_on:
            return None
        try:
            braking.high.put_back(braking.name)
        except (OSError, ReactorError) as error:
            self._problem = str(error)
            _LOG.error("brake on %s: not released: %s", braking.cgroup, error)
            return _Release(
                braking=braking, because=order.because, at_seconds=time.monotonic() + _AGAIN_SECONDS
            )
        braking.released_because = order.because
        braking.released_ns = time.monotonic_ns()
        if braking.engaged_ns is not None:
            self._seconds += (braking.released_ns - braking.engaged_ns) / 1e9
        self._tell(braking)
        return None

    def _tell(self, braking: Braking) -> None:
        engaged_ns, released_ns = braking.engaged_ns, braking.released_ns
        if engaged_ns is None or released_ns is None:
            _LOG.warning("brake on %s: not engaged: %s", braking.cgroup, braking.problem)
        else:
            _LOG.info(
                "brake on %s: memory.high=%d for %.1f ms; released: %s",
                braking.cgroup,
                braking.high_bytes,
                (released_ns - engaged_ns) / 1e6,
                braking.released_because,
            )
        if self._token is not None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(braking.released.set)


async def put_back_abandoned(tree: CgroupTree, highs: BorrowedHighs) -> None:
    """Put back every memory.high that a daemon left behind when it was killed, and log it."""
    if tree.version is CgroupVersion.V2:
        walk = following(highs.put_back_abandoned)
        for line in await trio.to_thread.run_sync(walk, tree.memory_root, abandon_on_cancel=True):
            _LOG.warning("%s", line)


def unavailable_because(tree: CgroupTree) -> str | None:
    """Return why nothing can be braked on this machine, None where it can."""
    if tree.version is CgroupVersion.V2:
        return None
    return "the memory controller is on cgroup v1, which has no memory.high"


def _until_next(waiting: list[_Release]) -> float | None:
    if not waiting:
        return None
    return max(0.0, min(order.at_seconds for order in waiting) - time.monotonic())
