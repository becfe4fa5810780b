"""The OOM killer's order where it could cost an innocent, outlive the guard, or stay with a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.kernel.files import parse_field
from reactor.kernel.procfs import read_oom_score_adj
from reactor.testbed.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon, after_passes
from tests.support.processes import MIB, Hog, hog, hold
from tests.support.this_machine import cgroup_tree
from tests.support.trials import Trial
from tests.support.waiting import PATIENCE, eventually

pytestmark = pytest.mark.suite("storms")

NODE_MIB = 512
NEAR_MIB = NODE_MIB - 64 - 16  # past the far early level, and not over the threshold
HARD = {"evictionHard": {"memory.available": "64Mi"}, "evictionPressureTransitionPeriod": "0s"}
SECTION = {"housekeepingInterval": "200ms", "oomOrder": "policy", "unhelpfulEvictionPause": "1h"}
SMALL_MIB = (20, 28, 36, 44, 52)
OWN = 1000  # the score that these pods have of their own

# Holds memory, and starts a hundred processes a second, each of which outlives its parent's next few.
FORKER = """
import os, time
kept = b"1" * (150 << 20)
while True:
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(0.5)
        os._exit(0)
    os.wait()
    time.sleep(0.01)
"""
# Holds memory. Once the file is there it forks a child, and one whose parent has ended; each of them moves to
# the cgroups in the arguments, and leaves the session where it is to.
LEAVER = """
import os, sys, time
kept, path, *cgroups = b"1" * (150 << 20), *sys.argv[1:]
def leave(name):
    for cgroup in cgroups:
        with open(cgroup + "/cgroup.procs", "w") as file:
            file.write("0")
    with open(path + name, "w") as file:
        file.write(str(os.getpid()))
    time.sleep(600)
while not os.path.exists(path):
    time.sleep(0.01)
if os.fork() == 0:
    leave(".child")
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()
        leave(".orphan")
    os._exit(0)
time.sleep(600)
"""


def python(program: str, *arguments: object) -> list[str]:
    return [sys.executable, "-S", "-c", program, *map(str, arguments)]


def offered(command: Sequence[str], score: int = OWN) -> list[str]:
    """Return a command that gives itself a score, as a kubelet gives it to a container."""
    offer = 'echo "$1" > /proc/self/oom_score_adj; shift; exec "$@"'
    return ["/bin/sh", "-c", offer, "sh", str(score), *command]


def scores_in(node: VirtualNode, cgroup: str) -> set[int]:
    """Return the scores of a pod's processes."""
    found = set()
    for pid in node.tree.processes(cgroup):
        with suppress(OSError):
            found.add(read_oom_score_adj(pid))
    return found


def number_in(path: Path) -> int:
    """Return the number in a file once it is there."""
    eventually(lambda: path.exists() and path.read_text(), f"there is {path.name}")
    return int(path.read_text())


def working_set_bytes(node: VirtualNode) -> int:
    v2 = node.tree.version is CgroupVersion.V2
    stat = (node.tree.path(node.cgroup) / "memory.stat").read_bytes()
    return node.usage_bytes() - parse_field(
        stat, b"inactive_file" if v2 else b"total_inactive_file", "memory.stat"
    )


