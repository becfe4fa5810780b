"""`reactor top` on a terminal, watching a daemon on a virtual node: what a person sees, and what is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from functools import partial

import pexpect
import pyte
import pytest

from reactor.testbed.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon
from tests.support.processes import MIB, hold
from tests.support.this_machine import virtual_node
from tests.support.waiting import eventually

FAR_TOO_LONG = "pod-with-a-name-that-is-far-too-long-for-its-column"
HARD = {"evictionHard": {"memory.available": "64Mi"}}


class Viewer:
    """`reactor top` in a terminal of its own, drawn by pyte."""

    def __init__(self, daemon: RunningDaemon, **environment: str) -> None:
        # Tests that run side by side have a width in the environment, which curses takes for the terminal's.
        inherited = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
        # pyte is a Linux console; xterm's terminfo has a sequence (REP) that it does not know.
        self.process = pexpect.spawn(
            sys.executable,
            ["-m", "reactor", "top", "--socket", str(daemon.socket_path), "--interval-seconds", "0.2"],
            dimensions=(24, 80),
            env={**inherited, "TERM": "linux", "LC_ALL": "C.UTF-8", **environment},
            timeout=20,
        )
        self.screen = pyte.Screen(80, 24)
        self._stream = pyte.ByteStream(self.screen)
        self.sent = b""

    def reads_lines(self) -> bool:
        """Tell whether the terminal echoes and hands over whole lines, as a shell finds it."""
        wanted = termios.ICANON | termios.ECHO
        return termios.tcgetattr(self.process.child_fd)[3] & wanted == wanted

    def resize(self, width: int, height: int) -> None:
        self.process.setwinsize(height, width)
        self.screen.resize(height, width)

    def read(self) -> list[str]:
        """Return the lines on the screen now."""
        while True:
            try:
                new = self.process.read_nonblocking(1 << 16, timeout=0)
            except (pexpect.TIMEOUT, pexpect.EOF):
                return [line.rstrip() for line in self.screen.display]
            self.sent += new
            self._stream.feed(new)

    def wait(self, true: Callable[[list[str]], bool], what: str) -> list[str]:
        """Return the lines once they are as wanted."""
        eventually(lambda: true(self.read()), f"{what} on the screen")
        return self.read()

    def shows(self, text: str) -> list[str]:
        return self.wait(lambda lines: any(text in line for line in lines), repr(text))

    def end(self) -> int | None:
        """Return the exit status; minus the signal's number where that ended it."""
        deadline = time.monotonic() + 90
        while self.process.isalive():
            assert time.monotonic() < deadline, "it does not end"
            self.read()
            time.sleep(0.01)
        self.read()
        return self.process.exitstatus if self.process.signalstatus is None else -self.process.signalstatus

    def close(self) -> None:
        self.process.close(force=True)


