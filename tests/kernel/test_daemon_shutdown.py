"""A graceful shutdown of a virtual node: real processes in real cgroups, a real bus, a double of logind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from reactor.testbed.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon
from tests.support.logind import LogindInThread, logind_in_thread, private_bus
from tests.support.processes import PAUSE, descendants_called, hold
from tests.support.waiting import eventually

IGNORES_SIGTERM = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1]).touch()
time.sleep(600)
"""
ENDS_SLOWLY = """
import pathlib, signal, sys, time
def end(*_):
    time.sleep(0.5)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
pathlib.Path(sys.argv[1]).touch()
time.sleep(600)
"""
HARD = {"evictionHard": {"memory.available": "64Mi"}}


def _spawn(node: VirtualNode, cgroup: str, script: str, ready: Path) -> subprocess.Popen[bytes]:
    """Start a script in a pod, and wait until it has its signals as it wants them."""
    process = node.spawn(cgroup, [sys.executable, "-S", "-c", script, str(ready)])
    eventually(ready.exists, f"{cgroup} is ready")
    return process


def _groups(*groups: tuple[int, int]) -> dict:
    return {
        "shutdownGracePeriodByPodPriority": [
            {"priority": priority, "shutdownGracePeriodSeconds": seconds} for priority, seconds in groups
        ]
    }


@pytest.fixture
def logind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LogindInThread]:
    """Return a logind, on the bus that the daemon finds, which waits for a minute without a drop-in."""
    with private_bus(tmp_path) as bus, logind_in_thread(bus, tmp_path / "drop-ins", 60) as double:
        monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", bus.address)
        yield double


def _shutdown(daemon: RunningDaemon) -> list[dict]:
    return [line for line in daemon.lines() if line["kind"] == "shutdown"]


def _phases(daemon: RunningDaemon) -> list[str]:
    return [line["phase"] for line in _shutdown(daemon)]


def _outcomes(daemon: RunningDaemon) -> list[tuple[int, dict[str, str]]]:
    return [
        (line["priority"], {one["pod"].rpartition("/")[2]: one["outcome"] for one in line["pods"]})
        for line in _shutdown(daemon)
        if line["phase"] == "group"
    ]


def _started(daemon: RunningDaemon, logind: LogindInThread, **keys: object) -> None:
    daemon.configure({**HARD, **keys})
    daemon.start()
    eventually(lambda: logind.locks() == 1, "the lock is taken")
    eventually(lambda: daemon.status()["shutdown"]["state"] == "waiting", "the guard knows of it")


def test_groups_of_pods_end_in_their_order_and_then_the_shutdown_goes_on(
    node: VirtualNode, daemon: RunningDaemon, logind: LogindInThread, tmp_path: Path
) -> None:
    low, stubborn = node.add_pod("low"), node.add_pod("stubborn", priority=10)
    slow, high = node.add_pod("slow", priority=1000), node.add_pod("high", priority=2_000_000_000)
    processes = {
        "low": node.spawn(low, PAUSE),
        "stubborn": _spawn(node, stubborn, IGNORES_SIGTERM, tmp_path / "ready"),
        "slow": _spawn(node, slow, ENDS_SLOWLY, tmp_path / "slow"),
        "high": node.spawn(high, PAUSE),
    }
    _started(daemon, logind, **_groups((0, 2), (1000, 10), (100_000, 10)))

    logind.begin_shutdown()
    eventually(lambda: logind.locks() == 0, "the shutdown goes on")

    statuses = {name: process.wait(60) for name, process in processes.items()}
    assert -signal.SIGKILL == statuses["stubborn"]
    assert -signal.SIGTERM == statuses["low"] == statuses["high"]
    assert 0 == statuses["slow"]
    assert ["began", "group", "group", "group", "ended"] == _phases(daemon)
    assert [
        (0, {"low": "terminated", "stubborn": "killed"}),
        (1000, {"slow": "terminated"}),
        (100_000, {"high": "terminated"}),
    ] == _outcomes(daemon)
    saved = json.loads((daemon.directory / "graceful_node_shutdown_state").read_text())
    assert saved["startTime"] <= saved["endTime"]
    assert "pods ended" == daemon.status()["shutdown"]["state"]
    assert "pods have had their time" in daemon.ask("status").stdout


