"""Keeps the state file true: written by a worker thread where something changed that a restart needs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from reactor.daemon.state import StateFile
from reactor.kernel.small_file import KeptFile
from reactor.model.decisions import PolicyState

_LOG: Final = logging.getLogger("reactor.state")


class StateKeeper(KeptFile[PolicyState]):
    """Saves states that it is shown. `on_failure` is called for each write that failed."""

    def __init__(self, file: StateFile, on_failure: Callable[[], None] = lambda: None) -> None:
        failure = "state: not saved, a restart would forget it"
        super().__init__(file.path, file.document, failure, _LOG, on_failure=on_failure)
        self._latest = PolicyState()
        self._saved = _essence(self._latest)

    def show(self, state: PolicyState, *, in_any_case: bool = False) -> None:
        """Have the state saved soon if it matters; with `in_any_case` also where only instants moved on."""
        self._latest = state
        if _essence(state) != self._saved or (in_any_case and state != PolicyState()):
            super().show(state)

    def flush(self) -> None:
        """Save the last state shown, here and now: the daemon ends."""
        self.save(self._latest)

    def save(self, state: PolicyState) -> bool:
        """Save this state, here and now; return whether that went well. Blocks on the disk."""
        is_saved = super().save(state)
        if is_saved:
            self._saved = _essence(state)
        return is_saved


def _essence(state: PolicyState) -> tuple[object, ...]:
    """Return what a restart must not lose; what is observed again in each pass is not part of it."""
    return (
        state.conditions,
        state.condition_since,
        state.first_observed,
        state.thresholds_met,
        state.in_flight,
        state.evicted_at,
    )
