"""The kernel's OOM kills as the eBPF probe tells them: whose limit, which victim, in which cgroup."""

from __future__ import annotations

import mmap
import select
import time
from collections.abc import Sequence
from pathlib import Path

from probing import MARKS, MIB, PAGES, ROOT, Cgroup, allocate

from reactor.kernel.bpf.probes import OomRecords
from reactor.kernel.bpf.records import OomRecord
from reactor.kernel.procfs import read_meminfo

pytestmark = MARKS


def kills(probe: OomRecords, pids: Sequence[int]) -> list[OomRecord]:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        select.select([probe.fd], [], [], 0.2)
        found = [record for record in probe.take() if record.pid in pids]
        if found:
            return found
    raise AssertionError(f"no OOM kill of {pids}")


def test_kill_at_a_containers_own_limit_names_the_limit_and_the_victim(
    oom: OomRecords, cgroup: Cgroup
) -> None:
    leaf = cgroup.child("container")
    cgroup.write("memory.max", str(50 * MIB))
    pid = leaf.allocate(90)
    (record,) = kills(oom, [pid])
    assert (cgroup.path.stat().st_ino, 50 * PAGES) == (record.limit_cgroup, record.limit_pages)
    root = ROOT.stat().st_ino
    assert f"/{cgroup.path.name}/container" == record.cgroup_path(root)
    assert f"/{cgroup.path.name}" == record.cgroup_path(root, record.limit_cgroup)
    assert 30 * PAGES < record.victim_pages < 120 * PAGES  # its libraries count, and are charged elsewhere


def test_kill_because_the_node_is_out_of_memory_has_no_limit(oom: OomRecords, cgroup: Cgroup) -> None:
    def take_all() -> list[mmap.mmap]:
        Path("/proc/self/oom_score_adj").write_text("1000")
        # in pieces: one mapping of more than there is would be refused at once
        return [allocate(100) for _ in range(read_meminfo().total_bytes // (100 * MIB) + 1)]

    pid = cgroup.run(take_all)
    (record,) = kills(oom, [pid])
    assert record.limit_cgroup is None
    assert record.usage_pages is None
    assert f"/{cgroup.path.name}" == record.cgroup_path(ROOT.stat().st_ino)
