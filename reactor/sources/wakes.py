"""Where the sources leave wakes for the loop, and how each of them stands."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import trio

from reactor.model.wakes import SourceHealth, SourceState, Wake, WakeKind


class Wakes:
    """Wakes that wait for the loop, one of each source and kind.

    A source under a storm of events may notify as often as it likes: what the loop has not yet taken
    stays one wake, the earliest, so that latencies are counted from the first event. Memory is bounded by
    the number of sources. Everything here runs in Trio's thread; there is one waiter, the loop.
    """

    def __init__(self) -> None:
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

    def notify(self, *wakes: Wake) -> None:
        """Wake the loop. The pass of a memory wake is made here, in the caller's task, but not inside one."""
        for wake in wakes:
            self._pending.setdefault((wake.source, wake.kind), wake)
        on_memory_wake = self._on_memory_wake
        if on_memory_wake is not None and any(wake.kind is WakeKind.MEMORY for wake in wakes):
            self._on_memory_wake = None  # what comes of it waits for the loop
            try:
                on_memory_wake(self._take())
            finally:
                self._on_memory_wake = on_memory_wake
        self._arrived.set()

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


class SourceBoard:
    """How every source stands, by name, in the order of their first reports.

    `on_change` is called with the new state when a source's health changes, and when a source that is not
    armed has something new to say; the details of an armed one (its levels) change too often for a log.
    """

    def __init__(self, on_change: Callable[[SourceState], None] | None = None) -> None:
        self._states: dict[str, SourceState] = {}
        self._on_change = on_change

    def set(self, name: str, health: SourceHealth, detail: str = "") -> None:
        """Record how the source stands; `detail` is one line for an operator."""
        before = self._states.get(name)
        state = dataclasses.replace(before or _unreported(name), health=health, detail=detail)
        self._states[name] = state
        if self._on_change is not None and _is_news(before, state):
            self._on_change(state)

    def count_wake(self, name: str) -> None:
        """Count one wake that the source gave."""
        state = self._states.get(name) or _unreported(name)
        self._states[name] = dataclasses.replace(state, wakes=state.wakes + 1)

    def count_lost(self, name: str, events: int = 1) -> None:
        """Count events that the kernel says it dropped before the source could read them."""
        state = self._states.get(name) or _unreported(name)
        self._states[name] = dataclasses.replace(state, lost=state.lost + events)

    def state(self, name: str) -> SourceState:
        """Return how the source stands; one that has not reported is off."""
        return self._states.get(name) or _unreported(name)

    def states(self) -> tuple[SourceState, ...]:
        return tuple(self._states.values())


def _unreported(name: str) -> SourceState:
    return SourceState(name=name, health=SourceHealth.OFF, detail="not started")


def _is_news(before: SourceState | None, after: SourceState) -> bool:
    if before is None or before.health is not after.health:
        return True
    return after.health is not SourceHealth.ARMED and before.detail != after.detail
