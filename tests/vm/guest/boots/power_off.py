"""A power-off that takes place: units end by priority, the machine goes down, and its next boot knows."""

from __future__ import annotations

import json

import pytest
from guarded import CGROUP, Service, eventually
from installed import before_going_down, booted_again, install, last_boot
from shutting_down import (
    ENDS_BY_ITSELF,
    IGNORES_SIGTERM,
    PAUSE,
    TIMES,
    Unit,
    by_priority,
    lines,
    shown,
    state,
)

_GROUPS = [(0, 8), (1000, 60), (2_000_000_000, 60)]
_UNITS = ["batch.service", "stuck.service", "web.service", "store.service"]
_ENDED_BY_ITSELF, _KILLED = "Deactivated successfully.", "code=killed, status=9/KILL"


@pytest.mark.before
def test_units_of_three_priorities_run_and_the_next_shutdown_is_held_up() -> None:
    service = Service()
    install(service, by_priority(*_GROUPS), {"pods": {"parents": [CGROUP]}})
    Unit("batch", PAUSE, 0, remains=False)
    Unit("stuck", IGNORES_SIGTERM, 500, remains=False)
    Unit("web", PAUSE, 1000, remains=False)
    Unit("store", ENDS_BY_ITSELF, 2_000_000_000, remains=False)
    eventually(lambda: state() == "waiting", "the lock is held")
    assert not TIMES.exists()
    before_going_down()


@pytest.mark.after
def test_after_the_boot_journal_and_state_file_show_a_shutdown_that_came_to_its_end() -> None:
    with booted_again():
        told = lines()
        assert ["began", "group", "group", "group", "ended"] == [line["phase"] for line in told]
        groups = [line for line in told if line["phase"] == "group"]
        assert [priority for priority, _ in _GROUPS] == [line["priority"] for line in groups]
        outcomes = [(one["pod"], one["outcome"]) for line in groups for one in line["pods"]]
        expected = ["terminated", "killed", "terminated", "terminated"]
        assert sorted(outcomes) == sorted(
            (f"cgroup/{unit}", outcome) for unit, outcome in zip(_UNITS, expected, strict=True)
        )
        # The group of the unit that ignores SIGTERM took all of its time, the others not.
        took = [line["took_seconds"] for line in groups]
        assert took[0] >= _GROUPS[0][1]
        assert all(seconds < 60 for seconds in took[1:])

        saved = json.loads(TIMES.read_text())
        assert told[0]["time"] >= saved["startTime"]
        assert told[-1]["time"] >= saved["endTime"] > saved["startTime"]
        about = shown()
        assert {key: saved[key] for key in ("startTime", "endTime", "cancelled")} == about["last"]
        assert not about["last_was_cut_off"]
        eventually(lambda: state() == "waiting", "the next one is held up")


@pytest.mark.after
def test_after_the_boot_systemds_own_journal_has_the_units_ends_in_that_order_before_it_stopped_any() -> None:
    ends = last_boot(
        lambda entry: (
            entry.get("UNIT") in _UNITS
            and any(end in str(entry["MESSAGE"]) for end in (_ENDED_BY_ITSELF, _KILLED))
        )
    )
    assert _UNITS == [entry["UNIT"] for entry in ends]
    assert [False, True, False, False] == [_KILLED in entry["MESSAGE"] for entry in ends]
    *_, stopping = last_boot(
        lambda entry: entry.get("UNIT") == "reactor.service" and str(entry["MESSAGE"]).startswith("Stopping ")
    )
    assert int(ends[-1]["__MONOTONIC_TIMESTAMP"]) < int(stopping["__MONOTONIC_TIMESTAMP"])
