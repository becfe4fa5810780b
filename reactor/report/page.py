"""A report to one HTML file. The libraries that draw it are imported here, at the last moment, or missed."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from reactor.errors import RefusedError
from reactor.report.document import Report, Table

EXTRA: Final = "report"
_NUMBER: Final = re.compile(r"(-|\u2013)?[\d.,]*(\s*/\s*-?[\d.,]+)*( ?[%\u00d7])?")


def write(report: Report, path: Path) -> None:
    """Write the report as one self-contained HTML file, whole or not at all.

    Raises RefusedError without the extra that draws it, OSError where it can't be written.
    """
    page = html(report)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(page, encoding="utf-8")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def html(report: Report) -> str:
    """Return the report as HTML. Raises RefusedError without the extra that draws it."""
    try:
        import jinja2  # noqa: PLC0415 - an extra, and not before something is drawn

        from reactor.report.figures import draw, strokes  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise RefusedError(
            f"no {error.name}, so no HTML report: install the extra, pip install 'reactor[{EXTRA}]'"
        ) from error
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


def numeric_columns(table: Table) -> Sequence[bool]:
    """Return for each column whether its cells are numbers, or nothing."""
    return [
        bool(table.rows) and all(_NUMBER.fullmatch(row[place].strip()) for row in table.rows)
        for place in range(len(table.columns))
    ]
