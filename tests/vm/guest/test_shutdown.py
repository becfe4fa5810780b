"""A power-off that systemd's own logind holds up: units end by their priority, and then it goes on.

What it goes on to is an empty target here: logind does all that it ever does, and the machine stays.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from guarded import CGROUP, Service, eventually, prop, run
from shutting_down import (
    DROP_IN_OF_LOGIND,
    ENDS_BY_ITSELF,
    IGNORES_SIGTERM,
    PAUSE,
    TAKES_LONG,
    TIMES,
    Unit,
    by_priority,
    lines,
    state,
)

_TARGET = Path("/run/systemd/system/poweroff.target")
_LOGIND = ("org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager")
_GROUPS = [(0, 20), (1000, 15), (2_000_000_000, 60)]
_SECONDS = sum(seconds for _, seconds in _GROUPS)


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
        DROP_IN_OF_LOGIND.unlink(missing_ok=True)
        TIMES.unlink(missing_ok=True)
        run("systemctl", "kill", "--signal=HUP", "systemd-logind.service", check=False)
        run("systemctl", "daemon-reload")


def _max_delay_seconds() -> float:
    return int(run("busctl", "get-property", *_LOGIND, "InhibitDelayMaxUSec").split()[1]) / 1e6


def _holds_lock() -> bool:
    listed = run("systemd-inhibit", "--list", "--no-pager", "--no-legend")
    return any(
        line.split()[0] == "reactor" and line.split()[-1] == "delay" for line in listed.splitlines() if line
    )


def _started(service: Service) -> None:
    service.configure(by_priority(*_GROUPS), {"pods": {"parents": [CGROUP]}})
    service.start()
    eventually(lambda: state() == "waiting", "the lock is held")


def test_poweroff_ends_groups_of_units_in_their_order_within_their_times(
    service: Service, poweroff: None
) -> None:
    assert _max_delay_seconds() < _SECONDS
    low = Unit("low", PAUSE, 0)
    stubborn = Unit("stubborn", IGNORES_SIGTERM, 500)
    slow = Unit("slow", TAKES_LONG, 1000)
    critical = Unit("critical", ENDS_BY_ITSELF, 2_000_000_000)
    _started(service)
    assert _SECONDS + 5 == _max_delay_seconds()
    assert f"InhibitDelayMaxSec={_SECONDS + 5}" in DROP_IN_OF_LOGIND.read_text()
    assert _holds_lock()

    run("systemctl", "poweroff")
    eventually(lambda: prop("poweroff.target", "ActiveState") == "active", "the power-off goes on")

    assert ["15", "9", "9", "0"] == [unit.ended_by() for unit in (low, stubborn, slow, critical)]
    assert low.ended_at() < stubborn.ended_at() < slow.ended_at() < critical.ended_at()
    eventually(lambda: "cancelled" in [line["phase"] for line in lines()], "logind's word that it is over")
    told = lines()
    assert ["began", "group", "group", "group", "ended", "cancelled"] == [line["phase"] for line in told]
    groups = [line for line in told if line["phase"] == "group"]
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
    saved = json.loads(TIMES.read_text())
    assert saved["startTime"] < saved["endTime"]
    assert saved["startTime"] <= told[0]["time"]
    # That power-off was none, so the next one is held up again.
    eventually(_holds_lock, "another lock")
    assert "waiting" == state()


def test_a_logind_that_is_restarted_is_asked_for_a_lock_again(service: Service, poweroff: None) -> None:
    _started(service)
    run("systemctl", "restart", "systemd-logind.service")
    eventually(_holds_lock, "a lock at the new one")
    eventually(lambda: state() == "waiting", "the guard knows of it")
    service.stop()
    eventually(lambda: not _holds_lock(), "without a guard nothing is held up")
