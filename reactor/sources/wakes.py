"""Where the sources leave wakes for the loop; and the ticker, the last source of every chain."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import trio

from reactor.backoff import next_beat
from reactor.model.signals import Signal
from reactor.model.wakes import SourceHealth, Wake, WakeKind
from reactor.sources.catalogue import TICKER, SourceBoard


class Wakes:
    """Wakes that wait for the loop, one of each source and kind.

    A source under a storm of events may notify as often as it likes: what the loop has not yet taken
    stays one wake, the earliest, so that latencies are counted from the first event. Memory is bounded by
    the number of sources. Everything here runs in Trio's thread; there is one waiter, the loop. How the
    sources stand is on the `board`.
    """

    def __init__(self, board: SourceBoard | None = None) -> None:
        self.board = board or SourceBoard()
        self._pending: dict[tuple[str, WakeKind], Wake] = {}
        self._arrived = trio.Event()
        self._on_memory_wake: Callable[[tuple[Wake, ...]], None] | None = None

    def run_memory_pass_inline(self, on_memory_wake: Callable[[tuple[Wake, ...]], None]) -> None:
        """Have the pass of a memory wake made inside `notify`, before any other task runs.

        Through the waiting task it comes 0.12 ms later: that has to be scheduled first. `on_memory_wake`
        takes all pending wakes; it must not raise. `wait` then returns, empty, so that its caller can observe
        what has changed.
        """
        self._on_memory_wake = on_memory_wake

    def wake(self, source: str, kind: WakeKind, *signals: Signal | None, at_ns: int | None = None) -> None:
        """Wake the loop for signals of a source: for what has happened now, unless `at_ns` says when."""
        at_ns = time.monotonic_ns() if at_ns is None else at_ns
        self.report(*(Wake(source=source, kind=kind, at_ns=at_ns, signal=signal) for signal in signals))

    def report(self, *wakes: Wake) -> None:
        """Wake the loop for sources, and count that: afterwards, since a pod may be killed in between."""
        if wakes:
            self.notify(*wakes)
        for wake in wakes:
            self.board.count_wake(wake.source)

    def notify(self, *wakes: Wake) -> None:
        """Wake the loop. The pass of a memory wake is made here, in the caller's task, but not inside one."""
        self.leave(*wakes)
        on_memory_wake = self._on_memory_wake
        if on_memory_wake is not None and any(wake.kind is WakeKind.MEMORY for wake in wakes):
            self._on_memory_wake = None  # what comes of it waits for the loop
            try:
                on_memory_wake(self._take())
            finally:
                self._on_memory_wake = on_memory_wake

    def leave(self, *wakes: Wake) -> None:
        """Leave wakes for the loop's next turn: what calls this may be inside a pass."""
        for wake in wakes:
            self._pending.setdefault((wake.source, wake.kind), wake)
        self._arrived.set()

    async def wait(self) -> tuple[Wake, ...]:
        """Return all the wakes that are pending, in the order of arrival; wait for the first.

        None, if the passes of all were made inside `notify`.
        """
        await self._arrived.wait()
        self._arrived = trio.Event()
        return self._take()

    def _take(self) -> tuple[Wake, ...]:
        wakes = tuple(self._pending.values())
        self._pending.clear()
        return wakes


MINIMUM_INTERVAL_SECONDS: Final = 0.01


class Ticker:
    """Wakes the loop at once and then at each beat of `interval_seconds` (at least 0.01), for all signals.

    Ticks missed while the machine stood still (a stop, a suspend, starvation) are not made up for: one
    pass observes everything.
    """

    def __init__(self, interval_seconds: float, wakes: Wakes) -> None:
        self._interval_seconds = max(interval_seconds, MINIMUM_INTERVAL_SECONDS)
        self._wakes = wakes

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Tick until cancelled."""
        self._wakes.board.set(TICKER, SourceHealth.ARMED, f"every {self._interval_seconds:g} s")
        task_status.started()
        while True:
            self._wakes.wake(TICKER, WakeKind.HOUSEKEEPING, None)
            await next_beat(self._interval_seconds)
