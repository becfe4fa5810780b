"""What survives a restart: the state, and the last configuration that was right, each in a small JSON file.

The state is valid for one boot. Instants are on CLOCK_MONOTONIC: one clock for all processes of a boot, which
stands still in a suspend, for a guard that runs as for one that does not. After a reboot nothing in the file
is true any more: no process that it speaks of lives.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from reactor.errors import ReactorError
from reactor.guard.node import Node
from reactor.kernel.procfs import BOOT_ID
from reactor.kernel.small_file import KeptFile, document_of, read
from reactor.model.decisions import ClaimKind, PolicyState
from reactor.plain import from_plain, to_plain

_LOG: Final = logging.getLogger("reactor.state")
_DAEMON_LOG: Final = logging.getLogger("reactor.daemon")
_VERSION: Final = 1
_FEW: Final = 64  # evictions in flight, which is what makes a state long
LAST_GOOD_NAME: Final = "last-good-config.json"
LAST_GOOD_VERSION: Final = 1
LAST_GOOD_MAX_BYTES: Final = 4 << 20
_SMALL_TEXT: Final = 64 << 10
_MAX_BYTES: Final = 4 << 20  # 1,000 evictions in flight stay far below; more is not a file of ours


class StateError(ReactorError):
    """The state file can't be used: one line for an operator. The daemon then starts with no state."""


class StateFile(KeptFile[PolicyState]):
    """Keeps the policy's state at `path`, where something changed that a restart needs.

    `on_failure` is called for each write that failed. `boot_id` is an argument, so that a test can be its own
    boot.
    """

    def __init__(
        self, path: Path, on_failure: Callable[[], None] = lambda: None, *, boot_id: Path = BOOT_ID
    ) -> None:
        failure = "state: not saved, a restart would forget it"
        super().__init__(path, self.document, failure, _LOG, on_failure=on_failure)
        self.path = path
        self._latest = PolicyState()
        self._saved = essence(self._latest)
        self._boot_id = boot_id

    def document(self, state: PolicyState) -> object:
        """Return what the file says of a state. Raises OSError."""
        return {
            "version": _VERSION,
            "boot_id": self._boot_id.read_text().strip(),
            "saved_seconds": time.monotonic(),
            "state": _document(state),
        }

    def load(self) -> PolicyState | None:
        """Return what was saved during this boot, None where nothing was.

        Raises StateError for a file that can't be read or understood.
        """
        try:
            content = read(self.path, _MAX_BYTES)
            boot_id = self._boot_id.read_text().strip()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StateError(f"{self.path}: {error.strerror}") from error
        try:
            document = document_of(content, version=_VERSION, max_bytes=_MAX_BYTES)
            if document["boot_id"] != boot_id:
                return None
            if (ahead_seconds := document.get("saved_seconds", 0.0) - time.monotonic()) > 0:
                # Of a container with a time namespace: what it waits for would be waited for as long.
                raise ValueError(f"an instant {ahead_seconds:g} s from now")  # noqa: TRY301
            return from_plain(PolicyState, _of_one_form(document["state"]))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, ArithmeticError) as error:
            got = f"{type(error).__name__}: {error}"
            raise StateError(f"{self.path}: got {got}; accepted: what reactor {_VERSION} wrote") from error

    def show(self, state: PolicyState, *, in_any_case: bool = False) -> None:
        """Have the state saved soon if it matters; with `in_any_case` also where only instants moved on."""
        self._latest = state
        if essence(state) != self._saved or (in_any_case and state != PolicyState()):
            super().show(state)

    def flush(self) -> None:
        """Save the last state shown, here and now: the daemon ends."""
        self._save_shown()

    def _is_small(self) -> bool:
        return len(self._latest.in_flight) <= _FEW

    def _save_shown(self) -> None:
        self.save(self._latest)  # also one that did not matter any more: the file may have the one before

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
    del document["waits"]  # of a moment
    document["in_flight"] = document.pop("claims")
    return document


def _of_one_form(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a saved state with evictions as they were saved before claims: an upgrade loses none."""
    before = [one for one in state["in_flight"] if "kind" not in one and one["process_bytes"] is None]
    for one in before:
        left_bytes = one["left_bytes"]
        one |= {"kind": ClaimKind.POD if left_bytes is None else ClaimKind.FILES, "amount": left_bytes}
    return {**state, "claims": [one for one in state["in_flight"] if "kind" in one]}


def restore(file: StateFile, known: Node) -> str | None:
    """Put the saved state into what is known; return why there is none to be had though there was a file."""
    try:
        restored = file.load()
    except StateError as error:
        return f"started without it: {error}"
    if restored is not None:
        known.restore(restored)
        conditions = ",".join(restored.conditions) or "none"
        _LOG.info("state restored: conditions=%s in_flight=%d", conditions, len(restored.in_flight))
    return None


class LastGoodFile(KeptFile[str]):
    """Keeps the text of the configuration in force, which came from `path`, beside the state file.

    A refused reload leaves the daemon with what it had. Without this file the next crash would be final: the
    start that follows would read the refused configuration, and the node would have no guard.
    """

    def __init__(self, state_path: Path, path: Path) -> None:
        self._path_of_text = str(path.absolute())
        failure = "last good configuration: not kept, a restart with a wrong file would be refused"
        super().__init__(state_path.with_name(LAST_GOOD_NAME), self._document, failure, _DAEMON_LOG)

    def _is_small(self) -> bool:
        return all(len(text) <= _SMALL_TEXT for text in self._shown)

    def _document(self, text: str) -> object:
        return {"version": LAST_GOOD_VERSION, "path": self._path_of_text, "text": text}
