"""Tables in the terminal, and how instants are written in them."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final, Literal

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from reactor.text import printable, wrapped

_PIPE_COLUMNS: Final = 120
_WIDEST: Final = 10_000


class Screen(Console):
    """A console on which names that others chose do no harm."""

    def say(self, text: str) -> None:
        """Print one line, whatever is in it; broken at spaces alone, so that a path can be copied."""
        self.print(wrapped(printable(text), self.width), overflow="ignore", crop=False)

    def show(self, shown: Table) -> None:
        """Print a table; where the screen is narrower than its whole columns, the table is wider."""
        least = Measurement.get(self, self.options.update(width=_WIDEST), shown).minimum
        width = self.width
        self.width = max(width, least)  # a print's own width is no more than the screen's
        try:
            self.print(shown)
        finally:
            self.width = width


def console() -> Screen:
    """Return a console; in a pipe or a file it is as wide as COLUMNS says, else 120 columns."""
    width = None if sys.stdout.isatty() else shutil.get_terminal_size((_PIPE_COLUMNS, 0)).columns
    return Screen(width=width, highlight=False, markup=False, emoji=False)


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: str = "",
    whole: str = "",
    title: str | None = None,
) -> Table:
    """Return a table; columns named in `right` (separated by commas) are aligned to the right.

    Where the screen is narrow all columns are broken into lines, but for those named in `whole`.
    """
    shown_title = None if title is None else printable(title)
    found = Table(title=shown_title, title_justify="left", title_style="bold", header_style="bold", box=None)
    for column in columns:
        justify: Literal["right", "left"] = "right" if column in right.split(",") else "left"
        found.add_column(column, justify=justify, overflow="fold", no_wrap=column in whole.split(","))
    for row in rows:
        found.add_row(*(printable(str(cell)) for cell in row))
    return found


def moment(text: str | None, now: datetime | None = None) -> str:
    """Return an instant in RFC 3339 for reading: today's by its time, others by their date; `-` for none."""
    if text is None:
        return "-"
    at = datetime.fromisoformat(text).astimezone(UTC)
    if at.date() == (now or datetime.now(UTC)).date():
        return f"{at:%H:%M:%S}.{at.microsecond // 1000:03}Z"
    return f"{at:%Y-%m-%d %H:%M}Z"
