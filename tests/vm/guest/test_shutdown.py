"""A power-off that systemd's own logind holds up: units end by their priority, and then it goes on.

What it goes on to is an empty target here: logind does all that it ever does, and the machine stays.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from guarded import CGROUP, JOURNAL, MEMORY, SLICE, V2, Service, answer, eventually, prop, run

_TARGET = Path("/run/systemd/system/poweroff.target")
_DROP_IN = Path("/etc/systemd/logind.conf.d/zz-reactor.conf")
_TIMES = JOURNAL.with_name("graceful_node_shutdown_state")
_LOGIND = ("org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager")
_PAUSE = "import time; time.sleep(3600)"
_IGNORES_SIGTERM = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)"
_TAKES_LONG = (
    "import signal, time; signal.signal(signal.SIGTERM, lambda *_: time.sleep(1800)); time.sleep(3600)"
)
_ENDS_BY_ITSELF = (
    "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); time.sleep(3600)"
)
_GROUPS = [(0, 20), (1000, 15), (2_000_000_000, 60)]
_SECONDS = sum(seconds for _, seconds in _GROUPS)
_KEYS = {
    "evictionHard": {"memory.available": "50Mi"},
    "shutdownGracePeriodByPodPriority": [
        {"priority": priority, "shutdownGracePeriodSeconds": seconds} for priority, seconds in _GROUPS
    ],
}


class Unit:
    """A unit in the guarded slice, of a priority, which keeps what systemd knows of its end."""

    def __init__(self, name: str, script: str, priority: int) -> None:
        self.name = f"{name}.service"
        options = ("--property=RemainAfterExit=yes", "--property=TimeoutStopSec=5")
        command = (sys.executable, "-S", "-c", script)
        run("systemd-run", "--quiet", f"--unit={name}", f"--slice={SLICE}", *options, *command)
        space = "user" if V2 else "trusted"
        os.setxattr(MEMORY / SLICE / self.name, f"{space}.reactor.priority", str(priority).encode())

    def ended_by(self) -> str:
        """Return the signal or exit status that ended its process."""
        return prop(self.name, "ExecMainStatus")

    def ended_at(self) -> int:
        return int(prop(self.name, "ExecMainExitTimestampMonotonic"))


@pytest.fixture
def poweroff() -> Iterator[None]:
    """Have a power-off lead to nothing."""
    _TARGET.write_text("[Unit]\nDescription=A power-off that is none\nDefaultDependencies=no\n")
    run("systemctl", "daemon-reload")
    assert str(_TARGET) == prop("poweroff.target", "FragmentPath")
    assert "" == prop("poweroff.target", "Requires")
    try:
        yield
    finally:
        run("systemctl", "stop", "poweroff.target", check=False)
        _TARGET.unlink()
        _DROP_IN.unlink(missing_ok=True)
        _TIMES.unlink(missing_ok=True)
        run("systemctl", "kill", "--signal=HUP", "systemd-logind.service", check=False)
        run("systemctl", "daemon-reload")


def _state() -> str:
    return str(json.loads(answer("status", "--output", "json"))["shutdown"]["state"])


def _lines() -> list[dict]:
    lines = [json.loads(line) for line in JOURNAL.read_text().splitlines()] if JOURNAL.exists() else []
    return [line for line in lines if line["kind"] == "shutdown"]


def _max_delay_seconds() -> float:
    return int(run("busctl", "get-property", *_LOGIND, "InhibitDelayMaxUSec").split()[1]) / 1e6


def _holds_lock() -> bool:
    listed = run("systemd-inhibit", "--list", "--no-pager", "--no-legend")
    return any(
        line.split()[0] == "reactor" and line.split()[-1] == "delay" for line in listed.splitlines() if line
    )


def _started(service: Service) -> None:
    service.configure(_KEYS, {"pods": {"parents": [CGROUP]}})
    service.start()
    eventually(lambda: _state() == "waiting", "the lock is held")


def test_poweroff_ends_groups_of_units_in_their_order_within_their_times(
    service: Service, poweroff: None
) -> None:
    assert _max_delay_seconds() < _SECONDS
    low = Unit("low", _PAUSE, 0)
    stubborn = Unit("stubborn", _IGNORES_SIGTERM, 500)
    slow = Unit("slow", _TAKES_LONG, 1000)
    critical = Unit("critical", _ENDS_BY_ITSELF, 2_000_000_000)
    _started(service)
    assert _SECONDS + 5 == _max_delay_seconds()
    assert f"InhibitDelayMaxSec={_SECONDS + 5}" in _DROP_IN.read_text()
    assert _holds_lock()

    run("systemctl", "poweroff")
    eventually(lambda: prop("poweroff.target", "ActiveState") == "active", "the power-off goes on")

    assert ["15", "9", "9", "0"] == [unit.ended_by() for unit in (low, stubborn, slow, critical)]
    assert low.ended_at() < stubborn.ended_at() < slow.ended_at() < critical.ended_at()
    eventually(lambda: "cancelled" in [line["phase"] for line in _lines()], "logind's word that it is over")
    lines = _lines()
    assert ["began", "group", "group", "group", "ended", "cancelled"] == [line["phase"] for line in lines]
    groups = [line for line in lines if line["phase"] == "group"]
    assert [0, 1000, 2_000_000_000] == [line["priority"] for line in groups]
    outcomes = {one["pod"]: one["outcome"] for line in groups for one in line["pods"]}
    assert {
        "cgroup/low.service": "terminated",
        "cgroup/stubborn.service": "killed",
        "cgroup/slow.service": "killed",
        "cgroup/critical.service": "terminated",
    } == outcomes
    # As long as the slowest of a group, and no longer than its time but for what the kill takes.
    assert all(groups[number]["took_seconds"] >= _GROUPS[number][1] for number in (0, 1))
    assert groups[2]["took_seconds"] < 60
    saved = json.loads(_TIMES.read_text())
    assert saved["startTime"] < saved["endTime"]
    assert saved["startTime"] <= lines[0]["time"]
    # That power-off was none, so the next one is held up again.
    eventually(_holds_lock, "another lock")
    assert "waiting" == _state()


def test_a_logind_that_is_restarted_is_asked_for_a_lock_again(service: Service, poweroff: None) -> None:
    _started(service)
    run("systemctl", "restart", "systemd-logind.service")
    eventually(_holds_lock, "a lock at the new one")
    eventually(lambda: _state() == "waiting", "the guard knows of it")
    service.stop()
    eventually(lambda: not _holds_lock(), "without a guard nothing is held up")
