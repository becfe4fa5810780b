"""Sources that are lost, each told once: a line of the journal, by which operators are notified.

Chains, retries and reloads tell how a source stands again and again. It is lost when another stands in for it
or none does, and no more when it is armed again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from reactor.link.documents import SOURCE_LOST, instant
from reactor.model.wakes import SourceHealth, SourceState
from reactor.sources.catalogue import BY_NAME
from reactor.text import printable

_LOST: Final = frozenset({SourceHealth.DEGRADED, SourceHealth.FAILED})

Document = Mapping[str, Any]


class SourceLosses:
    """`write` journals, and may not block. Outlives the generations, each of which arms its sources anew."""

    def __init__(self, write: Callable[[Callable[[], Document]], object]) -> None:
        self._write = write
        self._lost: set[str] = set()

    def changed(self, state: SourceState) -> None:
        """Take note of how a source stands now."""
        if state.health in _LOST:
            if state.name not in self._lost:
                self._lost.add(state.name)
                document = _document(state, time.time())
                self._write(lambda: document)
        elif state.health is SourceHealth.ARMED:
            self._lost.discard(state.name)


def _document(state: SourceState, at_unix_seconds: float) -> Document:
    known = BY_NAME.get(state.name)
    purpose = "" if known is None else f" ({known.purpose})"
    return {
        "kind": SOURCE_LOST,
        "time": instant(at_unix_seconds),
        "source": state.name,
        "health": state.health,
        "detail": printable(state.detail),
        "message": printable(f"source {state.name}{purpose} is {state.health}: {state.detail}"),
    }
