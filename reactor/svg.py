"""Pictures as SVG, by strings: memory over time, stacked by pod, with thresholds and what has happened.

The same picture stands in `reactor report`, in the page of the last hour and in that of `reactor tune`. It
needs no library, has no script, takes its colours from the page's style (`STYLE`: light, dark and print)
and scales with the width that it is given. All text is escaped here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final

from reactor.text import printable

Curve = Sequence[tuple[float, float]]

_WIDTH: Final = 480  # of which a phone shows 0.75 pixels each, and a desktop 1.4
_LEFT: Final = 66
_RIGHT: Final = 14
_TOP: Final = 14
_BOTTOM: Final = 34
_LABEL_CHARACTERS: Final = 52
_CHARACTER_WIDTH: Final = 6.4  # of the font's 11 px, at the widest as a rule
_LABEL_HEIGHT: Final = 13
_MOST_TICKS: Final = 5
# Okabe and Ito's, which the colour-blind can distinguish, and greys.
HUES: Final = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c6d1f", "#999999")

STYLE: Final = """
:root { color-scheme: light dark; --ink: #1c1c1c; --soft: #5a5a5a; --rule: #d8d8d8; --paper: #fff;
 --box: #f4f6f8; --low: #b3261e; --now: #0072b2; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --soft: #a8a8a8; --rule: #3d4145;
 --paper: #16181a; --box: #22262a; --low: #ff8a80; --now: #6cb8ee; } }
@media print { :root { --ink: #000; --soft: #333; --rule: #bbb; --paper: #fff;
 --box: #fff; --low: #900; --now: #046; } figure, tr, .keep { break-inside: avoid; } }
svg { display: block; width: 100%; max-width: 42rem; height: auto; font: 11px system-ui, sans-serif; }
@media screen and (max-width: 40rem) { figure { overflow-x: auto; } svg { min-width: 40rem; } }
svg text { fill: var(--ink); paint-order: stroke; stroke: var(--paper); stroke-width: 3px; }
svg .soft { fill: var(--soft); }
svg .rule { stroke: var(--rule); stroke-width: 1; } svg .low { stroke: var(--low); stroke-width: 1.3; }
svg .line { fill: none; stroke: var(--ink); stroke-width: 1.8; }
svg .now { stroke: var(--now); stroke-width: 1.3; }
svg .forecast { stroke: var(--now); stroke-width: 2; stroke-dasharray: 2 4; stroke-linecap: round; }
svg text.low { fill: var(--low); stroke: var(--paper); stroke-width: 3px; }
svg text.now { fill: var(--now); stroke: var(--paper); stroke-width: 3px; }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Area:
    """One layer of a stack: what a pod holds over time."""

    name: str
    curve: Curve


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something at one place of the x axis; `is_bad` is drawn in the colour of thresholds."""

    at: float
    text: str
    is_bad: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A named height across the whole picture."""

    value: float
    text: str
    is_bad: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Layers, lines above them, levels and marks; `title` is read out where the picture can't be seen.

    `forecasts` are straight and dashed: from what was to where it was expected to go.

    The x axis goes from `first` to `last`, the y axis from 0 to `highest`, or by powers of ten with `log_y`
    from `lowest`; with `binary_x` and `binary_y` the ticks of that axis are powers of two, and `x_ticks` are
    others. `steps` says that a value holds until the next, as what was observed does.
    """

    title: str
    first: float
    last: float
    highest: float
    x_text: Callable[[float], str]
    y_text: Callable[[float], str]
    areas: Sequence[Area] = ()
    lines: Mapping[str, Curve] = field(default_factory=dict)
    forecasts: Sequence[Curve] = ()
    levels: Sequence[Level] = ()
    marks: Sequence[Mark] = ()
    height: int = 230
    lowest: float = 0.0
    log_y: bool = False
    steps: bool = True
    binary_x: bool = False
    x_ticks: Sequence[float] | None = None
    binary_y: bool = True


def short(text: str, most: int = _LABEL_CHARACTERS) -> str:
    """Return a text for a label, escaped: printable, and cut in its middle if it is long."""
    shown = printable(text)
    if len(shown) > most:
        kept = (most - 1) // 2
        shown = f"{shown[:kept]}…{shown[-kept:]}"
    return escape(shown)


def draw(picture: Picture) -> str:
    """Return the picture as an element of a page whose style has `STYLE`."""
    return "\n".join(_Drawing(picture).elements())


class _Drawing:
    def __init__(self, picture: Picture) -> None:
        self._of = picture
        self._bottom = picture.height - _BOTTOM
        self._span = max(picture.last - picture.first, 1e-9)

    def elements(self) -> Iterator[str]:
        of = self._of
        yield (
            f'<svg viewBox="0 0 {_WIDTH} {of.height}" role="img" xmlns="http://www.w3.org/2000/svg">'
            f"<title>{escape(printable(of.title))}</title>"
        )
        yield from self._axes()
        yield from self._stack()
        for curve in of.lines.values():
            yield f'<path class="line" d="{self._path(curve)}"/>'
        for (at, value), (to, wanted) in of.forecasts:
            places = f'x1="{self._x(at)}" y1="{self._y(value)}" x2="{self._x(to)}" y2="{self._y(wanted)}"'
            yield f'<line class="forecast" {places}/>'
        yield from self._levels()
        yield from self._marks()
        yield "</svg>"

    def _x(self, at: float) -> float:
        share = min(1.0, max(0.0, (at - self._of.first) / self._span))
        return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), 1)

    def _y(self, value: float) -> float:
        of = self._of
        if of.log_y:
            low, high = math.log10(of.lowest), math.log10(of.highest)
            share = (math.log10(max(value, of.lowest)) - low) / max(high - low, 1e-9)
        else:
            share = value / max(of.highest, 1e-9)
        return round(self._bottom - min(1.0, max(0.0, share)) * (self._bottom - _TOP), 1)

    def _axes(self) -> Iterator[str]:
        of = self._of
        heights = powers(of.lowest, of.highest) if of.log_y else ticks(0.0, of.highest, binary=of.binary_y)
        for value in heights:
            y = self._y(value)
            yield f'<line class="rule" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>'
            yield (
                f'<text class="soft" x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">'
                f"{escape(of.y_text(value))}</text>"
            )
        places = ticks(of.first, of.last, binary=of.binary_x) if of.x_ticks is None else of.x_ticks
        for number, at in enumerate(places):
            x = self._x(at)
            is_last = number == len(places) - 1 and x > _WIDTH - _RIGHT - 40
            yield f'<line class="rule" x1="{x}" x2="{x}" y1="{self._bottom}" y2="{self._bottom + 4}"/>'
            yield (
                f'<text class="soft" x="{x}" y="{self._bottom + 17}" '
                f'text-anchor="{"end" if is_last else "middle"}">{escape(of.x_text(at))}</text>'
            )

    def _stack(self) -> Iterator[str]:
        """Yield the layers, the first one at the bottom, on the times that any of them has."""
        of = self._of
        times = sorted({at for area in of.areas for at, _ in area.curve})
        below = [0.0] * len(times)
        for number, area in enumerate(of.areas):
            values = list(_held(area.curve, times))
            above = [low + value for low, value in zip(below, values, strict=True)]
            upper = self._path(list(zip(times, above, strict=True)))
            lower = self._path(list(zip(times, below, strict=True)), backwards=True)
            yield (
                f'<path fill="{HUES[number % len(HUES)]}" fill-opacity="0.72" d="{upper}{lower}Z">'
                f"<title>{short(area.name)}</title></path>"
            )
            below = above

    def _path(self, curve: Curve, *, backwards: bool = False) -> str:
        """Return a curve as the path's commands: on from where the path is if it goes backwards."""
        points: list[tuple[float, float]] = []
        for at, value in curve:
            point = (self._x(at), self._y(value))
            if self._of.steps and points and points[-1][1] != point[1]:
                points.append((point[0], points[-1][1]))
            points.append(point)
        if backwards:
            points.reverse()
        first = "L" if backwards else "M"
        return "".join(f"{first if not place else 'L'}{x} {y}" for place, (x, y) in enumerate(points))

    def _levels(self) -> Iterator[str]:
        """Yield the levels, highest first; labels that would lie upon each other are moved apart."""
        lowest_text = -math.inf
        for level in sorted(self._of.levels, key=lambda one: -one.value):
            y = self._y(level.value)
            kind = "low" if level.is_bad else "now"
            text_y = max(y - 4, lowest_text + _LABEL_HEIGHT, _TOP + 10)
            lowest_text = text_y
            yield (
                f'<line class="{kind}" stroke-dasharray="5 3" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" '
                f'y1="{y}" y2="{y}"/>'
                f'<text class="{kind}" x="{_LEFT + 6}" y="{text_y}">{short(level.text)}</text>'
            )

    def _marks(self) -> Iterator[str]:
        """Yield the marks by their places; of labels that would lie upon each other each has its own line."""
        ends: list[float] = []  # where the last label of each line ends
        for mark in sorted(self._of.marks, key=lambda one: one.at):
            x = self._x(mark.at)
            text = short(mark.text)
            width = min(len(mark.text), _LABEL_CHARACTERS) * _CHARACTER_WIDTH
            anchor, place = "start", x + 4
            if place + width > _WIDTH - _RIGHT:
                anchor, place = "end", x - 4 if x - 4 >= width else _WIDTH - 4.0
            begin = place if anchor == "start" else place - width
            row = next((row for row, end in enumerate(ends) if end < begin), len(ends))
            ends[row : row + 1] = [begin + width]
            y = min(_TOP + 10 + row * _LABEL_HEIGHT, self._bottom - 2)
            if self._of.log_y:  # whose curve rises on the left: there is room at the bottom
                y = self._bottom - 6 - row * _LABEL_HEIGHT
            kind = "low" if mark.is_bad else "now"
            yield (
                f'<line class="{kind}" x1="{x}" x2="{x}" y1="{_TOP}" y2="{self._bottom}"/>'
                f'<text class="{kind}" x="{place}" y="{y}" text-anchor="{anchor}">{text}</text>'
            )


def _held(curve: Curve, times: Sequence[float]) -> Iterator[float]:
    """Yield the value that holds at each time; 0 before the first."""
    place = -1
    for at in times:
        while place + 1 < len(curve) and curve[place + 1][0] <= at:
            place += 1
        yield curve[place][1] if place >= 0 else 0.0


def ticks(first: float, last: float, *, binary: bool = False) -> list[float]:
    """Return up to six round values between these: of 1, 2 and 5, or of powers of two for bytes."""
    span = last - first
    if not span > 0:
        return [first]
    if binary:
        step = 2.0 ** math.ceil(math.log2(span / _MOST_TICKS))
    else:
        power = 10.0 ** math.floor(math.log10(span / _MOST_TICKS))
        step = next(size * power for size in (1, 2, 5, 10) if span / (size * power) <= _MOST_TICKS)
    begin = math.ceil(first / step - 1e-9)
    return [number * step for number in range(begin, math.floor(last / step + 1e-9) + 1)]


def powers(lowest: float, highest: float) -> list[float]:
    """Return the lowest value, ten times as much and so on, up to the highest."""
    count = math.floor(math.log10(highest / lowest) + 1e-9) + 1
    return [lowest * 10.0**power for power in range(count)]


def legend(areas: Sequence[Area]) -> str:
    """Return which colour is which layer, as a list of a page."""
    items = "".join(
        f'<li><i style="background:{HUES[number % len(HUES)]}"></i>{short(area.name)}</li>'
        for number, area in enumerate(areas)
    )
    return f'<ul class="legend">{items}</ul>' if items else ""


LEGEND_STYLE: Final = """
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .1rem 1.1rem; padding: 0; margin: .4rem 0;
 font-size: .85rem; }
.legend li { overflow-wrap: anywhere; }
.legend i { display: inline-block; width: .8em; height: .8em; margin-right: .4em; opacity: .72;
 print-color-adjust: exact; -webkit-print-color-adjust: exact; }
"""
