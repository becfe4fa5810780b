"""One process of a pod is killed instead of the pod, with the whole daemon on a virtual node."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from reactor.kernel.cgroup import CgroupTree
from reactor.testbed.virtual_node import VirtualNode
from tests.kernel.test_process_group import SESSION, lives
from tests.support.daemon import RunningDaemon, after_passes
from tests.support.processes import MIB, hold
from tests.support.waiting import eventually

HARD = {"evictionHard": {"memory.available": "64Mi"}}
POD = "session.scope"


def _start(daemon: RunningDaemon, node: VirtualNode, *arguments: Any, **section: Any) -> str:
    cgroup = node.add_pod(POD)
    _guard(daemon, node, *arguments, **section)
    return cgroup


def _guard(
    daemon: RunningDaemon,
    node: VirtualNode,
    thresholds: Mapping[str, Any] = HARD,
    never: Sequence[str] = (),
    victim: str = "process",
    **section: Any,
) -> None:
    rule = {"unit": POD, "never": list(never), "victim": victim}
    pods = {"parents": [node.cgroup], "processVictims": [rule]}
    daemon.configure(thresholds, {"pods": pods, "housekeepingInterval": "100ms", **section})
    daemon.start()
    after_passes(daemon, 2)  # with the pod


def _first(daemon: RunningDaemon) -> Mapping[str, Any]:
    eventually(lambda: bool(daemon.evictions()), "a journal line of the eviction")
    eviction: Mapping[str, Any] = daemon.evictions()[0]["evictions"][0]
    return eviction


def test_of_three_processes_the_largest_dies_and_the_others_live_on(
    node: VirtualNode, daemon: RunningDaemon
) -> None:
    cgroup = _start(daemon, node)
    small = [node.spawn(cgroup, hold(25)) for _ in range(2)]
    eventually(lambda: node.usage_bytes() > 50 * MIB, "both at their size")
    large = node.spawn(cgroup, hold(150))

    eviction = _first(daemon)

    assert -signal.SIGKILL == large.wait(60)
    status = after_passes(daemon, 10)
    assert [None, None] == [one.poll() for one in small]
    assert ("process-killed", True, large.pid) == (
        eviction["outcome"],
        eviction["pod_lives"],
        eviction["process"]["pid"],
    )
    assert eviction["process"]["bytes"] > 100 * MIB
    assert eviction["freed_ns"] is not None
    assert [POD] == daemon.evicted()
    assert ([], []) == (status["in_flight"], status["oom_victims"])


def test_an_agent_whose_tools_hold_a_little_each_dies_with_them_and_its_neighbour_lives_on(
    node: VirtualNode, daemon: RunningDaemon
) -> None:
    cgroup = _start(daemon, node, victim="tree")
    neighbour = node.spawn(cgroup, hold(25))
    eventually(lambda: node.usage_bytes() > 25 * MIB, "the neighbour at its size")
    tools = (
        f"import subprocess\nfor _ in range(6): subprocess.Popen({hold(30)!r})\nimport signal\nsignal.pause()"
    )
    agent = node.spawn(cgroup, [sys.executable, "-S", "-c", tools])

    eviction = _first(daemon)

    assert -signal.SIGKILL == agent.wait(60)
    assert ("process-killed", True, agent.pid) == (
        eviction["outcome"],
        eviction["pod_lives"],
        eviction["process"]["pid"],
    )
    assert eviction["process"]["processes"] > 2
    eventually(lambda: node.usage_bytes() < 60 * MIB, "all of its tools' end")
    after_passes(daemon, 10)
    assert neighbour.poll() is None
    assert 1 == len(daemon.evictions())


def test_many_small_processes_are_killed_as_a_whole_and_the_record_says_why(
    node: VirtualNode, daemon: RunningDaemon
) -> None:
    cgroup = _start(daemon, node)
    small = [node.spawn(cgroup, hold(3)) for _ in range(20)]
    eventually(lambda: node.usage_bytes() > 90 * MIB, "they are all there, and most of them at their size")
    assert daemon.evictions() == []
    node.spawn(node.add_pod("smaller"), hold(140))  # at the crossing it has the smaller half

    eviction = _first(daemon)

    assert {-signal.SIGKILL} == {one.wait(60) for one in small}
    assert ("killed", False, None) == (eviction["outcome"], eviction["pod_lives"], eviction["process"])
    assert "less than 10 %" in eviction["whole_because"]


def test_one_whose_name_is_spared_lives_and_the_next_largest_dies(
    node: VirtualNode, daemon: RunningDaemon
) -> None:
    cgroup = _start(daemon, node, never=["python*"])
    named = [
        sys.executable,
        "-S",
        "-c",
        f"open('/proc/self/comm', 'w').write('tab');{hold(60)[3]}",
        "60",
        "mild",
    ]
    tab = node.spawn(cgroup, named)
    eventually(lambda: node.usage_bytes() > 60 * MIB, "the tab at its size")
    spared = node.spawn(cgroup, hold(125))

    eviction = _first(daemon)

    assert -signal.SIGKILL == tab.wait(60)
    assert "tab" == eviction["process"]["name"]
    after_passes(daemon, 10)
    assert spared.poll() is None


def test_where_all_are_spared_the_whole_pod_goes(node: VirtualNode, daemon: RunningDaemon) -> None:
    cgroup = _start(daemon, node, never=["python*"])
    both = [node.spawn(cgroup, hold(mib)) for mib in (70, 125)]

    eviction = _first(daemon)

    assert [-signal.SIGKILL] * 2 == [one.wait(60) for one in both]
    assert "no process of it may be killed alone" == eviction["whole_because"]


SOFT = {
    "evictionHard": {"memory.available": "8Mi"},
    "evictionSoft": {"memory.available": "64Mi"},
    "evictionSoftGracePeriod": {"memory.available": "10ms"},
    "evictionMaxPodGracePeriod": 1,
}


def test_a_soft_eviction_asks_the_process_and_kills_it_after_the_grace_period(
    node: VirtualNode, daemon: RunningDaemon
) -> None:
    cgroup = _start(daemon, node, SOFT)
    small = node.spawn(cgroup, hold(25))
    eventually(lambda: node.usage_bytes() > 25 * MIB, "the small one at its size")
    stubborn = node.spawn(cgroup, hold(160, stubborn=True))

    eviction = _first(daemon)

    assert -signal.SIGKILL == stubborn.wait(60)
    assert ("process-killed", 1, stubborn.pid) == (
        eviction["outcome"],
        eviction["grace_period_seconds"],
        eviction["process"]["pid"],
    )
    after_passes(daemon, 10)
    assert small.poll() is None
    assert [POD] == daemon.evicted()


def test_a_soft_eviction_ends_with_sigterm_where_that_is_enough(
    node: VirtualNode, daemon: RunningDaemon
) -> None:
    cgroup = _start(daemon, node, SOFT)
    small = node.spawn(cgroup, hold(25))
    eventually(lambda: node.usage_bytes() > 25 * MIB, "the small one at its size")
    large = node.spawn(cgroup, hold(160))

    eviction = _first(daemon)

    assert -signal.SIGTERM == large.wait(60)
    assert ("process-terminated", True) == (eviction["outcome"], eviction["pod_lives"])
    status = after_passes(daemon, 10)
    assert (None, []) == (small.poll(), status["in_flight"])


def test_in_a_dry_run_the_process_is_named_and_lives(node: VirtualNode, daemon: RunningDaemon) -> None:
    cgroup = _start(daemon, node, dryRun=True)
    large = node.spawn(cgroup, hold(200))

    eviction = _first(daemon)

    assert ("dry-run", large.pid) == (eviction["outcome"], eviction["process"]["pid"])
    after_passes(daemon, 10)
    assert large.poll() is None


@pytest.mark.parametrize("tools", [1, 104])
def test_of_twenty_agents_in_one_scope_one_runs_away_and_the_session_lives(
    tmp_path: Path, tools: int
) -> None:
    """orca#16630: 20 agents in one scope. omarchy#9799: 2,104 processes in one scope. Both scaled down.

    What runs away stops before the node's limit, at which the kernel would kill before a starved guard.
    """
    with VirtualNode(CgroupTree.discover(), 1536 * MIB, "reactor-agents") as node:
        daemon = RunningDaemon(tmp_path, node.cgroup)
        pids = tmp_path / "pids"
        redirected = ["/bin/sh", "-c", f'exec "$@" > {pids}', "sh"]
        arguments = [sys.executable, "-S", "-c", SESSION, "20", str(tools), "300"]
        session = node.spawn(node.add_pod(POD), [*redirected, *arguments])
        eventually(lambda: pids.exists() and "done" in pids.read_text(), "the session is there")
        agents = [int(line) for line in pids.read_text().splitlines()[:-1]]
        other = node.spawn(node.add_pod("other.service"), hold(20))
        left_bytes = node.memory_bytes - node.usage_bytes()
        assert left_bytes > 350 * MIB
        hard = {"memory.available": f"{left_bytes - 200 * MIB >> 10}Ki"}
        try:
            _guard(daemon, node, {"evictionHard": hard}, victim="tree")
            os.kill(agents[7], signal.SIGUSR1)

            eviction = _first(daemon)

            after_passes(daemon, 10)
            assert session.poll() is None
            assert other.poll() is None
            assert [agents[7]] == [pid for pid in agents if not lives(pid)]
            assert ("process-killed", True, agents[7], tools + 1) == (
                eviction["outcome"],
                eviction["pod_lives"],
                eviction["process"]["pid"],
                eviction["process"]["processes"],
            )
            assert len(daemon.evictions()) == 1
        finally:
            daemon.stop()
