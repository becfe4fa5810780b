"""What is recorded of passes: lines of the journal, the log, the counts; of dry runs each shortage once."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Final

import trio

from reactor.guard.outbox import RecordQueue
from reactor.guard.record import (
    EvictionAttempt,
    PassRecord,
    ordered_document,
    outcome_document,
    process_document,
    why_ranked,
)
from reactor.link.documents import RESUMED, Durations, Outcome, process_text
from reactor.model.decisions import Decision, Eviction, PolicyState
from reactor.model.pods import Pod
from reactor.model.quantity import amount_text
from reactor.model.signals import RESOURCE, LimitSignal, Resource, RuleSignal, Signal
from reactor.model.thresholds import Threshold
from reactor.supervisor import Nursery
from reactor.text import printable

_LOG: Final = logging.getLogger("reactor.decision")
# What is counted with two labels.
_LABELLED: Final = ("evictions", "process_evictions", "rules", "rules_unhelpful", "reclaims", "reclaimed")

OnPass = Callable[[PassRecord], None]
_Key = Threshold | tuple[Signal | LimitSignal | RuleSignal, str]


@dataclass(eq=False)
class Recorder:
    """Records passes. A pass that only repeats what the one before it decided is measured, not journaled.

    What is ordered is written at once (`"kind": "ordered"`): the daemon may not live to see what becomes of
    it. The next one resumes it and says so (`"resumed"`); its end is a line of its own (`"outcome"`).

    A decision's line waits until its pods are gone, so that it holds every stage,
    but no longer than `patience_seconds`; what ends later gets a line of its own (`"kind": "outcome"`).
    `on_ended` is called when an eviction came to its end.
    """

    journal: RecordQueue
    meter: Tally
    _: KW_ONLY
    patience_seconds: float
    on_ended: Callable[[PassRecord, EvictionAttempt], None] = lambda *_: None

    def __post_init__(self) -> None:
        self._last_state, self._last_choice = _essence(Decision(at_seconds=0.0))

    def record(self, record: PassRecord, nursery: Nursery) -> None:
        """Record one pass; what waits for its pods waits in `nursery`."""
        self.meter.observe_pass(record)
        is_news = record.decision.rule is None and self._is_news(record.decision)
        if not (is_news or record.decision.rule is not None or record.attempts or record.reclaimed):
            return
        _log(record)
        if not record.attempts:
            self._write_decision(record)
            return
        if any(not attempt.ended.is_set() for attempt in record.attempts):
            self.journal.write(partial(ordered_document, record.as_it_stands()))
        nursery.start_soon(self._complete, record)

    def resume(self, record: PassRecord, nursery: Nursery) -> None:
        """Record an eviction that an earlier run ordered, and its end once that is known."""
        self.journal.write(partial(ordered_document, record.as_it_stands(), kind=RESUMED))
        nursery.start_soon(self._account_late, record, record.attempts)

    def _is_news(self, decision: Decision) -> bool:
        """Return whether a decision is another one than the one before it, and take it for the next.

        A pass that has nothing fresh to act on, between two that have, takes back nothing of theirs.
        """
        state, choice = _essence(decision)
        if state == self._last_state and choice in {self._last_choice, _NOTHING_CHOSEN}:
            return False
        self._last_state, self._last_choice = state, choice
        return True

    async def _complete(self, record: PassRecord) -> None:
        try:
            with trio.move_on_after(self.patience_seconds):
                for attempt in record.attempts:
                    await attempt.ended.wait()
        finally:  # at a shutdown too what is known is written
            self._write_decision(record)
            late = []
            for attempt in record.attempts:
                if attempt.ended.is_set():
                    self._account(record, attempt)
                else:
                    late.append(attempt)
        await self._account_late(record, late)

    async def _account_late(self, record: PassRecord, late: Iterable[EvictionAttempt]) -> None:
        for attempt in late:
            await attempt.ended.wait()
            self._account(record, attempt)
            self.journal.write(partial(outcome_document, record.id, time.time(), attempt))

    def _account(self, record: PassRecord, attempt: EvictionAttempt) -> None:
        self.meter.observe_attempt(attempt)
        self.on_ended(record, attempt)
        _log_ending(record, attempt)

    def _write_decision(self, record: PassRecord) -> None:
        self.journal.write(partial(record.as_it_stands().document, 0), record.ranking_documents)


class Tally:
    """All counts. Nothing here is done between a wake and its kill."""

    def __init__(self) -> None:
        self._configured_unix_seconds = time.time()
        self._labelled: dict[str, Counter[tuple[str, str]]] = {name: Counter() for name in _LABELLED}
        self._unhelpful = 0
        self._durations = {"wake_to_kill": Durations(), "passes": Durations()}
        self._stages: dict[str, Durations] = {}
        self._stats_ages: dict[str, Durations] = {}
        self._reloads = Counter(taken=0, refused=0)

    def observe_pass(self, record: PassRecord) -> None:
        """Count one pass, and the stages of one that evicted."""
        times = record.times
        self._durations["passes"].observe((times.done_ns - times.started_ns) / 1e9)
        for given in record.reclaimed:
            self._labelled["reclaims"][given.kind, "failed" if given.problems else "done"] += 1
            resource = Resource.INODES if given.resource is Resource.INODES else Resource.EPHEMERAL_STORAGE
            self._labelled["reclaimed"][resource, given.kind] += max(0, given.freed or 0)
        if record.decision.rule is not None and not record.decision.waits:
            firing = record.decision.rule
            labels = (printable(firing.rule.name), str(firing.rule.action))
            self._labelled["rules"][labels] += 1
            self._labelled["rules_unhelpful"][labels] += bool(firing.unhelpful)
        if record.dry_run:
            return
        self._unhelpful += len(record.decision.unhelpful)
        if not record.attempts or record.decision.rule is not None:  # no source has woken for a rule
            return
        self._stage("wake", max(0, times.started_ns - times.woke_ns))
        self._stage("observe", times.observed_ns - times.started_ns)
        self._stage("decide", times.decided_ns - times.observed_ns)
        if record.decision.acted_on is not None:
            self._observe_ages(record)
        if times.killed_ns is not None:
            # The kernel kills before anything is observed, and before the loop is woken.
            self._stage("kill", max(0, times.killed_ns - times.decided_ns))
            self._durations["wake_to_kill"].observe(max(0, times.killed_ns - times.woke_ns) / 1e9)

    def _observe_ages(self, record: PassRecord) -> None:
        for threshold in record.decision.thresholds_met:
            seen = record.snapshot.signals.get(threshold.signal)
            if seen is not None and seen.taken_at_seconds is not None:
                age_seconds = max(0.0, record.decision.at_seconds - seen.taken_at_seconds)
                self._stats_ages.setdefault(threshold.signal, Durations()).observe(age_seconds)

    def observe_attempt(self, attempt: EvictionAttempt) -> None:
        """Count one eviction that came to its end, of a pod or of one process of one."""
        kind = "evictions" if attempt.process is None else "process_evictions"
        self._labelled[kind][attempt.eviction.signal, attempt.outcome] += 1
        if attempt.killed_ns is not None and attempt.freed_ns is not None:
            self._stage("free", attempt.freed_ns - attempt.killed_ns)

    def count_reload(self, *, taken: bool) -> None:
        """Count a reload of the configuration."""
        self._reloads["taken" if taken else "refused"] += 1
        if taken:
            self._configured_unix_seconds = time.time()

    def document(self) -> dict[str, Any]:
        """Return all as plain JSON values; what has labels as lists of them and the count."""
        return {
            **{
                name: [(*labels, count) for labels, count in counts.items()]
                for name, counts in self._labelled.items()
            },
            **{name: durations.document() for name, durations in self._durations.items()},
            "stages": {stage: durations.document() for stage, durations in self._stages.items()},
            "stats_ages": {signal: durations.document() for signal, durations in self._stats_ages.items()},
            "reloads": dict(self._reloads),
            "configured_unix_seconds": self._configured_unix_seconds,
            "unhelpful": self._unhelpful,
        }

    def _stage(self, name: str, nanoseconds: int) -> None:
        self._stages.setdefault(name, Durations()).observe(nanoseconds / 1e9)


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
            "" if place is None else f"({why_ranked(place, record.resource, record.ranked_by)})",
            attempt.outcome,
            _of_what(attempt),
            _milliseconds(record.times.woke_ns, attempt.killed_ns),
            record.id,
        )
    if decision.rule is not None:
        because = decision.deferred_because or "no"
        _LOG.warning("%s deferred=%s decision=%d", decision.rule, because, record.id)
    elif not record.attempts:
        inputs = {
            "conditions": ",".join(decision.conditions),
            "thresholds_met": ",".join(map(str, decision.thresholds_met)),
            "reclaim": ",".join(decision.reclaim),
            "deferred": decision.deferred_because,
            "absurd": "; ".join(f"{signal}: {why}" for signal, why in decision.absurd.items()),
        }
        shown = [f"{name}={value} " for name, value in inputs.items() if value]
        _LOG.info("no eviction: %sdecision=%d", "".join(shown), record.id)


def _of_what(attempt: EvictionAttempt) -> str:
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


class Rehearsed:
    """What a dry run has reported: each pod that it would evict, once for one shortage.

    It is remembered until its threshold is not met any more, or its pod has gone: if another evicts that pod
    and the shortage lasts, the next one is reported.
    """

    def __init__(self) -> None:
        self._reported: dict[_Key, str] = {}

    def has_reported(self, evictions: Sequence[Eviction]) -> bool:
        """Return whether there are evictions, and all of them were reported: their pods would be gone."""
        return bool(evictions) and self._reported.keys() >= set(map(_key, evictions))

    def news(self, decision: Decision, state: PolicyState, pods: Iterable[Pod]) -> Sequence[Eviction]:
        """Return which evictions of a decision were not reported for this shortage.

        A rule has a cool-down of its own, and is reported each time.
        """
        if self._reported:
            present = {pod.uid for pod in pods}
            self._reported = {
                key: uid
                for key, uid in self._reported.items()
                if uid in present and (not isinstance(key, Threshold) or key in state.first_observed)
            }
        if decision.rule is not None:
            return decision.evictions
        fresh = [one for one in decision.evictions if _key(one) not in self._reported]
        self._reported.update({_key(one): one.pod.uid for one in fresh})
        return fresh


def _key(eviction: Eviction) -> _Key:
    return eviction.threshold or (eviction.signal, eviction.pod.uid)
