"""What is scraped of a daemon of which little is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reactor.guard.node import Node
from reactor.guard.recorder import Tally
from reactor.guard.reports import Report, Reports
from reactor.model.kills import OomScope
from reactor.model.settings import EvictionSettings, Settings
from reactor.model.signals import Signal
from reactor.model.thresholds import Observation, Observed, Threshold
from reactor.model.wakes import SourceState


def of_others(tally: Tally) -> dict[str, Any]:
    """Return what else than the node's own is scraped, with nothing in it but the tally."""
    return {
        "tally": tally.document(),
        "parts": [],
        "state_failures": 0,
        "journal": {"written": 0, "lost": 0},
        "processes": {"steward": {"refused_requests": 0}},
        "no_victims": {},
        "oom_kills": {"counted": dict.fromkeys(OomScope, 0)},
        "shutdown_times": {},
        "oom_order": {"first": None, "others": 0},
        "kernel_kill": {"counted": {}},
        "time_left": None,
    }


def reading_of(
    *thresholds: Threshold,
    seen: Mapping[Signal, Observation] | None = None,
    sources: tuple[SourceState, ...] = (),
    **more: Any,
) -> dict[str, Any]:
    """Return what is scraped of a daemon with these thresholds."""
    known = Node(observed=Observed(stale_seconds=1.0), clock_seconds=lambda: 1.0)
    known.observed.take(list(seen or ()), seen or {}, 1.0)
    settings = Settings(eviction=EvictionSettings(thresholds=thresholds))
    others = [Report(counts=lambda: {**of_others(Tally()), **more})]
    return Reports(settings=settings, known=known, others=others, sources=sources).reading()
