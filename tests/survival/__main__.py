"""`python -m tests.survival`: heats in all conditions, their table and their figures."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

from reactor.lab.tool import compiled_tool
from reactor.lab.virtual_node import ended_by_signals
from tests.survival.heat import Case, Condition, Outcome, Scores, run_heat

_COUNTS: Final = ("heats", "nobody_died", "clear", "right", "unchanged", "unchanged_right")
ROWS: Final = {
    "the kernel's own order": (Scores.NONE, False),
    "a kubelet's scores": (Scores.KUBELET, False),
    "`oomOrder: policy`": (Scores.NONE, True),
    "`oomOrder: policy` over a kubelet's scores": (Scores.KUBELET, True),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the heats, all cases in turns, and print the table of what the file has then; return 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.survival", description=__doc__)
    parser.add_argument("--heats", type=int, default=20, help="of each case (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="draw other pods (default: %(default)s)")
    parser.add_argument(
        "--figures", type=Path, help="keep the figures in this file, as JSON; those in it are added to"
    )
    asked = parser.parse_args(arguments)
    spin = [str(compiled_tool()), "spin"]
    figures = _read(asked.figures)
    with ended_by_signals():
        for number in range(asked.heats):
            for case in figures["cases"]:
                # The same pods for all cases of a round.
                random = Random(f"{asked.seed}/{number}")
                scores, is_ordered = ROWS[case["order"]]
                wanted = Case(scores=scores, is_ordered=is_ordered, condition=Condition(case["guard"]))
                with tempfile.TemporaryDirectory() as directory:
                    _add(case, run_heat(wanted, random, Path(directory), spin))
            figures["load"].append(round(os.getloadavg()[0], 1))
            if asked.figures is not None:
                asked.figures.parent.mkdir(parents=True, exist_ok=True)
                asked.figures.write_text(json.dumps(figures, indent=1) + "\n")
            print(f"round {number + 1} of {asked.heats}", file=sys.stderr, flush=True)
    print("\n".join(table(figures)))
    return 0


def _read(path: Path | None) -> dict[str, Any]:
    if path is not None and path.exists():
        return dict(json.loads(path.read_text()))
    return {
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "load": [],  # after each round
        "cases": [
            {"order": row, "guard": condition, **dict.fromkeys(_COUNTS, 0)}
            for row in ROWS
            for condition in Condition
        ],
    }


def _add(case: dict[str, Any], outcome: Outcome) -> None:
    """Add a heat to its case: `unchanged` are heats in which nobody overtook the first after the guard."""
    found = {
        "heats": True,
        "nobody_died": not outcome.died,
        "clear": outcome.is_clear,
        "right": outcome.is_clear and outcome.is_right,
        "unchanged": outcome.is_clear and not outcome.has_changed,
        "unchanged_right": outcome.is_clear and not outcome.has_changed and outcome.is_right,
    }
    for name in _COUNTS:
        case[name] += found[name]


def table(figures: dict[str, Any]) -> list[str]:
    """Return how often the policy's first died first; in brackets, where it was no other before."""
    lines = [f"| | {' | '.join(Condition)} |", "|---" * (len(Condition) + 1) + "|"]
    for row in ROWS:
        cells = [
            f"{one['right']} of {one['clear']} ({one['unchanged_right']} of {one['unchanged']})"
            for one in figures["cases"]
            if one["order"] == row
        ]
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
