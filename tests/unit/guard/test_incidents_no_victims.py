"""A shortage without a pod to evict: said once, and a problem for as long as it lasts."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from reactor.guard.incidents import NoVictims
from reactor.model.signals import Signal
from tests.support.builders import make_observation, make_pod
from tests.unit.guard.conftest import MIB, WAKE

NEVER = replace(make_pod("database"), critical_because="never list")


@pytest.fixture
def lines() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def no_victims(lines) -> NoVictims:
    return NoVictims(lambda make: lines.append(make()))


def short(loop, available_mib: int = 40) -> None:
    loop.now_seconds += 1.0
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: make_observation(available_mib * MIB)}


async def test_it_is_said_once_and_is_a_problem_for_as_long_as_it_lasts(make_loop, lines, no_victims, caplog):
    loop = make_loop()
    loop.have(NEVER)
    short(loop)
    with caplog.at_level(logging.WARNING, "reactor.evict"):
        for _ in range(5):
            no_victims.passed(loop.passes.make([WAKE]))
    assert "50Mi by cgroup/database (never list)" in no_victims.problem
    assert {"memory.available": True} == no_victims.by_signal(loop.known.settings.thresholds)
    assert 1 == len(caplog.records)
    (line,) = lines
    assert ("no-victim", 40 * MIB, False) == (line["kind"], line["available"], line["dry_run"])
    assert line["message"] == no_victims.problem

    short(loop, 300)
    no_victims.passed(loop.passes.make([WAKE]))
    assert no_victims.problem is None
    assert {"memory.available": False} == no_victims.by_signal(loop.known.settings.thresholds)
    short(loop)
    no_victims.passed(loop.passes.make([WAKE]))
    assert 2 == len(lines)


async def test_a_pod_that_can_be_evicted_ends_it(make_loop, no_victims):
    loop = make_loop()
    loop.have(NEVER)
    short(loop)
    no_victims.passed(loop.passes.make([WAKE]))
    loop.have(NEVER, make_pod("hog"))
    short(loop)
    no_victims.passed(loop.passes.make([WAKE]))
    assert ["hog"] == loop.kills.killed
    assert None is no_victims.problem


async def test_a_kill_that_is_refused_again_and_again_is_said_once(make_loop, lines, no_victims):
    loop = make_loop()
    loop.have(make_pod("stubborn"))
    loop.kills.fails_with = PermissionError("refused")
    short(loop)
    for _ in range(4):
        no_victims.passed(loop.passes.make([WAKE]))
        loop.now_seconds += 20.0  # a failed one is spared for 30 s
    assert 1 == len(lines)
    assert "50Mi by cgroup/stubborn (could not be ended: refused)" in no_victims.problem
