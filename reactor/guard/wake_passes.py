"""The passes that wakes ask for, each recorded and followed by what it asks for itself.

The pass of a memory wake is made at once, in the task of the source that woke (sources/wakes.py). The loop
has those of all others made (loop.py).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import trio

from reactor.guard.ahead import KernelKills
from reactor.guard.approach import LastStretch
from reactor.guard.pass_ import Passes
from reactor.guard.record import PassRecord
from reactor.guard.recorder import OnPass
from reactor.model.rules import Firing
from reactor.model.signals import Signal
from reactor.model.thresholds import Observation
from reactor.model.wakes import Wake
from reactor.policy.attention import Pace
from reactor.reclaim.runner import Reclaimed
from reactor.sources.levels import MemoryChain, MemoryLevel, MemoryLevels


class Arming:
    """Has memory watched; `crossings` are the levels of hard thresholds, those ahead of one left out."""

    def __init__(self, levels: MemoryLevels, memory: MemoryChain, kernel: KernelKills) -> None:
        self.crossings: Sequence[MemoryLevel] = ()
        self._levels = levels
        self._memory = memory
        self._kernel = kernel

    def arm(self, memory: Mapping[Signal, Observation]) -> None:
        """Arm the memory thresholds again, by the memory signals as just observed."""
        levels = self._levels.of(memory)
        self.crossings = [level for level in levels if level.threshold.is_hard and not level.is_early]
        self._memory.arm(levels)
        self._kernel.levels(self.crossings)


class WakePasses:
    """Makes the passes of one configuration. `begin_reclaims` starts what a decision reclaims.

    `after_pass` are called with the record of each pass, once it is over, and `expect_processes` at the end.
    """

    after_pass: Sequence[OnPass] = ()

    def __init__(
        self,
        passes: Passes,
        arming: Arming,
        levels: MemoryLevels,
        *,
        begin_reclaims: OnPass,
        expect_processes: OnPass,
    ) -> None:
        self.pace = Pace()
        self.nursery: trio.Nursery | None = None
        self.on_pass: OnPass = lambda _: None
        self._passes = passes
        self._arming = arming
        self._begin_reclaims = begin_reclaims
        self._expect_processes = expect_processes
        self._last_stretch = LastStretch(levels, passes.approach)

    def begin(self, nursery: trio.Nursery, on_pass: OnPass) -> None:
        """Record passes by `on_pass`, and end by an error in one what runs in the nursery."""
        self.nursery, self.on_pass = nursery, on_pass

    def on_memory_wake(self, taken: tuple[Wake, ...], reclaimed: tuple[Reclaimed, ...] = ()) -> None:
        """Make a pass in the task of the source that woke; what goes wrong in it is not its fault.

        If it was an early wake, the crossing may follow at once, and is attended to here too: the kernel
        reports none while what crosses does not run.
        """
        try:
            record = self.run_pass(taken, reclaimed)
            passes, wake = self._passes, taken[0]
            if (crossed := self._last_stretch.watch(self._arming.crossings)) is not None:
                wake = replace(wake, signal=crossed.signal)
            elif record.attempts or not passes.approach.is_near or not passes.is_worth_a_pass():
                return
            self.run_pass((replace(wake, at_ns=time.monotonic_ns()),))
        except Exception as error:  # noqa: BLE001 - raised again, where it ends the loop
            self._fail(error)

    def run_pass(
        self, taken: Sequence[Wake], reclaimed: tuple[Reclaimed, ...] = (), firing: Firing | None = None
    ) -> PassRecord:
        """Make a pass, record it, and begin what it reclaims; who has it made for a rule does so for that."""
        record = self._passes.make(taken, firing)
        if not record.attempts:
            self.pace.passed((time.monotonic_ns() - record.times.started_ns) / 1e9)
        if reclaimed:
            record = replace(record, reclaimed=reclaimed)
        for one in (*self._passes.take_earlier(), record):
            if one.decision.rule_reclaim is None:
                self.on_pass(one)
            self._begin_reclaims(one)
        for hook in self.after_pass:
            hook(record)
        self._expect_processes(record)
        return record

    def _fail(self, error: Exception) -> None:
        """End the loop by this error."""
        if self.nursery is None:
            raise error
        self.nursery.start_soon(_raise, error)


async def _raise(error: Exception) -> None:
    raise error
