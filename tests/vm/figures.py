"""The figures of `reactor bench --by-source`, or of its parts, as Markdown tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_COLUMNS = (
    ("crossing to wake", "crossing_to_wake_ms"),
    ("to kill", "crossing_to_kill_ms"),
    ("to memory back", "crossing_to_freed_ms"),
    ("overshoot, MiB", "overshoot_mib"),
)


def tables(figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the tables: times in ms, each p50 / p99 / max."""
    about = figures["about"]
    yield f"{about['kernel']}, cgroup {about['cgroup']}, {about['cpus']} CPUs, {about['date']}"
    yield ""
    if "rows" in figures:
        yield from _parts(figures["rows"])
        return
    yield f"| source | MiB/s | n | {' | '.join(title for title, _ in _COLUMNS)} | at rest, % of a CPU | MiB |"
    yield f"|{'---|' * (len(_COLUMNS) + 5)}"
    for name, found in figures["by_source"].items():
        yield from _rows(name, found)
    if "probe_cost_percent" in figures:
        yield ""
        yield from _costs(figures["probe_cost_percent"])


def _parts(rows: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Iterator[str]:
    yield "| part | figure | | n | p50 / p99 / max |"
    yield "|---|---|---|---|---|"
    for part, found in rows.items():
        for figure, by_contestant in found.items():
            for name, one in by_contestant.items():
                yield f"| {part} | {figure} | {name} | {one['n']} | {_spread(one)} |"


def _rows(name: str, found: Mapping[str, Any]) -> Iterator[str]:
    at_rest = found["at_rest_cpu_percent"]
    rest = f"{at_rest['p50']:.3g} | {found['rss_mib']}" if at_rest else "- | -"
    for rate, wake in found["crossing_to_wake_ms"].items():
        cells = " | ".join(_spread(found[key][rate]) for _, key in _COLUMNS)
        yield f"| {name} | {rate} | {wake['n']} | {cells} | {rest} |"
    if found["failures"]:
        yield f"| {name} | | {len(found['failures'])} | {'failed | ' * len(_COLUMNS)}{rest} |"
    if found["missed"]:
        yield f"| {name} | | {found['missed']} | {'not woken | ' * len(_COLUMNS)}{rest} |"


def _spread(summary: Mapping[str, float]) -> str:
    return " / ".join(_number(summary[key]) for key in ("p50", "p99", "max"))


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def _costs(costs: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    yield "| watches | cost of a page-touch loop, % | quartiles | n |"
    yield "|---|---|---|---|"
    for name, cost in costs.items():
        yield f"| {name} | {cost['percent']:.2f} | {cost['p25']:.2f} to {cost['p75']:.2f} | {cost['n']} |"
