"""One daemon hands its node over to the next."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from reactor import healthz
from reactor.testbed.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon
from tests.support.processes import MIB, descendants_called, hog, hold
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


def test_successor_is_alive_for_its_probe_while_it_stands_by_and_afterwards(
    daemon: RunningDaemon, successor: RunningDaemon
) -> None:
    assert healthz.problem(str(daemon.socket_path)) is None
    eventually(lambda: healthz.problem(str(successor.socket_path)) is None, "the probe finds it standing by")
    assert healthz.problem(str(successor.socket_path), or_not_ready=True) is None
    assert not successor.socket_path.exists()
    daemon.stop()
    eventually(successor.socket_path.exists, "the second daemon has taken over")
    eventually(lambda: healthz.problem(str(successor.socket_path)) is None, "it answers its probe")


@pytest.mark.parametrize("is_off", [False, True])
def test_a_guard_without_a_port_for_its_metrics_is_alive_for_its_probe(
    node: VirtualNode, daemon: RunningDaemon, *, is_off: bool
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        daemon.configure(HARD, {"metrics": "off" if is_off else address})
        daemon.start()
        if not is_off:
            eventually(lambda: "the port is taken" in daemon.log(), "the port is found taken")
        probe = [sys.executable, "-I", "-m", "reactor.healthz", str(daemon.socket_path)]
        eventually(lambda: subprocess.run(probe, check=False).returncode == 0, "the probe succeeds")
        daemon.kill()
        assert subprocess.run(probe, check=False, capture_output=True).returncode == 1


def test_successor_that_has_refused_its_configuration_is_never_ready(
    node: VirtualNode, daemon: RunningDaemon, tmp_path: Path
) -> None:
    """An update by its pods goes no further; and where the first ends all the same the node is guarded."""
    daemon.configure(HARD)
    daemon.start()
    eventually((tmp_path / "last-good-config.json").exists, "the last good configuration")
    (tmp_path / "next").mkdir()
    second = RunningDaemon(tmp_path / "next", daemon.node_cgroup)
    second.config_path = daemon.config_path  # as in a pod: what was right last was in the same file
    daemon.configure({"evictionHard": {"memory.available": "64Xi"}})
    second.spawn("--stand-by")
    path = str(daemon.socket_path)

    def not_ready() -> str | None:
        return healthz.problem(path, or_not_ready=True)

    try:
        eventually(lambda: "64Xi" in str(healthz.refused_standing_by(path)), "the successor says why not")
        assert not_ready() is None  # the first is what it was
        daemon.kill()
        eventually(lambda: "64Xi" in str(not_ready()), "the successor is not ready, nor once it guards")
        eventually(lambda: healthz.problem(path) is None, "the successor answers, and is alive")
        eventually(lambda: healthz.refused_standing_by(path) is None, "it has taken over")
        eventually(lambda: "last good configuration" in str(not_ready()), "it says what is in force")
        assert healthz.problem(path) is None
        node.spawn(node.add_pod("hog"), hold(220))
        eventually(lambda: len(daemon.evictions()) == 1, "the successor evicts the hog")
    finally:
        second.stop()


def test_successor_does_nothing_while_the_first_guards_and_is_as_prepared(
    node: VirtualNode, daemon: RunningDaemon, successor: RunningDaemon
) -> None:
    """By its priority and its locked memory: taking over takes no longer than it must."""
    assert prepared(daemon) == prepared(successor)
    pod = node.add_pod("hog")
    node.spawn(pod, hold(220))
    eventually(lambda: len(daemon.evictions()) == 1, "the first daemon evicts the hog")
    assert successor.lines() == []
    assert node.usage_bytes() < 64 * MIB


def prepared(daemon: RunningDaemon) -> tuple[int, bool, int]:
    """Return a daemon's scheduling policy, whether its memory is locked, and its score for the OOM killer."""
    assert daemon.process is not None
    pid = daemon.process.pid
    locked = re.search(r"^VmLck:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert locked is not None
    score = int(Path(f"/proc/{pid}/oom_score_adj").read_text())
    return os.sched_getscheduler(pid), int(locked[1]) > 0, score


def test_a_daemon_that_ends_guards_while_its_steward_is_late_with_the_journal(
    node: VirtualNode, daemon: RunningDaemon
) -> None:
    daemon.configure(HARD)
    daemon.start()
    assert daemon.process is not None
    [steward] = descendants_called(daemon.process.pid, "reactor.steward")
    os.kill(steward, signal.SIGSTOP)  # it takes no line any more
    first = node.spawn(node.add_pod("first"), hold(220))
    assert -signal.SIGKILL == first.wait(30)
    with hog(node.tree.path(node.add_pod("second"))) as second:
        second.hold_mib(160)  # little is left: a starved one would take longer than the daemon takes to end
        daemon.signal(signal.SIGTERM)
        with suppress(AssertionError, BrokenPipeError):
            second.hold_mib(220)
        assert -signal.SIGKILL == second.wait(60)


def test_successor_ends_when_told_to_and_the_first_guards_on(
    node: VirtualNode, daemon: RunningDaemon, successor: RunningDaemon
) -> None:
    assert successor.stop() == 0
    pod = node.add_pod("hog")
    node.spawn(pod, hold(220))
    eventually(lambda: len(daemon.evictions()) == 1, "the first daemon evicts the hog")


@pytest.fixture
def other(daemon: RunningDaemon, tmp_path: Path) -> Iterator[RunningDaemon]:
    """Return a daemon for the same node with files of its own; the first has started."""
    daemon.configure(HARD)
    daemon.start()
    (tmp_path / "other").mkdir()
    second = RunningDaemon(tmp_path / "other", daemon.node_cgroup)
    yield second
    second.stop()


def test_a_daemon_of_another_state_file_waits_for_the_first_to_end_however_that_is(
    node: VirtualNode, daemon: RunningDaemon, other: RunningDaemon
) -> None:
    other.configure(HARD)
    other.spawn("--stand-by")
    eventually(lambda: "standing by" in other.log(), "the other daemon stands by")
    daemon.signal(signal.SIGKILL)
    eventually(other.socket_path.exists, "the other daemon has taken over")
    node.spawn(node.add_pod("hog"), hold(220))
    eventually(lambda: len(other.evictions()) == 1, "it evicts the hog")


def test_a_dry_run_that_stands_by_evicts_in_its_turn_if_a_reload_says_so(
    daemon: RunningDaemon, other: RunningDaemon
) -> None:
    state = {"stateFile": str(daemon.directory / "state.json")}
    other.configure(HARD, {**state, "dryRun": True})
    other.spawn("--stand-by")
    eventually(lambda: "standing by" in other.log(), "the dry run stands by")
    other.configure(HARD, {**state, "realtime": {"fifoPriority": 1}})
    other.signal(signal.SIGHUP)
    answers = ("reload refused", "reactor.realtime has changed")
    eventually(lambda: any(one in other.log() for one in answers), "the reload is read")
    daemon.stop()
    eventually(other.socket_path.exists, "the dry run has taken over")

    assert "reload refused" not in other.log()
    assert not other.status()["dry_run"]
    daemon.configure(HARD, {"stateFile": str(daemon.directory / "third.json")})
    assert 1 == daemon.spawn().wait(60)  # the node is guarded


def test_a_dry_run_may_run_beside_the_daemon_and_may_evict_only_once_that_has_ended(
    daemon: RunningDaemon, other: RunningDaemon
) -> None:
    other.configure(HARD, {"dryRun": True})
    other.start()
    other.configure(HARD)
    other.signal(signal.SIGHUP)
    eventually(lambda: "reload refused" in other.log(), "the reload is refused")
    assert "reactor.dryRun: got false" in other.log()
    assert other.status()["dry_run"]
    daemon.stop()
    other.signal(signal.SIGHUP)
    eventually(lambda: not other.status()["dry_run"], "the reload is taken")
    assert 1 == daemon.spawn().wait(60)
    assert "another daemon, of another reactor.stateFile," in daemon.log()


def test_a_reload_to_another_node_takes_its_lock_and_leaves_the_first_node_to_others(
    node: VirtualNode, daemon: RunningDaemon, other: RunningDaemon, tmp_path: Path
) -> None:
    first, second = node.cgroup, f"{node.cgroup}-second"
    with VirtualNode(node.tree, 256 * MIB, second[1:]):
        _reload_to(second, daemon, f"guards {second} of")
        other.configure(HARD)
        other.start()

        _reload_to(second, other, "reload refused")
        assert f"reactor.nodeCgroup: got '{second}'" in other.log()
        (tmp_path / "third").mkdir()
        third = RunningDaemon(tmp_path / "third", first)
        for guarded in (first, second):
            third.configure(HARD, {"nodeCgroup": guarded})
            assert 1 == third.spawn().wait(60)
        other.stop()
        daemon.stop()


def _reload_to(node: str, daemon: RunningDaemon, logged: str) -> None:
    daemon.configure(HARD, {"nodeCgroup": node})
    daemon.signal(signal.SIGHUP)
    eventually(lambda: logged in daemon.log(), f"it logs {logged}")
