"""Units that take longer than logind waits: the shutdown goes on, and the next start says it was cut off."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from guarded import CGROUP, Service, answer, eventually, run
from installed import before_going_down, booted_again, install, last_boot
from shutting_down import PAUSE, TAKES_LONG, TIMES, Unit, by_priority, lines, shown, state

_OPERATORS = Path("/etc/systemd/logind.conf.d/zzz-operator.conf")  # the last one wins
_UNITS = ["draining.service", "store.service"]


@pytest.mark.before
def test_logind_waits_for_less_than_the_units_take_and_that_is_a_problem() -> None:
    _OPERATORS.parent.mkdir(exist_ok=True)
    _OPERATORS.write_text("[Login]\nInhibitDelayMaxSec=6\n")
    run("systemctl", "kill", "--signal=HUP", "systemd-logind.service")
    service = Service()
    install(service, by_priority((0, 300), (1000, 300)), {"pods": {"parents": [CGROUP]}})
    Unit("draining", TAKES_LONG, 0, remains=False)
    Unit("store", PAUSE, 1000, remains=False)
    eventually(lambda: state() == "waiting", "the lock is held")
    eventually(lambda: "node shutdown" in service.status()["problems"], "it is a problem")
    problem = service.status()["problems"]["node shutdown"]
    assert "logind waits for 6 s at the most" in problem
    assert "may take 600 s" in problem
    before_going_down()


@pytest.mark.after
def test_after_the_boot_the_groups_that_logind_did_not_wait_for_are_told() -> None:
    with booted_again():
        saved = json.loads(TIMES.read_text())
        assert saved["endTime"] is None
        eventually(lambda: shown()["last_was_cut_off"], "it is told")
        assert "was cut off" in answer("status")
        eventually(lambda: lines()[-1]["phase"] == "cut off", "it is journaled")
        told = lines()
        assert "began" == told[0]["phase"]
        assert 6 == told[0]["delayed_seconds"]
        assert saved["startTime"] == told[-1]["began"]
        # The second group never began.
        assert [0] == [line["priority"] for line in told if line["phase"] == "group"]
        assert "ended" not in [line["phase"] for line in told]
        _OPERATORS.unlink()


@pytest.mark.after
def test_after_the_boot_systemds_own_journal_shows_that_it_stopped_what_was_left() -> None:
    stopping = last_boot(
        lambda entry: entry.get("UNIT") in _UNITS and str(entry["MESSAGE"]).startswith("Stopping ")
    )
    assert set(_UNITS) == {entry["UNIT"] for entry in stopping}
