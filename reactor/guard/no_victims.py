"""Thresholds that are met while no pod can be evicted: a warning and an event at first, a problem meanwhile.

The line of the journal is what operators are notified by.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Final

from reactor.guard.record import EvictionAttempt, PassRecord
from reactor.link.documents import NO_VICTIM, Outcome, instant
from reactor.model.decisions import NoVictim
from reactor.model.signals import RESOURCE
from reactor.model.thresholds import Threshold
from reactor.text import printable

_LOG: Final = logging.getLogger("reactor.evict")
_IN_VAIN: Final = frozenset({Outcome.FAILED, Outcome.GONE})


class NoVictims:
    """Follows them from pass to pass; `on_new` is called with each that is new, `write` journals its line.

    One lasts until its threshold is not met any more, or a pod is evicted for it.
    """

    def __init__(
        self,
        write: Callable[[Callable[[], Mapping[str, Any]]], object],
        on_new: Callable[[NoVictim], None] = lambda _: None,
    ) -> None:
        self._write = write
        self._on_new = on_new
        self._present: dict[Threshold, NoVictim] = {}

    def passed(self, record: PassRecord) -> None:
        """Take over what a pass has found."""
        decision = record.decision
        if decision.rule is not None:
            return
        for threshold in self._present.keys() - set(decision.thresholds_met):
            del self._present[threshold]
            _LOG.info("%s is not met any more", threshold)
        if any(map(_is_helpful, record.attempts)) and decision.acted_on is not None:
            self._present.pop(decision.acted_on, None)
        found = decision.no_victim
        if found is None:
            return
        is_new = found.threshold not in self._present
        self._present[found.threshold] = found
        if is_new:
            _LOG.warning("%s", found.message)
            self._write(partial(_document, record, found, time.time()))
            self._on_new(found)

    @property
    def signals(self) -> Collection[str]:
        """Return the signals of the thresholds that are met while no pod can be evicted."""
        return sorted({threshold.signal for threshold in self._present})

    @property
    def problem(self) -> str | None:
        """Return which thresholds are met and who holds what they are short of, None where there is none."""
        return "; ".join(one.message for one in self._present.values()) or None


def _is_helpful(attempt: EvictionAttempt) -> bool:
    return attempt.outcome not in _IN_VAIN and not attempt.is_empty


def _document(record: PassRecord, found: NoVictim, at_unix_seconds: float) -> Mapping[str, Any]:
    seen = record.snapshot.signals.get(found.threshold.signal)
    return {
        "kind": NO_VICTIM,
        "time": instant(at_unix_seconds),
        "decision": record.id,
        "dry_run": record.dry_run,
        "signal": found.threshold.signal,
        "resource": RESOURCE[found.threshold.signal],
        "threshold": str(found.threshold),
        "available": None if seen is None else seen.available,
        "capacity": None if seen is None else seen.capacity,
        "message": printable(found.message),
    }
