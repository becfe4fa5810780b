"""`reactor simulate --sweep`: every combination of thresholds over each scenario, and what it comes to."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TextIO

from reactor.errors import ConfigError, Problem
from reactor.model.decisions import Decision, Snapshot
from reactor.model.settings import EvictionSettings
from reactor.model.signals import CONDITION, IN_BYTES, MEMORY_SIGNALS, RESOURCE, NodeCondition, Signal
from reactor.model.thresholds import Observation
from reactor.plain import write_whole
from reactor.policy.thresholds import is_met
from reactor.report import Bars, Figure, Lines, Report, Section, write
from reactor.report import Table as ReportTable
from reactor.simulate.replay import SnapshotOf, passes
from reactor.simulate.scenario import Scenario, eviction_settings, scenario_in, warn, without_cycle_collection
from reactor.simulate.summary import Summary
from reactor.simulate.sweep_axes import (
    Axis,
    Combination,
    RuleSetting,
    Setting,
    axes_of,
    combinations,
    configured,
    ruled,
)
from reactor.tables import Column, Screen, Table
from reactor.text import printable

_ALLIED = {
    **dict.fromkeys(MEMORY_SIGNALS, MEMORY_SIGNALS),
    Signal.NODEFS_AVAILABLE: frozenset({Signal.NODEFS_AVAILABLE, Signal.CONTAINERFS_AVAILABLE}),
    Signal.NODEFS_INODES_FREE: frozenset({Signal.NODEFS_INODES_FREE, Signal.CONTAINERFS_INODES_FREE}),
    Signal.IMAGEFS_AVAILABLE: frozenset({Signal.IMAGEFS_AVAILABLE, Signal.CONTAINERFS_AVAILABLE}),
    Signal.IMAGEFS_INODES_FREE: frozenset({Signal.IMAGEFS_INODES_FREE, Signal.CONTAINERFS_INODES_FREE}),
}

_SHORT: Final = {
    "crossings": "crossed",
    "missed": "missed",
    "recovered": "recovered",
    "evictions": "evicted",
    "pressure_seconds": "pressure\ns",
    "first_eviction_seconds": "first\ns",
    "lead_seconds": "lead\ns",
}
_SHORT_OF_RULES: Final = {
    "acted": "acted",
    "acted_evictions": "evicted",
    "first_acted_seconds": "first\ns",
}
_TITLES_OF_RULES: Final = {
    "acted": "rules acted",
    "acted_evictions": "evicted by rules",
    "first_acted_seconds": "rules acted first at, s",
}
_TITLES: Final = {
    "crossings": "crossings",
    "answered": "answered",
    "missed": "missed",
    "recovered": "recovered",
    "evictions": "pods evicted",
    "below_seconds": "below, s",
    "pressure_seconds": "under pressure, s",
    "first_eviction_seconds": "first eviction at, s",
    "lead_seconds": "shortest lead, s",
}
_PLOTTED: Final = {
    "evictions": "pods evicted",
    "missed": "missed crossings",
    "pressure_seconds": "seconds under pressure",
}
_PLOTTED_OF_RULES: Final = {
    "acted": "times that the rules acted",
    "acted_evictions": "pods evicted by the rules",
}
_MOST_SERIES: Final = 12


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
        if crossing.answered_at is None and (evicted or self._is_reclaimed(decision)):
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

    def _is_reclaimed(self, decision: Decision) -> bool:
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
    """Return a function from a summary to its snapshot, made once; the summaries have to outlive it."""
    known: dict[int, Snapshot] = {}

    def snapshot_of(summary: Summary) -> Snapshot:
        found = known.get(id(summary))
        if found is None:
            found = known[id(summary)] = summary.snapshot()
        return found

    return snapshot_of


def _chosen(axes: Sequence[Axis], of_thresholds: dict[str, str], of_rules: dict[str, str]) -> dict[str, str]:
    """Return the columns that say something: those of thresholds, of rules, or of both."""
    are_rules = [isinstance(axis.settings[0], RuleSetting) for axis in axes]
    return {**({} if all(are_rules) else of_thresholds), **(of_rules if any(are_rules) else {})}


def fields_of(axes: Sequence[Axis], swept: Swept) -> dict[str, Any]:
    """Return a row of the CSV by its columns: the scenario, each threshold as configured, the counts."""
    thresholds = {
        key: value
        for axis, setting in zip(axes, swept.combination, strict=True)
        for key, value in _columns(axis, setting).items()
    }
    counts = dataclasses.asdict(swept.outcome)
    if not _chosen(axes, {}, _TITLES_OF_RULES):
        counts = {name: count for name, count in counts.items() if name not in _TITLES_OF_RULES}
    return {"scenario": swept.scenario, **thresholds, **counts}


def print_json(axes: Sequence[Axis], rows: Iterable[Swept]) -> None:
    """Print one JSON object a line for each scenario and combination."""
    for row in rows:
        print(json.dumps(fields_of(axes, row)))


def write_csv(axes: Sequence[Axis], rows: Sequence[Swept], file: TextIO) -> None:
    """Write a header and a line for each scenario and combination; what is not known is empty."""
    written = csv.DictWriter(file, fieldnames=list(fields_of(axes, rows[0])), lineterminator="\n")
    written.writeheader()
    written.writerows(fields_of(axes, row) for row in rows)


def print_table(axes: Sequence[Axis], rows: Sequence[Swept]) -> None:
    """Print a line for each combination, all scenarios together; what there is no room for is in the CSV."""
    shown = _chosen(axes, _SHORT, _SHORT_OF_RULES)
    names = [axis.name.removesuffix(".available").replace(" ", "\n") for axis in axes]
    table = Table(
        columns=[
            *(Column(title=name, whole=True) for name in names),
            *(Column(title=heading, right=True, whole=True) for heading in shown.values()),
        ],
        rows=[
            [*map(_setting_text, combination), *(_text(getattr(outcome, name)) for name in shown)]
            for combination, outcome in totals(rows).items()
        ],
        indented=False,
    )
    Screen().print(table)


def totals(rows: Iterable[Swept]) -> dict[Combination, Outcome]:
    """Return each combination's outcome over all scenarios: sums, the earliest eviction, the least lead."""
    found: dict[Combination, Outcome] = {}
    for row in rows:
        before = found.get(row.combination)
        found[row.combination] = row.outcome if before is None else _sum(before, row.outcome)
    return found


