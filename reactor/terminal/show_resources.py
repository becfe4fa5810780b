"""The part of `reactor status` on resources: signals, filesystems, and what they gave back last."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rich.table import Table

from reactor.model.amounts import UNKNOWN, amount_text, bytes_text, duration_text
from reactor.model.signals import RESOURCE_IN
from reactor.terminal.tables import moment, table

_COLUMNS_WITH_SOURCES: Final = 96


def signals_table(signals: Iterable[Mapping[str, Any]], columns: int) -> Table:
    """Return a row for each threshold of each signal; what another name says of the same disk is left out.

    A screen of few columns has no room for the sources, which have a table of their own.
    """
    rows: list[Sequence[object]] = []
    for one in _each_once(signals):
        resource = RESOURCE_IN[one["unit"]]
        amounts = [amount_text(one["available"], resource), amount_text(one["capacity"], resource)]
        for threshold in one["thresholds"] or [None]:
            cells = ["-", "-", "-"]
            if threshold is not None:
                met = "met" if threshold["met"] else _since_below(threshold)
                level = f"{threshold['kind']} {amount_text(threshold['amount'], resource)}"
                cells = [level, amount_text(threshold["margin"], resource), met]
            rows.append([one["signal"], *amounts, *cells, _source(one["source"])])
    names = ("SIGNAL", "AVAILABLE", "CAPACITY", "THRESHOLD", "MARGIN", "STATE", "SOURCE")
    shown = len(names) if columns >= _COLUMNS_WITH_SOURCES else len(names) - 1
    return table(
        names[:shown],
        (row[:shown] for row in rows),
        right="AVAILABLE,CAPACITY,THRESHOLD,MARGIN",
        whole="SIGNAL",
    )


def filesystems_table(document: Mapping[str, Any]) -> Table:
    """Return a row for each path, by all the names that it goes by."""
    by_place: dict[tuple[object, ...], list[Mapping[str, Any]]] = {}
    for one in document["filesystems"]:
        by_place.setdefault((one["path"], one["device"]), []).append(one)
    rows = [
        (
            ", ".join(one["filesystem"] for one in same),
            same[0]["path"],
            _place(same[0]),
            _filling(same[0]),
            duration_text(_soonest(same)),
        )
        for same in by_place.values()
    ]
    columns = (f"FILESYSTEM ({document['layout']})", "PATH", "LIES ON", "FILLS BY", "THRESHOLD IN")
    return table(columns, rows, right="FILLS BY,THRESHOLD IN")


def reclaimed_table(reclaimed: Iterable[Mapping[str, Any]]) -> Table:
    """Return what the node gave back last, kind by kind."""
    rows = []
    for one in reclaimed:
        unit = RESOURCE_IN[one["unit"]]
        done = "; ".join([*one["did"], *(f"problem: {problem}" for problem in one["problems"])])
        amounts = [amount_text(one["freed"], unit), amount_text(one["wanted"], unit)]
        took = f"{one['took_seconds']:.1f} s"
        rows.append((one["kind"], moment(one["time"]), one["signal"], *amounts, took, done))
    columns = ("RECLAIMED LAST", "TIME", "FOR", "FREED", "WANTED", "TOOK", "BY")
    return table(columns, rows, right="FREED,WANTED,TOOK")


def _each_once(signals: Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    """Yield the signals but for those of a filesystem that add nothing to one before."""
    shown: set[tuple[object, ...]] = set()
    for one in signals:
        levels = frozenset((threshold["kind"], threshold["amount"]) for threshold in one["thresholds"])
        amounts = (one["unit"], one["available"], one["capacity"])
        is_filesystem = "fs." in one["signal"]
        if is_filesystem and ((amounts, levels) in shown or (not levels and amounts in shown)):
            continue
        shown |= {amounts, (amounts, levels)} if is_filesystem else set()
        yield one


def _source(source: Mapping[str, Any] | None) -> str:
    if source is None:
        return "none"
    return source["name"] if source["health"] == "armed" else f"{source['name']} ({source['health']})"


def _place(one: Mapping[str, Any]) -> str:
    if not one["device"]:
        return UNKNOWN
    where = "" if one["mount_point"] == one["path"] else f" on {one['mount_point']}"
    return f"{one['kind']} {one['device']}{where}"


def _soonest(same: Iterable[Mapping[str, Any]]) -> float | None:
    return min((left for one in same if (left := one["seconds_to_threshold"]) is not None), default=None)


def _filling(one: Mapping[str, Any]) -> str:
    if one["read_only"]:
        return "read-only"
    rate, inodes = one["fills_by_bytes_per_second"], one["fills_by_inodes_per_second"]
    parts = [f"{bytes_text(rate)}/s"] if rate else []
    return ", ".join([*parts, *([f"{inodes} inodes/s"] if inodes else [])]) or "-"


def _since_below(threshold: Mapping[str, Any]) -> str:
    if threshold.get("absurd"):
        return "ignored"
    below = threshold["below_for_seconds"]
    if threshold["margin"] is None:
        return UNKNOWN
    return "ok" if below is None else f"below for {below:.0f} of {threshold['grace_period_seconds']:.0f} s"
