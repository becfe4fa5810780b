"""Figures of an HTML report of reactor's as SVG files, for a document that shows them.

usage: python -m tests.report_figures REPORT.html FILE.svg...    in the order of the report; - leaves one out
"""

from __future__ import annotations

import re
import sys
from pathlib import Path


def main(arguments: list[str]) -> int:
    """Write the files and return the exit status."""
    if len(arguments) < 2:
        print((__doc__ or "").strip(), file=sys.stderr)
        return 2
    report, *names = arguments
    figures = re.findall(r"<figure>(<svg.*?</svg>)\s*</figure>", Path(report).read_text("utf-8"), re.DOTALL)
    if len(names) > len(figures):
        print(f"{report} has {len(figures)} figures", file=sys.stderr)
        return 1
    for name, figure in zip(names, figures, strict=False):
        if name != "-":
            Path(name).write_text(f"{figure}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
