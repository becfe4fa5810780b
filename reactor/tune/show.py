"""What came of it, in the terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table as RichTable

from reactor.report import Table
from reactor.report.page import numeric_columns
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
        console.width = console.width if console.is_terminal else max(console.width, 132)
    for table in (growth_table(measured.growths), latency_table(found), case_table(found)):
        console.print(_rich(table))
        console.print()
    _say(console, "Recommended", threshold_lines(found))
    if verdict is not None:
        _say(console, "The present configuration covers", verdict.covers or ("no allocator at all",))
        _say(console, "It misses", verdict.misses or ("nothing that was measured",))
    _say(console, "History", history_lines(history))
    _say(console, "How reliable this is", trust_lines(measured, found))


def _say(console: Console, heading: str, lines: Iterable[str]) -> None:
    console.print(f"[bold]{heading}[/]")
    for line in lines:
        console.print(f"- {line}", markup=False)
    console.print()


def _rich(table: Table) -> RichTable:
    shown = RichTable(title=table.caption, title_justify="left", box=None, pad_edge=False)
    for name, is_numeric in zip(table.columns, numeric_columns(table), strict=True):
        shown.add_column(name, justify="right" if is_numeric else "left", overflow="fold")
    for row in table.rows:
        shown.add_row(*row)
    return shown
