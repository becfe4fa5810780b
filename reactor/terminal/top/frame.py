"""What is on the screen at one moment: what the daemon said last, in so many columns and lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from reactor.model.amounts import duration_text
from reactor.model.signals import Resource
from reactor.terminal.top import sections
from reactor.terminal.top.rates import Rates
from reactor.terminal.top.table import Line, Span, Style, Table, fitted
from reactor.terminal.top.words import amount, clean, cut_end

_ROOMY_LINES: Final = 32  # from here on a blank line between the parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What there is to be shown: the daemon's last answer (None: there was none), and its rates.

    `absent_because` says why the daemon does not answer now, `absent_seconds` for how long it has not.
    `clock` is the time of day that stands in the corner, `keys` what can be done.
    """

    document: Mapping[str, Any] | None
    rates: Rates
    absent_because: str | None = None
    absent_seconds: float = 0.0
    clock: str = ""
    keys: str = ""


def frame(shown: Shown, width: int, height: int) -> list[Line]:
    """Return the lines of a frame, at most so many, each in at most so many cells."""
    head = _absence(shown, width)
    document = shown.document
    body: list[Line] = []
    if document is not None:
        head += _head(document, f"{shown.clock}  {shown.keys}".strip(), width)
        body = _body(document, shown.rates, width, height - len(head))
        if shown.absent_because is not None:
            body = [tuple(Span(span.text, Style.DIM) for span in line) for line in body]
    return [fitted(line, width) for line in (head + body)[:height]]


def _absence(shown: Shown, width: int) -> list[Line]:
    if shown.absent_because is None:
        return []
    since = f" for {duration_text(shown.absent_seconds)}" if shown.document is not None else ""
    told = f"No answer{since}, asking again: {clean(shown.absent_because)}"
    lines: list[Line] = [
        (Span(told[start : start + width], Style.BAD),) for start in range(0, len(told), width)
    ]
    if shown.document is None:
        lines.append((Span(shown.keys, Style.DIM),))
    return lines


def _head(document: Mapping[str, Any], right: str, width: int) -> list[Line]:
    node = document["node_cgroup"] or "this machine"
    kubernetes = document["kubernetes"]
    if kubernetes is not None:
        node = f"{kubernetes['node']} ({kubernetes['role']})"
    dry = ", DRY RUN" if document["dry_run"] else ""
    left = clean(f"reactor {document['version']}{dry}: {node}, {document['pods']} pods")
    room = width - len(right) - 2
    title = f"{cut_end(left, room).ljust(room)}  {right}" if right and room > 20 else left
    return [(Span(title, Style.HEADING),), _pressure(document)]


def _pressure(document: Mapping[str, Any]) -> Line:
    spans = [
        Span(f"{one['condition']} for {duration_text(one['for_seconds'])}  ", Style.BAD)
        for one in document["conditions"]
        if one["in_force"]
    ] or [Span("no pressure  ", Style.GOOD)]
    for one in document["in_flight"]:
        killed = f", killed in {duration_text(one['killed_in_seconds'])}" if one["killed_in_seconds"] else ""
        spans.append(Span(clean(f"evicting {one['pod']} for {one['resource']}{killed}  "), Style.BAD))
    traffic = document["swap_traffic"]
    if traffic is not None and (traffic["in_bytes_per_second"] or traffic["out_bytes_per_second"]):
        in_text, out_text = (
            amount(traffic[key], Resource.SWAP) for key in ("in_bytes_per_second", "out_bytes_per_second")
        )
        spans.append(Span(f"swap in {in_text}/s, out {out_text}/s  ", Style.WARNING))
    return tuple(spans)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A part of the body, and with how many lines it makes do while others want some too.

    `shares` are those of each round in which lines are given out; what is left then goes to the pods.
    """

    what: Table | Sequence[Span]
    shares: tuple[int, int, int]

    @property
    def height(self) -> int:
        return self.what.height if isinstance(self.what, Table) else len(self.what)

    def lines(self, width: int, height: int) -> list[Line]:
        if isinstance(self.what, Table):
            return self.what.lines(width, height)
        return [(Span(cut_end(clean(span.text), width), span.style),) for span in self.what[:height]]


def _body(document: Mapping[str, Any], rates: Rates, width: int, height: int) -> list[Line]:
    parts = [
        part
        for part in (
            _Part(what=sections.problems(document), shares=(1, 2, 4)),
            _Part(what=sections.signals(document, rates), shares=(4, 8, height)),
            _Part(what=sections.pods(document["order"], rates), shares=(4, 8, 12)),
            _Part(what=sections.rules(document), shares=(2, 4, 8)),
            _Part(what=sections.sources(document), shares=(3, 5, height)),
            _Part(what=sections.events(document), shares=(3, 5, 9)),
        )
        if part.height
    ]
    gap: list[Line] = [()] if height >= _ROOMY_LINES else []
    lines: list[Line] = []
    for part, share in zip(parts, _heights(parts, height - len(gap) * len(parts)), strict=True):
        lines += [*gap, *part.lines(width, share)]
    return lines


def _heights(parts: Sequence[_Part], height: int) -> list[int]:
    """Return how many lines each part gets of so many."""
    given = [0] * len(parts)
    rounds = [*zip(*(part.shares for part in parts), strict=True), (height,) * len(parts)]
    for shares in rounds:
        for index, (part, share) in enumerate(zip(parts, shares, strict=True)):
            more = min(height, max(0, min(share, part.height) - given[index]))
            given[index] += more
            height -= more
    return given
