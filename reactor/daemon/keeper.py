"""Keeps the state file true without being in anybody's way: written by a worker thread, the latest wins."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import trio

from reactor.daemon.state import StateFile
from reactor.kernel.scheduling import following
from reactor.model.decisions import PolicyState
from reactor.threads import in_thread

_LOG: Final = logging.getLogger("reactor.state")


class StateKeeper:
    """Saves states that it is shown. `on_failure` is called for each write that failed."""

    def __init__(self, file: StateFile, on_failure: Callable[[], None] = lambda: None) -> None:
        self._file = file
        self._on_failure = on_failure
        self._latest = PolicyState()
        self._saved: tuple[object, ...] = _essence(self._latest)
        self._changed = trio.Event()
        self.problem: str | None = None

    def show(self, state: PolicyState, *, in_any_case: bool = False) -> None:
        """Have the state saved soon if it matters; with `in_any_case` also where only instants moved on."""
        self._latest = state
        if _essence(state) != self._saved or (in_any_case and state != PolicyState()):
            self._changed.set()

    async def run(self) -> None:
        """Save until cancelled."""
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            # Not abandoned: two writers of one file are worse than a late one.
            await in_thread(following(self._save), self._latest)

    def flush(self) -> None:
        """Save the last state shown, here and now: the daemon ends."""
        self._save(self._latest)

    def _save(self, state: PolicyState) -> None:
        try:
            self._file.save(state)
        except OSError as error:
            if self.problem is None:
                _LOG.error("state: not saved, a restart would forget it: %s", error)
            self.problem = str(error)
            self._on_failure()
        else:
            self.problem = None
            self._saved = _essence(state)


def _essence(state: PolicyState) -> tuple[object, ...]:
    """Return what a restart must not lose; what is observed anew in each pass is not part of it."""
    return (
        state.conditions,
        state.condition_since,
        state.first_observed,
        state.thresholds_met,
        state.in_flight,
        state.evicted_at,
    )
