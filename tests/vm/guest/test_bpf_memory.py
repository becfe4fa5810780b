"""eBPF memory watches on cgroups against a real kernel: what they tell, and what they do not."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path

from probing import MARKS, MIB, PAGE, PAGES, Cgroup, level, silent, told

from reactor.kernel.bpf.probes import MemoryProbe
from reactor.kernel.bpf.records import RecordKind, Watched

pytestmark = MARKS


def test_crossing_of_a_nested_cgroup_is_told_with_who_made_it(memory: MemoryProbe, cgroup: Cgroup) -> None:
    """The watch is on the grandparent, the memory is charged two levels below."""
    leaf = cgroup.child("pods").child("pod")
    memory.watch(memory.counters(cgroup.path).memory, 10, [level(60 * PAGES)])
    leaf.allocate(40)
    assert silent(memory, 10)
    leaf.end()
    pid = leaf.allocate(80)
    (record, *_) = told(memory, 10, RecordKind.CROSSING)
    assert (Watched.CGROUP_MEMORY, 60 * PAGES, 0, pid) == (
        record.watched,
        record.fire,
        record.level,
        record.pid,
    )
    past = record.value - record.fire
    print(f"told {past * PAGE >> 10} KiB past the level")
    assert 0 <= past <= 4 * PAGES


def test_crossing_is_reported_again_after_usage_fell(memory: MemoryProbe, cgroup: Cgroup) -> None:
    memory.watch(memory.counters(cgroup.path).memory, 20, [level(60 * PAGES)])
    for _ in range(3):
        cgroup.allocate(70)
        told(memory, 20, RecordKind.CROSSING)
        cgroup.end()
        assert all(record.value >= 60 * PAGES for record in memory.take())
        cgroup.allocate(20)  # lets the kernel see usage below the level
        assert silent(memory, 20)
        cgroup.end()


def test_usage_that_rises_on_is_told_at_doubling_distances(memory: MemoryProbe, cgroup: Cgroup) -> None:
    memory.watch(memory.counters(cgroup.path).memory, 30, [level(40 * PAGES)])
    cgroup.allocate(120)
    time.sleep(1)
    distances = [record.value - record.fire for record in told(memory, 30, RecordKind.CROSSING)]
    time.sleep(3)
    distances += [record.value - record.fire for record in memory.take()]
    print([distance * PAGE >> 10 for distance in distances])
    assert 5 <= len(distances) <= 9
    assert all(
        later >= 2 * sooner or later - sooner >= PAGES for sooner, later in itertools.pairwise(distances)
    )


def test_soft_and_hard_level_are_told_one_after_the_other(memory: MemoryProbe, cgroup: Cgroup) -> None:
    far = 1 << 40
    memory.watch(
        memory.counters(cgroup.path).memory,
        40,
        [level(40 * PAGES, step_pages=far), level(60 * PAGES, step_pages=far)],
    )
    cgroup.allocate(80)
    time.sleep(3)
    assert [0, 1] == [record.level for record in told(memory, 40, RecordKind.CROSSING)]


def test_reclaim_at_a_limit_is_told(memory: MemoryProbe, cgroup: Cgroup, tmp_path: Path) -> None:
    leaf = cgroup.child("pod")
    leaf.write("memory.max", str(40 * MIB))
    memory.watch(memory.counters(cgroup.path).memory, 50, [level(500 * PAGES)])
    leaf.run(lambda: write_file(Path(f"/var/tmp/reactor-{os.getpid()}"), 80))
    told(memory, 50, RecordKind.RECLAIM)


def write_file(path: Path, mib: int) -> None:
    with path.open("wb") as file:
        path.unlink()
        for _ in range(mib):
            file.write(bytes(MIB))
