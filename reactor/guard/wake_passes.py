"""The passes that wakes ask for, each recorded and followed by what it asks for itself.

The pass of a memory wake is made at once, in the task of the source that woke (sources/wakes.py). The loop
has those of all others made (loop.py).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import trio

from reactor.guard.approach import LastStretch
from reactor.guard.pass_ import Passes
from reactor.guard.record import PassRecord
from reactor.guard.recorder import OnPass
from reactor.model.rules import Firing
from reactor.model.wakes import Wake
from reactor.policy.attention import Pace
from reactor.reclaim.runner import Reclaimed
from reactor.sources.levels import MemoryLevels


class WakePasses:
    """Makes the passes of one configuration. `begin_reclaims` starts what a decision reclaims.

    `after_pass` are called with the record of each pass, once it is over.
    """

    def __init__(
        self, passes: Passes, levels: MemoryLevels, begin_reclaims: OnPass, *after_pass: OnPass
    ) -> None:
        self.pace = Pace()
        self.nursery: trio.Nursery | None = None
        self.on_pass: OnPass = lambda _: None
        self._passes = passes
        self._begin_reclaims = begin_reclaims
        self.after_pass: Sequence[OnPass] = after_pass
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
            if (crossed := self._last_stretch.watch(passes.crossings)) is not None:
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
        return record

    def _fail(self, error: Exception) -> None:
        """End the loop by this error."""
        if self.nursery is None:
            raise error
        self.nursery.start_soon(_raise, error)


async def _raise(error: Exception) -> None:
    raise error
