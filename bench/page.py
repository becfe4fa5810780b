"""The part of docs/figures.md that the bench writes from its stored JSON; also by `python -m bench.page`.

No figure of it is typed by hand: a test holds that the page has what the stored baseline says.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.baseline import BASELINE, stored_in
from bench.parts import (
    BOTH,
    FLOOR,
    HERE,
    KUBELETS,
    MANY,
    OVERSHOOT,
    PARTS,
    PROCESSES,
    REST,
    TO_FREED,
    TO_KILL,
    TO_WAKE,
    UNMET,
    WAKE_TO_KILL,
)
from bench.rows import Row, Rows, number, spread_percent
from reactor.errors import RefusedError

PAGE: Final = Path("docs/figures.md")
BEGIN: Final = "<!-- written by reactor bench --update-baseline, or python -m bench.page -->\n"
END: Final = "<!-- until here -->\n"
_KILLS: Final = (TO_WAKE, WAKE_TO_KILL, TO_KILL, TO_FREED, OVERSHOOT)
# What the figures are to be, by the part, the figure and the rank; multiples are of the floor.
_GOALS: Final[Mapping[tuple[str, str, str], float]] = {
    ("kill-max", WAKE_TO_KILL, "p50"): 0.5,
    (f"kill-max-{KUBELETS}", WAKE_TO_KILL, "p50"): 0.8,
    (f"kill-max-{MANY}", WAKE_TO_KILL, "p50"): 3,
    (f"pass-{KUBELETS}", UNMET, "p50"): 0.5,
    (f"pass-{MANY}", UNMET, "p50"): 3,
    (f"rest-{KUBELETS}", f"{BOTH} at rest, % of a CPU", "p50"): 0.1,
    (f"rest-{KUBELETS}", f"{BOTH} under MemoryPressure, % of a CPU", "p50"): 0.15,
    (f"rest-{KUBELETS}", "guard, RSS, MiB", "p50"): 28,
    (f"rest-{KUBELETS}", "steward, RSS, MiB", "p50"): 24,
    (f"rest-{KUBELETS}", f"{BOTH}, PSS, MiB", "p50"): 42,
    ("forks", "% of a CPU", "p50"): 5,
}
_MULTIPLES: Final[Mapping[str, tuple[float, float]]] = {
    "kill-max": (1.8, 1.7),
    f"kill-max-{KUBELETS}": (2.5, 4),
}


def written(stored: Mapping[str, Any]) -> str:
    """Return the part as Markdown: each kind of machine that has a baseline."""
    return "\n".join(line for kind, entry in stored.items() for line in _machine(kind, entry))


def _machine(kind: str, entry: Mapping[str, Any]) -> Iterator[str]:
    about, rows = entry["about"], entry["rows"]
    kills = {part: figures for part, figures in rows.items() if TO_KILL in figures}
    spread = max(spread_percent(figures[TO_KILL]) for figures in kills.values())
    count = max(row["n"] for figures in kills.values() for row in figures[TO_KILL].values())
    yield (
        f"Machine: {kind} ({about['cpu']}), kernel {about['kernel']}, Python {about['python']}, "
        f"{str(about['date']).partition('T')[0]}, every CPU busy. Milliseconds and MiB are p50 / p99 of up "
        f"to {count} kills. The floor's medians differed by up to {spread:.0f} % from turn to turn."
    )
    yield ""
    head = (*(name.partition(",")[0] for name in _KILLS), "floor: crossing to kill", "multiple of it", "goal")
    yield from _table(("kill", *head), _kill_lines(kills))
    yield ""
    yield from _table(("", "measured", "goal"), _goal_lines(rows))
    yield ""
    wakes = _wake_lines(rows)
    yield from _table((f"wakes a minute, {KUBELETS} pods", *REST), wakes)
    yield ""


def _kill_lines(kills: Rows) -> Iterator[Sequence[str]]:
    for part, figures in kills.items():
        row, goal = figures[TO_KILL], _MULTIPLES.get(part)
        multiples = [row[HERE.name][rank] / row[FLOOR.name][rank] for rank in ("p50", "p99")]
        yield (
            PARTS[part].text.removeprefix("kill at "),
            *(_both(figures[figure], HERE.name) for figure in _KILLS),
            _both(row, FLOOR.name),
            " / ".join(f"{one:.1f}" for one in multiples),
            "-" if goal is None else " / ".join(f"{one:g}" for one in goal),
        )


def _goal_lines(rows: Rows) -> Iterator[Sequence[str]]:
    """Yield a line for each figure with a goal; all others are in the stored JSON."""
    for part, figures in rows.items():
        for figure, row in figures.items():
            goal = _GOALS.get((part, figure, "p50"))
            if goal is not None:
                text = f"{PARTS[part].text}: {figure}" + (", p50" if TO_KILL in figures else "")
                yield (text, number(row[HERE.name]["p50"]), f"{goal:g}")


def _wake_lines(rows: Rows) -> Iterator[Sequence[str]]:
    """Yield a line for each process and source, with a column for each state of the node."""
    figures = rows[f"rest-{KUBELETS}"]
    found: dict[str, dict[str, float]] = {}
    for figure, row in figures.items():
        for when in REST:
            for ending in (f" {when}, wakes a minute", f" {when}, a minute"):
                if figure.endswith(ending):
                    found.setdefault(figure.removesuffix(ending), {})[when] = row[HERE.name]["p50"]
    for name, by_state in found.items():
        if any(by_state.values()):
            text = f"{name}, threads that wake" if name in PROCESSES else name
            yield (text, *(number(by_state.get(when, 0.0)) for when in REST))


def _both(row: Row, name: str) -> str:
    if name not in row:
        return "-"
    return f"{number(row[name]['p50'])} / {number(row[name]['p99'])}"


def _table(head: Sequence[str], lines: Iterator[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'|'.join('---' for _ in head)}|"
    for line in lines:
        yield f"| {' | '.join(line)} |"


def put_in(page: str, part: str) -> str:
    """Return the page with this part between the marks. Raises RefusedError without them."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise RefusedError(f"{PAGE}: without the lines {BEGIN.strip()} and {END.strip()}")
    return f"{before}{BEGIN}\n{part}{END}{after}"


def write_page(baseline: Path = BASELINE, page: Path = PAGE) -> None:
    """Write the part of the page anew from the stored baseline. Raises RefusedError, OSError."""
    text = put_in(page.read_text(encoding="utf-8"), written(stored_in(baseline)))
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    try:
        write_page()
    except (RefusedError, OSError) as error:
        sys.exit(f"bench.page: {error}; run it in the checkout, as .venv/bin/python -m bench.page")
