"""`python -m tests.size`: the table; status 1 where a row is worse than in committed.json."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.size.figures import Row, rows, traced_kill

COMMITTED: Final = Path(__file__).with_name("committed.json")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 1 where a row is worse than the committed one."""
    parser = argparse.ArgumentParser(prog="python -m tests.size", description=__doc__)
    parser.add_argument("--write", action="store_true", help="commit these figures")
    parser.add_argument("--static", action="store_true", help="without a kill on a virtual node (root)")
    asked = parser.parse_args(arguments)
    found = rows(None if asked.static else traced_kill())
    if asked.write:
        COMMITTED.write_text(json.dumps({row.name: row.value for row in found}, indent=1) + "\n")
    committed = json.loads(COMMITTED.read_text())
    print("\n".join(table(found, committed)))
    worse = [row.name for row in found if row.name in committed and row.is_worse(committed[row.name])]
    for name in worse:
        print(f"size: worse than committed: {name}", file=sys.stderr)
    return 1 if worse else 0


def table(found: Sequence[Row], committed: dict[str, int]) -> list[str]:
    """Return the rows as lines of a table in Markdown."""
    lines = ["| | now | committed | goal |", "|---|--:|--:|--:|"]
    for row in found:
        goal = "" if row.goal is None else f"{'≥' if row.more_is_better else '≤'} {row.goal:,}"
        lines.append(f"| {row.name} | {row.value:,} | {committed.get(row.name, 0):,} | {goal} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
