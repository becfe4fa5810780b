"""A terminal to show frames on: by curses, or plainly where there is none that can be drawn on.

Curses sends what has changed since the frame before, and puts the terminal back as it was.
"""

from __future__ import annotations

import curses
import locale
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final, Protocol, TextIO

from reactor.terminal.top.table import ELLIPSIS, Line, Style

_QUIT: Final = frozenset({ord("q"), ord("Q")})
_ALL: Final = 1 << 20
_SCROLLED: Final = {  # pods down the order
    curses.KEY_UP: -1,
    curses.KEY_DOWN: 1,
    curses.KEY_PPAGE: -10,
    curses.KEY_NPAGE: 10,
    curses.KEY_HOME: -_ALL,
    curses.KEY_END: _ALL,
}
_ASCII_ELLIPSIS: Final = "~"
_COLOURS: Final = {Style.GOOD: 2, Style.WARNING: 3, Style.BAD: 1}  # ANSI's green, yellow, red
_ANSI: Final = {Style.HEADING: "1", Style.DIM: "2", Style.GOOD: "32", Style.WARNING: "33", Style.BAD: "1;31"}
_PIPE_COLUMNS: Final = 160

Draw = Callable[[int, int], Sequence[Line]]


class Screen(Protocol):
    """Shows frames."""

    def show(self, draw: Draw, seconds: float) -> bool:
        """Show what `draw` returns for a width and height, for so long; False once the user quits."""


class CursesScreen:
    """The whole terminal, redrawn also while it is being resized."""

    def __init__(
        self,
        window: curses.window,
        *,
        with_colours: bool,
        clock: Callable[[], float],
        scroll: Callable[[int], None],
    ) -> None:
        self._window = window
        self._scroll = scroll
        self._clock = clock
        self._attributes = _attributes(with_colours=with_colours)
        self._encoding = locale.getpreferredencoding(do_setlocale=False)
        with suppress(curses.error):  # not every terminal can hide it
            curses.curs_set(0)

    def show(self, draw: Draw, seconds: float) -> bool:
        """Show a frame; a key or a new size is answered at once."""
        until = self._clock() + seconds
        while True:
            self._draw(draw)
            self._window.timeout(max(0, round((until - self._clock()) * 1000)))
            key = self._window.getch()
            if key in _QUIT:
                return False
            if key in _SCROLLED:
                self._scroll(_SCROLLED[key])
            if key == -1 and self._clock() >= until:
                return True

    def _draw(self, draw: Draw) -> None:
        height, width = self._window.getmaxyx()
        self._window.erase()
        for row, line in enumerate(draw(width, height)[:height]):
            column = 0
            for span in line:
                # The last cell of the last line can't be written without the cursor leaving the screen.
                with suppress(curses.error):
                    text = encodable(span.text, self._encoding)
                    self._window.addnstr(row, column, text, width - column, self._attributes[span.style])
                column += len(span.text)
        self._window.refresh()


class PlainScreen:
    """Frames one after the other, as lines of text: for a file, a pipe, a terminal that can't move."""

    def __init__(self, output: TextIO, wait: Callable[[float], None], *, with_colours: bool = False) -> None:
        self._output = output
        self._wait = wait
        self._with_colours = with_colours

    def show(self, draw: Draw, seconds: float) -> bool:
        """Print a frame and a blank line, and wait."""
        self.print(draw)
        self._output.write("\n")
        self._output.flush()
        self._wait(seconds)
        return True

    def print(self, draw: Draw) -> None:
        """Print a frame as wide as the terminal, and as high as it needs to be."""
        for line in draw(plain_width(), sys.maxsize):
            text = "".join(
                _painted(span.text, span.style) if self._with_colours else span.text for span in line
            )
            self._output.write(f"{encodable(text, self._output.encoding or 'ascii')}\n")


def plain_width() -> int:
    """Return how wide lines may be that are printed: the terminal, COLUMNS, or 160 cells of a pipe."""
    with suppress(ValueError):
        columns = int(os.environ.get("COLUMNS", ""))
        if columns > 0:
            return columns
    with suppress(OSError, ValueError):
        return os.get_terminal_size(sys.stdout.fileno()).columns or _PIPE_COLUMNS
    return _PIPE_COLUMNS


def may_colour(environment: Mapping[str, str], *, is_terminal: bool) -> bool:
    """Return whether colours are welcome: on a terminal that is not dumb, unless NO_COLOR says otherwise."""
    return is_terminal and not environment.get("NO_COLOR") and environment.get("TERM", "dumb") != "dumb"


def can_move() -> bool:
    """Return whether standard output is a terminal on which a frame can replace the one before."""
    if not (sys.stdout.isatty() and sys.stdin.isatty()):
        return False
    try:
        curses.setupterm()
    except curses.error:  # TERM is not set, or not known here
        return False
    return curses.tigetstr("cup") is not None


@contextmanager
def whole_screen(clock: Callable[[], float], scroll: Callable[[int], None]) -> Iterator[CursesScreen]:
    """Take the terminal over, and restore it as it was; also at SIGTERM and SIGHUP.

    `scroll` is called with how many lines the user wants to go down; up, if it is negative.
    """
    locale.setlocale(locale.LC_CTYPE, "")
    window = curses.initscr()
    try:
        with _ended_by_signals():
            curses.noecho()
            curses.cbreak()
            window.keypad(True)  # noqa: FBT003 - curses' own
            with_colours = may_colour(os.environ, is_terminal=True) and _has_colours()
            yield CursesScreen(window, with_colours=with_colours, clock=clock, scroll=scroll)
    finally:
        window.keypad(False)  # noqa: FBT003
        curses.nocbreak()
        curses.echo()
        curses.endwin()


def encodable(text: str, encoding: str) -> str:
    """Return the text as an encoding can have it."""
    if encoding.upper().replace("-", "") == "UTF8":
        return text
    return text.replace(ELLIPSIS, _ASCII_ELLIPSIS).encode("ascii", "replace").decode("ascii")


def _has_colours() -> bool:
    try:
        curses.start_color()
        curses.use_default_colors()
    except curses.error:
        return False
    return curses.has_colors()


def _attributes(*, with_colours: bool) -> dict[Style, int]:
    attributes = dict.fromkeys(Style, curses.A_NORMAL)
    attributes |= {Style.HEADING: curses.A_BOLD, Style.DIM: curses.A_DIM, Style.BAD: curses.A_BOLD}
    if with_colours:
        for number, (style, colour) in enumerate(_COLOURS.items(), 1):
            curses.init_pair(number, colour, -1)
            attributes[style] |= curses.color_pair(number)
    return attributes


def _painted(text: str, style: Style) -> str:
    code = _ANSI.get(style)
    return text if code is None else f"\x1b[{code}m{text}\x1b[0m"


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, disposition in before.items():
            signal.signal(number, disposition)
