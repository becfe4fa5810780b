"""Columns that fit a width: what matters less gives way, names are shortened, nothing is wrapped."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from reactor.model.quantity import amount_text
from reactor.model.signals import Resource
from reactor.text import printable

ELLIPSIS: Final = "…"


_GAP: Final = 1
_NARROWEST: Final = 8


def amount(value: float | None, resource: Resource) -> str:
    return "-" if value is None else amount_text(round(value), resource)


def rate(per_second: float | None, resource: Resource) -> str:
    """Return a change per second with its sign; what rounds to nothing is `0/s`."""
    if per_second is None:
        return "-"
    rounded = round(per_second)
    return f"{'+' if rounded > 0 else ''}{amount_text(rounded, resource)}/s"


def clean(text: str) -> str:
    """Return the text printable, with a question mark for whatever is not one cell wide."""
    shown = printable(text)
    if shown.isascii():
        return shown
    return "".join(character if _is_one_cell(character) else "?" for character in shown)


def _is_one_cell(character: str) -> bool:
    return unicodedata.east_asian_width(character) not in {"W", "F"} and not unicodedata.combining(character)


def cut_middle(text: str, width: int) -> str:
    """Return the text in at most so many cells; a pod is recognised by both ends of its name."""
    if len(text) <= width:
        return text
    if width < 2:
        return ELLIPSIS[:width]
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}{ELLIPSIS}{text[len(text) - tail :]}"


def cut_end(text: str, width: int) -> str:
    """Return the text in at most so many cells, its end left out."""
    return text if len(text) <= width else f"{text[: max(0, width - 1)]}{ELLIPSIS}"[:width]


class Style(Enum):
    """How a piece of text is to strike the eye."""

    PLAIN = auto()
    HEADING = auto()
    DIM = auto()
    GOOD = auto()
    WARNING = auto()
    BAD = auto()


@dataclass(frozen=True, slots=True)
class Span:
    """Text of one style, every character one cell wide."""

    text: str
    style: Style = Style.PLAIN


Line = tuple[Span, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column. The one with the highest `gives_way` goes first where there is no room; 0 stays.

    `least` is how narrow it may become before another gives way (0: it is shown whole), shortened at its end
    or in the middle.
    """

    title: str
    gives_way: int = 0
    least: int = 0
    right: bool = False
    middle: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Cells, one for each column. Where not all rows have room, those with the most `weight` are shown."""

    cells: tuple[Span, ...]
    weight: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under headings; with `counts_rows` the first heading has the number of rows without room."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    counts_rows: bool = True

    @property
    def height(self) -> int:
        """Return how many lines all of it takes; none where there are no rows."""
        return len(self.rows) + 1 if self.rows else 0

    def lines(self, width: int, height: int) -> list[Line]:
        """Return it in at most so many cells and lines, the headings among them."""
        if not self.rows or height < 2:
            return []
        rows = _heaviest(self.rows, height - 1)
        titles = [column.title for column in self.columns]
        if self.counts_rows and len(rows) < len(self.rows):
            titles[0] += f" {len(rows)} of {len(self.rows)}"
        cells = [[Span(clean(cell.text), cell.style) for cell in row.cells] for row in rows]
        headings = [Span(title, Style.HEADING) for title in titles]
        widths = _widths(self.columns, [headings, *cells], width)
        shortened = [cut_middle if column.middle else cut_end for column in self.columns]
        return [
            self._line(headings, widths, [cut_end] * len(headings)),
            *(self._line(line, widths, shortened) for line in cells),
        ]

    def _line(
        self, cells: Sequence[Span], widths: Mapping[int, int], cuts: Sequence[Callable[[str, int], str]]
    ) -> Line:
        spans = []
        for index, width in widths.items():
            text = cuts[index](cells[index].text, width)
            text = text.rjust(width) if self.columns[index].right else text.ljust(width)
            spans.append(Span(text + " " * _GAP, cells[index].style))
        return tuple(spans)


def _heaviest(rows: Sequence[Row], count: int) -> list[Row]:
    chosen = sorted(range(len(rows)), key=lambda index: -rows[index].weight)[:count]
    return [rows[index] for index in sorted(chosen)]


def _widths(columns: Sequence[Column], lines: Sequence[Sequence[Span]], width: int) -> dict[int, int]:
    """Return the width of each column that is shown, by its index."""
    wanted = {index: max(len(line[index].text) for line in lines) for index in range(len(columns))}
    least = {index: min(want, columns[index].least or want) for index, want in wanted.items()}
    while _total(least) > width:
        goes = max(least, key=lambda index: columns[index].gives_way)
        if not columns[goes].gives_way:
            break
        del least[goes]
    if _total(least) > width:  # a very narrow terminal
        least |= {index: min(wanted[index], _NARROWEST) for index in least if columns[index].least}
    room = max(0, width - _total(least))
    widths = {}
    for index, narrowest in least.items():
        more = min(room, wanted[index] - narrowest)
        widths[index] = narrowest + more
        room -= more
    return widths


def _total(widths: dict[int, int]) -> int:
    return sum(widths.values()) + _GAP * (len(widths) - 1)


def fitted(line: Line, width: int) -> Line:
    """Return the line cut off at so many cells, without blanks at its end."""
    spans = []
    for span in line:
        if width <= 0:
            break
        spans.append(Span(span.text[:width], span.style))
        width -= len(span.text)
    while spans and not spans[-1].text.strip():
        spans.pop()
    if spans:
        spans[-1] = Span(spans[-1].text.rstrip(), spans[-1].style)
    return tuple(spans)
