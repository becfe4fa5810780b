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

from reactor.testbed.virtual_node import ended_by_signals
from tests.survival.heat import Case, Condition, Hog, Outcome, Scores, run_heat

_COUNTS: Final = ("heats", "innocents", "by_guard", "most", "died", "not_over")
ORDERS: Final = ("leave", "policy")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the heats, all cases in turns, and print the table of what the file has then.

    Return 1 if one with the order has cost more innocents than the same without it, else 0.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.survival", description=__doc__)
    parser.add_argument("--heats", type=int, default=20, help="of each case (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="draw other pods (default: %(default)s)")
    parser.add_argument("--hog", choices=[hog.name for hog in Hog], help="fill the node by this alone")
    parser.add_argument(
        "--figures", type=Path, help="keep the figures in this file, as JSON; those in it are added to"
    )
    asked = parser.parse_args(arguments)
    figures = _read(asked.figures)
    with ended_by_signals():
        for number in range(asked.heats):
            for counts in figures["cases"]:
                case = _case(counts)
                if asked.hog not in {None, case.hog.name}:
                    continue
                # The same pods for all cases of a round.
                random = Random(f"{asked.seed}/{number}")
                with tempfile.TemporaryDirectory() as directory:
                    _add(counts, run_heat(case, random, Path(directory)))
            figures["load"].append(round(os.getloadavg()[0], 1))
            if asked.figures is not None:
                asked.figures.parent.mkdir(parents=True, exist_ok=True)
                asked.figures.write_text(json.dumps(figures, indent=1) + "\n")
            print(f"round {number + 1} of {asked.heats}", file=sys.stderr, flush=True)
    print("\n".join(table(figures)))
    return 0 if is_never_worse(figures) else 1


def _case(counts: dict[str, Any]) -> Case:
    return Case(
        hog=Hog[counts["hog"]],
        scores=Scores(counts["scores"]),
        is_ordered=counts["order"] == "policy",
        condition=Condition(counts["guard"]),
    )


def _read(path: Path | None) -> dict[str, Any]:
    if path is not None and path.exists():
        return dict(json.loads(path.read_text()))
    return {
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "load": [],  # after each round
        "cases": [
            {"hog": hog.name, "scores": scores, "guard": guard, "order": order, **dict.fromkeys(_COUNTS, 0)}
            for hog in Hog
            for scores in Scores
            for guard in Condition
            for order in ORDERS
        ],
    }


def _add(counts: dict[str, Any], outcome: Outcome) -> None:
    """Add a heat to its case: `most` are innocents of one heat by the guard."""
    counts["heats"] += 1
    counts["innocents"] += outcome.innocents
    counts["by_guard"] += outcome.by_guard
    counts["most"] = max(counts["most"], outcome.by_guard)
    counts["died"] += outcome.died
    counts["not_over"] += not outcome.is_over


def is_never_worse(figures: dict[str, Any]) -> bool:
    """Return whether no case of the order has more innocents than the same without it."""
    return all(
        policy["innocents"] <= leave["innocents"]
        for leave, policy in zip(figures["cases"][::2], figures["cases"][1::2], strict=True)
    )


def table(figures: dict[str, Any]) -> list[str]:
    """Return the innocents of all heats, and by the guard, with `leave` and with `policy`."""
    heats = max(one["heats"] for one in figures["cases"])
    lines = [f"| {heats} heats each | {' | '.join(Condition)} |", "|---" * (len(Condition) + 1) + "|"]
    for hog in Hog:
        for scores in Scores:
            rows = [one for one in figures["cases"] if (one["hog"], one["scores"]) == (hog.name, scores)]
            cells = [
                " / ".join(_cell(one) for one in rows if one["guard"] == condition) for condition in Condition
            ]
            name = "a kubelet's scores" if scores is Scores.KUBELET else "none"
            lines.append(f"| {hog}, {name} | {' | '.join(cells)} |")
    return lines


def _cell(counts: dict[str, Any]) -> str:
    by_guard = f" ({counts['by_guard']})" if counts["by_guard"] else ""
    return f"{counts['innocents']}{by_guard}"


if __name__ == "__main__":
    sys.exit(main())