def test_a_cancelled_shutdown_leaves_the_later_groups_alone_and_the_next_is_held_up(
    node: VirtualNode, daemon: RunningDaemon, logind: LogindInThread, tmp_path: Path
) -> None:
    stubborn, high = node.add_pod("stubborn"), node.add_pod("high", priority=1000)
    processes = [_spawn(node, stubborn, IGNORES_SIGTERM, tmp_path / "ready"), node.spawn(high, PAUSE)]
    _started(daemon, logind, **_groups((0, 4), (1000, 2)))

    logind.begin_shutdown()
    eventually(lambda: daemon.status()["shutdown"]["state"] == "ending pods", "the first group's time")
    logind.cancel_shutdown()
    eventually(lambda: "cancelled" in _phases(daemon), "the shutdown is cancelled")
    eventually(lambda: "called off cgroup/stubborn" in daemon.log(), "the end of the group's time")
    assert [None, None] == [process.poll() for process in processes]
    assert 1 == logind.locks()
    assert "waiting" == daemon.status()["shutdown"]["state"]
    logind.begin_shutdown()
    eventually(lambda: logind.locks() == 0, "the next shutdown goes on")
    assert [-signal.SIGKILL, -signal.SIGTERM] == [process.wait(60) for process in processes]


def test_pressure_is_defended_while_a_shutdown_waits(
    node: VirtualNode, daemon: RunningDaemon, logind: LogindInThread, tmp_path: Path
) -> None:
    stubborn, hog = node.add_pod("stubborn", priority=5), node.add_pod("hog")
    waiting = _spawn(node, stubborn, IGNORES_SIGTERM, tmp_path / "ready")
    _started(daemon, logind, **_groups((0, 30), (1000, 2)))
    logind.begin_shutdown()
    eventually(lambda: daemon.status()["shutdown"]["state"] == "ending pods", "the first group's time")

    victim = node.spawn(hog, hold(220))

    assert -signal.SIGKILL == victim.wait(60)
    eventually(lambda: daemon.evicted() == ["hog"], "the eviction is journaled")
    assert waiting.poll() is None
    assert "ending pods" == daemon.status()["shutdown"]["state"]


def test_a_killed_watch_is_restarted_and_takes_its_lock_again(
    node: VirtualNode, daemon: RunningDaemon, logind: LogindInThread
) -> None:
    node.spawn(node.add_pod("pod"), PAUSE)
    _started(daemon, logind, shutdownGracePeriod="10s")
    first = daemon.status()["shutdown"]["pid"]
    os.kill(first, signal.SIGKILL)
    eventually(lambda: daemon.status()["shutdown"]["pid"] not in {None, first}, "another process")
    eventually(lambda: daemon.status()["shutdown"]["state"] == "waiting", "the lock is taken again")
    assert 1 == logind.locks()


def test_a_daemon_that_was_killed_in_a_shutdown_lets_it_go_on_and_the_next_says_so(
    node: VirtualNode, daemon: RunningDaemon, logind: LogindInThread, tmp_path: Path
) -> None:
    process = _spawn(node, node.add_pod("stubborn"), IGNORES_SIGTERM, tmp_path / "ready")
    _started(daemon, logind, **_groups((0, 30)))
    logind.begin_shutdown()
    eventually((daemon.directory / "graceful_node_shutdown_state").exists, "its beginning is saved")
    daemon.kill()
    eventually(lambda: logind.locks() == 0, "nothing holds the shutdown up any more")
    assert process.poll() is None

    logind.cancel_shutdown()
    daemon.start()
    eventually(lambda: daemon.status()["shutdown"]["last_was_cut_off"], "it is told")
    assert "was cut off" in daemon.ask("status").stdout
    times = daemon.directory / "graceful_node_shutdown_state"
    eventually(lambda: json.loads(times.read_text())["reported"], "it is known to be journaled")
    assert "cut off" in _phases(daemon)

    daemon.stop()
    daemon.start()
    eventually(lambda: daemon.status()["shutdown"]["last_was_cut_off"], "it is shown")
    daemon.stop()  # what it has said by then is written
    assert 1 == _phases(daemon).count("cut off")


def test_without_the_keys_there_is_no_process_and_no_lock(
    node: VirtualNode, daemon: RunningDaemon, logind: LogindInThread
) -> None:
    node.spawn(node.add_pod("pod"), PAUSE)
    daemon.configure(HARD)
    daemon.start()
    assert "off" == daemon.status()["shutdown"]["state"]
    assert daemon.process is not None
    assert [] == descendants_called(daemon.process.pid, "reactor.shutdown")
    assert 0 == logind.locks()


def test_a_bus_that_is_not_there_is_a_problem_and_pressure_is_defended(
    node: VirtualNode, daemon: RunningDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={tmp_path}/none")
    daemon.configure({**HARD, "shutdownGracePeriod": "10s"})
    daemon.start()
    eventually(lambda: "node shutdown" in daemon.status()["problems"], "the problem is told")
    assert "not held up" == daemon.status()["shutdown"]["state"]
    victim = node.spawn(node.add_pod("hog"), hold(220))
    assert -signal.SIGKILL == victim.wait(60)
