"""A report that is one HTML file: what was measured, in words, tables and plots, with nothing to load.

document.py   the words of a report: sections, tables, figures; plain values
figures.py    figures to SVG, by matplotlib
page.py       a report to HTML, by jinja2 (page.html.jinja)

Drawing needs the extra `report`; describing a report does not, and imports nothing of it.
"""

from reactor.report.document import Bars, Distribution, Figure, Lines, Report, Section, Table
from reactor.report.page import EXTRA, write, write_figure

__all__ = [
    "EXTRA",
    "Bars",
    "Distribution",
    "Figure",
    "Lines",
    "Report",
    "Section",
    "Table",
    "write",
    "write_figure",
]
