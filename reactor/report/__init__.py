"""A report that is one HTML file: what was measured, in words, tables and plots, with nothing to load.

Here are sections, tables and figures as plain values, and the page of them by jinja2 (page.html.jinja);
figures.py draws by matplotlib.

Drawing needs the extra `report`; describing a report does not, and imports nothing of it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from reactor.errors import RefusedError, extra_remedy
from reactor.plain import write_whole
from reactor.svg import STYLE

EXTRA: Final = "report"
_NUMBER: Final = re.compile(r"(-|\u2013)?[\d.,]*(\s*/\s*-?[\d.,]+)*( ?[%\u00d7])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of text below their columns' titles. A column whose cells are numbers is set to the right."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """How the values of each series are spread, as cumulative shares over a logarithmic axis.

    Only values above zero are drawn: a logarithm has no others.
    """

    title: str
    x_label: str
    series: Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """One line a series, of (x, y) points in the order of x.

    `levels` are named heights, drawn across; `instants` named places on the x axis, drawn upright. With
    `steps` a value holds until the next, as a count does, and is not on the way to it. `dots` names series
    whose points are drawn without a line: each is an experiment of its own, and nothing was measured between
    two of them. With `whole_y` the y axis has ticks at whole numbers alone.
    """

    title: str
    x_label: str
    y_label: str
    series: Mapping[str, Sequence[tuple[float, float]]]
    levels: Mapping[str, float] = field(default_factory=dict)
    instants: Mapping[str, float] = field(default_factory=dict)
    log_y: bool = False
    steps: bool = False
    dots: Collection[str] = ()
    whole_y: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """One bar for each series in each group: series -> group -> value; what is missing has no bar.

    With `whole_y` the y axis has ticks at whole numbers alone.
    """

    title: str
    y_label: str
    series: Mapping[str, Mapping[str, float]]
    log_y: bool = False
    whole_y: bool = False


Figure = Distribution | Lines | Bars


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of a report below its heading: first the paragraphs, then what follows in this order.

    `listing` is text whose lines and spaces count, such as a configuration.
    """

    heading: str
    paragraphs: Sequence[str] = ()
    listing: str = ""
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A whole report. `facts` stand at its top: when, where and with what it was measured.

    `picture` (an SVG element of `reactor.svg`) and `summary` below it are for a reader who reads no further.
    """

    title: str
    facts: Mapping[str, object]
    sections: Sequence[Section]
    summary: Sequence[str] = ()
    picture: str = ""

    def series(self) -> tuple[str, ...]:
        """Return the names of all series, in the order in which they first appear."""
        figures = [figure for section in self.sections for figure in section.figures]
        return tuple(dict.fromkeys(name for figure in figures for name in figure.series))


def write(report: Report, path: Path) -> None:
    """Write the report as one self-contained HTML file, whole or not at all.

    Raises RefusedError without the extra that draws it, OSError where it can't be written.
    """
    write_whole(path, html(report))


def write_figure(figure: Figure, path: Path) -> None:
    """Write one figure as an SVG file, for a document that shows it; otherwise as `write`."""
    with _extra():
        from reactor.report.figures import draw, strokes  # noqa: PLC0415 - an extra, and only now wanted
    write_whole(path, draw(figure, strokes(tuple(figure.series))))


def html(report: Report) -> str:
    """Return the report as HTML. Raises RefusedError without the extra that draws it."""
    with _extra():
        import jinja2  # noqa: PLC0415

        from reactor.report.figures import draw, strokes  # noqa: PLC0415
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("reactor.report", ""),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    by_series = strokes(report.series())
    drawn = [[draw(figure, by_series) for figure in section.figures] for section in report.sections]
    template = environment.get_template("page.html.jinja")
    return template.render(report=report, drawn=drawn, numeric=numeric_columns, style=STYLE)


@contextmanager
def _extra() -> Iterator[None]:
    """Have a library that is missing reported by the extra that has it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise RefusedError(f"no {error.name}, so nothing is drawn: {extra_remedy(EXTRA)}") from error


def numeric_columns(table: Table) -> Sequence[bool]:
    return [
        bool(table.rows) and all(_NUMBER.fullmatch(row[place].strip()) for row in table.rows)
        for place in range(len(table.columns))
    ]
