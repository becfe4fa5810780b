"""What a sweep found: a table for people, CSV and JSON for programs, a report with plots."""

from __future__ import annotations

import csv
import dataclasses
import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TextIO

from rich.console import Console
from rich.table import Table

from reactor.model.signals import IN_BYTES, RESOURCE
from reactor.report import Bars, Figure, Lines, Report, Section
from reactor.report import Table as ReportTable
from reactor.simulate.sweep.axes import Axis, Combination, RuleSetting, Setting
from reactor.simulate.sweep.outcome import Outcome, Speed, Swept

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
_PIPE_COLUMNS: Final = 160
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
    table = Table(box=None, header_style="bold", pad_edge=False)
    for axis in axes:
        table.add_column(axis.name.removesuffix(".available").replace(" ", "\n"), no_wrap=True)
    shown = _chosen(axes, _SHORT, _SHORT_OF_RULES)
    for heading in shown.values():
        table.add_column(heading, justify="right", no_wrap=True)
    for combination, outcome in totals(rows).items():
        table.add_row(*map(_setting_text, combination), *(_text(getattr(outcome, name)) for name in shown))
    width = None if sys.stdout.isatty() else shutil.get_terminal_size((_PIPE_COLUMNS, 0)).columns
    Console(highlight=False, markup=False, width=width).print(table)


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
    """Return what tells a combination from the others with the same first value."""
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
