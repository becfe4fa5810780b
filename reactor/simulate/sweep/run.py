"""All combinations over all scenarios, each through the very decisions that the daemon makes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from reactor.config.summary import Summary
from reactor.model.decisions import Snapshot
from reactor.simulate.replay import SnapshotOf, passes
from reactor.simulate.scenario import Scenario, eviction_settings
from reactor.simulate.sweep.axes import Axis, Combination, combinations, configured
from reactor.simulate.sweep.outcome import Outcome, Tally


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
    tally = Tally((setting.signal for setting in combination), settings)
    for made in passes(scenario, settings, snapshot_of):
        tally.take(made.step.at, made.snapshot, made.decision, oom_kills=made.step.oom_kills)
    return tally.outcome()


def _remembered() -> SnapshotOf:
    """Return what tells of each summary what it shows, worked out once; the summaries have to outlive it."""
    known: dict[int, Snapshot] = {}

    def snapshot_of(summary: Summary) -> Snapshot:
        found = known.get(id(summary))
        if found is None:
            found = known[id(summary)] = summary.snapshot()
        return found

    return snapshot_of
