"""The eBPF memory watch on the machine itself: by what processes and files use, and by nothing else."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import time
from pathlib import Path

from machine_memory import NegativeDentries, PageCache, SwapFile, kernel_figures, observed
from probing import MARKS, MIB, PAGE, PAGES, ROOT, Cgroup, allocate, level, silent, spawn, told

from reactor.kernel.bpf.probes import MemoryProbe
from reactor.kernel.bpf.records import RecordKind, Watched

pytestmark = MARKS


def ahead(mib: int) -> int:
    """Return the level that so much more of the machine's working set is at, in pages."""
    return kernel_figures().working_set_bytes // PAGE + mib * PAGES


def test_crossing_of_the_machine_itself_is_told_and_a_pass_then_sees_it(
    memory: MemoryProbe, cgroup: Cgroup
) -> None:
    """What a pass reads is what the watch has seen, or newer: no crossing is told that a pass misses."""
    memory.prepare_node()
    fire = ahead(150)
    memory.watch_node(90, [level(fire)])
    assert silent(memory, 90)
    cgroup.allocate(600)
    (record, *_) = told(memory, 90, RecordKind.CROSSING)
    seen = observed()
    memory.watch_node(90, [])
    assert (Watched.NODE_MEMORY, fire) == (record.watched, record.fire)
    assert record.value >= fire
    assert seen.capacity - seen.available >= fire * PAGE


def test_memory_that_is_charged_to_no_cgroup_is_seen_by_the_timer(memory: MemoryProbe) -> None:
    """A tmpfs page is charged to its writer; what the root cgroup itself uses is charged to nobody."""
    memory.prepare_node()
    memory.watch_node(91, [level(ahead(100))])
    pid = spawn(ROOT, lambda: allocate(600))  # what earlier tests gave back late counts as well
    try:
        (record, *_) = told(memory, 91, RecordKind.CROSSING)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        memory.watch_node(91, [])
    assert record.watched is Watched.NODE_MEMORY


def test_neither_slab_nor_inactive_page_cache_crosses_a_level_of_the_machine(
    memory: MemoryProbe, cgroup: Cgroup
) -> None:
    """Both take far more free memory than the level is ahead; the watch is at work all the time."""
    memory.prepare_node()
    with PageCache() as cache, NegativeDentries() as dentries:
        before = kernel_figures()
        fire = ahead(40)
        memory.watch_node(92, [level(fire)])
        cache.write(150)
        dentries.make(60)
        after = kernel_figures()
        assert before.free_bytes - after.free_bytes > 170 * MIB
        assert silent(memory, 92)
        cgroup.allocate(80)
        (record, *_) = told(memory, 92, RecordKind.CROSSING)
        memory.watch_node(92, [])
    assert fire == record.fire


def test_pages_that_came_back_from_swap_are_counted_once(
    memory: MemoryProbe, cgroup: Cgroup, tmp_path: Path
) -> None:
    """They are anonymous pages and swap cache, which the kernel counts among the machine's file pages."""
    memory.prepare_node()
    read, is_read = tmp_path / "read", tmp_path / "is-read"

    def swapped() -> mmap.mmap:
        kept = allocate(60)
        while not read.exists():
            time.sleep(0.05)
        assert sum(kept[offset] for offset in range(0, len(kept), PAGE)) > 0
        is_read.touch()
        return kept

    with SwapFile(128):
        cgroup.run(swapped)
        for _ in range(4):
            time.sleep(1)
            with contextlib.suppress(OSError):  # EAGAIN: less was reclaimed
                cgroup.write("memory.reclaim", "60M")
        read.touch()
        while not is_read.exists():
            time.sleep(0.05)
        figures, seen = kernel_figures(), observed()
        assert figures.swap_cache_bytes > 30 * MIB
        assert abs(seen.capacity - seen.available - figures.working_set_bytes) < 8 * MIB
        fire = ahead(20)
        memory.watch_node(93, [level(fire)])
        assert silent(memory, 93)
        cgroup.allocate(60)
        (record, *_) = told(memory, 93, RecordKind.CROSSING)
        memory.watch_node(93, [])
        cgroup.end()
    assert fire == record.fire
