"""A report to one HTML file. The libraries that draw it are imported here, at the last moment, or missed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from reactor.errors import RefusedError, extra_remedy
from reactor.report.document import Figure, Report, Table

EXTRA: Final = "report"
_NUMBER: Final = re.compile(r"(-|\u2013)?[\d.,]*(\s*/\s*-?[\d.,]+)*( ?[%\u00d7])?")


def write(report: Report, path: Path) -> None:
    """Write the report as one self-contained HTML file, whole or not at all.

    Raises RefusedError without the extra that draws it, OSError where it can't be written.
    """
    _write(html(report), path)


def write_figure(figure: Figure, path: Path) -> None:
    """Write one figure as an SVG file, for a document that shows it; otherwise as `write`."""
    with _extra():
        from reactor.report.figures import draw, strokes  # noqa: PLC0415 - an extra, and only now wanted
    _write(draw(figure, strokes(tuple(figure.series))), path)


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
    look = strokes(report.series())
    drawn = [[draw(figure, look) for figure in section.figures] for section in report.sections]
    template = environment.get_template("page.html.jinja")
    return template.render(report=report, drawn=drawn, numeric=numeric_columns)


@contextmanager
def _extra() -> Iterator[None]:
    """Have a library that is missing told by the extra that has it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise RefusedError(f"no {error.name}, so nothing is drawn: {extra_remedy(EXTRA)}") from error


def _write(text: str, path: Path) -> None:
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def numeric_columns(table: Table) -> Sequence[bool]:
    """Return for each column whether its cells are numbers, or nothing."""
    return [
        bool(table.rows) and all(_NUMBER.fullmatch(row[place].strip()) for row in table.rows)
        for place in range(len(table.columns))
    ]
