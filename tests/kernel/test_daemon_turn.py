"""One daemon hands its node over to the next."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from reactor.lab.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon
from tests.support.processes import MIB, hold
from tests.support.waiting import eventually

HARD = {"evictionHard": {"memory.available": "64Mi"}}


@pytest.fixture
def successor(daemon: RunningDaemon, tmp_path: Path) -> Iterator[RunningDaemon]:
    """Return a second daemon for the same node, which stands by; the first has started."""
    daemon.configure(HARD)
    daemon.start()
    (tmp_path / "successor").mkdir()
    second = RunningDaemon(tmp_path / "successor", daemon.node_cgroup)
    second.configure(HARD, {"stateFile": str(tmp_path / "state.json")})
    second.spawn("--stand-by")
    eventually(lambda: "standing by" in second.log(), "the second daemon stands by")
    yield second
    second.stop()


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_successor_guards_the_node_once_the_first_has_ended_however_that_was(
    node: VirtualNode, daemon: RunningDaemon, successor: RunningDaemon, end: signal.Signals
) -> None:
    daemon.signal(end)
    eventually(successor.socket_path.exists, "the second daemon has taken over")
    pod = node.add_pod("hog")
    node.spawn(pod, hold(220))
    eventually(lambda: len(successor.evictions()) == 1, "the successor evicts the hog")
    assert daemon.evictions() == []


def test_successor_does_nothing_while_the_first_guards(
    node: VirtualNode, daemon: RunningDaemon, successor: RunningDaemon
) -> None:
    pod = node.add_pod("hog")
    node.spawn(pod, hold(220))
    eventually(lambda: len(daemon.evictions()) == 1, "the first daemon evicts the hog")
    assert successor.lines() == []
    assert node.usage_bytes() < 64 * MIB


def test_successor_ends_when_told_to_and_the_first_guards_on(
    node: VirtualNode, daemon: RunningDaemon, successor: RunningDaemon
) -> None:
    assert successor.stop() == 0
    pod = node.add_pod("hog")
    node.spawn(pod, hold(220))
    eventually(lambda: len(daemon.evictions()) == 1, "the first daemon evicts the hog")


def test_second_daemon_that_does_not_stand_by_is_refused(
    daemon: RunningDaemon, successor: RunningDaemon, tmp_path: Path
) -> None:
    successor.stop()
    assert successor.spawn().wait(20) == 1
    assert "another daemon holds it" in successor.log()
