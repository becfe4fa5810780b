"""The parts of docs/figures.md that the bench writes from its stored JSON; also by `python -m bench.page`.

`python -m bench.page FILE…` first makes these results of `make vm-count` the ones that are shown. No figure
of the parts is typed by hand: a test holds that the page has what is stored.
"""

from __future__ import annotations

import json
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
BEGIN_COUNTED: Final = "<!-- written by python -m bench.page from docs/figures/counted.json -->\n"
END: Final = "<!-- until here -->\n"
COUNTED: Final = Path("docs/figures/counted.json")
_KILLS: Final = (WAKE_TO_KILL, TO_KILL, TO_FREED, OVERSHOOT)
_COUNTED_KILL: Final = f"kill-max-{KUBELETS}"
# Until the kill, and no further: on a guest's one CPU the observer waits for what the guard does after it.
_COUNTED_ROWS: Final = ((TO_WAKE, HERE), (WAKE_TO_KILL, HERE), (TO_WAKE, FLOOR), (WAKE_TO_KILL, FLOOR))
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


def _kill_lines(kills: Rows) -> Iterator[Sequence[str]]:
    for part, figures in kills.items():
        row, goal = figures[TO_KILL], _MULTIPLES.get(part)
        multiples = [row[HERE.name][rank] / row[FLOOR.name][rank] for rank in ("p50", "p99")]
        yield (
            PARTS[part].text.removeprefix("kill at "),
            *(_both(figures[figure], HERE.name) + _goal_of(part, figure) for figure in _KILLS),
            _both(row, FLOOR.name),
            " / ".join(f"{one:.1f}" for one in multiples),
            "-" if goal is None else " / ".join(f"{one:g}" for one in goal),
        )


def _goal_lines(rows: Rows) -> Iterator[Sequence[str]]:
    """Yield a line for each figure with a goal but those of kills; all others are in the stored JSON."""
    for part, figures in rows.items():
        for figure, row in figures.items():
            goal = _GOALS.get((part, figure, "p50"))
            if goal is not None and TO_KILL not in figures:
                yield (f"{PARTS[part].text}: {figure}", number(row[HERE.name]["p50"]), f"{goal:g}")


def _goal_of(part: str, figure: str) -> str:
    goal = _GOALS.get((part, figure, "p50"))
    return "" if goal is None else f" (goal {goal:g})"


def _both(row: Row, name: str) -> str:
    if name not in row:
        return "-"
    return f"{number(row[name]['p50'])} / {number(row[name]['p99'])}"


def _table(head: Sequence[str], lines: Iterator[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'|'.join('---' for _ in head)}|"
    for line in lines:
        yield f"| {' | '.join(line)} |"


def written_counted(stored: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Return the table of what the counted guests have shown, beside each kind of machine in `here`."""
    head = ["", *(f"{kind}, in ms" for kind in here), *(f"{name}, in millions" for name in stored)]
    lines = _table(head, _counted_lines([*here.values(), *stored.values()]))
    dates = sorted({str(entry["about"]["date"]).partition("T")[0] for entry in stored.values()})
    runs = sorted({_kills_of(entry) for entry in stored.values()})
    of_each = " and ".join(map(str, runs))
    heads = [f"Medians, {KUBELETS} pods; in a guest of {of_each} kills each, {', '.join(dates)}."]
    return "".join(f"{line}\n" for line in [*heads, "", *lines, ""])


def _kills_of(entry: Mapping[str, Any]) -> int:
    return max(
        int(figures[TO_KILL][HERE.name]["n"]) for figures in entry["rows"].values() if TO_KILL in figures
    )


def _counted_lines(entries: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[str]]:
    rows = [entry["rows"].get(_COUNTED_KILL, {}) for entry in entries]
    for figure, contestant in _COUNTED_ROWS:
        text = f"{figure.partition(',')[0]}, {contestant.name}"
        yield (text, *(_median(row, figure, contestant.name) for row in rows))
    passes = [_median(entry["rows"].get(f"pass-{KUBELETS}", {}), UNMET, HERE.name) for entry in entries]
    yield (f"{UNMET.partition(',')[0]}, mean", *passes)


def _median(figures: Mapping[str, Row], figure: str, name: str) -> str:
    return number(figures[figure][name]["p50"]) if name in figures.get(figure, {}) else "-"


def update_counted(results: Sequence[Path], counted: Path = COUNTED) -> None:
    """Make the results of counted guests the ones that are shown, in this order. Raises RefusedError."""
    entries: dict[str, Any] = {}
    for path in results:
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            about, rows = found["about"], found["rows"]
            release = ".".join(about["kernel"].split(".")[:2])
            name = f"{release}, cgroup {about['cgroup']}"
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            accepted = "accepted: parts-counted.json, which make vm-count PARTS=… keeps"
            raise RefusedError(f"{path}: {error!r}; {accepted}") from error
        entries[name] = {"about": about, "rows": rows}
    counted.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")


def put_in(page: str, part: str, begin: str = BEGIN) -> str:
    """Return the page with this part between the marks. Raises RefusedError without them."""
    before, begun, rest = page.partition(begin)
    _, ended, after = rest.partition(END)
    if not (begun and ended):
        raise RefusedError(f"{PAGE}: without the lines {begin.strip()} and {END.strip()}")
    return f"{before}{begin}\n{part}{END}{after}"


def write_page(baseline: Path = BASELINE, page: Path = PAGE, counted: Path = COUNTED) -> None:
    """Write the parts of the page anew from what is stored. Raises RefusedError, OSError."""
    here = stored_in(baseline)
    text = put_in(page.read_text(encoding="utf-8"), written(here))
    text = put_in(text, written_counted(stored_in(counted), here), BEGIN_COUNTED)
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    try:
        if sys.argv[1:]:
            update_counted([Path(name) for name in sys.argv[1:]])
        write_page()
    except (RefusedError, OSError) as error:
        sys.exit(f"bench.page: {error}; run it in the checkout, as .venv/bin/python -m bench.page")
