"""`reactor explain --journal` and `reactor report`: decisions from the journal on disk, without a daemon.

What a daemon answers to `explain` is made here of the journal's lines, by the same code, for as many
decisions as there are.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from reactor.link.documents import evictions_of
from reactor.model.quantity import bytes_text, duration_text
from reactor.plain import write_whole
from reactor.report.incident import Span, incidents, page
from reactor.steward.answers import RecentRecords, explanation, is_called, names_in, names_meant
from reactor.tables import Table, table
from reactor.tell.journal import read_all
from reactor.tell.status_socket import ask
from reactor.text import nearest_name, printable

_MANY: Final = 1_000_000
_SHOWN: Final = 10
_COLUMNS: Final = 40
_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_ASCII: Final = "_.-=+*%#"
_NOW: Final[Mapping[str, Any]] = {"ranking": [], "slowdowns": [], "rules": [], "pods": 0, "signal": None}

Document = Mapping[str, Any]


def explained(path: Path, name: str | None, last: int | None) -> tuple[dict[str, Any], str | None]:
    """Return what `reactor explain` would answer of the journal, and a name that is near an unknown one.

    Of all pods the `last` evictions are in it (None: 10), of one pod all. Raises OSError.
    """
    recent = RecentRecords(kept=_MANY, kept_oom_kills=_MANY)
    for document in read_all(path):
        recent.take(document)
    found = explanation(_NOW, recent, name)
    if last is None and name is None:
        last = _SHOWN
    found["evictions"] = found["evictions"][:last]
    found["oom_kills"] = found["oom_kills"][-last if last else None :]
    near = None
    if name is not None and not (found["evictions"] or found["oom_kills"] or found["rules_acted"]):
        names = names_in(recent.decisions()) | {
            str(one["pod"]).rpartition("/")[2] for one in recent.oom_kills() if one.get("pod")
        }
        near = nearest_name(name.rpartition("/")[2], sorted(names))
    return found, near


def explain_journal(path: Path, name: str | None, last: int | None, output: str) -> int:
    """Print why pods were evicted, by the journal. The exit status is 1 for a name that is not in it."""
    from reactor.terminal.show import print_explanation, printed_plainly  # noqa: PLC0415 - it imports from here

    document, near = explained(path, name, last)
    known = bool(document["evictions"] or document["oom_kills"] or document["rules_acted"])
    if printed_plainly(document, output):
        return 0 if known or name is None else 1
    print_explanation(document, name)
    if not known:
        of = "any pod" if name is None else name
        meant = "" if near is None else f" (did you mean {near}?)"
        print(f"reactor: {path}: no eviction and no OOM kill of {printable(of)}{meant}", file=sys.stderr)
    return 0 if known or name is None else 1


def write_report(journal: Path, out: Path | None, name: str | None, span: Span, last: int | None) -> int:
    """Write the page of a pod's last eviction or OOM kill, of the last one of all, or of a span of time.

    `out` is None for standard output. The exit status is 1 if there is none. Raises OSError.
    """
    recent = RecentRecords(kept=_MANY, kept_oom_kills=_MANY)
    for document in read_all(journal):
        recent.take(document)
    all_of_them = incidents([*recent.decisions(), *recent.oom_kills()], span)
    called = all_of_them
    for meant in () if name is None else names_meant(name):
        called = [one for one in all_of_them if any(is_called(of, meant) for of in _whom(one))]
        if called:
            break
    is_span = span.since is not None or span.until is not None
    shown = called if is_span and last is None else called[-(last or 1) :]
    if not shown:
        names = sorted(str(of.get("pod")).rpartition("/")[2] for one in all_of_them for of in _whom(one))
        near = None if name is None else nearest_name(name.rpartition("/")[2], names)
        whom = "" if name is None else f" of {printable(name)}"
        question = "" if near is None else f" (did you mean {near}?)"
        when = " in this time" if is_span else ""
        print(f"reactor: {journal}: no eviction and no OOM kill{whom}{when}{question}", file=sys.stderr)
        return 1
    text = page(shown, socket.gethostname(), among=all_of_them)
    if out is None:
        sys.stdout.buffer.write(text.encode())
        return 0
    write_whole(out, text)
    count = f"{len(shown)} evictions and OOM kills" if len(shown) > 1 else "1 eviction or OOM kill"
    print(f"{out}: {count}, {len(text.encode()) / 1024:.0f} KiB")
    return 0


def _whom(one: Document) -> list[Document]:
    return [one] if one.get("evictions") is None else evictions_of(one)


# --- the minute before ---


def black_box_lines(
    box: Document | None, threshold_bytes: int | None = None, encoding: str | None = "utf-8"
) -> Iterator[str]:
    """Yield what the black box has of the minute before an eviction, in words and as a line of blocks."""
    if box is None:
        return
    node = box.get("node")
    if node:
        curve = node["available_bytes"]
        began, ended = curve[0][0], curve[-1][0]
        met = "" if threshold_bytes is None else f", threshold {bytes_text(threshold_bytes)}"
        before = [value for at, value in curve if at <= 0] or [curve[0][1]]
        yield (
            f"available from {_before(began)} to {_before(ended)}: "
            f"{sparkline(curve, _COLUMNS, encoding)} {bytes_text(before[0])} to {bytes_text(before[-1])}{met}"
        )
    if box.get("text"):
        yield str(box["text"])
    for one in box.get("pods") or ():
        if one["grew_bytes"] >= 1 << 20:
            rate = f", up to {bytes_text(one['bytes_per_second'])}/s" if one["bytes_per_second"] else ""
            line = sparkline(one["working_set_bytes"], _COLUMNS, encoding)
            yield f"  {line} {one['pod']} grew by {bytes_text(one['grew_bytes'])}{rate}"
    if box.get("missing_because"):
        yield f"not observed: {box['missing_because']}"


def _before(seconds: float) -> str:
    return f"{duration_text(-seconds)} before" if seconds < 0 else f"{duration_text(seconds)} after"


def sparkline(curve: Sequence[Sequence[float]], columns: int, encoding: str | None = "utf-8") -> str:
    """Return a curve as one line of blocks, from nothing to its highest value, over even times.

    A value holds until the next one. Without UTF-8 the blocks are characters of ASCII.
    """
    blocks = _BLOCKS if encoding is not None and encoding.lower().replace("-", "") == "utf8" else _ASCII
    if not curve:
        return ""
    highest = max(value for _, value in curve) or 1
    first, last = curve[0][0], curve[-1][0]
    line, place = "", 0
    for column in range(columns):
        at = first + (last - first) * column / max(1, columns - 1)
        while place + 1 < len(curve) and curve[place + 1][0] <= at:
            place += 1
        line += blocks[min(len(blocks) - 1, int(curve[place][1] / highest * len(blocks)))]
    return line


def processes_table(box: Document) -> Table:
    """Return the largest processes that were seen of the pods, with what each held."""
    rows = [
        (
            f"{-seen['at_seconds']:.1f} s before" if seen["at_seconds"] < 0 else "after it",
            seen["pod"],
            one["pid"],
            bytes_text(one["anonymous_bytes"]),
            bytes_text(one["file_bytes"]),
            bytes_text(one["shared_bytes"]),
            bytes_text(one["swap_bytes"]),
            duration_text(one["age_seconds"]),
            one["command"],
        )
        for seen in box.get("processes") or ()
        for one in seen["largest"]
    ]
    columns = ("  SEEN", "POD", "PID", "ANON", "FILE", "SHARED", "SWAP", "AGE", "COMMAND")
    return table(columns, rows, right="PID,ANON,FILE,SHARED,SWAP,AGE")


def asked(socket_path: Path, question: Mapping[str, Any]) -> dict[str, Any]:
    """Return the daemon's answer. Raises NoDaemonError."""
    return ask(socket_path, question, on_wait=_say_that_it_waits)


def _say_that_it_waits() -> None:
    print("reactor: waiting for the daemon's answer: it is starting, or busy", file=sys.stderr)