def report_of(axes: Sequence[Axis], rows: Sequence[Swept], speed: Speed) -> Report:
    """Return the report: for each first threshold what the others make of it."""
    found = totals(rows)
    plotted = _chosen(axes, _PLOTTED, _PLOTTED_OF_RULES)
    figures = [_figure(axes, found, name, title) for name, title in plotted.items()]
    scenarios = list(dict.fromkeys(row.scenario for row in rows))
    note = (
        [] if _series_count(found) <= _MOST_SERIES else [f"The plots show the first {_MOST_SERIES} series."]
    )
    return Report(
        title="Thresholds over recorded scenarios",
        facts={
            "scenarios": ", ".join(scenarios),
            "varied": ", ".join(axis.text for axis in axes),
            "passes": f"{speed.passes} in {speed.seconds:.1f} s, {speed.per_second:.0f} a second",
        },
        summary=[
            "A recording goes on as it did: what an eviction would have changed afterwards is not in it.",
            "A crossing is missed where nothing was left before a pod was evicted, or no pod could be.",
        ],
        sections=[
            Section(heading="What each threshold does", paragraphs=note, figures=figures),
            Section(heading="All combinations", tables=[_table(axes, found)]),
        ],
    )


def _columns(axis: Axis, setting: Setting | RuleSetting) -> Mapping[str, Any]:
    if isinstance(setting, RuleSetting):
        return {f"{axis.name} limit": setting.limit, f"{axis.name} for_seconds": setting.for_seconds}
    value = {axis.name: setting.value.text}
    return (
        value
        if setting.grace_seconds is None
        else {**value, f"{axis.name} grace_seconds": setting.grace_seconds}
    )


def _sum(one: Outcome, other: Outcome) -> Outcome:
    return Outcome(
        passes=one.passes + other.passes,
        crossings=one.crossings + other.crossings,
        answered=one.answered + other.answered,
        missed=one.missed + other.missed,
        recovered=one.recovered + other.recovered,
        evictions=one.evictions + other.evictions,
        below_seconds=one.below_seconds + other.below_seconds,
        pressure_seconds=one.pressure_seconds + other.pressure_seconds,
        first_eviction_seconds=_least(one.first_eviction_seconds, other.first_eviction_seconds),
        lead_seconds=_least(one.lead_seconds, other.lead_seconds),
        acted=one.acted + other.acted,
        acted_evictions=one.acted_evictions + other.acted_evictions,
        first_acted_seconds=_least(one.first_acted_seconds, other.first_acted_seconds),
    )


def _least(*seconds: float | None) -> float | None:
    return min((each for each in seconds if each is not None), default=None)


def _table(axes: Sequence[Axis], found: Mapping[Combination, Outcome]) -> ReportTable:
    titles = _chosen(axes, _TITLES, _TITLES_OF_RULES)
    return ReportTable(
        columns=[*(axis.name for axis in axes), *titles.values()],
        rows=[
            [*map(_setting_text, combination), *(_text(getattr(outcome, name)) for name in titles)]
            for combination, outcome in found.items()
        ],
    )


def _setting_text(setting: Setting | RuleSetting) -> str:
    if isinstance(setting, RuleSetting):
        return setting.text
    return (
        setting.value.text
        if setting.grace_seconds is None
        else f"{setting.value.text} @ {setting.grace_seconds:g} s"
    )


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _series_count(found: Mapping[Combination, Outcome]) -> int:
    return len({_series_name(combination) for combination in found})


