"""`reactor status` and `reactor explain` in the terminal: the command's side, never the daemon's."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from rich.console import Console
from rich.table import Table

from reactor.daemon.record import after, amount_text, what_was_done
from reactor.daemon.status_socket import ask
from reactor.model.signals import Resource

_RESOURCE: Final = {"bytes": Resource.MEMORY, "inodes": Resource.INODES, "processes": Resource.PIDS}
_UNKNOWN: Final = "unknown"
_PIPE_COLUMNS: Final = 160


def show_status(socket_path: Path, output: str) -> int:
    """Print how the node stands. Raises NoDaemonError."""
    document = ask(socket_path, {"command": "status"})
    if _printed_plainly(document, output):
        return 1 if "error" in document else 0
    screen = console()
    node = document["node_cgroup"] or "this machine"
    dry = ", dry run" if document["dry_run"] else ""
    screen.print(
        f"reactor {document['version']}, pid {document['pid']}{dry}: {node}, {document['pods']} pods, "
        f"{document['passes']} passes since {document['started']}"
    )
    if document["kubernetes"] is not None:
        screen.print(_kubernetes(document["kubernetes"]))
    if document["runtime"] is not None:
        screen.print(f"container runtime: {document['runtime']}")
    screen.print(_signals(document["signals"]))
    screen.print(_filesystems(document))
    if document["reclaimed"]:
        screen.print(_reclaimed(document["reclaimed"]))
    screen.print(_conditions(document["conditions"]))
    screen.print(_sources(document["sources"]))
    screen.print(_brake(document["brake"]))
    if document["in_flight"]:
        screen.print(_in_flight(document["in_flight"]))
    screen.print(_decisions(document["decisions"]))
    if document["oom_kills"]["recent"]:
        screen.print(_oom_kills(document["oom_kills"]["recent"]))
    for what, why in document["problems"].items():
        screen.print(f"problem: {what}: {why}")
    return 0


def show_explanation(socket_path: Path, pod: str | None, output: str) -> int:
    """Print why a pod was evicted and where it stands now. Raises NoDaemonError.

    The exit status is 1 for a pod that the daemon does not know.
    """
    document = ask(socket_path, {"command": "explain", "pod": pod})
    known = "error" not in document and bool(
        document["ranking"] or document["evictions"] or document["oom_kills"]
    )
    if _printed_plainly(document, output):
        return 0 if known or pod is None else 1
    screen = console()
    for eviction in document["evictions"]:
        _explain_eviction(screen, eviction)
    for kill in document["oom_kills"]:
        screen.print(f"{kill['time']}: {kill['message']}")
    if document["ranking"]:
        screen.print(_ranking(f"Order of eviction now, for {document['signal']}", document["ranking"]))
    if not known and pod is not None:
        screen.print(f"{pod}: neither among the {document['pods']} pods now nor among the last decisions")
        return 1
    return 0


def _printed_plainly(document: Mapping[str, Any], output: str) -> bool:
    if "error" in document:
        print(f"reactor: {document['error']}", file=sys.stderr)
    elif output == "json":
        print(json.dumps(document))
    else:
        return False
    return True


def console() -> Console:
    """Return a console that cuts nothing off where the output is a pipe or a file."""
    width = None if sys.stdout.isatty() else max(_PIPE_COLUMNS, shutil.get_terminal_size().columns)
    return Console(width=width, highlight=False, markup=False, emoji=False)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: str = "", title: str | None = None
) -> Table:
    """Return a table; columns named in `right` (separated by commas) are aligned to the right."""
    found = Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=None)
    for column in columns:
        justify: Literal["right", "left"] = "right" if column in right.split(",") else "left"
        found.add_column(column, justify=justify, overflow="fold")
    for row in rows:
        found.add_row(*(str(cell) for cell in row))
    return found


def _kubernetes(told: Mapping[str, Any]) -> str:
    heard = ", ".join(
        f"{name} {'told' if is_well else 'NOT told'}" for name, is_well in told["watches"].items()
    )
    return (
        f"kubernetes: node {told['node']}, {told['role']}; {heard}; "
        f"{told['untold_evictions']} evictions not told yet"
    )


def _signals(signals: Iterable[Mapping[str, Any]]) -> Table:
    rows: list[Sequence[object]] = []
    for one in signals:
        resource = _RESOURCE[one["unit"]]
        source = one["source"]
        state = f"{source['name']} ({source['health']})" if source else "none"
        amounts = [_amount(one["available"], resource), _amount(one["capacity"], resource)]
        for threshold in one["thresholds"] or [None]:
            cells = ["-", "-", "-"]
            if threshold is not None:
                met = "met" if threshold["met"] else _since_below(threshold)
                margin = _amount(threshold["margin"], resource)
                cells = [f"{threshold['kind']} {_amount(threshold['amount'], resource)}", margin, met]
            rows.append([one["signal"], *amounts, *cells, state])
    columns = ("SIGNAL", "AVAILABLE", "CAPACITY", "THRESHOLD", "MARGIN", "STATE", "SOURCE")
    return table(columns, rows, right="AVAILABLE,CAPACITY,THRESHOLD,MARGIN")


def _filesystems(document: Mapping[str, Any]) -> Table:
    rows = [
        (
            one["filesystem"],
            one["path"],
            f"{one['kind']} {one['device']} on {one['mount_point']}" if one["device"] else _UNKNOWN,
            _filling(one),
            "-" if one["seconds_to_threshold"] is None else f"{one['seconds_to_threshold']:.0f} s",
        )
        for one in document["filesystems"]
    ]
    columns = (f"FILESYSTEM ({document['layout']})", "PATH", "LIES ON", "FILLS BY", "THRESHOLD IN")
    return table(columns, rows, right="FILLS BY,THRESHOLD IN")


def _reclaimed(reclaimed: Iterable[Mapping[str, Any]]) -> Table:
    rows = []
    for one in reclaimed:
        unit = Resource.EPHEMERAL_STORAGE if one["unit"] == "bytes" else Resource.INODES
        done = "; ".join([*one["did"], *(f"problem: {problem}" for problem in one["problems"])])
        amounts = [_amount(one["freed"], unit), _amount(one["wanted"], unit)]
        rows.append((one["kind"], one["time"], one["signal"], *amounts, f"{one['took_seconds']:.1f} s", done))
    columns = ("RECLAIMED LAST", "TIME", "FOR", "FREED", "WANTED", "TOOK", "BY")
    return table(columns, rows, right="FREED,WANTED,TOOK")


def _filling(one: Mapping[str, Any]) -> str:
    if one["read_only"]:
        return "read-only"
    rate, inodes = one["fills_by_bytes_per_second"], one["fills_by_inodes_per_second"]
    parts = [f"{_amount(rate, Resource.EPHEMERAL_STORAGE)}/s"] if rate else []
    return ", ".join([*parts, *([f"{inodes} inodes/s"] if inodes else [])]) or "-"


def _since_below(threshold: Mapping[str, Any]) -> str:
    below = threshold["below_for_seconds"]
    if threshold["margin"] is None:
        return _UNKNOWN
    return "ok" if below is None else f"below for {below:.0f} of {threshold['grace_period_seconds']:.0f} s"


def _amount(amount: int | None, resource: Resource) -> str:
    return _UNKNOWN if amount is None else amount_text(amount, resource)


def _conditions(conditions: Iterable[Mapping[str, Any]]) -> Table:
    rows = [(one["condition"], one["in_force"], one["since"] or "-") for one in conditions]
    return table(("CONDITION", "IN FORCE", "SINCE"), rows)


def _sources(sources: Iterable[Mapping[str, Any]]) -> Table:
    rows = [(one["name"], one["health"], one["wakes"], one["lost"], one["detail"]) for one in sources]
    return table(("SOURCE", "STATE", "WAKES", "LOST", "DETAIL"), rows, right="WAKES,LOST")


def _brake(brake: Mapping[str, Any]) -> str:
    if brake["mode"] == "off":
        return "brake: switched off"
    on = ", ".join(f"on {one['cgroup']}" for one in brake["on"]) or "released"
    return f"brake: {on}; engaged {brake['times']} times, {brake['seconds']:.1f} s in all"


def _in_flight(flights: Iterable[Mapping[str, Any]]) -> Table:
    rows = [
        (
            one["pod"],
            one["resource"],
            f"{one['killed_in_seconds']:.1f} s",
            f"{one['given_up_in_seconds']:.1f} s",
        )
        for one in flights
    ]
    return table(("BEING EVICTED", "FOR", "KILLED IN", "GIVEN UP IN"), rows)


def _decisions(decisions: Iterable[Mapping[str, Any]]) -> Table:
    rows = [
        (
            one["id"],
            one["time"],
            one["threshold"] or ", ".join(one["thresholds_met"]) or "-",
            ", ".join(one["conditions"]) or "-",
            what_was_done(one),
        )
        for one in decisions
    ]
    return table(("DECISION", "TIME", "THRESHOLD", "CONDITIONS", "DONE"), rows)


def _oom_kills(kills: Iterable[Mapping[str, Any]]) -> Table:
    rows = [
        (one["time"], one["scope"], one["pod"] or one["victim_cgroup"] or "-", one["message"])
        for one in kills
    ]
    return table(("OOM KILL", "SCOPE", "POD", "WHAT HAPPENED"), rows)


def _explain_eviction(screen: Console, eviction: Mapping[str, Any]) -> None:
    threshold = eviction["threshold"] or {}
    dry = " (dry run: it was not)" if eviction["dry_run"] else ""
    when = f"{eviction['time']}, decision {eviction['id']}{dry}"
    screen.print(f"{eviction['pod']} was evicted at {when}: {eviction['message']}")
    if threshold:
        unit = Resource(eviction["resource"])
        screen.print(
            f"  threshold {threshold['threshold']} ({_amount(threshold['value'], unit)}): available "
            f"{_amount(threshold['available'], unit)} of {_amount(threshold['capacity'], unit)}"
        )
    sources = ", ".join(sorted({wake["source"] for wake in eviction["wakes"]})) or "the start"
    woke_ns = eviction["timing"]["woke_ns"]
    killed = after(", killed", woke_ns, eviction["killed_ns"])
    freed = after(", given back", woke_ns, eviction["freed_ns"])
    screen.print(f"  woken by {sources}; {eviction['outcome']}{killed}{freed}")
    for problem in eviction["problems"]:
        screen.print(f"  problem: {problem}")
    if eviction["ranking"]:
        places = [{"place": number, **place} for number, place in enumerate(eviction["ranking"], 1)]
        screen.print(_ranking("  Ranking then", places))


def _ranking(title: str, ranking: Iterable[Mapping[str, Any]]) -> Table:
    rows = [(one["place"], one["pod"], one["because"]) for one in ranking]
    return table(("PLACE", "POD", "BECAUSE"), rows, right="PLACE", title=title)
