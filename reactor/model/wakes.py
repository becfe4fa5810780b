"""Wakes, which carry only why since the loop observes before it decides, and how the sources stand."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from reactor.model.signals import Signal


class WakeKind(StrEnum):
    """How much a pass has to observe: a memory wake never waits for a disk."""

    MEMORY = "memory"
    PROCESSES = "processes"
    HOUSEKEEPING = "housekeeping"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wake:
    """Why the loop is to run a pass: which source, for which signal, at what CLOCK_MONOTONIC nanosecond."""

    source: str
    kind: WakeKind
    at_ns: int
    signal: Signal | None = None


class SourceHealth(StrEnum):
    """How a source stands. `DEGRADED`: another one further down its chain is doing the work."""

    ARMED = "armed"
    DEGRADED = "degraded"
    FAILED = "failed"
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceState:
    """One source's state, for `reactor status` and the metrics. `detail` is one line for an operator."""

    name: str
    health: SourceHealth
    detail: str = ""
    wakes: int = 0
    lost: int = 0
