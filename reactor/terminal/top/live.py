"""Asks the daemon every second and shows what it answers; goes on when it is gone, and when it is back."""

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
from reactor.tell.status_socket import ask
from reactor.terminal.asking import asked
from reactor.terminal.top.frame import Shown, frame
from reactor.terminal.top.rates import Rates
from reactor.terminal.top.screen import PlainScreen, Screen, can_move, may_colour, whole_screen
from reactor.terminal.top.sections import note_rates
from reactor.terminal.top.table import Line

_PATIENCE_SECONDS: Final = 2.0  # the next question comes in a second, and the frame says what is missing

Ask = Callable[[], dict[str, Any]]


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
        view.look(may_be_absent=False)
        PlainScreen(sys.stdout, time.sleep, with_colours=colours).print(view.draw)
        return 0
    try:
        if not can_move():
            plain = PlainScreen(sys.stdout, time.sleep, with_colours=colours)
            watch(LiveView(ask_daemon), plain, options.interval_seconds)
            return 0
        with whole_screen(time.monotonic) as screen:
            watch(LiveView(ask_daemon, keys="q quits"), screen, options.interval_seconds)
    except KeyboardInterrupt:
        pass  # how one leaves it
    return 0


def watch(
    view: LiveView,
    screen: Screen,
    interval_seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Look and show in turn, each time `interval_seconds` after the time before, until the user quits."""
    due = clock()
    while True:
        view.look()
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

    def look(self, *, may_be_absent: bool = True) -> None:
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
        )
        return frame(shown, width, height)


def _answer(options: TopOptions, patience_seconds: float | None = None) -> dict[str, Any]:
    question = {"command": "top", "pods": options.pods}
    if patience_seconds is None:
        document = asked(options.socket_path, question)
    else:
        document = ask(options.socket_path, question, patience_seconds=patience_seconds)
    if "error" in document:
        raise NoDaemonError(f"{options.socket_path}: {document['error']}")
    return document
