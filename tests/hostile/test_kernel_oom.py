"""The kernel's OOM killer was faster: nobody follows its victim for memory that is still coming back."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path

import pytest

from reactor.sources.catalogue import EBPF_OOM, OOM_COUNTERS
from reactor.testbed.allocator import Record
from reactor.testbed.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon
from tests.support.processes import MIB, hold
from tests.support.this_machine import oom_killed_in
from tests.support.trials import Trial
from tests.support.waiting import eventually

pytestmark = pytest.mark.suite("storms")

INNOCENTS = ("one", "two", "three")
# By the kernel's counters alone, and where eBPF can be had (cgroup v2) by its record of the kill. Not with
# memory.high: set to the level, it holds `other` back from the node's limit for as long as the daemon is
# stopped, minutes of sleep for 100 MiB.
SOURCES = {
    "counted": {"ebpf": False, "memoryHigh": False},
    "recorded": {"memoryHigh": False},
}


@pytest.mark.parametrize("sources", SOURCES.values(), ids=SOURCES)
def test_innocents_outlive_a_victim_of_the_kernels_that_gives_back_slowly(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial, sources: dict[str, bool]
) -> None:
    daemon.configure(
        {"evictionHard": {"memory.available": "100Mi"}},
        {"housekeepingInterval": "500ms", "sources": sources},
    )
    innocents = [node.spawn(node.add_pod(name), hold(30)) for name in INNOCENTS]
    trial.must_live(innocents)
    hog = node.add_pod("hog", request_bytes=300 * MIB)  # within its request it is the last to be evicted
    victim = node.spawn(hog, hold(270))
    eventually(lambda: node.usage_bytes() > 360 * MIB, "the node is filled")
    daemon.start()
    eventually(lambda: oom_kills_are_watched(daemon), "OOM kills are watched")
    # While the daemon can't look, another meets the node's limit: the kernel kills who has most.
    daemon.signal(signal.SIGSTOP)
    node.tree.set_cpu_quota(hog, 4000)  # 4 ms of CPU in 100: what it held comes back within seconds
    try:
        other = node.spawn(node.add_pod("other"), hold(180))
        eventually(lambda: oom_killed_in(node, hog) == 1, "the kernel kills the largest")
    finally:
        daemon.signal(signal.SIGCONT)
    passes = daemon.status()["passes"]
    eventually(lambda: victim.poll() is not None, "the victim exits")
    eventually(lambda: daemon.status()["passes"] > passes, "passes go by")
    assert [None] * 4 == [process.poll() for process in (*innocents, other)]
    assert [] == daemon.evictions()


@pytest.mark.parametrize("sources", SOURCES.values(), ids=SOURCES)
def test_hog_that_grows_right_after_the_kernels_kill_is_evicted_before_it_meets_the_limit(
    node: VirtualNode,
    daemon: RunningDaemon,
    trial: Trial,
    sources: dict[str, bool],
    tool: Path,
    tmp_path: Path,
) -> None:
    daemon.configure(
        {"evictionHard": {"memory.available": "60Mi"}},
        {"housekeepingInterval": "500ms", "sources": sources},
    )
    innocent = node.spawn(node.add_pod("innocent"), hold(20))
    trial.must_live([innocent])
    trial.right.add("hog")
    struck = node.add_pod("struck")
    victim = node.spawn(struck, hold(260))
    eventually(lambda: node.usage_bytes() > 280 * MIB, "the node is filled")
    daemon.start()
    eventually(lambda: oom_kills_are_watched(daemon), "OOM kills are watched")
    daemon.signal(signal.SIGSTOP)
    try:
        others_pod = node.add_pod("other", request_bytes=400 * MIB)
        other = node.spawn(others_pod, hold(370))
        eventually(lambda: victim.poll() is not None, "the kernel kills the largest")
        eventually(lambda: node.usage_bytes() > 385 * MIB, "the other has all that it wants")
        hog, record = node.add_pod("hog"), Record(tmp_path, "hog")
        grower = node.spawn(hog, [str(tool), "fill", str(record.path), str(400 * MIB), "small"])
    finally:
        daemon.signal(signal.SIGCONT)
    # The victim's memory is back. What is left now goes in less time than a victim is waited for of which
    # nothing is known.
    record.go()
    eventually(lambda: grower.poll() is not None or other.poll() is not None, "the hog ends")
    if oom_killed_in(node, others_pod):
        pytest.skip(
            "the kernel killed a second pod while its first victim waited for a CPU: the hog has room"
        )
    assert 0 == oom_killed_in(node, hog)
    eventually(lambda: daemon.evicted() == ["hog"], "the hog's eviction is in the journal")
    assert [None, None] == [process.poll() for process in (innocent, other)]


# Starts workers of so many MiB each, and another for each that is killed.
BOMB = """
import mmap, os, signal, sys
size, most = int(sys.argv[1]) << 20, int(sys.argv[2])
living = 0
while True:
    if living < most and os.fork() == 0:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for offset in range(0, size, 4096):
            memory[offset] = 1
        signal.pause()
    living += 1
    if living >= most:
        os.wait()
        living -= 1
"""


def test_bomb_that_starts_what_the_kernel_kills_again_is_evicted_at_once(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial
) -> None:
    """One process that is killed is no reason to wait for all that its pod holds."""
    daemon.configure(
        {"evictionHard": {"memory.available": "100Mi"}},
        {"housekeepingInterval": "500ms", "sources": SOURCES["counted"]},
    )
    innocents = [node.spawn(node.add_pod(name), hold(12)) for name in INNOCENTS]
    trial.must_live(innocents)
    trial.right.add("bomb")
    daemon.start()
    eventually(lambda: oom_kills_are_watched(daemon), "OOM kills are watched")
    daemon.signal(signal.SIGSTOP)
    try:
        bomb = node.add_pod("bomb")
        process = node.spawn(bomb, [sys.executable, "-S", "-c", BOMB, "40", "20"])
        eventually(lambda: oom_killed_in(node, bomb) > 2, "the kernel kills workers")
    finally:
        daemon.signal(signal.SIGCONT)

    assert -signal.SIGKILL == process.wait(60)
    eventually(lambda: daemon.evicted() == ["bomb"], "the bomb's eviction is in the journal")
    waits = [line["deferred_because"] for line in daemon.lines() if line.get("deferred_because")]
    assert [] == [
        wait for wait in waits if re.search(r"still to be freed by pod \S+ \(killed by[^,]*$", wait)
    ]
    assert [None] * 3 == [innocent.poll() for innocent in innocents]


def oom_kills_are_watched(daemon: RunningDaemon) -> bool:
    """Return whether a source of the kernel's OOM kills is armed."""
    health = {one["name"]: one["health"] for one in daemon.status()["sources"]}
    return "armed" in {health.get(EBPF_OOM), health.get(OOM_COUNTERS)}
