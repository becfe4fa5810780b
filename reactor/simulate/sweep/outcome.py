"""The outcome of each combination of thresholds in each scenario, by the decisions that the daemon makes.

A crossing begins when a swept signal falls below one of its thresholds, or has nothing left at all (of
memory the kernel's OOM killer says so, too), and lasts until that is over, the minimum reclaim included. It
is missed where nothing was left before a pod was evicted (or the node gave back enough), and where
an eviction was due and no pod could be evicted. A recording goes on as if nothing had been done, so within
one crossing a pod counts once, however often it would be chosen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from reactor.config.summary import Summary
from reactor.model.decisions import Decision, Snapshot
from reactor.model.settings import EvictionSettings
from reactor.model.signals import CONDITION, MEMORY_SIGNALS, NodeCondition, Signal
from reactor.model.thresholds import Observation
from reactor.policy.thresholds import is_met
from reactor.simulate.replay import SnapshotOf, passes
from reactor.simulate.scenario import Scenario, eviction_settings
from reactor.simulate.sweep.axes import (
    Axis,
    Combination,
    RuleSetting,
    Setting,
    combinations,
    configured,
    ruled,
)

_ALLIED = {
    **dict.fromkeys(MEMORY_SIGNALS, MEMORY_SIGNALS),
    Signal.NODEFS_AVAILABLE: frozenset({Signal.NODEFS_AVAILABLE, Signal.CONTAINERFS_AVAILABLE}),
    Signal.NODEFS_INODES_FREE: frozenset({Signal.NODEFS_INODES_FREE, Signal.CONTAINERFS_INODES_FREE}),
    Signal.IMAGEFS_AVAILABLE: frozenset({Signal.IMAGEFS_AVAILABLE, Signal.CONTAINERFS_AVAILABLE}),
    Signal.IMAGEFS_INODES_FREE: frozenset({Signal.IMAGEFS_INODES_FREE, Signal.CONTAINERFS_INODES_FREE}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The counts. Every crossing was answered, missed, or recovered by itself while no eviction was due.

    `lead_seconds` is the shortest time from an eviction to the moment when nothing was left; None where that
    never came, or never after an eviction. `first_eviction_seconds` is since the scenario's start.

    Of the rules that are swept: how often they `acted`, how many evictions that were, and when first.
    """

    passes: int
    crossings: int
    answered: int
    missed: int
    recovered: int
    evictions: int
    below_seconds: float
    pressure_seconds: float
    first_eviction_seconds: float | None
    lead_seconds: float | None
    acted: int = 0
    acted_evictions: int = 0
    first_acted_seconds: float | None = None


@dataclass(slots=True, kw_only=True)
class _Crossing:
    """One crossing while it lasts; instants are seconds since the scenario's start."""

    answered_at: float | None = None
    exhausted_at: float | None = None
    due: bool = False
    evicted: set[str] = field(default_factory=set)

    @property
    def is_missed(self) -> bool:
        if self.answered_at is None:
            return self.due or self.exhausted_at is not None
        return self.exhausted_at is not None and self.exhausted_at <= self.answered_at


