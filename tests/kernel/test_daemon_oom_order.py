"""The whole daemon and the kernel's OOM killer: whose order that one has, and that nothing of it is left."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from reactor.kernel.procfs import read_oom_score_adj
from reactor.lab.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon, after_passes
from tests.support.processes import MIB, Hog, hog, hold
from tests.support.this_machine import oom_killed_in
from tests.support.waiting import eventually

HARD = {"evictionHard": {"memory.available": "64Mi"}, "evictionPressureTransitionPeriod": "0s"}
SECTION = {"housekeepingInterval": "200ms", "oomOrder": "policy"}
# A process that holds memory, and starts another one once the file is there.
_PARENT = """
import os, sys, time
kept, path = b"1" * (120 << 20), sys.argv[1]
while not os.path.exists(path):
    time.sleep(0.01)
child = os.fork()
if child:
    with open(path, "w") as file:
        file.write(str(child))
time.sleep(600)
"""


@pytest.fixture
def node_mib() -> int:
    """Return how large the virtual node is."""
    return 512


def first(daemon: RunningDaemon) -> str | None:
    """Return the pod that the kernel would take first, by the daemon's word."""
    shown = daemon.status()["oom_order"]["first"]
    return None if shown is None else shown["pod"].rpartition("/")[2]


def grow(node: VirtualNode, filler: Hog, pods_mib: int) -> None:
    """Have the filler take so much that the far early level is passed, and the threshold is not.

    The other pods take `pods_mib`.
    """
    eventually(lambda: node.usage_bytes() > pods_mib * MIB, "the pods have what they want")
    for mib in range(4, 256, 4):
        if node.usage_bytes() > (512 - 64 - 24) * MIB:
            return
        filler.hold_mib(mib)


def test_policys_first_is_the_kernels_near_a_threshold_and_not_any_more_at_recovery_and_at_the_end(
    node: VirtualNode, daemon: RunningDaemon
) -> None:
    within = node.spawn(node.add_pod("within", request_bytes=300 * MIB), hold(180))
    over = node.spawn(node.add_pod("over"), hold(60))
    with hog(node.tree.path(node.add_pod("filler", request_bytes=300 * MIB))) as filler:
        daemon.configure(HARD, SECTION)
        daemon.start()
        after_passes(daemon, 2)
        assert [0, 0] == [read_oom_score_adj(one.pid) for one in (within, over)]
        assert daemon.status()["oom_order"]["first"] is None

        grow(node, filler, 240)
        eventually(lambda: read_oom_score_adj(over.pid) == 1000, "the first is raised")
        assert 0 == read_oom_score_adj(within.pid)
        eventually(lambda: first(daemon) == "over", "status says so")
        assert "OOM killer's order: cgroup/over first (1 process" in daemon.ask("status").stdout

        filler.hold_mib(20)
        eventually(lambda: read_oom_score_adj(over.pid) == 0, "it is given back at recovery")
        grow(node, filler, 240)
        eventually(lambda: read_oom_score_adj(over.pid) == 1000, "the first is raised again")
        assert 0 == daemon.stop()
    assert [0, 0] == [read_oom_score_adj(one.pid) for one in (within, over)]
    actions = [line["action"] for line in daemon.lines() if line["kind"] == "oom-order"]
    assert ["taken", "given back"] * 2 == actions
    assert [] == daemon.evictions()


def test_next_daemon_gives_back_what_a_killed_one_has_left_also_to_children_born_since(
    node: VirtualNode, daemon: RunningDaemon, tmp_path: Path
) -> None:
    born = tmp_path / "born"
    node.spawn(node.add_pod("within", request_bytes=300 * MIB), hold(180))
    over = node.spawn(node.add_pod("over"), [sys.executable, "-S", "-c", _PARENT, str(born)])
    with hog(node.tree.path(node.add_pod("filler", request_bytes=300 * MIB))) as filler:
        daemon.configure(HARD, SECTION)
        daemon.start()
        grow(node, filler, 300)
        eventually(lambda: read_oom_score_adj(over.pid) == 1000, "the first is raised")
        daemon.kill()
        born.touch()
        eventually(born.read_text, "a child is born")
        assert 1000 == read_oom_score_adj(int(born.read_text()))
        filler.hold_mib(20)
        daemon.start()
    assert [0, 0] == [read_oom_score_adj(pid) for pid in (over.pid, int(born.read_text()))]
    assert [] == json.loads((tmp_path / "oom-order.json").read_text())["pods"]


def test_order_is_left_to_the_kernel_where_that_is_configured_and_in_a_dry_run(
    node: VirtualNode, daemon: RunningDaemon
) -> None:
    over = node.spawn(node.add_pod("over"), hold(60))
    node.spawn(node.add_pod("within", request_bytes=300 * MIB), hold(180))
    with hog(node.tree.path(node.add_pod("filler", request_bytes=300 * MIB))) as filler:
        grow(node, filler, 240)
        for section in ({"oomOrder": "leave"}, {"dryRun": True}):
            daemon.configure(HARD, {**SECTION, **section})
            daemon.start()
            after_passes(daemon, 3)
            assert 0 == read_oom_score_adj(over.pid)
            assert 0 == daemon.stop()


def test_kernel_takes_the_policys_first_while_the_daemon_is_stopped(
    node: VirtualNode, daemon: RunningDaemon
) -> None:
    largest = node.spawn(node.add_pod("largest", request_bytes=300 * MIB), hold(250))
    over_pod = node.add_pod("over")
    over = node.spawn(over_pod, hold(60))
    with hog(node.tree.path(node.add_pod("filler", request_bytes=300 * MIB))) as filler:
        daemon.configure(HARD, SECTION)
        daemon.start()
        grow(node, filler, 310)
        eventually(lambda: read_oom_score_adj(over.pid) == 1000, "the first is raised")
        daemon.signal(signal.SIGSTOP)
        try:
            node.spawn(node.add_pod("hog", request_bytes=300 * MIB), hold(120))
            eventually(lambda: over.poll() is not None, "the kernel kills")
            assert largest.poll() is None
            assert 1 == oom_killed_in(node, over_pod)
        finally:
            daemon.signal(signal.SIGCONT)


def test_pods_of_one_process_each_are_ranked_by_the_policy_also_where_their_scores_are_the_highest(
    node: VirtualNode, daemon: RunningDaemon
) -> None:
    def offered(mib: int) -> list[str]:
        return ["/bin/sh", "-c", 'echo 1000 > /proc/self/oom_score_adj; exec "$@"', "sh", *hold(mib)]

    largest = node.spawn(node.add_pod("largest", request_bytes=300 * MIB), offered(250))
    over: subprocess.Popen[bytes] = node.spawn(node.add_pod("over"), offered(60))
    with hog(node.tree.path(node.add_pod("filler", request_bytes=300 * MIB))) as filler:
        daemon.configure(HARD, SECTION)
        daemon.start()
        grow(node, filler, 310)
        eventually(lambda: read_oom_score_adj(largest.pid) < 700, "the other is put behind")
        assert 1000 == read_oom_score_adj(over.pid)
        filler.hold_mib(20)
        eventually(lambda: read_oom_score_adj(largest.pid) == 1000, "it is given back")
