"""The eBPF memory watch on the machine itself."""

from __future__ import annotations

import os
import signal

from probing import MARKS, PAGE, PAGES, ROOT, Cgroup, allocate, level, silent, spawn, told

from reactor.kernel.bpf.probes import MemoryProbe
from reactor.kernel.bpf.records import RecordKind, Watched
from reactor.kernel.procfs import read_meminfo

pytestmark = MARKS


def test_crossing_of_the_machine_itself_is_told(memory: MemoryProbe, cgroup: Cgroup) -> None:
    memory.prepare_node()
    machine = read_meminfo()
    capacity = machine.total_bytes // PAGE
    inactive = int((ROOT / "memory.stat").read_text().split("inactive_file ")[1].split()[0]) // PAGE
    fire = capacity - machine.free_bytes // PAGE - inactive + 150 * PAGES
    memory.watch_node(90, [level(fire)], capacity_pages=capacity)
    assert silent(memory, 90)
    cgroup.allocate(600)
    (record, *_) = told(memory, 90, RecordKind.CROSSING)
    memory.watch_node(90, [], capacity_pages=0)
    assert (Watched.NODE_MEMORY, fire) == (record.watched, record.fire)


def test_memory_that_is_charged_to_no_cgroup_is_seen_by_the_timer(memory: MemoryProbe) -> None:
    """A tmpfs page is charged to its writer; what the root cgroup itself uses is charged to nobody."""
    memory.prepare_node()
    machine = read_meminfo()
    capacity = machine.total_bytes // PAGE
    inactive = int((ROOT / "memory.stat").read_text().split("inactive_file ")[1].split()[0]) // PAGE
    fire = capacity - machine.free_bytes // PAGE - inactive + 100 * PAGES
    memory.watch_node(91, [level(fire)], capacity_pages=capacity)
    pid = spawn(ROOT, lambda: allocate(600))  # what earlier tests gave back late counts as well
    try:
        (record, *_) = told(memory, 91, RecordKind.CROSSING)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        memory.watch_node(91, [], capacity_pages=0)
    assert record.watched is Watched.NODE_MEMORY