def _series_name(combination: Combination) -> str:
    """Return what distinguishes a combination from the others with the same first value."""
    first, *others = combination
    if isinstance(first, RuleSetting):
        return ", ".join(map(str, others)) or f"rule {first.rule}"
    names = [f"soft after {first.grace_seconds:g} s"] if first.grace_seconds is not None else []
    return ", ".join([*names, *map(str, others)]) or str(first.signal)


def _figure(axes: Sequence[Axis], found: Mapping[Combination, Outcome], name: str, title: str) -> Figure:
    """Return the plot of one count over the first threshold, a series for each choice of the others."""
    series: dict[str, list[tuple[Setting | RuleSetting, float]]] = {}
    for combination, outcome in found.items():
        series.setdefault(_series_name(combination), []).append((combination[0], getattr(outcome, name)))
    shown = dict(list(series.items())[:_MOST_SERIES])
    label = _axis_label(axes[0])
    if label is None:
        bars = {key: {_bar_text(setting): y for setting, y in points} for key, points in shown.items()}
        return Bars(title=title, y_label=title, series=bars, whole_y=True)
    return Lines(
        title=title,
        x_label=label,
        y_label=title,
        series={
            key: sorted((_position(setting), y) for setting, y in points if isinstance(setting, Setting))
            for key, points in shown.items()
        },
        dots=tuple(shown),
        whole_y=True,
    )


def _bar_text(setting: Setting | RuleSetting) -> str:
    return setting.text if isinstance(setting, RuleSetting) else setting.value.text


def _axis_label(axis: Axis) -> str | None:
    """Return what the x axis counts, None where shares and amounts are mixed, and of a rule's limits."""
    settings = [setting for setting in axis.settings if isinstance(setting, Setting)]
    shares = {setting.value.percent is not None for setting in settings}
    if len(shares) != 1:
        return None
    if shares == {True}:
        return f"{axis.name}, % of the capacity"
    return f"{axis.name}, MiB" if RESOURCE[settings[0].signal] in IN_BYTES else axis.name


def _position(setting: Setting) -> float:
    value = setting.value
    if value.percent is not None:
        return float(value.percent)
    amount = float(value.amount or 0)
    return amount / (1 << 20) if RESOURCE[setting.signal] in IN_BYTES else amount


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """Which scenarios, what is varied, and where the answers go; the files are optional.

    With `skips_bad` a scenario that can't be read is named and left out.
    """

    scenarios: Sequence[str]
    sweeps: Sequence[str]
    output: str
    csv_path: Path | None = None
    report_path: Path | None = None
    skips_bad: bool = False


def sweep_files(options: SweepOptions) -> int:
    """Try every combination on every scenario, and return the exit status.

    Raises ConfigError where an axis or a scenario is wrong, RefusedError where a report can't be drawn.
    """
    axes = axes_of(options.sweeps)
    count = sum(1 for _ in combinations(axes))
    speed = Speed()
    with without_cycle_collection():
        rows = list(
            _shown(
                sweep(_scenarios(options.scenarios, skips_bad=options.skips_bad), axes, speed),
                count * len(options.scenarios),
            )
        )
    if options.output == "json":
        print_json(axes, rows)
    else:
        print_table(axes, rows)
    if options.csv_path is not None:
        content = io.StringIO(newline="")
        write_csv(axes, rows, content)
        write_whole(options.csv_path, content.getvalue())
    if options.report_path is not None:
        write(report_of(axes, rows, speed), options.report_path)
    print(
        f"reactor: {speed.passes} passes in {speed.seconds:.2f} s, {speed.per_second:.0f} a second",
        file=sys.stderr,
    )
    return 0


def _scenarios(paths: Iterable[str], *, skips_bad: bool = False) -> Iterator[tuple[str, Scenario]]:
    """Yield each file's scenario. Raises ConfigError, but with `skips_bad`, which names the file instead."""
    for path in paths:
        try:
            scenario = _with_steps(path)
        except ConfigError as error:  # of which file it is says nothing in a document's own paths
            problems = [_in_file(one, path) for one in error.problems]
            if not skips_bad:
                raise ConfigError(problems) from error
            print(f"reactor: {printable(str(problems[0]))}", file=sys.stderr)
            continue
        warn(scenario)
        yield path, scenario


def _with_steps(path: str) -> Scenario:
    scenario = scenario_in(path)
    if not scenario.steps:
        raise ConfigError([Problem(path=path, got="no steps", accepted="a scenario with some")])
    return scenario


def _in_file(problem: Problem, path: str) -> Problem:
    is_named = problem.path == path or problem.path.startswith(f"{path}:")
    return problem if is_named else problem._replace(path=f"{path}: {problem.path}")


def _shown(swept: Iterable[Swept], count: int) -> Iterator[Swept]:
    """Yield the same, the progress shown where standard error is a terminal."""
    is_shown = sys.stderr.isatty()
    for number, row in enumerate(swept, 1):
        if is_shown:
            end = "\n" if number == count else ""
            print(f"\r{number} of {count} combinations", end=end, file=sys.stderr, flush=True)
        yield row
