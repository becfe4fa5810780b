"""The viewer's loop: what is asked for, what is shown when nobody answers, and on which kind of screen."""

from __future__ import annotations

import io
import sys

import pytest

from reactor.errors import NoDaemonError
from reactor.terminal.top import LiveView, TopOptions, watch
from reactor.terminal.top import top as show_top
from reactor.terminal.top.screen import PlainScreen, encodable, may_colour, plain_width
from tests.unit.terminal.top import top_answers as top

MIB = 1 << 20


class FakeScreen:
    """Keeps the frames of 80 by 24 that it is shown, and quits after so many; time goes on as it waits."""

    def __init__(self, frames: int) -> None:
        self.now = 100.0
        self.waits: list[float] = []
        self.frames: list[str] = []
        self._wanted = frames

    def clock(self) -> float:
        return self.now

    def show(self, draw, seconds) -> bool:
        self.frames.append("\n".join("".join(span.text for span in line) for line in draw(80, 24)))
        self.waits.append(seconds)
        self.now += seconds
        return len(self.frames) < self._wanted


class FakeDaemon:
    """Answers in turn; a text is why it does not. An answer takes `takes_seconds`."""

    def __init__(self, screen: FakeScreen, *answers, takes_seconds: float = 0.0) -> None:
        self._screen = screen
        self._answers = list(answers)
        self._takes_seconds = takes_seconds

    def __call__(self):
        self._screen.now += self._takes_seconds
        answer = self._answers.pop(0)
        if isinstance(answer, str):
            raise NoDaemonError(answer)
        return answer


def _watched(*answers, takes_seconds: float = 0.0) -> FakeScreen:
    screen = FakeScreen(len(answers))
    daemon = FakeDaemon(screen, *answers, takes_seconds=takes_seconds)
    watch(LiveView(daemon, screen.clock), screen, 1.0, screen.clock)
    return screen


def _holding(available: int, pid: int = 7) -> dict:
    return top.document(signals=[top.signal(available=available * MIB)], pid=pid)


def test_it_asks_once_a_second_however_long_an_answer_takes():
    screen = _watched(*[top.document()] * 4, takes_seconds=0.3)

    assert screen.waits[1:] == pytest.approx([0.7] * 3)


def test_an_answer_that_takes_longer_than_the_interval_leaves_nothing_to_wait_for():
    screen = FakeScreen(3)
    daemon = FakeDaemon(screen, *[top.document()] * 3, takes_seconds=1.5)

    def ticking() -> float:
        screen.now += 1e-6  # time goes on from one reading of the clock to the next
        return screen.now

    watch(LiveView(daemon, ticking), screen, 1.0, ticking)

    assert [0.0] * 2 == screen.waits[1:]


def test_a_daemon_that_goes_and_comes_back_is_watched_on():
    screen = _watched(_holding(300), "Connection refused", "Connection refused", _holding(280), _holding(270))

    assert ["No answer" in frame for frame in screen.frames] == [False, True, True, False, False]
    assert "No answer for 2s, asking again: Connection refused" in screen.frames[2]
    assert "300Mi" in screen.frames[2]
    assert "280Mi" in screen.frames[3]


def test_the_numbers_of_another_daemon_are_no_continuation_of_the_last_ones():
    same = _watched(_holding(300), _holding(200)).frames[-1]
    another = _watched(_holding(300), _holding(200, pid=8)).frames[-1]

    assert "-100Mi/s" in same
    assert "-100Mi/s" not in another


def test_pods_without_room_are_scrolled_to_and_no_further_than_the_last():
    first = [top.place(number) for number in range(1, 61)]
    view = LiveView(lambda: top.document(order={**top.document()["order"], "first": first, "pods": 60}))
    view.scroll(1)  # nothing is known yet
    view.refresh()

    def places() -> list[int]:
        text = ["".join(span.text for span in line).split() for line in view.draw(100, 24)]
        return [int(cells[0]) for cells in text if cells[1:] and cells[1].startswith("shop/web-")]

    assert places()[0] == 1
    for pods, expected in ((10, 11), (-1, 10), (1 << 20, 60), (-(1 << 20), 1)):
        view.scroll(pods)
        assert places()[0] == expected


def test_a_daemon_that_was_never_there_is_waited_for():
    screen = _watched("No such file or directory", top.document())

    assert "asking again: No such file or directory" in screen.frames[0]
    assert "memory.available" in screen.frames[1]


def test_once_without_a_daemon_is_an_error(tmp_path):
    with pytest.raises(NoDaemonError, match=r"nobody\.sock"):
        show_top(TopOptions(socket_path=tmp_path / "nobody.sock", once=True))


def test_plain_frames_have_no_escapes_and_coloured_ones_do(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    view = LiveView(top.document)
    view.refresh()
    plain, coloured = (io.TextIOWrapper(io.BytesIO(), encoding="ascii") for _ in range(2))

    PlainScreen(plain, lambda _: None).show(view.draw, 1.0)
    PlainScreen(coloured, lambda _: None, with_colours=True).show(view.draw, 1.0)

    printed = plain.buffer.getvalue()
    assert b"\x1b" not in printed
    assert b"\x1b[32m" in coloured.buffer.getvalue()
    assert max(map(len, printed.splitlines())) <= 100


@pytest.mark.parametrize(("columns", "width"), [("72", 72), ("0", 160), ("many", 160)])
def test_a_pipe_is_as_wide_as_columns_says_or_wide_enough(columns, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(sys, "stdout", io.StringIO())

    assert plain_width() == width


@pytest.mark.parametrize(
    ("environment", "is_terminal", "welcome"),
    [
        ({"TERM": "xterm"}, True, True),
        ({"TERM": "xterm", "NO_COLOR": ""}, True, True),  # only a value counts
        ({"TERM": "xterm", "NO_COLOR": "1"}, True, False),
        ({"TERM": "dumb"}, True, False),
        ({}, True, False),
        ({"TERM": "xterm"}, False, False),
    ],
)
def test_colours_are_for_terminals_that_want_them(environment, is_terminal, welcome):
    assert may_colour(environment, is_terminal=is_terminal) is welcome


@pytest.mark.parametrize(("encoding", "shown"), [("utf-8", "a…b"), ("ANSI_X3.4-1968", "a~b")])
def test_what_an_encoding_does_not_have_is_written_otherwise(encoding, shown):
    assert encodable("a…b", encoding) == shown
