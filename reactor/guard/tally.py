"""What is counted as it happens, from the daemon's start on: plain numbers, which a scrape is given."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from reactor.guard.record import EvictionAttempt, PassRecord
from reactor.link.documents import Durations
from reactor.model.oom import OomKill, OomScope
from reactor.model.rules import Firing
from reactor.model.signals import Resource
from reactor.text import printable


class Tally:
    """All counts. Nothing here is done between a wake and its kill."""

    def __init__(self) -> None:
        self.is_configuration_refused = False
        self._configured_unix_seconds = time.time()
        self._evictions: Counter[tuple[str, str]] = Counter()
        self._process_evictions: Counter[tuple[str, str]] = Counter()
        self._stages: dict[str, Durations] = {}
        self._wake_to_kill = Durations()
        self._stats_ages: dict[str, Durations] = {}
        self._passes = Durations()
        self._reloads = Counter({"taken": 0, "refused": 0})
        self._oom_kills: Counter[str] = Counter(dict.fromkeys(OomScope, 0))
        self._unhelpful = 0
        self._state_failures = 0
        self._rules: Counter[tuple[str, str]] = Counter()
        self._rules_unhelpful: Counter[tuple[str, str]] = Counter()
        self._reclaims: Counter[tuple[str, str]] = Counter()
        self._reclaimed: Counter[tuple[str, str]] = Counter()

    def observe_pass(self, record: PassRecord) -> None:
        """Count one pass, and the stages of one that evicted."""
        times = record.times
        self._passes.observe((times.done_ns - times.started_ns) / 1e9)
        for given in record.reclaimed:
            self._reclaims[given.kind, "failed" if given.problems else "done"] += 1
            resource = Resource.INODES if given.resource is Resource.INODES else Resource.EPHEMERAL_STORAGE
            self._reclaimed[resource, given.kind] += max(0, given.freed or 0)
        if record.decision.rule is not None and not record.decision.waits:
            self._observe_rule(record.decision.rule)
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
            self._wake_to_kill.observe(max(0, times.killed_ns - times.woke_ns) / 1e9)

    def _observe_rule(self, firing: Firing) -> None:
        labels = (printable(firing.rule.name), str(firing.rule.action))
        self._rules[labels] += 1
        self._rules_unhelpful[labels] += bool(firing.unhelpful)

    def _observe_ages(self, record: PassRecord) -> None:
        """Count how old the statistics were that a pod was evicted by. Source: synchronize."""
        for threshold in record.decision.thresholds_met:
            seen = record.snapshot.signals.get(threshold.signal)
            if seen is not None and seen.taken_at_seconds is not None:
                age_seconds = max(0.0, record.decision.at_seconds - seen.taken_at_seconds)
                self._stats_ages.setdefault(threshold.signal, Durations()).observe(age_seconds)

    def observe_attempt(self, record: PassRecord, attempt: EvictionAttempt) -> None:
        """Count one eviction that came to its end, of a pod or of one process of one."""
        del record
        counts = self._evictions if attempt.process is None else self._process_evictions
        counts[attempt.eviction.signal, attempt.outcome] += 1
        if attempt.killed_ns is not None and attempt.freed_ns is not None:
            self._stage("free", attempt.freed_ns - attempt.killed_ns)

    def count_reload(self, *, taken: bool) -> None:
        """Count a reload of the configuration."""
        self._reloads["taken" if taken else "refused"] += 1
        self.is_configuration_refused = not taken
        if taken:
            self._configured_unix_seconds = time.time()

    def refuse_configuration(self) -> None:
        """Show that the file on disk is refused and an earlier configuration in force."""
        self.is_configuration_refused = True

    def count_oom_kill(self, kill: OomKill) -> None:
        """Count what the kernel killed."""
        self._oom_kills[kill.scope] += kill.kills

    def count_state_failure(self) -> None:
        """Count a failed write of the state file."""
        self._state_failures += 1

    def document(self) -> dict[str, Any]:
        """Return all as plain JSON values; what has labels as lists of them and the count."""
        return {
            "evictions": _labelled(self._evictions),
            "rules": _labelled(self._rules),
            "rules_unhelpful": _labelled(self._rules_unhelpful),
            "process_evictions": _labelled(self._process_evictions),
            "stages": {stage: durations.document() for stage, durations in self._stages.items()},
            "stats_ages": {signal: durations.document() for signal, durations in self._stats_ages.items()},
            "wake_to_kill": self._wake_to_kill.document(),
            "passes": self._passes.document(),
            "reloads": dict(self._reloads),
            "configuration_refused": self.is_configuration_refused,
            "configured_unix_seconds": self._configured_unix_seconds,
            "oom_kills": dict(self._oom_kills),
            "unhelpful": self._unhelpful,
            "state_failures": self._state_failures,
            "reclaims": _labelled(self._reclaims),
            "reclaimed": _labelled(self._reclaimed),
        }

    def _stage(self, name: str, nanoseconds: int) -> None:
        self._stages.setdefault(name, Durations()).observe(nanoseconds / 1e9)


def _labelled(counts: Mapping[tuple[str, str], int]) -> list[tuple[str, str, int]]:
    return [(*labels, count) for labels, count in counts.items()]
