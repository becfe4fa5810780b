"""Units started again under the path of an evicted one, the daemon stopped at any moment meanwhile."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.testbed.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon
from tests.support.processes import MIB, PAUSE, hold
from tests.support.trials import Trial
from tests.support.waiting import PATIENCE, eventually

pytestmark = pytest.mark.suite("path reuse")

ROUNDS = 6
GRACE_SECONDS = round(PATIENCE)
# Takes memory, and notes a SIGTERM instead of ending by it. Waited for, since a handler of Python's that is
# called for just before pause() runs only after it.
ASKED = """
import mmap, pathlib, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
memory = mmap.mmap(-1, int(sys.argv[1]) << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for offset in range(0, len(memory), 4096):
    memory[offset] = 1
signal.sigwait({signal.SIGTERM})
pathlib.Path(sys.argv[2]).touch()
signal.pause()
"""


@pytest.fixture
def moments(record_property) -> random.Random:
    """Return moments to stop the daemon at; the seed is told, so that they can be had again."""
    seed = random.SystemRandom().randrange(1 << 32)
    record_property("seed", seed)
    print(f"seed {seed}")
    return random.Random(seed)


def start_again(node: VirtualNode, process: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    """End the unit and start it again, under the same path and with little memory."""
    process.kill()
    process.wait()
    node.remove_pod(f"{node.cgroup}/unit")
    return node.spawn(node.add_pod("unit"), PAUSE)


def ended(daemon: RunningDaemon) -> int:
    """Return how many evictions have ended; a decision waits only so long for an end to tell of."""
    in_decisions = sum(line["evictions"][0]["outcome"] != "ordered" for line in daemon.evictions())
    ordered = {line["id"] for line in daemon.evictions() if line["evictions"][0]["outcome"] == "ordered"}
    late = {line["decision"] for line in daemon.lines() if line["kind"] == "outcome"}
    return in_decisions + len(ordered & late)


def crossing(node: VirtualNode, unit: subprocess.Popen[bytes], wanted_bytes: int) -> None:
    """Wait until the unit has filled the node that far, or is dead."""
    eventually(lambda: unit.poll() is not None or node.usage_bytes() > wanted_bytes, "the crossing")


def test_no_unit_is_killed_for_the_one_before_whenever_the_daemon_was_stopped(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial, tmp_path: Path, moments: random.Random
) -> None:
    daemon.configure(
        {
            "evictionSoft": {"memory.available": "100Mi"},
            "evictionSoftGracePeriod": {"memory.available": "100ms"},
            "evictionMaxPodGracePeriod": GRACE_SECONDS,
            "evictionHard": {},
        },
        {"housekeepingInterval": "200ms", "unhelpfulEvictionPause": "0s"},  # one round comes after the other
    )
    daemon.start()
    trial.rounds = ROUNDS
    trial.right.add("unit")
    for number in range(ROUNDS):
        asked = tmp_path / f"asked{number}"
        unit = node.spawn(node.add_pod("unit"), [sys.executable, "-S", "-c", ASKED, "440", str(asked)])
        eventually(asked.exists, "SIGTERM of a soft eviction")
        time.sleep(moments.uniform(0, GRACE_SECONDS * 0.9))
        daemon.signal(signal.SIGSTOP)
        successor = start_again(node, unit)
        time.sleep(moments.uniform(0, 2 * GRACE_SECONDS))
        daemon.signal(signal.SIGCONT)
        eventually(
            lambda count=number + 1: len(daemon.evictions()) == count == ended(daemon),
            "the end of the eviction in the journal",
        )
        passes = daemon.status()["passes"]
        eventually(lambda before=passes: daemon.status()["passes"] > before + 3, "passes go by")
        assert trial.outlived(successor)
        successor.kill()
        successor.wait()
        node.remove_pod(f"{node.cgroup}/unit")


def test_no_unit_is_killed_for_the_one_before_where_the_daemon_is_stopped_on_the_way_to_a_hard_kill(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial, moments: random.Random
) -> None:
    daemon.configure({"evictionHard": {"memory.available": "64Mi"}}, {"housekeepingInterval": "200ms"})
    daemon.start()
    trial.rounds = ROUNDS
    trial.right.add("unit")
    for _ in range(ROUNDS):
        unit = node.spawn(node.add_pod("unit"), hold(470))
        crossing(node, unit, int(moments.uniform(0.8, 0.93) * 512) * MIB)
        daemon.signal(signal.SIGSTOP)
        successor = start_again(node, unit)
        daemon.signal(signal.SIGCONT)
        passes = daemon.status()["passes"]
        eventually(lambda before=passes: daemon.status()["passes"] > before + 3, "passes go by")
        assert trial.outlived(successor)
        successor.kill()
        successor.wait()
        node.remove_pod(f"{node.cgroup}/unit")


# Swaps the names of two cgroups again and again, in the hierarchy of the memory controller. Each state lasts
# about as long as it takes to list the cgroups, or to open one: what lies between the two is often a swap.
SWAPS = """
import os, random, sys, time
parent, one, other = sys.argv[1:]
os.chdir(parent)
while True:
    time.sleep(random.uniform(0, 0.0005))
    os.rename(one, "between")
    os.rename(other, one)
    os.rename("between", other)
"""
WAITS = 'while [ ! -e $0 ]; do sleep 0.01; done; exec "$@"'
SWAPPED_ROUNDS = 8
HOG_MIB = 370  # beside the others past the threshold, and short of the limit: the kernel kills none of them


def test_where_names_are_swapped_all_the_time_the_hog_dies_and_no_innocent(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial, tmp_path: Path
) -> None:
    if node.tree.version is CgroupVersion.V2:
        pytest.skip("cgroup v2 has no rename(2); boot with systemd.unified_cgroup_hierarchy=0")
    daemon.configure({"evictionHard": {"memory.available": "64Mi"}}, {"housekeepingInterval": "200ms"})
    daemon.start()
    trial.rounds = SWAPPED_ROUNDS
    for number in range(SWAPPED_ROUNDS):
        names = [f"hog{number}", f"innocent{number}"]
        trial.right.update((*names, "between"))
        go = tmp_path / f"go{number}"
        hog = node.spawn(node.add_pod(names[0]), ["/bin/sh", "-c", WAITS, str(go), *hold(HOG_MIB)])
        others = [
            node.spawn(node.add_pod(name), hold(30))
            for name in (names[1], f"other{number}", f"third{number}")
        ]
        eventually(lambda: node.usage_bytes() > 90 * MIB, "the innocents at their size")
        parent = str(node.tree.path(node.cgroup))
        swaps = subprocess.Popen([sys.executable, "-S", "-c", SWAPS, parent, *names])
        try:
            eventually(lambda path=parent: "between" in os.listdir(path), "names that are swapped")
            go.touch()
            assert -signal.SIGKILL == hog.wait(60)
        finally:
            swaps.kill()
            swaps.wait()
        passes = daemon.status()["passes"]
        eventually(lambda before=passes: daemon.status()["passes"] > before + 3, "passes go by")
        assert [True] * len(others) == [trial.outlived(other) for other in others]
        for other in others:
            other.kill()
            other.wait()
