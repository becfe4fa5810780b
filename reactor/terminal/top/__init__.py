"""`reactor top`: how the node stands, every second, on a terminal.

    here     asks the daemon, makes a frame of its answer and shows it, until the user quits
    screen   a terminal by curses; plain where there is none that can be drawn on
    sections the tables of a frame: signals, pods, sources, events; pure, as is the next
    table    columns that fit a width, and the names, amounts and times in their cells

Curses, since a frame of 38 rows with a third of them changed costs 0.04 % of a CPU and 360 bytes a second
with it; measured beside it: rich's Live 1.1 % and 3.5 kB, textual 2.6 % and 8.6 kB.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from reactor.errors import NoDaemonError
from reactor.model.quantity import duration_text
from reactor.model.signals import Resource
from reactor.tell.status_socket import ask
from reactor.terminal.journal import asked
from reactor.terminal.top import sections
from reactor.terminal.top.screen import PlainScreen, Screen, can_move, may_colour, whole_screen
from reactor.terminal.top.sections import Rates, note_rates
from reactor.terminal.top.table import Line, Span, Style, Table, amount, clean, cut_end, fitted
from reactor.text import counted

_SCROLLS: Final = "arrows, PgUp, PgDn and Home scroll the pods; q quits"
_LOWEST_WITH_FOOT: Final = 12
_ROOMY_LINES: Final = 32  # from here on a blank line between the parts

_PATIENCE_SECONDS: Final = 2.0  # the next question comes in a second, and the frame says what is missing

Ask = Callable[[], dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What there is to be shown: the daemon's last answer (None: there was none), and its rates.

    `absent_because` says why the daemon does not answer now, `absent_seconds` for how long it has not.
    `clock` is the time of day that stands in the corner, `keys` what can be done, `skipped` how many pods the
    user has scrolled past.
    """

    document: Mapping[str, Any] | None
    rates: Rates
    absent_because: str | None = None
    absent_seconds: float = 0.0
    clock: str = ""
    keys: str = ""
    skipped: int = 0


def frame(shown: Shown, width: int, height: int) -> list[Line]:
    """Return the lines of a frame, at most so many, each in at most so many cells."""
    head = _absence(shown, width)
    document = shown.document
    body: list[Line] = []
    foot: list[Line] = []
    if document is not None:
        head += _head(document, f"{shown.clock}  {shown.keys}".strip(), width)
        foot = [(Span(_SCROLLS, Style.DIM),)] if shown.keys and height >= _LOWEST_WITH_FOOT else []
        height -= len(foot)
        body = _body(document, shown, width, height - len(head))
        if shown.absent_because is not None:
            body = [tuple(Span(span.text, Style.DIM) for span in line) for line in body]
    lines = (head + body)[:height]
    blank: list[Line] = [()] * (height - len(lines)) if foot else []
    return [fitted(line, width) for line in (*lines, *blank, *foot)]


def _absence(shown: Shown, width: int) -> list[Line]:
    if shown.absent_because is None:
        return []
    since = f" for {duration_text(shown.absent_seconds)}" if shown.document is not None else ""
    text = f"No answer{since}, asking again: {clean(shown.absent_because)}"
    lines: list[Line] = [
        (Span(text[start : start + width], Style.BAD),) for start in range(0, len(text), width)
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
    left = clean(f"reactor {document['version']}{dry}: {node}, {counted(document['pods'], 'pod')}")
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


def _body(document: Mapping[str, Any], shown: Shown, width: int, height: int) -> list[Line]:
    rates = shown.rates
    parts = [
        part
        for part in (
            _Part(what=sections.problems(document), shares=(1, 2, 4)),
            _Part(what=sections.signals(document, rates), shares=(4, 8, height)),
            _Part(what=sections.pods(document["order"], rates, shown.skipped), shares=(4, 8, 12)),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TopOptions:
    """What to show: the first `pods` of the order, every `interval_seconds`, or `once`."""

    socket_path: Path
    interval_seconds: float = 1.0
    pods: int = 60
    once: bool = False


def top(options: TopOptions) -> int:
    """Show how the node stands until the user quits, and return the exit status.

    With `once` it prints one frame. Raises NoDaemonError then, where there is no daemon.
    """
    ask_daemon = partial(_answer, options, patience_seconds=_PATIENCE_SECONDS)
    colours = may_colour(os.environ, is_terminal=sys.stdout.isatty())
    if options.once:
        view = LiveView(partial(_answer, options))
        view.refresh(may_be_absent=False)
        PlainScreen(sys.stdout, time.sleep, with_colours=colours).print(view.draw)
        return 0
    try:
        if not can_move():
            plain = PlainScreen(sys.stdout, time.sleep, with_colours=colours)
            watch(LiveView(ask_daemon), plain, options.interval_seconds)
            return 0
        view = LiveView(lambda: ask_daemon(skipped=view.skipped), keys="q quits")
        with whole_screen(time.monotonic, view.scroll) as screen:
            watch(view, screen, options.interval_seconds)
    except KeyboardInterrupt:
        pass  # how one leaves it
    return 0


def watch(
    view: LiveView,
    screen: Screen,
    interval_seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Refresh and show in turn, each time `interval_seconds` after the time before, until the user quits."""
    due = clock()
    while True:
        view.refresh()
        due = max(due + interval_seconds, clock())
        if not screen.show(view.draw, max(0.0, due - clock())):
            return


class LiveView:
    """What the daemon answered last, and what became of it since."""

    def __init__(self, ask: Ask, clock: Callable[[], float] = time.monotonic, *, keys: str = "") -> None:
        self._ask = ask
        self._keys = keys
        self._clock = clock
        self._rates = Rates()
        self._document: Mapping[str, Any] | None = None
        self._answered_at = clock()
        self._absent_because: str | None = None
        self._time_of_day = ""
        self.skipped = 0

    def scroll(self, pods: int) -> None:
        """Move so many pods down the order, or up; the last one that is known stays."""
        known = 0 if self._document is None else len(self._document["order"]["first"])
        self.skipped = max(0, min(self.skipped + pods, known - 1))

    def refresh(self, *, may_be_absent: bool = True) -> None:
        """Ask the daemon. Raises NoDaemonError where it does not answer and may not be absent."""
        try:
            document = self._ask()
        except NoDaemonError as error:
            if not may_be_absent:
                raise
            self._absent_because = str(error)
            return
        now = self._clock()
        if self._document is not None and self._document["pid"] != document["pid"]:
            self._rates = Rates()  # another daemon: what the last one saw is no beginning for its numbers
        note_rates(self._rates, document, now)
        self._document, self._answered_at, self._absent_because = document, now, None
        self._time_of_day = datetime.now(UTC).strftime("%H:%M:%S UTC")

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """Return the present frame."""
        shown = Shown(
            document=self._document,
            rates=self._rates,
            absent_because=self._absent_because,
            absent_seconds=self._clock() - self._answered_at,
            clock=self._time_of_day,
            keys=self._keys,
            skipped=self.skipped,
        )
        return frame(shown, width, height)


def _answer(
    options: TopOptions, patience_seconds: float | None = None, *, skipped: int = 0
) -> dict[str, Any]:
    question = {"command": "top", "pods": options.pods + skipped}
    if patience_seconds is None:
        document = asked(options.socket_path, question)
    else:
        document = ask(options.socket_path, question, patience_seconds=patience_seconds)
    if "error" in document:
        raise NoDaemonError(f"{options.socket_path}: {document['error']}")
    return document
