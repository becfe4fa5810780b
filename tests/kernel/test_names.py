"""Cgroups whose names are meant to do harm: to a terminal, to a log, to a program that decodes them."""

from __future__ import annotations

import os
import signal

import pytest

from reactor.testbed.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon
from tests.support.processes import hold

pytestmark = pytest.mark.suite("hostile objects")

HARD = {"evictionHard": {"memory.available": "64Mi"}}
CLEARS_THE_SCREEN = "\x1b[2J\x1b]0;owned\x07"
RETURNS = "a\revict cgroup"
TURNS_ROUND = "\u202egnp.exe"
NOT_UTF_8 = os.fsdecode(b"bytes-\xff\xfe")
MARKUP = "[red]:smile:[link=x]"


@pytest.mark.parametrize("name", [CLEARS_THE_SCREEN, RETURNS, TURNS_ROUND, NOT_UTF_8, MARKUP])
def test_a_pod_of_any_name_is_guarded_killed_and_told_of_without_harm(
    node: VirtualNode, daemon: RunningDaemon, name: str
) -> None:
    node.spawn(node.add_pod("innocent", request_bytes=128 << 20), hold(40))
    hog = node.add_pod(name)
    daemon.configure(HARD)
    daemon.start()

    assert -signal.SIGKILL == node.spawn(hog, hold(220)).wait(60)

    for command in ("status", "explain"):
        answer = daemon.ask(command)
        assert 0 == answer.returncode, answer.stderr
        assert all(line.isprintable() for line in answer.stdout.split("\n")), answer.stdout
    evicted = next(one for one in daemon.status()["decisions"] if one["evictions"])["evictions"][0]
    assert f"cgroup/{name}" == evicted["pod"]
    assert 0 == daemon.ask("explain", name, "--output", "json").returncode
    daemon.stop()
    log = daemon.log()
    assert all(line.isprintable() for line in log.split("\n")), log
    assert not any(
        line.partition(" WARNING ")[2].startswith("evict cgroup/innocent") for line in log.split("\n")
    )
    assert [f"cgroup/{name}"] == [one["pod"] for line in daemon.evictions() for one in line["evictions"]]
    assert all(one["message"].isprintable() for line in daemon.evictions() for one in line["evictions"])
