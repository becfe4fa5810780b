"""What came of it, in the terminal."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable
from typing import Final, Literal

from rich.console import Console
from rich.table import Table as RichTable

from reactor.report import Table
from reactor.report.page import numeric_columns
from reactor.text import wrapped
from reactor.tune.history import History
from reactor.tune.measured import Measured
from reactor.tune.missed import Verdict
from reactor.tune.model import Recommendation
from reactor.tune.tables import (
    case_table,
    growth_table,
    history_lines,
    latency_table,
    threshold_lines,
    trust_lines,
)

# Of the latencies' columns; the first ones say of which row they are.
_OF = ("way", "load")
_LATENCY_PARTS: Final = (
    (*_OF, "woken by", "n", "to wake, ms", "overshoot"),
    (*_OF, "to kill, ms", "p99.9 at most", "kill to memory back, ms"),
)


def show(
    measured: Measured,
    history: History,
    found: Recommendation,
    verdict: Verdict | None,
    console: Console | None = None,
) -> None:
    """Print measurements, recommendation and verdict."""
    if console is None:
        console = Console(highlight=False)
    latencies = latency_table(found)
    for table in (
        growth_table(measured.growths),
        *(_part(latencies, names) for names in _LATENCY_PARTS),
        case_table(found),
    ):
        console.print(_rich(table))
        console.print()
    heading = "Nothing to recommend" if found.evicts_at_once else "Recommended"
    _say(console, heading, threshold_lines(found))
    if verdict is not None:
        _say(console, "The present configuration covers", verdict.covers or ("no allocator at all",))
        _say(console, "It misses", verdict.misses or ("nothing that was measured",))
    _say(console, "History", history_lines(history))
    _say(console, "How reliable this is", trust_lines(measured, found))


def _part(table: Table, names: Collection[str]) -> Table:
    """Return some columns of a table: all of them are wider than a screen."""
    kept = [index for index, name in enumerate(table.columns) if name in names]
    return dataclasses.replace(
        table,
        columns=tuple(table.columns[index] for index in kept),
        rows=[[row[index] for index in kept] for row in table.rows],
    )


def _say(console: Console, heading: str, lines: Iterable[str]) -> None:
    console.print(f"[bold]{heading}[/]")
    for line in lines:
        console.print(wrapped(f"- {line}", console.width), markup=False, overflow="ignore", crop=False)
    console.print()


def _rich(table: Table) -> RichTable:
    shown = RichTable(title=table.caption, title_justify="left", box=None, pad_edge=False)
    for index, (name, is_numeric) in enumerate(zip(table.columns, numeric_columns(table), strict=True)):
        justify: Literal["right", "left"] = "right" if is_numeric else "left"
        shown.add_column(name, justify=justify, overflow="fold", no_wrap=index == 0)
    for row in table.rows:
        shown.add_row(*row)
    return shown
