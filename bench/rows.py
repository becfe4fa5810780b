"""The rows of a run: a figure of each contestant, and what one run, or two, say of two trees.

A ratio is taken of turns beside each other in one run: "0.51 (0.48 to 0.56)" is that of the medians of all,
then the lowest and the highest of the turns'. Two runs are compared by the C floor: first by how much the
machine was slower (its floor now and then), then by how much the code was (multiples of the floor now and
then).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bench.parts import FLOOR, HERE, MACHINE, PARTS, TO_KILL, Values
from reactor.testbed.crossing import summary

Row = Mapping[str, Mapping[str, Any]]  # a contestant's p50, p99, max, n, and the p50 of each turn
Rows = Mapping[str, Mapping[str, Row]]  # by the part and the figure
RANKS: Final = ("p50", "p99")
# What counts as moved from one run to another, in percent; a p99 of 30 runs is the worst of them.
_TOLERANCE_PERCENT: Final = {"p50": 25.0, "p99": 100.0}
_TOLERANCE_AS_THEY_ARE_PERCENT: Final = 10.0
_LEAST_SHARE_PERCENT: Final = 0.1  # of a CPU: below it a share at rest is the clock's own noise
_SINGLE: Final = 8  # values; of fewer no p99 is shown


@dataclass(slots=True)
class Turns:
    """Collects the turns of one part."""

    values: dict[str, dict[str, list[Sequence[float]]]] = field(default_factory=dict)

    def add(self, contestant: str, values: Values) -> None:
        """Add one contestant's turn."""
        for name, measured in values.items():
            self.values.setdefault(name, {}).setdefault(contestant, []).append(measured)

    def rows(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Return the rows so far, by the figure."""
        return {
            name: {contestant: _summed(turns) for contestant, turns in by_contestant.items()}
            for name, by_contestant in self.values.items()
        }


def _summed(turns: Sequence[Sequence[float]]) -> dict[str, Any]:
    medians = [round(statistics.median(turn), 4) for turn in turns]
    return {**summary(value for turn in turns for value in turn), "turns": medians}


def spread_percent(row: Row, contestant: str = FLOOR.name) -> float:
    """Return by how much a contestant's medians differed from turn to turn."""
    medians = row[contestant]["turns"]
    return (max(medians) / min(medians) - 1) * 100 if min(medians) > 0 else 0.0


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    """Return lines of columns, the first one aligned to the left."""
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in (head, *lines)
    ]


def flat(rows: Rows) -> Iterator[tuple[str, str, Row]]:
    """Yield each part, figure and row."""
    for part, figures in rows.items():
        for figure, row in figures.items():
            yield part, figure, row


def ranks_of(row: Row) -> Sequence[str]:
    """Return which of p50 and p99 a row shows: of a few values only the first."""
    return RANKS if max(one["n"] for one in row.values()) >= _SINGLE else RANKS[:1]


def label(part: str, figure: str, rank: str, row: Row) -> str:
    """Return a row's name for people."""
    text = PARTS[part].text if part in PARTS else part
    return f"{text}: {figure}" + (f", {rank}" if len(ranks_of(row)) > 1 else "")


def number(value: float) -> str:
    """Return a figure with three digits that count."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


# --- two trees in one run ---


def against(rows: Rows, other: str) -> list[str]:
    """Return two trees' figures of one run, and the ratio of this tree's to the other's, as lines."""
    lines = []
    for part, figure, row in flat(rows):
        if HERE.name in row and other in row and (row[HERE.name]["max"] or row[other]["max"]):
            for rank in ranks_of(row):
                values = [row[name][rank] if name in row else None for name in (FLOOR.name, other, HERE.name)]
                shown = ["-" if value is None else number(value) for value in values]
                lines.append([label(part, figure, rank, row), *shown, ratio(row, HERE.name, other, rank)])
    found = table(["", FLOOR.name, other, "this tree", f"this tree / {other}"], lines)
    spreads = [
        spread_percent(row) for _, figure, row in flat(rows) if figure == TO_KILL and FLOOR.name in row
    ]
    if spreads:
        found.append(
            f"the floor's own medians differed by up to {max(spreads):.0f} % from turn to turn: a ratio that "
            "is nearer to 1 shows nothing"
        )
    return found


