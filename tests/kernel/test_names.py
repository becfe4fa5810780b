"""Cgroups whose names are meant to do harm: to a terminal, to a log, to a program that decodes them."""

from __future__ import annotations

import os
import signal

import pytest

from reactor.testbed.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon
from tests.support.processes import hold
from tests.support.waiting import PATIENCE, eventually

pytestmark = pytest.mark.suite("hostile objects")

HARD = {"evictionHard": {"memory.available": "64Mi"}}
CLEARS_THE_SCREEN = "\x1b[2J\x1b]0;owned\x07"
RETURNS = "a\revict cgroup"
TURNS_ROUND = "\u202egnp.exe"
NOT_UTF_8 = os.fsdecode(b"bytes-\xff\xfe")
MARKUP = "[red]:smile:[link=x]"


NAMES = [CLEARS_THE_SCREEN, RETURNS, TURNS_ROUND, NOT_UTF_8, MARKUP]


def test_pods_of_any_name_are_guarded_killed_and_told_of_without_harm(
    node: VirtualNode, daemon: RunningDaemon
) -> None:
    node.spawn(node.add_pod("innocent", request_bytes=128 << 20), hold(40))
    hogs = [node.add_pod(name) for name in NAMES]
    daemon.configure(HARD)
    daemon.start()

    wanted = [f"cgroup/{name}" for name in NAMES]
    for number, hog in enumerate(hogs, 1):
        assert -signal.SIGKILL == node.spawn(hog, hold(170)).wait(60 * PATIENCE)
        eventually(lambda many=number: len(daemon.evictions()) == many, "a journal line of the eviction")
        shown = [one["pod"] for decision in daemon.status()["decisions"] for one in decision["evictions"]]
        assert wanted[number - 1] in shown

    for command in ("status", "explain"):
        answer = daemon.ask(command)
        assert 0 == answer.returncode, answer.stderr
        assert all(line.isprintable() for line in answer.stdout.split("\n")), answer.stdout
    assert [0] * len(NAMES) == [daemon.ask("explain", one, "--output", "json").returncode for one in NAMES]
    daemon.stop()
    log = daemon.log()
    assert all(line.isprintable() for line in log.split("\n")), log
    assert not any(
        line.partition(" WARNING ")[2].startswith("evict cgroup/innocent") for line in log.split("\n")
    )
    assert wanted == [one["pod"] for line in daemon.evictions() for one in line["evictions"]]
    assert all(one["message"].isprintable() for line in daemon.evictions() for one in line["evictions"])
