"""A pod with much active page cache, with the whole daemon: it goes by the working set alone."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from reactor.kernel.cgroup_memory import MemoryCounters
from reactor.testbed.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon, after_passes
from tests.support.processes import MIB, hold, read_often, write_out
from tests.support.waiting import eventually

HARD = {"evictionHard": {"memory.available": "64Mi"}}
FILE_MIB, HOG_MIB = 200, 170  # of 256


@pytest.fixture
def database(node: VirtualNode, tmp_path: Path) -> subprocess.Popen[bytes]:
    """Return a process in the pod `db` that has read a large file again and again."""
    file = tmp_path / "large"
    write = write_out(file, mib=FILE_MIB)
    written = node.spawn(node.add_pod("writer"), write)
    assert 0 == written.wait(120)
    database = node.spawn(node.add_pod("db"), read_often(file))
    counters = MemoryCounters(node.tree, node.cgroup)
    try:
        eventually(lambda: counters.active_file_bytes() > 195 * MIB, "the cache is active", 60)
    finally:
        counters.close()
    return database


def _start(node: VirtualNode, daemon: RunningDaemon, counted: str) -> None:
    section: dict[str, Any] = {
        "memoryAvailable": counted,
        "pods": {"parents": [node.cgroup]},
        "housekeepingInterval": "100ms",
    }
    daemon.configure(HARD, section)
    daemon.start()


def test_by_the_working_set_a_pod_goes_for_its_cache(
    node: VirtualNode, daemon: RunningDaemon, database: subprocess.Popen[bytes]
) -> None:
    _start(node, daemon, "workingSet")
    assert -signal.SIGKILL == database.wait(60)


def test_as_mem_available_nobody_goes_for_cache_and_the_hog_for_its_memory(
    node: VirtualNode, daemon: RunningDaemon, database: subprocess.Popen[bytes]
) -> None:
    _start(node, daemon, "memAvailable")
    after_passes(daemon, 10)
    assert [] == daemon.evictions()
    hog = node.spawn(node.add_pod("hog"), hold(HOG_MIB))

    assert -signal.SIGKILL == hog.wait(60)
    after_passes(daemon, 5)
    assert ["hog"] == daemon.evicted()
    assert database.poll() is None
    (eviction,) = daemon.evictions()
    assert "memAvailable" == eviction["threshold"]["counted_as"]
    assert "memory.available is counted as memAvailable" in daemon.ask("status").stdout
    assert "counted as memAvailable" in " ".join(daemon.ask("explain", "hog").stdout.split())
