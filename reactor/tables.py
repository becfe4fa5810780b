"""Lines and tables in the terminal, fit for names that others chose.

A table is as wide as its cells. Where the screen is narrower, its widest columns are broken into lines at
spaces, and within a word only where nothing else fits. Styles show on a terminal alone (NO_COLOR is kept to).
"""

from __future__ import annotations

import os
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, NamedTuple, TextIO

from reactor.text import printable, wrapped

_PIPE_COLUMNS: Final = 120
_NARROWEST: Final = 8  # a column that is broken further has a letter a line
_GAP: Final = "  "
_STYLES: Final = {
    "bold": "1",
    "dim": "2",
    "green": "32",
    "red": "31",
    "bold red": "1;31",
    "bold green": "1;32",
}


class Styled(NamedTuple):
    """Text that strikes the eye; `style` is a key of `_STYLES`."""

    text: str
    style: str


Cell = str | Styled


@dataclass(slots=True, kw_only=True)
class Column:
    """A column. One that is `whole` is never broken into lines; `least` is how narrow another may become."""

    title: str
    right: bool = False
    whole: bool = False
    style: str = ""
    least: int = _NARROWEST


@dataclass(slots=True, kw_only=True)
class Table:
    """Rows under headings, with a cell for each column; `indented` by one where lines stand above it."""

    columns: list[Column]
    rows: list[Sequence[Cell]] = field(default_factory=list)
    title: str | None = None
    indented: bool = True

    def lines(self, columns: int, *, styled: bool = False) -> Iterator[str]:
        """Yield it in lines of at most so many cells, if its whole columns allow; no blanks end a line."""
        cells = [[_plain(cell) for cell in row] for row in self.rows]
        edge = " " * self.indented
        widths = self._widths(cells, columns - len(edge))
        if self.title is not None:
            yield _in_style(printable(self.title), "bold", styled=styled)
        headings: Sequence[Cell] = [Styled(column.title, "bold") for column in self.columns]
        for row in [headings, *self.rows]:
            for line in self._row(row, widths, is_heading=row is headings, styled=styled):
                yield f"{edge}{line}"

    def _widths(self, cells: Sequence[Sequence[str]], room: int) -> list[int]:
        widths, least = [], []
        for index, column in enumerate(self.columns):
            wanted = max(_longest(text) for text in (column.title, *(row[index] for row in cells)))
            widths.append(wanted)
            least.append(wanted if column.whole else min(wanted, column.least))
        room -= len(_GAP) * (len(widths) - 1)
        while sum(widths) > room:
            index = max(range(len(widths)), key=lambda one: (widths[one] > least[one], widths[one]))
            if widths[index] <= least[index]:
                break
            widths[index] -= 1
        return widths

    def _row(
        self, row: Sequence[Cell], widths: Sequence[int], *, is_heading: bool, styled: bool
    ) -> Iterator[str]:
        broken = [_broken(_plain(cell), width) for cell, width in zip(row, widths, strict=True)]
        height = max(map(len, broken))
        # Headings stand at the bottom, right above their cells.
        padded = [[""] * (height - len(texts)) + texts if is_heading else texts for texts in broken]
        for number in range(height):
            pieces, end = [], 0
            for index, (texts, width) in enumerate(zip(padded, widths, strict=True)):
                text = texts[number] if number < len(texts) else ""
                blanks = " " * (width - _cells(text))
                style = row[index].style if isinstance(row[index], Styled) else self.columns[index].style  # type: ignore[union-attr]
                shown = _in_style(text, style, styled=styled)
                pieces.append(f"{blanks}{shown}" if self.columns[index].right else f"{shown}{blanks}")
                if text:
                    end = index + 1
            yield _GAP.join(pieces[:end]).rstrip(" ")


class Screen:
    """A terminal, or a pipe or a file, which has 120 columns unless COLUMNS says otherwise."""

    def __init__(self, file: TextIO | None = None, width: int | None = None) -> None:
        self.file = sys.stdout if file is None else file
        self.width = width or shutil.get_terminal_size((_PIPE_COLUMNS, 0)).columns or _PIPE_COLUMNS
        is_plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
        self._styled = self.file.isatty() and not is_plain

    def print(self, *shown: Table | Cell) -> None:
        """Print tables and lines as they are, one after the other; an empty line where there are none."""
        for one in shown or ("",):
            if isinstance(one, Table):
                for line in one.lines(self.width, styled=self._styled):
                    print(line, file=self.file)
            else:
                style = one.style if isinstance(one, Styled) else ""
                print(_in_style(_plain(one), style, styled=self._styled), file=self.file)

    def say(self, text: str) -> None:
        """Print one line, whatever is in it; broken at spaces alone, so that a path can be copied."""
        print(wrapped(printable(text), self.width), file=self.file)


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
    rights, wholes = right.split(","), whole.split(",")
    return Table(
        title=title,
        columns=[Column(title=name, right=name in rights, whole=name in wholes) for name in columns],
        rows=[[str(cell) for cell in row] for row in rows],
    )


def moment(text: str | None, now: datetime | None = None) -> str:
    """Return an instant in RFC 3339 for reading: today's by its time, others by their date; `-` for none."""
    if text is None:
        return "-"
    at = datetime.fromisoformat(text).astimezone(UTC)
    if at.date() == (now or datetime.now(UTC)).date():
        return f"{at:%H:%M:%S}.{at.microsecond // 1000:03}Z"
    return f"{at:%Y-%m-%d %H:%M}Z"


def _plain(cell: Cell) -> str:
    text = cell.text if isinstance(cell, Styled) else cell
    return "\n".join(map(printable, text.split("\n")))


def _in_style(text: str, style: str, *, styled: bool) -> str:
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if styled and style and text else text


def _longest(text: str) -> int:
    return max(map(_cells, text.split("\n")))


def _cells(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(map(_cells_of, text))


def _cells_of(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1


def _broken(text: str, width: int) -> list[str]:
    """Return the text in lines of at most so many cells, broken at spaces, and in words that are longer."""
    lines = []
    for paragraph in text.split("\n"):
        if _cells(paragraph) <= width:
            lines.append(paragraph)
            continue
        line = ""
        for word in paragraph.split(" "):
            joined = f"{line} {word}" if line else word
            if _cells(joined) <= width:
                line = joined
                continue
            if line:
                lines.append(line)
            *full, line = _cut(word, width)
            lines += full
        lines.append(line)
    return lines


def _cut(word: str, width: int) -> list[str]:
    pieces, piece, used = [], "", 0
    for character in word:
        cells = _cells_of(character)
        if used + cells > width:
            pieces.append(piece)
            piece, used = "", 0
        piece, used = piece + character, used + cells
    return [*pieces, piece]
