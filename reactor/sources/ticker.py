"""The housekeeping ticker: the pass that observes everything, and the last source of every chain."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import trio

from reactor.model.wakes import SourceHealth, Wake, WakeKind
from reactor.sources.catalogue import TICKER, SourceBoard
from reactor.sources.wakes import Wakes

MINIMUM_INTERVAL_SECONDS: Final = 0.01


class Ticker:
    """Wakes the loop at once and then every `interval_seconds` (at least 0.01), for all signals.

    Ticks missed while the machine stood still (a stop, a suspend, starvation) are not made up for: one
    pass observes everything.
    """

    def __init__(
        self,
        interval_seconds: float,
        wakes: Wakes,
        board: SourceBoard,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._interval_seconds = max(interval_seconds, MINIMUM_INTERVAL_SECONDS)
        self._wakes = wakes
        self._board = board
        self._clock_ns = clock_ns

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Tick until cancelled."""
        self._board.set(TICKER, SourceHealth.ARMED, f"every {self._interval_seconds:g} s")
        task_status.started()
        due = trio.current_time()
        while True:
            self._board.count_wake(TICKER)
            self._wakes.notify(Wake(source=TICKER, kind=WakeKind.HOUSEKEEPING, at_ns=self._clock_ns()))
            due = max(due + self._interval_seconds, trio.current_time())
            await trio.sleep_until(due)
