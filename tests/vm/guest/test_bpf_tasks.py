"""eBPF process-count watches, on cgroups and on the machine."""

from __future__ import annotations

import os

from probing import MARKS, Cgroup, told

from reactor.kernel.bpf.probes import TasksProbe
from reactor.kernel.bpf.records import Level, RecordKind, Watched
from reactor.kernel.procfs import read_task_count

pytestmark = MARKS


def test_forks_in_a_cgroup_are_counted(tasks: TasksProbe, cgroup: Cgroup) -> None:
    leaf = cgroup.child("pod")
    tasks.watch(tasks.counters(cgroup.path).tasks, 1, [Level(fire=5, rearm=4, step=1000)])
    leaf.run(lambda: [os.fork() for _ in range(3)])  # 8 processes
    (record, *_) = told(tasks, 1, RecordKind.CROSSING)
    assert (Watched.CGROUP_TASKS, 5, 5) == (record.watched, record.fire, record.value)
    (leaf.path / "cgroup.kill").write_text("1")
    leaf.remove()
    cgroup.path.rmdir()
    told(tasks, 1, RecordKind.REMOVED)
    cgroup.path.mkdir()


def test_forks_on_the_machine_are_counted(tasks: TasksProbe, cgroup: Cgroup) -> None:
    fire = read_task_count() + 40
    tasks.watch_node(1, [Level(fire=fire, rearm=fire - 20, step=1000)])
    for _ in range(60):
        cgroup.run(lambda: None)
    (record, *_) = told(tasks, 1, RecordKind.CROSSING)
    assert (Watched.NODE_TASKS, fire) == (record.watched, record.fire)