def ratio(row: Row, name: str, other: str, rank: str) -> str:
    """Return the ratio of two contestants' figures; of the median also the least and the most by turn."""
    if not row[other][rank]:
        return "-"
    text = f"{row[name][rank] / row[other][rank]:.2f}"
    pairs = zip(row[name]["turns"], row[other]["turns"], strict=False)
    by_turn = [mine / theirs for mine, theirs in pairs if theirs]
    if rank != "p50" or len(by_turn) < 2:
        return text
    return f"{text} ({min(by_turn):.2f} to {max(by_turn):.2f})"


# --- one run and the stored one ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """One figure then and now.

    `machine` is by how much the floor differs, 1 for what is compared as it is; then and now are multiples
    of the floor, or the figures as they are. `tolerance_percent` is what it may differ by itself.
    """

    name: str
    machine: float
    then: float
    now: float
    tolerance_percent: float
    is_noise: bool = False

    @property
    def code(self) -> float:
        """Return the ratio of the ratios: what is left if the machine's difference is taken out."""
        return self.now / self.then

    @property
    def verdict(self) -> str:
        """Return `same`, `worse` or `better`: each figure is better if it is smaller."""
        factor = 1 + self.tolerance_percent / 100
        if self.is_noise or 1 / factor <= self.code <= factor:
            return "same"
        return "worse" if self.code > 1 else "better"


def moved(then: Rows, now: Rows) -> Iterator[Moved]:
    """Yield the figures of this tree that both runs have."""
    machine = {id(rows): _floor(rows, MACHINE, TO_KILL) for rows in (then, now)}
    for part, figure, row in flat(now):
        before = then.get(part, {}).get(figure, {})
        if HERE.name not in row or HERE.name not in before or not before[HERE.name]["p50"]:
            continue
        own_floor = FLOOR.name in row and FLOOR.name in before
        is_time = figure.endswith(", ms")
        for rank in ranks_of(row):
            floors = (
                (before[FLOOR.name][rank], row[FLOOR.name][rank])
                if own_floor
                else (machine[id(then)], machine[id(now)])
            )
            if not is_time or not all(floors):
                floors = (1.0, 1.0)
            values = before[HERE.name][rank] / floors[0], row[HERE.name][rank] / floors[1]
            tolerance_percent = (
                _TOLERANCE_PERCENT[rank] if is_time or own_floor else _TOLERANCE_AS_THEY_ARE_PERCENT
            )
            if own_floor:
                tolerance_percent = max(tolerance_percent, 2 * spread_percent(row))
            yield Moved(
                name=label(part, figure, rank, row),
                machine=floors[1] / floors[0],
                then=values[0],
                now=values[1],
                tolerance_percent=tolerance_percent,
                is_noise="% of a CPU" in figure and max(values) < _LEAST_SHARE_PERCENT,
            )


def _floor(rows: Rows, part: str, figure: str) -> float:
    """Return the floor's median, 0 if there is none."""
    return float(rows.get(part, {}).get(figure, {}).get(FLOOR.name, {}).get("p50", 0.0))


def compared(then: Rows, now: Rows, when: str) -> list[str]:
    """Return what two runs say of the machine, then of the code, as lines."""
    found = list(moved(then, now))
    machine = (_floor(then, MACHINE, TO_KILL), _floor(now, MACHINE, TO_KILL))
    if all(machine):
        spread = spread_percent(now[MACHINE][TO_KILL])
        first = (
            f"the machine: the C floor kills at full speed after {number(machine[1])} ms, then after "
            f"{number(machine[0])} ms: {machine[1] / machine[0]:.2f} times as long; within this run its "
            f"medians differed by {spread:.0f} %"
        )
    else:
        first = f"the machine: unknown, one of the runs has no part {MACHINE}"
    lines = [
        [one.name, f"{one.machine:.2f}", number(one.then), number(one.now), f"{one.code:.2f}", one.verdict]
        for one in sorted(found, key=lambda one: -one.code)
        if one.now > 0
    ]
    second = (
        f"the code: against {when}; times in multiples of the floor of the same run, and the rest as it is"
    )
    head = ["", "machine", "then", "now", "now / then", ""]
    changed = sum(one.verdict != "same" for one in found)
    return [first, second, *table(head, lines), f"{changed} of {len(found)} figures moved"]