class Tally:
    """Counts what becomes of the crossings of these signals, pass by pass."""

    def __init__(self, signals: Iterable[Signal], settings: EvictionSettings) -> None:
        self._signals = _with_allied(signals)
        self._conditions = {CONDITION[signal] for signal in self._signals}
        self._thresholds = [one for one in settings.thresholds if one.signal in self._signals]
        self._over: list[_Crossing] = []
        self._present: _Crossing | None = None
        self._last = (0.0, False, False)  # when, below a threshold, under pressure
        self._passes = 0
        self._below_seconds = self._pressure_seconds = 0.0
        self._first_eviction: float | None = None

    def take(
        self, at_seconds: float, snapshot: Snapshot | None, decision: Decision, *, oom_kills: int = 0
    ) -> None:
        """Count a pass; `snapshot` None could not be read, and leaves everything as it is.

        `oom_kills` are those of the kernel's since the pass before, at the node's own limit.
        """
        self._passes += 1
        since, was_below, was_pressed = self._last
        self._below_seconds += (at_seconds - since) * was_below
        self._pressure_seconds += (at_seconds - since) * was_pressed
        if oom_kills and self._signals & MEMORY_SIGNALS:
            self._exhaust(at_seconds)
        below = was_below if snapshot is None else self._follow(at_seconds, snapshot, decision)
        self._last = (at_seconds, below, _is_pressed(decision.conditions, self._conditions))

    def outcome(self) -> Outcome:
        """Return the counts; a crossing that has not ended counts as it stands."""
        crossings = [*self._over, *([self._present] if self._present is not None else [])]
        missed = sum(one.is_missed for one in crossings)
        answered = sum(one.answered_at is not None and not one.is_missed for one in crossings)
        leads = [
            one.exhausted_at - one.answered_at
            for one in crossings
            if one.exhausted_at is not None and one.answered_at is not None and not one.is_missed
        ]
        return Outcome(
            passes=self._passes,
            crossings=len(crossings),
            answered=answered,
            missed=missed,
            recovered=len(crossings) - answered - missed,
            evictions=sum(len(one.evicted) for one in crossings),
            below_seconds=self._below_seconds,
            pressure_seconds=self._pressure_seconds,
            first_eviction_seconds=self._first_eviction,
            lead_seconds=min(leads, default=None),
        )

    def _follow(self, at_seconds: float, snapshot: Snapshot, decision: Decision) -> bool:
        seen = {
            signal: observation
            for signal, observation in snapshot.signals.items()
            if signal in self._signals and observation.absurdity is None
        }
        exhausted = any(observation.available == 0 for observation in seen.values())
        below = exhausted or self._is_below(seen)
        due = any(one.signal in self._signals for one in decision.thresholds_met)
        if not below and not due:
            if self._present is not None:
                self._over.append(self._present)
            self._present = None
            return False
        crossing = self._exhaust(at_seconds) if exhausted else self._crossing()
        crossing.due |= due
        evicted = {one.pod.uid for one in decision.evictions if one.signal in self._signals}
        if evicted and self._first_eviction is None:
            self._first_eviction = at_seconds
        crossing.evicted |= evicted
        if crossing.answered_at is None and (evicted or self._is_given_back(decision)):
            crossing.answered_at = at_seconds
        return below

    def _crossing(self) -> _Crossing:
        """Return the present crossing, a new one where none was."""
        self._present = self._present or _Crossing()
        return self._present

    def _exhaust(self, at_seconds: float) -> _Crossing:
        crossing = self._crossing()
        if crossing.exhausted_at is None:
            crossing.exhausted_at = at_seconds
        return crossing

    def _is_below(self, seen: dict[Signal, Observation]) -> bool:
        return any(one.signal in seen and is_met(one, seen[one.signal]) for one in self._thresholds)

    def _is_given_back(self, decision: Decision) -> bool:
        """Return whether the node's own reclaim was enough: it ran, and after it no pod was ranked."""
        return (
            decision.acted_on is not None
            and decision.acted_on.signal in self._signals
            and bool(decision.reclaim)
            and not decision.ranking
        )


def _with_allied(signals: Iterable[Signal]) -> frozenset[Signal]:
    """Return the signals and those whose thresholds are derived from theirs."""
    return frozenset(allied for signal in signals for allied in _ALLIED.get(signal, {signal}))


def _is_pressed(conditions: Collection[NodeCondition], about: Collection[NodeCondition]) -> bool:
    return any(condition in about for condition in conditions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """One scenario with one combination."""

    scenario: str
    combination: Combination
    outcome: Outcome


@dataclass(slots=True)
class Speed:
    """How many passes were made in what time, reading the scenarios not counted."""

    passes: int = 0
    seconds: float = 0.0

    @property
    def per_second(self) -> float:
        """Return the passes in a second."""
        return self.passes / self.seconds if self.seconds else 0.0


def sweep(
    scenarios: Iterable[tuple[str, Scenario]],
    axes: Sequence[Axis],
    speed: Speed,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[Swept]:
    """Yield what each combination would have done in each named scenario; adds up `speed`."""
    for name, scenario in scenarios:
        snapshot_of = _remembered()
        for combination in combinations(axes):
            began = clock()
            outcome = outcome_of(scenario, combination, snapshot_of)
            speed.passes += outcome.passes
            speed.seconds += clock() - began
            yield Swept(scenario=name, combination=combination, outcome=outcome)


def outcome_of(scenario: Scenario, combination: Combination, snapshot_of: SnapshotOf) -> Outcome:
    """Return what the scenario comes to with these thresholds in the place of its own."""
    settings = eviction_settings(configured(scenario.configuration, combination), scenario.layout)
    tally = Tally((one.signal for one in combination if isinstance(one, Setting)), settings)
    swept = {one.rule for one in combination if isinstance(one, RuleSetting)}
    # Rules that are not varied change nothing that is counted.
    rules = [rule for rule in ruled(scenario.rules, combination) if rule.name in swept]
    acted: list[tuple[float, int]] = []
    for made in passes(scenario, settings, snapshot_of, rules):
        tally.take(made.step.at, made.snapshot, made.decision, oom_kills=made.step.oom_kills)
        acted += [(made.step.at, len(one.evictions)) for one in made.by_rules if not one.waits]
    return replace(
        tally.outcome(),
        acted=len(acted),
        acted_evictions=sum(evictions for _, evictions in acted),
        first_acted_seconds=acted[0][0] if acted else None,
    )


def _remembered() -> SnapshotOf:
    """Return what tells of each summary what it shows, worked out once; the summaries have to outlive it."""
    known: dict[int, Snapshot] = {}

    def snapshot_of(summary: Summary) -> Snapshot:
        found = known.get(id(summary))
        if found is None:
            found = known[id(summary)] = summary.snapshot()
        return found

    return snapshot_of
