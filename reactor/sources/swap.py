"""Swap: sampled at a pace that follows how fast it fills, and sooner if the kernel reports that it fills.

No kernel reports that so much swap is left. What it does report, on v2, is that a cgroup was refused some or
is at its limit (memory.swap.events). So swap is read as often as it could run down to a threshold meanwhile:
by twice the rate seen last, and at the least by what a disk takes. A read costs 30 us.

Runs only where a threshold is for swap.available.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Final

import trio

from reactor.errors import ReactorError
from reactor.kernel.directories import watch_modifications
from reactor.kernel.files import OwnedDescriptor, drain
from reactor.model.signals import Signal
from reactor.model.thresholds import Observation, Threshold
from reactor.model.wakes import SourceHealth, WakeKind
from reactor.policy.thresholds import thresholds_met
from reactor.sources.catalogue import SWAP
from reactor.sources.wakes import Wakes

_SIGNAL: Final = Signal.SWAP_AVAILABLE
_SHORTEST_SECONDS: Final = 0.05
_MET_SECONDS: Final = 0.25  # while a threshold is met
_EXPECTED_BYTES_PER_SECOND: Final = 256 << 20
_SAFETY: Final = 2


@dataclass(eq=False)
class SwapWatch:
    """Wakes the loop when a threshold for swap.available is crossed, and while it is.

    `observe` reads the signal, None where there is no swap or it can't be read. `events` is the file that the
    kernel modifies where it refuses swap, None where there is none.
    """

    thresholds: Sequence[Threshold]
    observe: Callable[[], Observation | None]
    wakes: Wakes
    _: KW_ONLY
    events: Path | None = None
    longest_seconds: float = 10.0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Sample until cancelled."""
        with self._opened_events() as events:
            how = "sampled" if events.fileno() < 0 else "sampled, and events"
            self.wakes.board.set(SWAP, SourceHealth.ARMED, how)
            task_status.started()
            before: Observation | None = None
            before_seconds = trio.current_time()
            was_met = False
            while True:
                seen, now_seconds = self.observe(), trio.current_time()
                is_met = seen is not None and bool(thresholds_met(self.thresholds, {_SIGNAL: seen}))
                if is_met or was_met:
                    self.wakes.wake(SWAP, WakeKind.PROCESSES, _SIGNAL)
                was_met = is_met
                taken = 0 if seen is None or before is None else before.available - seen.available
                rate = taken / max(now_seconds - before_seconds, _SHORTEST_SECONDS)
                before, before_seconds = seen, now_seconds
                pause_seconds = _MET_SECONDS if is_met else self._pause_seconds(seen, rate)
                await _wait(events.fileno(), max(_SHORTEST_SECONDS, min(pause_seconds, self.longest_seconds)))

    def _pause_seconds(self, seen: Observation | None, rate: float) -> float:
        """Return after how long swap may have run down to a threshold, half of it for safety."""
        if seen is None:
            return self.longest_seconds
        margin = min(seen.available - int(one.value.of(seen.capacity)) for one in self.thresholds)
        expected = max(_SAFETY * rate, _EXPECTED_BYTES_PER_SECOND)
        return max(_SHORTEST_SECONDS, margin / expected / _SAFETY)

    def _opened_events(self) -> OwnedDescriptor:
        if self.events is not None:
            with suppress(OSError, ReactorError):  # the root has none, nor a kernel without swap
                return OwnedDescriptor(watch_modifications(self.events))
        return OwnedDescriptor()


async def _wait(events_fd: int, seconds: float) -> None:
    with trio.move_on_after(seconds):
        if events_fd < 0:
            await trio.sleep_forever()
        else:
            await trio.lowlevel.wait_readable(events_fd)
            drain(events_fd)
            await trio.sleep(_SHORTEST_SECONDS)  # they come as often as swap is refused
