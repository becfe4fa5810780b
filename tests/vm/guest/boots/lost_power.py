"""A machine whose power is cut in the middle of a shutdown: the next start tells that it was cut off."""

from __future__ import annotations

import json

import pytest
from guarded import CGROUP, Service, answer, eventually, run
from installed import before_going_down, booted_again, install
from shutting_down import (
    IGNORES_SIGTERM,
    PAUSE,
    TIMES,
    Unit,
    by_priority,
    lines,
    shown,
    state,
)


@pytest.mark.before
def test_units_of_two_priorities_run_and_the_second_group_takes_long() -> None:
    service = Service()
    install(service, by_priority((0, 30), (1000, 600)), {"pods": {"parents": [CGROUP]}})
    Unit("low", PAUSE, 0)
    Unit("stubborn", IGNORES_SIGTERM, 1000)
    eventually(lambda: state() == "waiting", "the lock is held")
    before_going_down()


@pytest.mark.after
def test_after_the_boot_the_shutdown_is_told_to_have_been_cut_off_and_the_next_is_held_up() -> None:
    with booted_again() as service:
        saved = json.loads(TIMES.read_text())
        assert saved["endTime"] is None
        eventually(lambda: shown()["last_was_cut_off"], "it is told")
        assert saved["startTime"] == shown()["last"]["startTime"]
        assert "was cut off" in answer("status")
        assert f"the shutdown of {saved['startTime']} was cut off" in run(
            "journalctl", "--boot", "--unit=reactor", "--output=cat", "--no-pager"
        )
        eventually(lambda: lines()[-1]["phase"] == "cut off", "it is journaled")
        assert saved["startTime"] == lines()[-1]["began"]
        assert "ended" not in [line["phase"] for line in lines()]
        eventually(lambda: state() == "waiting", "the next one is held up")
        eventually(lambda: json.loads(TIMES.read_text())["reported"], "it is known to be journaled")

        run("systemctl", "restart", "reactor.service")
        eventually(lambda: shown()["last_was_cut_off"], "it is known after a restart as well")
        assert service.prop("ActiveState") == "active"
        assert 1 == [line["phase"] for line in lines()].count("cut off")
