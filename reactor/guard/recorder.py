"""What is said of the passes: lines for the journal, notes meanwhile, the log, the counts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import trio

from reactor.guard.record import (
    EvictionAttempt,
    PassRecord,
    ordered_document,
    outcome_document,
    process_document,
)
from reactor.guard.record_queue import Make, Ranking
from reactor.guard.wording import standing
from reactor.link.documents import RESUMED, Outcome, process_text
from reactor.model.amounts import amount_text
from reactor.model.decisions import Decision
from reactor.model.signals import RESOURCE
from reactor.supervisor import Faults, Nursery
from reactor.text import printable

_LOG: Final = logging.getLogger("reactor.decision")
_NOTED_RANKING: Final = 20

OnPass = Callable[[PassRecord], None]
OnEnded = Callable[[PassRecord, EvictionAttempt], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """Called in Trio's thread: `on_pass` with every pass, `on_ended` when an eviction came to its end.

    `faults` are what a test lets happen to the parts of the daemon.
    """

    on_pass: OnPass | None = None
    on_ended: OnEnded | None = None
    faults: Faults | None = None


class Meter(Protocol):
    """Measures passes and what becomes of their evictions."""

    def observe_pass(self, record: PassRecord) -> None:
        """Count one pass."""

    def observe_attempt(self, record: PassRecord, attempt: EvictionAttempt) -> None:
        """Count one eviction, once nothing more becomes of it."""


class Lines(Protocol):
    """Takes what is to be journaled."""

    def write(self, make: Make, ranking: Ranking | None = None) -> bool:
        """Queue a line, whose ranking is made by itself; return False where it had to be dropped."""

    def note(self, make: Make) -> None:
        """Queue what is to be shown while its line is not written yet."""


class Recorder:
    """Records passes. A pass that only repeats what the one before it decided is measured, not journaled.

    What is ordered is written at once (`"kind": "ordered"`): the daemon may not live to see what becomes of
    it. The next one resumes it and says so (`"resumed"`); its end is a line of its own (`"outcome"`).

    A decision's line waits until its pods are gone, so that it holds every stage,
    but no longer than `patience_seconds`; what ends later gets a line of its own (`"kind": "outcome"`).
    """

    def __init__(
        self,
        journal: Lines | None,
        meter: Meter | None,
        *,
        patience_seconds: float,
        hooks: Hooks,
    ) -> None:
        self._journal = journal
        self._meter = meter
        self._patience_seconds = patience_seconds
        self._hooks = hooks
        self._standing, self._choice = _essence(Decision(at_seconds=0.0))

    def record(self, record: PassRecord, nursery: Nursery) -> None:
        """Record one pass; what waits for its pods waits in `nursery`."""
        if self._hooks.on_pass is not None:
            self._hooks.on_pass(record)
        if self._meter is not None:
            self._meter.observe_pass(record)
        is_news = record.decision.rule is None and self._is_news(record.decision)
        if not (is_news or record.decision.rule is not None or record.attempts or record.reclaimed):
            return
        _log(record)
        if not record.attempts:
            self._write_decision(record)
            return
        if self._journal is not None:
            self._journal.note(partial(record.document, _NOTED_RANKING))
        if any(not attempt.ended.is_set() for attempt in record.attempts):
            self._write(partial(ordered_document, record.as_it_stands()))
        nursery.start_soon(self._complete, record)

    def resume(self, record: PassRecord, nursery: Nursery) -> None:
        """Record an eviction that an earlier run ordered, and its end once that is known."""
        self._write(partial(ordered_document, record.as_it_stands(), kind=RESUMED))
        nursery.start_soon(self._account_late, record, record.attempts)

    def _is_news(self, decision: Decision) -> bool:
        """Return whether a decision is another one than the one before it, and take it for the next.

        A pass that has nothing fresh to act on, between two that have, takes back nothing of theirs.
        """
        standing_now, choice = _essence(decision)
        if standing_now == self._standing and choice in {self._choice, _NOTHING_CHOSEN}:
            return False
        self._standing, self._choice = standing_now, choice
        return True

    async def _complete(self, record: PassRecord) -> None:
        try:
            with trio.move_on_after(self._patience_seconds):
                for attempt in record.attempts:
                    await attempt.ended.wait()
        finally:
            late = self._patience_over(record)  # at a shutdown too what is known is written
        await self._account_late(record, late)

    async def _account_late(self, record: PassRecord, late: Iterable[EvictionAttempt]) -> None:
        """Write what becomes of evictions whose order has been written already."""
        for attempt in late:
            await attempt.ended.wait()
            self._account(record, attempt)
            self._write(partial(outcome_document, record.id, time.time(), attempt))

    def _patience_over(self, record: PassRecord) -> list[EvictionAttempt]:
        """Write the decision as it stands; return its evictions that have not come to their end."""
        self._write_decision(record)
        for attempt in record.attempts:
            if attempt.ended.is_set():
                self._account(record, attempt)
        return [attempt for attempt in record.attempts if not attempt.ended.is_set()]

    def _account(self, record: PassRecord, attempt: EvictionAttempt) -> None:
        if self._meter is not None:
            self._meter.observe_attempt(record, attempt)
        if self._hooks.on_ended is not None:
            self._hooks.on_ended(record, attempt)
        _log_ending(record, attempt)

    def _write_decision(self, record: PassRecord) -> None:
        if self._journal is not None:
            self._journal.write(partial(record.as_it_stands().document, 0), record.ranking_documents)

    def _write(self, make: Make) -> None:
        if self._journal is not None:
            self._journal.write(make)


def _essence(decision: Decision) -> tuple[tuple[object, ...], tuple[object, ...]]:
    """Return how the node stands and what was chosen to be done; numbers that drift are not part of it."""
    return (
        (
            decision.conditions,
            decision.thresholds_met,
            frozenset(decision.absurd),
            frozenset((one.signal, one.reason) for one in decision.slowdowns),
        ),
        (decision.acted_on, decision.reclaim, decision.deferred_because is not None),
    )


_NOTHING_CHOSEN: Final = _essence(Decision(at_seconds=0.0))[1]


def _log(record: PassRecord) -> None:
    decision = record.decision
    threshold = decision.acted_on
    seen = None if threshold is None else record.snapshot.signals.get(threshold.signal)
    unit = None if threshold is None else RESOURCE[threshold.signal]
    prefix = "dry run: would evict" if record.dry_run else "evict"
    for attempt in record.attempts:
        place = next((one for one in decision.ranking if one.pod.uid == attempt.eviction.pod.uid), None)
        _LOG.warning(
            "%s %s signal=%s threshold=%s available=%s capacity=%s grace_period_seconds=%d %s outcome=%s%s "
            "kill_ms=%s decision=%d",
            prefix,
            attempt.eviction.pod.key,
            attempt.eviction.signal,
            threshold,
            amount_text(None if seen is None else seen.available, unit),
            amount_text(None if seen is None else seen.capacity, unit),
            attempt.eviction.grace_period_seconds,
            "" if place is None else f"({standing(place, record.resource, record.ranked_by)})",
            attempt.outcome,
            _of_what(attempt),
            _milliseconds(record.times.woke_ns, attempt.killed_ns),
            record.id,
        )
    if decision.rule is not None:
        because = decision.deferred_because or "no"
        _LOG.warning("%s deferred=%s decision=%d", decision.rule, because, record.id)
    elif not record.attempts:
        _LOG.info(
            "conditions=%s thresholds_met=%s reclaim=%s deferred=%s absurd=%s decision=%d",
            ",".join(decision.conditions) or "none",
            ",".join(map(str, decision.thresholds_met)) or "none",
            ",".join(decision.reclaim) or "none",
            decision.deferred_because or "no",
            "; ".join(f"{signal}: {why}" for signal, why in decision.absurd.items()) or "none",
            record.id,
        )


def _of_what(attempt: EvictionAttempt) -> str:
    """Return which process it was where it was one, or why it was not."""
    if attempt.process is not None:
        return f" process={process_text(process_document(attempt.process))}"
    return "" if attempt.whole_because is None else f" whole_pod_because={printable(attempt.whole_because)}"


def _log_ending(record: PassRecord, attempt: EvictionAttempt) -> None:
    if attempt.outcome is Outcome.DRY_RUN:
        return  # nothing has ended
    level = logging.INFO if attempt.freed_ns is not None else logging.WARNING
    _LOG.log(
        level,
        "%s %s freed_ms=%s decision=%d%s",
        attempt.outcome,
        attempt.eviction.pod.key,
        _milliseconds(record.times.woke_ns, attempt.freed_ns),
        record.id,
        "".join(f"; {problem}" for problem in attempt.problems),
    )


def _milliseconds(from_ns: int, to_ns: int | None) -> str:
    return "none" if to_ns is None else f"{(to_ns - from_ns) / 1e6:.2f}"
