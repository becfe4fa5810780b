"""The whole daemon where the kernel's OOM killer was faster, and where it was a pod's own limit."""

from __future__ import annotations

import signal
from typing import Any

from reactor.testbed.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon
from tests.support.processes import MIB, hold
from tests.support.waiting import eventually

# A dry run evicts nobody, so that the kernel has to.
SECTION = {"dryRun": True, "housekeepingInterval": "200ms", "sources": {"ebpf": False}}


def guard(daemon: RunningDaemon) -> None:
    daemon.configure({"evictionHard": {"memory.available": "64Mi"}}, SECTION)
    daemon.start()
    eventually(lambda: any(one["name"] == "oom-counters" for one in armed(daemon)), "the counters")


def armed(daemon: RunningDaemon) -> list[dict[str, Any]]:
    return [one for one in daemon.status()["sources"] if one["health"] == "armed"]


def first_kill(daemon: RunningDaemon) -> dict[str, Any]:
    def kills() -> list[dict[str, Any]]:
        return [line for line in daemon.lines() if line["kind"] == "oom-kill"]

    eventually(lambda: bool(kills()), "an OOM kill in the journal")
    return kills()[0]


def test_node_that_runs_out_is_said_to_be_lost_to_the_kernel(
    node: VirtualNode, daemon: RunningDaemon
) -> None:
    guard(daemon)
    hog = node.spawn(node.add_pod("hog"), hold(2048))
    assert -signal.SIGKILL == hog.wait(60)
    line = first_kill(daemon)
    assert ("node", "oom-counters") == (line["scope"], line["source"])
    assert "the kernel's OOM killer was faster than us" in line["message"]
    assert line["message"] in " ".join(daemon.ask("status").stdout.split())
    assert line["message"] in daemon.log()
    eventually(lambda: [one["wakes"] for one in armed(daemon) if one["name"] == "oom-counters"] == [1], "it")


def test_pod_at_its_own_limit_is_not_said_to_be(node: VirtualNode, daemon: RunningDaemon) -> None:
    guard(daemon)
    pod = node.add_pod("small", limit_bytes=32 * MIB)
    assert -signal.SIGKILL == node.spawn(pod, hold(100)).wait(60)
    assert first_kill(daemon)["scope"] == "own-limit"
    assert "faster than us" not in daemon.log()
    counted = daemon.status()["oom_kills"]["counted"]
    assert (0, 1) == (counted["node"], counted["own-limit"])
