"""What a scrape is told by the guard: its counts, and what it knows this moment."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import reactor
from reactor.model.decisions import PolicyState
from reactor.model.settings import EvictionSettings
from reactor.model.signals import RESOURCE, UNIT, Signal
from reactor.model.thresholds import Observation
from reactor.model.wakes import SourceState
from reactor.model.warrants import WarrantEnd
from reactor.supervisor import PartState


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a scrape reads off the daemon. `observations` with their times on the clock of `now_seconds`.

    `tally` is what was counted since `started_unix_seconds`, `refused_requests` how many of the steward's
    requests were none. `cluster` is how the daemon takes part in one, `problems` what `status` calls them,
    `shutdown` when the node's last graceful shutdown began and ended, `oom_order` how many processes have
    another oom_score_adj than their own, `warrants` what has become of them, `no_victims` the signals whose
    thresholds are met while no pod can be evicted.
    """

    now_seconds: float
    settings: EvictionSettings
    state: PolicyState
    observations: Mapping[Signal, Observation]
    sources: tuple[SourceState, ...]
    pods: int
    tally: Mapping[str, Any]
    started_unix_seconds: float
    pid: int
    journal_written: int = 0
    journal_lost: int = 0
    refused_requests: int = 0
    parts: tuple[PartState, ...] = ()
    cluster: Mapping[str, Any] | None = None
    problems: Collection[str] = ()
    shutdown: Mapping[str, float] = field(default_factory=dict)
    oom_order: Mapping[str, int] = field(default_factory=lambda: {"first": 0, "others": 0})
    warrants: Mapping[WarrantEnd, int] = field(default_factory=dict)
    no_victims: Collection[str] = ()

    def document(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return {
            "version": reactor.__version__,
            "pid": self.pid,
            "started_unix_seconds": self.started_unix_seconds,
            "signals": [self._signal(signal, seen) for signal, seen in self.observations.items()],
            "unobserved": sorted({one.signal for one in self.settings.thresholds} - self.observations.keys()),
            "conditions": list(self.state.conditions),
            "slowdowns": [one.reason for one in self.state.slowdowns],
            "never_evicted": {
                one.held_by: one.held_by_bytes for one in self.state.slowdowns if one.held_by is not None
            },
            "in_flight": len(self.state.in_flight),
            "sources": [
                {"name": one.name, "health": one.health, "wakes": one.wakes, "lost": one.lost}
                for one in self.sources
            ],
            "parts": {part.name: part.restarts for part in self.parts},
            "oom_order": dict(self.oom_order),
            "pods": self.pods,
            "journal": {"written": self.journal_written, "lost": self.journal_lost},
            "refused_requests": self.refused_requests,
            "cluster": self.cluster,
            "problems": list(self.problems),
            "shutdown": dict(self.shutdown),
            "warrants": dict(self.warrants),
            "no_victims": {
                signal: signal in self.no_victims
                for signal in sorted({one.signal for one in self.settings.thresholds})
            },
            "tally": self.tally,
        }

    def _signal(self, signal: Signal, seen: Observation) -> Mapping[str, Any]:
        taken = seen.taken_at_seconds
        return {
            "signal": signal,
            "unit": UNIT[RESOURCE[signal]],
            "available": seen.available,
            "capacity": seen.capacity,
            "age_seconds": None if taken is None else max(0.0, self.now_seconds - taken),
            "thresholds": [
                {
                    "kind": "hard" if threshold.is_hard else "soft",
                    "amount": float(threshold.value.of(seen.capacity)),
                    "absurd": seen.absurdity is None and threshold.is_absurd_at(seen.capacity),
                }
                for threshold in self.settings.thresholds
                if threshold.signal == signal
            ],
        }
