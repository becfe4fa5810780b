"""Page cache that goes away takes the level with it that it had lifted."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.sources.catalogue import MEMCG_EVENTFD
from reactor.testbed.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon
from tests.support.processes import MIB
from tests.support.this_machine import oom_killed_in
from tests.support.trials import Trial
from tests.support.waiting import PATIENCE, eventually

pytestmark = pytest.mark.suite("storms")

CACHED_MIB = 360
WRITE = """
import os, sys
with open(sys.argv[1], "wb") as file:
    for _ in range(int(sys.argv[2])):
        file.write(bytes(1 << 20))
    file.flush()
    os.fsync(file.fileno())
"""
GROW = """
import mmap
memory = mmap.mmap(-1, 600 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for offset in range(0, 600 << 20, 4096):
    memory[offset] = 1
"""


def test_hog_is_evicted_before_the_limit_after_the_cache_that_lifted_the_level_has_gone(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial, tmp_path: Path
) -> None:
    cached = tmp_path / "cached"
    reader, hog = node.add_pod("reader"), node.add_pod("hog")
    trial.right.add("hog")
    written = node.spawn(reader, [sys.executable, "-S", "-c", WRITE, str(cached), str(CACHED_MIB)])
    assert 0 == written.wait(60 * PATIENCE)
    assert node.usage_bytes() > CACHED_MIB * MIB
    # No housekeeping in between: nothing but the level itself tells of the hog.
    daemon.configure({"evictionHard": {"memory.available": "100Mi"}}, {"housekeepingInterval": "1h"})
    daemon.start()
    eventually(lambda: levels_are_armed(daemon), "the level is armed")

    cached.unlink()
    eventually(lambda: node.usage_bytes() < 100 * MIB, "the cache is gone")
    with highest_usage(node) as highest_bytes:
        process = node.spawn(hog, [sys.executable, "-S", "-c", GROW])

        assert -signal.SIGKILL == process.wait(30 * PATIENCE)
        eventually(lambda: ["hog"] == daemon.evicted(), "the eviction in the journal")
        assert 0 == oom_killed_in(node, hog)
        assert highest_bytes() < (512 - 32) * MIB


@contextmanager
def highest_usage(node: VirtualNode) -> Iterator[Callable[[], int]]:
    """Yield what tells the node's highest usage from now on."""
    is_v2 = node.tree.version is CgroupVersion.V2
    path = node.tree.path(node.cgroup) / ("memory.peak" if is_v2 else "memory.max_usage_in_bytes")
    with path.open("r+", buffering=1) as file:  # memory.peak counts anew for this very descriptor (6.12)
        file.write("0\n")
        file.flush()

        def read() -> int:
            file.seek(0)
            return int(file.read())

        yield read


def levels_are_armed(daemon: RunningDaemon) -> bool:
    """Return whether the first of those sources is armed that this kernel offers for the node's memory."""
    health = {one["name"]: one["health"] for one in daemon.status()["sources"]}
    return any(health.get(name) == "armed" for name in (MEMCG_EVENTFD, "ebpf", "memory-high"))
