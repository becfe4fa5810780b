"""What survives a restart: the state, and the last configuration that was right, each in a small JSON file.

The state is valid for one boot. Instants are on CLOCK_MONOTONIC: one clock for all processes of a boot, which
stands still in a suspend, for a guard that runs as for one that does not. After a reboot nothing in the file
is true any more: no process that it speaks of lives.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from reactor.guard.node import Node
from reactor.kernel.procfs import BOOT_ID
from reactor.kernel.small_file import KeptFile
from reactor.model.decisions import PolicyState
from reactor.plain import from_plain, to_plain

_LOG: Final = logging.getLogger("reactor.state")
_DAEMON_LOG: Final = logging.getLogger("reactor.daemon")
_FEW: Final = 64  # evictions in flight, which is what makes a state long
LAST_GOOD_NAME: Final = "last-good-config.json"
_SMALL_TEXT: Final = 64 << 10


class StateFile(KeptFile[PolicyState]):
    """Keeps the policy's state at `path`, where something changed that a restart needs.

    `boot_id` is an argument, so that a test can be its own boot.
    """

    def __init__(self, path: Path, *, boot_id: Path = BOOT_ID) -> None:
        super().__init__(
            path,
            _document,
            _parsed,
            "state: not saved, a restart would forget it",
            _LOG,
            boot_id=boot_id,
            is_small=lambda state: len(state.in_flight) <= _FEW,
        )
        self.path = path
        self._shown = (PolicyState(),)
        self._saved = essence(PolicyState())

    def show(self, state: PolicyState, *, in_any_case: bool = False) -> None:
        """Have the state saved soon if it matters; with `in_any_case` also where only instants moved on."""
        self._shown = (state,)  # saved even if it matters no more: the file may have the one before
        if essence(state) != self._saved or (in_any_case and state != PolicyState()):
            self._changed.set()

    def flush(self) -> None:
        """Save the last state shown, here and now: the daemon ends."""
        self._save_shown()

    def save(self, state: PolicyState) -> bool:
        """Save this state, here and now; return whether that went well. Blocks on the disk."""
        is_saved = super().save(state)
        if is_saved:
            self._saved = essence(state)
        return is_saved


def essence(state: PolicyState) -> tuple[object, ...]:
    """Return what a restart must not lose; what is observed again in each pass is not part of it."""
    return (
        state.conditions,
        state.condition_since,
        state.first_observed,
        state.thresholds_met,
        state.in_flight,
        state.evicted_at,
        state.process_kills,
        state.holds,
        state.endings,
        [(one.uid, one.signal, one.at_seconds, one.is_unhelpful) for one in state.hard_memory_kills],
        [(one.uid, one.signal, one.at_seconds, one.is_unhelpful) for one in state.judged_evictions],
        [(one.signal, one.reason, one.since_seconds, one.until_seconds) for one in state.slowdowns],
    )


def _document(state: PolicyState) -> Mapping[str, Any]:
    document: dict[str, Any] = to_plain(state)
    del document["ineligible"]  # see policy.events.Restarted
    del document["waits"], document["calm"]  # of a moment
    return {"saved_seconds": time.monotonic(), "state": document}


def _parsed(document: Mapping[str, Any]) -> PolicyState:
    if (ahead_seconds := document["saved_seconds"] - time.monotonic()) > 0:
        # Of a container with a time namespace: what it waits for would be waited for as long.
        raise ValueError(f"an instant {ahead_seconds:g} s from now")
    return from_plain(PolicyState, document["state"])


def restore(file: StateFile, known: Node) -> str | None:
    """Put the saved state into what is known; return why there is none to be had though there was a file."""
    restored = file.load()
    refused, file.problem = file.problem, None
    if restored is not None:
        known.restore(restored)
        conditions = ",".join(restored.conditions) or "none"
        _LOG.info("state restored: conditions=%s in_flight=%d", conditions, len(restored.in_flight))
    return refused


def last_good_file(state_path: Path, path: Path) -> KeptFile[str]:
    """Return what keeps the text of the configuration in force, of the file at `path`, beside the state file.

    A refused reload leaves the daemon with what it had. Without this file the next crash would be final: the
    start that follows would read the refused configuration, and the node would have no guard.
    """
    of = str(path.absolute())
    return KeptFile(
        state_path.with_name(LAST_GOOD_NAME),
        lambda text: {"path": of, "text": text},
        lambda document: str(document["text"]) if document["path"] == of else "",
        "last good configuration: not kept, a restart with a wrong file would be refused",
        _DAEMON_LOG,
        is_small=lambda text: len(text) <= _SMALL_TEXT,
    )
