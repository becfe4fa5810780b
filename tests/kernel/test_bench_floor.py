"""The floor: waits for a crossing in C and kills, on this machine's cgroups."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.floor import FloorCrossings, Wait, floor, preferred_wait
from reactor.errors import RefusedError
from reactor.kernel.cgroup import CgroupTree
from reactor.testbed.allocator import Record
from reactor.testbed.crossing import LEVEL_BYTES, RATES, bench_node
from reactor.testbed.virtual_node import VirtualNode


@pytest.fixture
def bench(tool: Path) -> Iterator[VirtualNode]:
    with bench_node(CgroupTree.discover(), tool, pods=2) as node:
        yield node


@pytest.mark.parametrize("wait", [None, Wait(mode="poll", interval_ms=20)])
def test_the_floor_kills_the_hog_at_the_crossing_and_no_other_pod(
    bench: VirtualNode, tool: Path, tmp_path: Path, wait: Wait | None
) -> None:
    run = FloorCrossings(bench, tool, tmp_path, wait).run(RATES["1000"])
    times, timing = run.times, run.timing
    assert times.crossed_ns
    assert times.dead_ns
    assert times.crossed_ns < timing["woke_ns"] <= timing["killed_ns"]
    assert times.crossed_ns < times.dead_ns
    assert times.peak_bytes >= LEVEL_BYTES
    assert {"pod-0000", "hog"} == set(bench.tree.children(bench.cgroup))
    assert len(bench.tree.processes(f"{bench.cgroup}/pod-0000")) == 1


def test_below_the_level_the_floor_lets_everybody_be(bench: VirtualNode, tool: Path, tmp_path: Path) -> None:
    cgroup = f"{bench.cgroup}/hog"
    child = bench.spawn(cgroup, [str(tool), "idle"])
    with Record(tmp_path, "floor") as record:
        with floor(bench, cgroup, preferred_wait(bench.tree.version), LEVEL_BYTES, [child.pid], record):
            time.sleep(0.2)
            assert child.poll() is None
        ready_ns, woke_ns, killed_ns, *_ = record.words()
    assert ready_ns > 0
    assert (0, 0) == (woke_ns, killed_ns)
    assert child.poll() is None


def test_a_floor_that_cannot_wait_says_what_it_lacks(bench: VirtualNode, tmp_path: Path) -> None:
    cgroup, ended = f"{bench.cgroup}/hog", subprocess.Popen(["true"])
    ended.wait()
    with (
        Record(tmp_path, "floor") as record,
        pytest.raises(RefusedError, match="floor ended: floor: "),
        floor(bench, cgroup, Wait(mode="memory"), LEVEL_BYTES, [ended.pid], record),
    ):
        pass