def _guard(node: VirtualNode, daemon: RunningDaemon) -> None:
    """Have the daemon guard a small pod and a larger one."""
    for name, size, request in (("small", 8, 16), ("large", 60, 0)):
        pod = node.add_pod(f"{name}-{FAR_TOO_LONG}", request_bytes=request * MIB)
        node.spawn(pod, hold(size))
    daemon.configure(HARD)
    daemon.start()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A daemon at work, for all tests that do no more than watch it."""
    with virtual_node("top", 256) as node:
        daemon = RunningDaemon(tmp_path_factory.mktemp("top"), node.cgroup)
        try:
            _guard(node, daemon)
            yield daemon
        finally:
            daemon.stop()


@pytest.fixture
def viewer_of() -> Iterator[Callable[..., Viewer]]:
    """A maker of viewers, which are ended after the test."""
    made: list[Viewer] = []

    def make(daemon: RunningDaemon, **environment: str) -> Viewer:
        made.append(Viewer(daemon, **environment))
        return made[-1]

    yield make
    for viewer in made:
        viewer.close()


@pytest.fixture
def view(viewer_of: Callable[..., Viewer], guarded: RunningDaemon) -> Callable[..., Viewer]:
    """A maker of viewers of the daemon that is only watched."""
    return partial(viewer_of, guarded)


def _row(lines: list[str], start: str) -> str:
    return next(line for line in lines if line.strip().startswith(start))


def test_signals_pods_sources_and_events_are_seen_as_they_are(viewer_of, node, daemon) -> None:
    _guard(node, daemon)
    viewer = viewer_of(daemon)
    lines = viewer.shows("memory.available")

    assert "2 pods" in lines[0]
    assert "q quits" in lines[0]
    signal_row = _row(lines, "memory.available").split()
    assert signal_row[-1] == "ok"
    assert "64Mi" in signal_row
    assert "cgroup/large" in _row(lines, "1 ")
    assert "above request" in _row(lines, "1 ")
    assert "cgroup/small" in _row(lines, "2 ")
    assert "…" in _row(lines, "1 ")
    assert "armed" in _row(lines, "memcg-eventfd")

    viewer.process.send("\x1b[B")  # the arrow down
    viewer.wait(
        lambda lines: not any("cgroup/large" in line for line in lines), "the second pod as the first"
    )
    viewer.process.send("\x1b[A")
    viewer.shows("cgroup/large")

    hog = node.spawn(node.add_pod("hog"), hold(150))  # the node has room for it
    hog.wait(60)
    viewer.shows("killed cgroup/hog")  # events come by another connection than the status
    viewer.wait(lambda lines: "MemoryPressure" in lines[1], "MemoryPressure in the second line")


def test_another_size_of_the_terminal_is_filled_at_once(view) -> None:
    viewer = view()
    viewer.shows("CAPACITY")

    viewer.resize(60, 16)
    # A frame comes in pieces: it is whole once what has no room in it is gone as well.
    lines = viewer.wait(
        lambda lines: lines[0].endswith("q quits") and not any("CAPACITY" in line for line in lines),
        "60 columns",
    )
    assert all(len(line) <= 60 for line in lines)

    viewer.resize(200, 50)
    viewer.shows("PRIORITY QOS")


def test_a_daemon_that_ends_is_named_and_watched_on_when_it_is_back(viewer_of, node, daemon) -> None:
    _guard(node, daemon)
    viewer = viewer_of(daemon)
    viewer.shows("memory.available")

    daemon.stop()
    lines = viewer.shows("No answer for")
    assert any("memory.available" in line for line in lines)

    daemon.start()
    viewer.wait(
        lambda lines: not any("No answer" in line for line in lines) and "2 pods" in lines[0], "the daemon"
    )
    assert viewer.process.isalive()


WAYS_TO_LEAVE: dict[str, tuple[Callable[[Viewer], object], int]] = {
    "q": (lambda viewer: viewer.process.send("q"), 0),
    "Ctrl-C": (lambda viewer: viewer.process.sendcontrol("c"), 0),
    "SIGTERM": (lambda viewer: viewer.process.kill(signal.SIGTERM), 128 + signal.SIGTERM),
    "SIGHUP": (lambda viewer: viewer.process.kill(signal.SIGHUP), 128 + signal.SIGHUP),
}


def test_the_terminal_is_left_as_it_was_found(view) -> None:
    for way, (leave, status) in WAYS_TO_LEAVE.items():
        viewer = view(TERM="xterm")
        viewer.shows("memory.available")
        assert b"\x1b[?1049h" in viewer.sent, way
        assert not viewer.reads_lines(), way

        leave(viewer)

        assert viewer.end() == status, way
        # The other screen is back.
        assert viewer.sent.rfind(b"\x1b[?1049l") > viewer.sent.rfind(b"\x1b[?1049h"), way
        assert viewer.reads_lines(), way


def test_colours_are_used_and_with_no_color_they_are_not(view) -> None:
    coloured, plain = view(), view(NO_COLOR="1")
    coloured.shows("armed")
    plain.shows("armed")

    assert b"\x1b[32m" in coloured.sent
    assert b"\x1b[32m" not in plain.sent


def test_a_dumb_terminal_gets_frames_one_below_the_other_without_escapes(view) -> None:
    viewer = view(TERM="dumb")
    eventually(lambda: viewer.read() is not None and viewer.sent.count(b"memory.available") > 4, "two frames")

    assert b"\x1b" not in viewer.sent


def test_once_prints_one_frame_as_wide_as_it_is_told_and_ends(guarded) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "reactor", "top", "--once", "--socket", str(guarded.socket_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
        env={**os.environ, "COLUMNS": "150"},
    )

    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.count("SIGNAL") == 1
    assert "\x1b" not in answer.stdout
    assert f"cgroup/large-{FAR_TOO_LONG}" in answer.stdout
    assert max(map(len, answer.stdout.splitlines())) <= 150


def test_once_without_a_daemon_says_so(daemon) -> None:
    answer = daemon.ask("top", "--once")

    assert answer.returncode == 1
    assert str(daemon.socket_path) in answer.stderr
