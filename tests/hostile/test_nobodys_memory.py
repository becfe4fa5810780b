"""What a dead cgroup leaves charged is reclaimed before anybody else is evicted for it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from reactor.testbed.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon
from tests.support.processes import MIB, hold, write_out
from tests.support.trials import Trial
from tests.support.waiting import PATIENCE, eventually

pytestmark = pytest.mark.suite("storms")

# With what the hog's own process brings back the node is just above the threshold, and still short of this.
HARD = {
    "evictionHard": {"memory.available": "100Mi"},
    "evictionMinimumReclaim": {"memory.available": "50Mi"},
}
# No pass but by the kernel's word and the loop's own: what is not evicted now is not left to the next tick.
# memory.high at the level would have the kernel itself remove dentries there, and take pages that are merely
# read for inactive (generations age under reclaim): no threshold would be crossed.
SECTION = {"housekeepingInterval": "500ms", "sources": {"ebpf": False, "memoryHigh": False}}
# Active page cache, a part of the working set: where the kernel has two lists, by being read twice and more;
# with generations (MGLRU), which count what is only read as inactive, by the page faults that bring it in.
READ = """
import mmap, sys, time
with open(sys.argv[1], "rb", buffering=0) as file:
    with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory:
        for offset in range(0, len(memory), 4096):
            memory[offset]
    while True:
        file.seek(0)
        while file.read(1 << 20):
            pass
        time.sleep(0.01)
"""
# What is looked for and is not there stays in the kernel's memory as a negative dentry.
LOOK = """
import os, sys
number = 0
while True:
    try:
        os.stat(f"{sys.argv[1]}/{number}-{'x' * 180}")
    except FileNotFoundError:
        number += 1
"""


def test_innocents_outlive_a_reader_of_a_large_file(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial, tmp_path: Path
) -> None:
    file = tmp_path / "large"
    written = node.spawn(node.add_pod("writer"), write_out(file, mib=330))
    assert 0 == written.wait(60 * PATIENCE)
    eventually(lambda: node.usage_bytes() < 100 * MIB, "the writer's cache is dropped")
    command = [sys.executable, "-S", "-c", READ, str(file)]
    _assert_only_the_hog_goes(node, daemon, trial, command)


def test_innocents_outlive_a_maker_of_negative_dentries(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial, tmp_path: Path
) -> None:
    if not _counts_kernel_memory(node):
        pytest.skip("needs kernel memory accounting (a kernel without cgroup.memory=nokmem)")
    command = [sys.executable, "-S", "-c", LOOK, str(tmp_path)]
    _assert_only_the_hog_goes(node, daemon, trial, command)


def _assert_only_the_hog_goes(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial, command: list[str]
) -> None:
    innocents = [node.spawn(node.add_pod(name), hold(35)) for name in ("one", "two", "three")]
    trial.right.add("hog")
    trial.must_live(innocents)
    eventually(lambda: node.usage_bytes() > 105 * MIB, "the innocents are there")
    daemon.configure(HARD, SECTION)
    daemon.start()
    hog = node.spawn(node.add_pod("hog"), command)

    assert -signal.SIGKILL == hog.wait(120 * PATIENCE)
    eventually(lambda: _available_bytes(daemon) > 150 * MIB, "there is memory again", 60)
    passes = daemon.status()["passes"]
    eventually(lambda: daemon.status()["passes"] > passes + 2, "passes go by")

    assert [None, None, None] == [innocent.poll() for innocent in innocents]
    assert ["cgroup/hog"] == [one["pod"] for line in daemon.evictions() for one in line["evictions"]]
    eventually(lambda: _reclaimed(daemon), "the reclaim is in the journal")
    (reclaimed,) = _reclaimed(daemon)
    assert "belong to no pod" in daemon.ask("status").stdout
    assert "memory" == reclaimed["kind"]
    # Where the time of a reclaim is over before it is done (an emulated kernel), the rest has come since.
    assert reclaimed["freed"] > (0 if reclaimed["problems"] else 100 * MIB)


def _reclaimed(daemon: RunningDaemon) -> list[dict[str, Any]]:
    return [one for line in daemon.lines() for one in line.get("reclaimed", ())]


def _available_bytes(daemon: RunningDaemon) -> int:
    signals = daemon.status()["signals"]
    return next(int(one["available"]) for one in signals if one["signal"] == "memory.available")


def _counts_kernel_memory(node: VirtualNode) -> bool:
    path = node.tree.path(node.cgroup) / "memory.kmem.usage_in_bytes"
    return not path.exists() or os.path.getsize(path) == 0
