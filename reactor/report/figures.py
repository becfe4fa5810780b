"""Figures to SVG, by matplotlib: no display, no scripts, the same input the same bytes."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from reactor.report import Bars, Distribution, Figure, Lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

_SIZE_INCHES: Final = (9.0, 4.2)
# Okabe and Ito's, which the colour-blind can distinguish; after those the same again, dashed.
COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d1f")
_LABEL_CHARACTERS: Final = 60  # that stand side by side below the axis
_DASHES: Final = ("-", "--", ":")
STYLE: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",  # text stays text: small, searchable, in the reader's font
    "svg.hashsalt": "reactor",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "path.simplify": True,
}

_PLAIN: Final = FuncFormatter(lambda value, _: f"{value:g}")  # 0.1 and 100, not 10 to the power of something

_MARKS: Final = {"-": "o", "--": "s", ":": "^"}  # of dots, where lines have dashes

Strokes = Mapping[str, tuple[str, str]]


def strokes(names: Sequence[str]) -> Strokes:
    """Return a colour and a dash for each name: the same in every figure of a report."""
    return {
        name: (COLOURS[place % len(COLOURS)], _DASHES[place // len(COLOURS) % len(_DASHES)])
        for place, name in enumerate(names)
    }


def draw(figure: Figure, by_series: Strokes) -> str:
    """Return the figure as an SVG element. `by_series` has a stroke for each of its series."""
    with mpl.rc_context(STYLE):
        canvas = Canvas(figsize=_SIZE_INCHES, layout="constrained")
        axes = canvas.add_subplot()
        axes.set_title(figure.title, loc="left", fontweight="bold")
        if isinstance(figure, Distribution):
            _distribution(axes, figure, by_series)
        elif isinstance(figure, Lines):
            _lines(axes, figure, by_series)
        else:
            _bars(axes, figure, by_series)
        if len(figure.series) > 1:
            canvas.legend(loc="outside right upper", frameon=False, fontsize=9)
        drawn = io.StringIO()
        canvas.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
    text = drawn.getvalue()
    return text[text.index("<svg") :]  # without the XML prologue, which HTML does not know


def _distribution(axes: Axes, figure: Distribution, by_series: Strokes) -> None:
    axes.set_xscale("log")
    _plain_ticks(axes.xaxis)
    for name, values in figure.series.items():
        ordered = sorted(value for value in values if value > 0)
        if not ordered:
            continue
        colour, dash = by_series[name]
        shares = [100 * (place + 1) / len(ordered) for place in range(len(ordered))]
        axes.step(
            [ordered[0], *ordered], [0.0, *shares], where="post", label=name, color=colour, linestyle=dash
        )
    axes.set_xlabel(figure.x_label)
    axes.set_ylabel("share of the runs, %")
    axes.set_ylim(0, 101)
    axes.grid(visible=True, axis="x", which="major")


def _plain_ticks(axis: Axis) -> None:
    """Have ticks at 0.5, 1, 2, 5, 10 on a logarithmic axis; on a short one, where a linear one has them."""
    axis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5), numticks=15))
    axis.set_major_formatter(_PLAIN)
    axis.set_minor_locator(NullLocator())


def _lines(axes: Axes, figure: Lines, by_series: Strokes) -> None:
    if figure.log_y:
        axes.set_yscale("log")
        _plain_ticks(axes.yaxis)
    elif figure.whole_y:
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    for place, (name, points) in enumerate(figure.series.items()):
        colour, dash = by_series[name]
        axes.plot(
            [x for x, _ in points],
            [y for _, y in points],
            label=name,
            color=colour,
            linestyle="" if name in figure.dots else dash,
            marker=_MARKS[dash] if name in figure.dots else "",
            fillstyle="none",  # rings of several sizes: of those at one place each is seen
            markersize=5 + 3 * (place % 4),
            markeredgewidth=1.2,
            drawstyle="steps-post" if figure.steps else "default",
        )
    for name, level in figure.levels.items():
        axes.axhline(level, color="#777777", linewidth=0.9, linestyle="-.")
        axes.annotate(
            name,
            (0.005, level),
            xycoords=axes.get_yaxis_transform(),
            va="bottom",
            fontsize=9,
            color="#555555",
        )
    for name, instant in figure.instants.items():
        axes.axvline(instant, color="#777777", linewidth=0.9, linestyle="-.")
        axes.annotate(
            name,
            (instant, 0.99),
            xycoords=axes.get_xaxis_transform(),
            rotation=90,
            va="top",
            ha="right",
            fontsize=9,
            color="#555555",
        )
    axes.set_xlabel(figure.x_label)
    axes.set_ylabel(figure.y_label)


def _bars(axes: Axes, figure: Bars, by_series: Strokes) -> None:
    if figure.log_y:
        axes.set_yscale("log")
        _plain_ticks(axes.yaxis)
    elif figure.whole_y:
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    groups = list(dict.fromkeys(group for values in figure.series.values() for group in values))
    width = 0.8 / max(1, len(figure.series))
    for place, (name, values) in enumerate(figure.series.items()):
        shown = [number for number, group in enumerate(groups) if group in values]
        axes.bar(
            [number + (place + 0.5) * width - 0.4 for number in shown],
            [values[groups[number]] for number in shown],
            width=width,
            label=name,
            color=by_series[name][0],
            hatch="" if by_series[name][1] == "-" else "//",
        )
    crowded = sum(map(len, groups)) > _LABEL_CHARACTERS
    axes.set_xticks(
        range(len(groups)), groups, rotation=20 if crowded else 0, ha="right" if crowded else "center"
    )
    axes.set_ylabel(figure.y_label)
    axes.grid(visible=False, axis="x")
