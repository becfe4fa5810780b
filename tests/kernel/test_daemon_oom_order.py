"""The whole daemon and the kernel's OOM killer: whom that one takes, and that nothing of it is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.kernel.files import parse_field
from reactor.kernel.procfs import read_oom_score_adj
from reactor.testbed.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon, after_passes
from tests.support.processes import MIB, Hog, hog, hold
from tests.support.this_machine import oom_killed_in
from tests.support.waiting import eventually

NODE_MIB = 512
NEAR_MIB = NODE_MIB - 64 - 16  # past the far early level, and not over the threshold
HARD = {"evictionHard": {"memory.available": "64Mi"}, "evictionPressureTransitionPeriod": "0s"}
SECTION = {"housekeepingInterval": "200ms", "oomOrder": "policy"}
OWN = 1000


@pytest.fixture
def node_mib() -> int:
    """Return how large the virtual node is."""
    return NODE_MIB


@pytest.fixture
def filler(node: VirtualNode) -> Iterator[Hog]:
    """Return a pod within its request that fills the node as far as it is told to."""
    with hog(node.tree.path(node.add_pod("filler", request_bytes=300 * MIB))) as process:
        yield process


def offered(mib: int) -> list[str]:
    """Return the command of a process that holds so much, and has a score as from a kubelet."""
    return ["/bin/sh", "-c", f'echo {OWN} > /proc/self/oom_score_adj; exec "$@"', "sh", *hold(mib)]


def vital_and_over(node: VirtualNode) -> tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]:
    """Return the process of a large pod of higher priority, and that of the policy's first."""
    vital = node.spawn(node.add_pod("vital", priority=1000), offered(150))
    over = node.spawn(node.add_pod("over"), offered(50))
    eventually(lambda: node.usage_bytes() > 200 * MIB, "the pods have what they want")
    return vital, over


def first(daemon: RunningDaemon) -> str | None:
    """Return the pod that the kernel would take first, by the daemon's word."""
    shown = daemon.status()["oom_order"]["first"]
    return None if shown is None else shown["pod"].rpartition("/")[2]


def grow(node: VirtualNode, filler: Hog) -> None:
    """Have the filler take so much that the far early level is passed, and the threshold is not."""
    v2 = node.tree.version is CgroupVersion.V2
    name = b"inactive_file" if v2 else b"total_inactive_file"
    for mib in range(4, 256, 4):
        stat = (node.tree.path(node.cgroup) / "memory.stat").read_bytes()
        if node.usage_bytes() - parse_field(stat, name, "memory.stat") > NEAR_MIB * MIB:
            return
        filler.hold_mib(mib)
    raise AssertionError("the node is not near its threshold")


def test_pod_that_would_go_before_the_policys_first_is_lowered_near_a_threshold_until_recovery_or_the_end(
    node: VirtualNode, daemon: RunningDaemon, filler: Hog
) -> None:
    vital, over = vital_and_over(node)
    daemon.be_the_machine(NODE_MIB)
    daemon.configure(HARD, SECTION)
    daemon.start()
    after_passes(daemon, 2)
    assert [OWN, OWN] == [read_oom_score_adj(one.pid) for one in (vital, over)]
    assert first(daemon) is None

    grow(node, filler)
    eventually(lambda: read_oom_score_adj(vital.pid) < OWN, "the other is lowered")
    assert OWN == read_oom_score_adj(over.pid)
    eventually(lambda: first(daemon) == "over", "status says so")
    expected = "cgroup/over first (1 process at oom_score_adj 1000), 1 process of others behind it"
    assert f"OOM killer's order: {expected}" in daemon.ask("status").stdout

    filler.hold_mib(20)
    eventually(lambda: read_oom_score_adj(vital.pid) == OWN, "it has its own score at recovery")
    grow(node, filler)
    eventually(lambda: read_oom_score_adj(vital.pid) < OWN, "the other is lowered again")
    assert 0 == daemon.stop()
    assert [OWN, OWN] == [read_oom_score_adj(one.pid) for one in (vital, over)]
    actions = [line["action"] for line in daemon.lines() if line["kind"] == "oom-order"]
    assert ["taken", "given back"] * 2 == actions
    assert [] == daemon.evictions()


def test_next_daemon_finds_nothing_left_of_what_a_killed_one_wrote(
    node: VirtualNode, daemon: RunningDaemon, filler: Hog, tmp_path: Path
) -> None:
    vital, _ = vital_and_over(node)
    daemon.be_the_machine(NODE_MIB)
    daemon.configure(HARD, SECTION)
    daemon.start()
    grow(node, filler)
    eventually(lambda: read_oom_score_adj(vital.pid) < OWN, "the other is lowered")
    daemon.kill()
    filler.hold_mib(20)
    daemon.start()
    assert OWN == read_oom_score_adj(vital.pid)
    assert [] == json.loads((tmp_path / "oom-order.json").read_text())["pods"]


def test_clean_restores_what_a_killed_daemon_left_where_nothing_else_does(
    node: VirtualNode, daemon: RunningDaemon, filler: Hog
) -> None:
    vital, _ = vital_and_over(node)
    daemon.be_the_machine(NODE_MIB)
    daemon.configure(HARD, SECTION)
    daemon.start()
    grow(node, filler)
    eventually(lambda: read_oom_score_adj(vital.pid) < OWN, "the other is lowered")
    assert daemon.process is not None
    daemon.signal(signal.SIGSTOP)
    for pid in daemon.processes()[1:]:  # as systemd ends what is left of a unit
        os.kill(pid, signal.SIGKILL)
    daemon.kill()
    assert read_oom_score_adj(vital.pid) < OWN
    command = [sys.executable, "-m", "reactor", "clean", "--config", str(daemon.config_path)]
    answers = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert ["oom_score_adj: 1 process restored\n", "nothing was left\n"] == answers
    assert OWN == read_oom_score_adj(vital.pid)


def test_order_is_left_to_the_kernel_where_configured_in_a_dry_run_and_on_a_small_part_of_the_machine(
    node: VirtualNode, daemon: RunningDaemon, filler: Hog
) -> None:
    vital, _ = vital_and_over(node)
    grow(node, filler)
    for machine_mib, section in ((NODE_MIB, {"oomOrder": "leave"}), (NODE_MIB, {"dryRun": True}), (None, {})):
        daemon.inside = []
        if machine_mib is not None:
            daemon.be_the_machine(machine_mib)
        daemon.configure(HARD, {**SECTION, **section})
        daemon.start()
        after_passes(daemon, 5)
        assert OWN == read_oom_score_adj(vital.pid)
        assert 0 == daemon.stop()


def test_kernel_takes_the_policys_first_while_the_daemon_is_stopped(
    node: VirtualNode, daemon: RunningDaemon, filler: Hog
) -> None:
    vital, over = vital_and_over(node)
    daemon.be_the_machine(NODE_MIB)
    daemon.configure(HARD, SECTION)
    daemon.start()
    grow(node, filler)
    eventually(lambda: read_oom_score_adj(vital.pid) < OWN, "the other is lowered")
    daemon.signal(signal.SIGSTOP)
    try:
        node.spawn(node.add_pod("hog", request_bytes=300 * MIB), hold(100))
        eventually(lambda: over.poll() is not None, "the kernel kills")
        assert vital.poll() is None
        assert 1 == oom_killed_in(node, f"{node.cgroup}/over")
    finally:
        daemon.signal(signal.SIGCONT)
