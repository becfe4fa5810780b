"""What a report consists of, as plain values."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field


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

    `summary` is for a reader who reads no further.
    """

    title: str
    facts: Mapping[str, object]
    sections: Sequence[Section]
    summary: Sequence[str] = ()

    def series(self) -> tuple[str, ...]:
        """Return the names of all series, in the order in which they first appear."""
        figures = [figure for section in self.sections for figure in section.figures]
        return tuple(dict.fromkeys(name for figure in figures for name in figure.series))
