"""A tenant of which one process at a time is killed: it can't keep the node short, nor have others killed."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from reactor.testbed.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon, after_passes
from tests.support.processes import MIB, PAUSE, hold, hold_leaderless
from tests.support.trials import Trial
from tests.support.waiting import eventually

pytestmark = pytest.mark.suite("storms")
HARD = {"evictionHard": {"memory.available": "64Mi"}}
POD = "session.scope"
# Replaces each child that dies at once, under the names of what is spared where it may.
_RESPAWN = """
import os, sys
while True:
    child = os.fork()
    if child == 0:
        os.execv(sys.argv[1], sys.argv[1:])
    os.waitpid(child, 0)
"""
# Forks on and on; each child takes memory and goes on with a name of a shell, out of its session.
_STORM = """
import mmap, os
held = []
while True:
    try:
        if os.fork() == 0:
            os.setsid()
            with open('/proc/self/comm', 'w') as file:
                file.write('bash' if os.getpid() % 2 else 'tab')
            memory = mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            for offset in range(0, 8 << 20, 4096):
                memory[offset] = 1
    except (BlockingIOError, OSError):
        pass
"""

# Has a file in tmpfs mapped, all of it.
_READ_SHARED = """
import mmap, signal, sys
with open(sys.argv[1], "r+b") as file:
    memory = mmap.mmap(file.fileno(), 0)
for offset in range(0, len(memory), 4096):
    memory[offset] = 1
signal.pause()
"""


@pytest.fixture
def node_mib() -> int:
    """Return how large the virtual node is."""
    return 256


def _start(daemon: RunningDaemon, node: VirtualNode) -> tuple[str, str]:
    cgroups = node.add_pod(POD), node.add_pod("innocent.service")
    pods = {"parents": [node.cgroup], "processVictims": [POD]}
    daemon.configure(HARD, {"pods": pods, "housekeepingInterval": "100ms"})
    daemon.start()
    after_passes(daemon, 2)
    return cgroups


def test_one_that_replaces_each_process_at_once_loses_three_and_then_goes_as_a_whole(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial
) -> None:
    session, other = _start(daemon, node)
    trial.right = {POD}
    innocent = node.spawn(other, hold(20))
    eventually(lambda: node.usage_bytes() > 20 * MIB, "the innocent at its size")
    parent = node.spawn(session, [sys.executable, "-S", "-c", _RESPAWN, *hold(190)])

    assert -signal.SIGKILL == parent.wait(60)

    eventually(lambda: len(daemon.evictions()) >= 4, "four evictions in the journal")
    evictions = [one for record in daemon.evictions() for one in record["evictions"]]
    assert ["process-killed"] * 3 + ["killed"] == [one["outcome"] for one in evictions[:4]]
    assert "holds as much as before" in evictions[3]["whole_because"]
    after_passes(daemon, 10)
    assert trial.outlived(innocent)
    assert {POD} == set(daemon.evicted())


def test_a_fork_storm_is_over_soon_and_no_other_is_killed(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial
) -> None:
    session, other = _start(daemon, node)
    trial.right = {POD}
    innocent = node.spawn(other, hold(20))
    eventually(lambda: node.usage_bytes() > 20 * MIB, "the innocent at its size")
    if node.tree.pids_root is not None:
        (node.tree.path(session, "pids") / "pids.max").write_text("400")
    storm = node.spawn(session, [sys.executable, "-S", "-c", _STORM])

    assert -signal.SIGKILL == storm.wait(120)

    eventually(lambda: not node.tree.path(session).joinpath("cgroup.procs").read_text(), "an empty session")
    after_passes(daemon, 10)
    assert trial.outlived(innocent)
    assert {POD} == set(daemon.evicted())
    outcomes = [one["outcome"] for record in daemon.evictions() for one in record["evictions"]]
    assert "killed" in outcomes
    assert len(outcomes) <= 40


def test_one_that_calls_itself_by_spared_names_goes_as_a_whole(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial
) -> None:
    session, other = _start(daemon, node)
    trial.right = {POD}
    innocent = node.spawn(other, PAUSE)
    code = f"open('/proc/self/comm', 'w').write('gnome-shell');{hold(1)[3]}"
    hogs = [node.spawn(session, [sys.executable, "-S", "-c", code, "100", "mild"]) for _ in range(2)]

    assert [-signal.SIGKILL] * 2 == [one.wait(30) for one in hogs]

    after_passes(daemon, 10)
    assert trial.outlived(innocent)
    assert [POD] == daemon.evicted()


def test_a_hog_whose_main_thread_has_exited_is_killed_and_no_innocent_beside_it(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial
) -> None:
    session, _ = _start(daemon, node)
    trial.right = {POD}
    innocents = [node.spawn(session, hold(30)) for _ in range(2)]
    eventually(lambda: node.usage_bytes() > 60 * MIB, "the innocents at their size")
    hog = node.spawn(session, hold_leaderless(170))

    assert -signal.SIGKILL == hog.wait(60)

    after_passes(daemon, 10)
    assert [None, None] == [one.poll() for one in innocents]
    (outcome,) = [one["outcome"] for record in daemon.evictions() for one in record["evictions"]]
    assert "process-killed" == outcome


def test_no_reader_of_a_shared_file_dies_for_a_hog_beside_it(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial
) -> None:
    session, _ = _start(daemon, node)
    trial.right = {POD}
    with Path(f"/dev/shm/reactor-test-{os.getpid()}").open("x+b") as file:
        try:
            file.truncate(110 * MIB)
            command = [sys.executable, "-S", "-c", _READ_SHARED, file.name]
            readers = [node.spawn(session, command) for _ in range(3)]
            eventually(lambda: node.usage_bytes() > 110 * MIB, "the file in memory")
            hog = node.spawn(session, hold(100))

            assert -signal.SIGKILL == hog.wait(60)

            after_passes(daemon, 10)
            assert [None] * 3 == [one.poll() for one in readers]
            (eviction,) = [one for record in daemon.evictions() for one in record["evictions"]]
            assert ("process-killed", hog.pid) == (eviction["outcome"], eviction["process"]["pid"])
        finally:
            Path(file.name).unlink()
