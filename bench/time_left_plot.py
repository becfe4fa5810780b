"""The plot of bench/time_left.py: estimates beside the time left. Needs the extra `report`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from reactor.report import Lines
from reactor.report.figures import draw, strokes

_MOST_SECONDS: Final = 30.0
_MOST_POINTS: Final = 15


def write_plot(document: Mapping[str, Any], path: Path) -> None:
    """Write it; each course that crosses has its own dots."""
    series: dict[str, list[tuple[float, float]]] = {"exact": [(0.0, 0.0), (_MOST_SECONDS, _MOST_SECONDS)]}
    for name, runs in document["runs"].items():
        points = [
            (real, likely)
            for one in runs
            for real, likely, _, _ in one["estimates"]
            if real is not None and real <= _MOST_SECONDS and likely <= 2 * _MOST_SECONDS
        ]
        if points:
            points.sort()
            series[name] = points[:: max(1, len(points) // _MOST_POINTS)]
    figure = Lines(
        title="Time left: estimated, and real",
        x_label="left, s",
        y_label="estimated, s",
        series=series,
        dots=[name for name in series if name != "exact"],
    )
    path.write_text(draw(figure, strokes(list(series))) + "\n")