def fill(node: VirtualNode, filler: Hog) -> None:
    """Have the filler take so much that the far early level is passed, and the threshold is not."""
    for mib in range(4, NODE_MIB // 2, 4):
        if working_set_bytes(node) > NEAR_MIB * MIB:
            return
        filler.hold_mib(mib)
    raise AssertionError("the node is not near its threshold")


@contextmanager
def many_that_were_there(
    node: VirtualNode, trial: Trial, above: str = ""
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Yield small pods of a node that is near its threshold; none of them is to die."""
    with hog(node.tree.path(node.add_pod(f"{above}filler", request_bytes=300 * MIB))) as filler:
        pods = [node.spawn(node.add_pod(f"{above}pod-{mib}"), hold(mib)) for mib in SMALL_MIB]
        trial.must_live(pods)
        eventually(lambda: node.usage_bytes() > sum(SMALL_MIB) * MIB, "the pods have what they want")
        fill(node, filler)
        yield pods


@contextmanager
def lowered(
    node: VirtualNode, daemon: RunningDaemon, vital: str, command: Sequence[str]
) -> Iterator[tuple[subprocess.Popen[bytes], Hog]]:
    """Yield a pod's process that has been put behind a first of lower priority, and what fills the node."""
    daemon.be_the_machine(NODE_MIB)
    node.spawn(node.add_pod("over"), offered(hold(60)))
    process = node.spawn(vital, offered(command))
    eventually(lambda: node.usage_bytes() > 210 * MIB, "the pods have what they want")
    with hog(node.tree.path(node.add_pod("filler", request_bytes=300 * MIB))) as filler:
        daemon.configure(HARD, SECTION)
        daemon.start()
        fill(node, filler)
        eventually(lambda: read_oom_score_adj(process.pid) < OWN, "it is behind the first")
        yield process, filler


@pytest.mark.parametrize("guard", ["stopped", "dead"])
def test_pod_that_came_later_and_fills_the_node_dies_before_all_that_were_there(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial, guard: str
) -> None:
    daemon.configure(HARD, SECTION)
    daemon.start()
    with many_that_were_there(node, trial) as pods:
        after_passes(daemon, 10)
        daemon.signal(signal.SIGSTOP if guard == "stopped" else signal.SIGKILL)
        try:
            newcomer = node.spawn(node.add_pod("newcomer"), hold(NODE_MIB))
            newcomer.wait(20 * PATIENCE)
            assert [None] * len(pods) == [one.poll() for one in pods]
        finally:
            daemon.signal(signal.SIGCONT)
    if guard == "stopped":
        trial.right = {"newcomer"}
        trial.needed = 0


def test_leak_outside_the_pods_dies_before_any_pod_that_holds_less(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial
) -> None:
    trial.futile_at_most = 1  # of the guard's
    pods_cgroup = node.add_pod("pods")
    daemon.configure(HARD, {**SECTION, "pods": {"parents": [pods_cgroup]}})
    daemon.start()
    with many_that_were_there(node, trial, "pods/") as pods:
        after_passes(daemon, 10)
        leak = node.spawn(node.add_pod("system"), hold(NODE_MIB))
        leak.wait(20 * PATIENCE)
        assert sum(one.poll() is not None for one in pods) <= 1


def test_leak_beside_the_node_dies_before_any_of_its_pods(tmp_path: Path, trial: Trial) -> None:
    name = f"reactor-test-{os.getpid()}-beside"
    with (
        VirtualNode(cgroup_tree(), (NODE_MIB + 128) * MIB, name) as above,
        VirtualNode(above.tree, NODE_MIB * MIB, f"{name}/node") as node,
    ):
        daemon = RunningDaemon(tmp_path, node.cgroup)
        daemon.configure(HARD, SECTION)
        daemon.start()
        try:
            with many_that_were_there(node, trial) as pods:
                after_passes(daemon, 10)
                leak = above.spawn(above.add_pod("beside"), hold(NODE_MIB))
                leak.wait(20 * PATIENCE)
                assert [None] * len(pods) == [one.poll() for one in pods]
                assert [] == daemon.evictions()
        finally:
            trial.end(daemon)


def test_no_process_gets_a_higher_score_than_its_own_nor_keeps_one_of_the_order(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial
) -> None:
    daemon.be_the_machine(NODE_MIB)
    daemon.configure(HARD, SECTION)
    daemon.start()
    with many_that_were_there(node, trial) as pods:
        for _ in range(10):
            after_passes(daemon, 1)
            assert {0} == {read_oom_score_adj(one.pid) for one in pods}


@pytest.mark.parametrize("guard", ["killed", "stopped"])
def test_scores_come_back_though_no_guard_does(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial, guard: str
) -> None:
    with lowered(node, daemon, node.add_pod("vital", priority=1000), hold(150)) as (vital, _):
        trial.must_live([vital])
        if guard == "killed":
            daemon.kill()
        else:
            daemon.signal(signal.SIGSTOP)
        try:
            eventually(lambda: read_oom_score_adj(vital.pid) == OWN, "it has its own score again", 60)
        finally:
            daemon.signal(signal.SIGCONT)


@pytest.mark.parametrize("ends_by", ["recovery", "crash"])
def test_no_process_of_a_pod_that_forks_all_the_time_keeps_what_was_written(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial, ends_by: str
) -> None:
    vital = node.add_pod("vital", priority=1000)
    with lowered(node, daemon, vital, python(FORKER)) as (process, filler):
        trial.must_live([process])
        if ends_by == "crash":
            daemon.signal(signal.SIGKILL)
            assert daemon.process is not None
            daemon.process.wait()
        filler.hold_mib(4)
        if ends_by == "crash":
            daemon.start()
        eventually(lambda: daemon.status()["oom_order"]["first"] is None, "the order is over")
        eventually(lambda: scores_in(node, vital) == {OWN}, "no process has anything of it")
        after_passes(daemon, 3)
        assert {OWN} == scores_in(node, vital)


@pytest.mark.parametrize("ends_by", ["recovery", "crash", "end"])
def test_process_that_left_its_pod_has_its_own_score_again(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial, tmp_path: Path, ends_by: str
) -> None:
    """It was born with what was written for its pod, and is in none of the pod's cgroups since."""
    with VirtualNode(node.tree, NODE_MIB * MIB, f"{node.cgroup[1:]}-beside") as beside:
        session = beside.add_pod("session")
        cgroups = {node.tree.path(session), node.tree.path(session, "pids")}
        born = tmp_path / "born"
        vital = node.add_pod("vital", priority=1000)
        leaver = python(LEAVER, born, *sorted(cgroups))
        with lowered(node, daemon, vital, leaver) as (process, filler):
            trial.must_live([process])
            born.touch()
            left = [number_in(tmp_path / f"born.{name}") for name in ("child", "orphan")]
            assert all(read_oom_score_adj(pid) < OWN for pid in left)
            if ends_by == "end":
                assert 0 == daemon.stop()
            elif ends_by == "crash":
                daemon.kill()
                filler.hold_mib(4)
                daemon.start()
            else:
                filler.hold_mib(4)
            eventually(lambda: read_oom_score_adj(process.pid) == OWN, "the pod has its own score again")
            eventually(lambda: {*map(read_oom_score_adj, left)} == {OWN}, "and so have they")


def test_process_in_the_last_of_many_cgroups_of_its_pod_has_its_own_score_again(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial, tmp_path: Path
) -> None:
    vital = node.add_pod("vital", priority=1000)
    main = node.add_pod("vital/main")
    deep = [node.add_pod(f"vital/{number:03}") for number in range(400)]
    inside = {node.tree.path(deep[-1]), node.tree.path(deep[-1], "pids")}
    born = tmp_path / "born"
    del vital
    with lowered(node, daemon, main, python(LEAVER, born, *sorted(inside))) as (process, filler):
        trial.must_live([process])
        born.touch()
        child = number_in(tmp_path / "born.child")
        filler.hold_mib(4)
        eventually(lambda: read_oom_score_adj(process.pid) == OWN, "the pod has its own score again")
        eventually(lambda: read_oom_score_adj(child) == OWN, "and so has its child")
