"""`memoryAvailable: memAvailable` on the machine: the eBPF watch beside the kernel's own figure."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Final

from guarded import Service, Tenant, eventually, run
from machine_memory import NegativeDentries, PageCache, kept_bytes
from probing import MARKS, MIB, PAGE, PAGES, Cgroup, level, silent, told

from reactor.kernel.bpf.probes import MemoryProbe
from reactor.kernel.bpf.records import Level, NodeCounting, RecordKind, Watched
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.mem_available import parse_watermarks
from reactor.kernel.procfs import read_meminfo
from reactor.model.settings import MemoryAvailable, Settings
from reactor.model.signals import Signal
from reactor.model.thresholds import Observation
from reactor.observe.node import NodeObserver

pytestmark = MARKS

# What each CPU has not added up yet of each counter, and what the system itself does between two readings.
SLACK_BYTES: Final = 12 * MIB
AT_ONCE: Final = Level(fire=1, rearm=0, step=PAGES)
IDS: Final = count(200)


def used_bytes() -> int:
    """Return what MemAvailable leaves of the machine's memory, by /proc/meminfo."""
    machine = read_meminfo()
    assert machine.available_bytes is not None
    return machine.capacity_bytes - machine.available_bytes


def counting() -> NodeCounting:
    watermarks = parse_watermarks(Path("/proc/zoneinfo").read_bytes())
    return NodeCounting(
        total=read_meminfo().capacity_bytes // PAGE,
        reserved=watermarks.reserved_bytes // PAGE,
        low=watermarks.low_bytes // PAGE,
    )


def observed() -> Observation:
    """Return memory.available of the machine as a pass observes it with this key."""
    node = NodeObserver(CgroupTree.discover(), Settings(memory_available=MemoryAvailable.MEM_AVAILABLE))
    try:
        return node.memory()[Signal.MEMORY_AVAILABLE]
    finally:
        node.close()


def seen_by_the_watch(memory: MemoryProbe) -> int:
    """Return what the programs in the kernel count as used, in bytes."""
    watch_id = next(IDS)
    memory.watch_node(watch_id, [AT_ONCE], counting())
    (record, *_) = told(memory, watch_id, RecordKind.CROSSING)
    memory.watch_node(watch_id, [])
    assert record.watched is Watched.NODE_MEMORY
    return record.value * PAGE


def agreed_bytes(memory: MemoryProbe) -> int:
    """Return what is used, about which the watch and the kernel agree."""
    off_bytes: list[int] = []

    def is_near() -> bool:  # the system itself may allocate between the two readings
        before, seen, after = used_bytes(), seen_by_the_watch(memory), used_bytes()
        off_bytes.append(max(min(before, after) - seen, seen - max(before, after)))
        return off_bytes[-1] < SLACK_BYTES

    eventually(is_near, f"agreement: off by {off_bytes} bytes", 60)
    print(f"off by {off_bytes[-1] / MIB:.2f} MiB of {used_bytes() / MIB:.0f}")
    return used_bytes()


def more_used_mib(memory: MemoryProbe, make: Callable[[], object]) -> int:
    """Return how much more is used after `make`; the watch agrees with the kernel before and after.

    Free pages that a CPU keeps for itself are used for the kernel and the watch, though by nobody; what is
    allocated next may be those. They are left out of the difference.
    """
    before = agreed_bytes(memory) - kept_bytes()
    make()
    return (agreed_bytes(memory) - kept_bytes() - before) // MIB


def ahead(mib: int) -> int:
    """Return the level that so much more of the machine's memory is at, in pages."""
    return used_bytes() // PAGE + mib * PAGES


def use_up(cgroup: Cgroup, fire: int) -> None:
    """Allocate until the kernel's own figure is past the level, in pages.

    How much that takes is not known before: free pages that a CPU keeps for itself count as used, up to an
    eighth of the memory since 6.7, and are what it allocates first.
    """
    for _ in range(40):
        if used_bytes() > fire * PAGE + SLACK_BYTES:
            return
        cgroup.allocate(16)
    raise AssertionError(f"640 MiB later {used_bytes()} bytes are used, the level is {fire * PAGE}")


def test_watch_counts_as_the_kernel_counts_mem_available_of_whatever_memory_is_used(
    memory: MemoryProbe, cgroup: Cgroup
) -> None:
    """Of page cache and of slab the kernel counts up to the low watermark as used, or up to a half."""
    memory.prepare_node(mem_available=True)
    with PageCache() as cache, NegativeDentries() as dentries, PageCache(Path("/dev/shm")) as files:
        assert more_used_mib(memory, lambda: cache.write(150)) < 90
        assert more_used_mib(memory, cache.use) < 60
        more_used_mib(memory, lambda: dentries.make(60))
        assert more_used_mib(memory, lambda: files.write(100)) > 80

        def allocate() -> None:
            held = used_bytes() - kept_bytes() + 190 * MIB
            cgroup.allocate(200)
            eventually(lambda: used_bytes() - kept_bytes() >= held, "the memory is allocated")

        assert more_used_mib(memory, allocate) > 180


def test_crossing_of_mem_available_is_told_and_a_pass_then_sees_it(
    memory: MemoryProbe, cgroup: Cgroup
) -> None:
    memory.prepare_node(mem_available=True)
    fire, watch_id = ahead(150), next(IDS)
    memory.watch_node(watch_id, [level(fire)], counting())
    assert silent(memory, watch_id)
    cgroup.allocate(500)
    (record, *_) = told(memory, watch_id, RecordKind.CROSSING)
    seen = observed()
    memory.watch_node(watch_id, [])
    assert (Watched.NODE_MEMORY, fire) == (record.watched, record.fire)
    assert record.value >= fire
    assert seen.capacity - seen.available >= fire * PAGE - SLACK_BYTES


def test_page_cache_that_is_in_use_crosses_no_level_of_mem_available(
    memory: MemoryProbe, cgroup: Cgroup
) -> None:
    memory.prepare_node(mem_available=True)
    watch_id = next(IDS)
    with PageCache() as cache:
        cache.write(250)
        fire = ahead(60)
        memory.watch_node(watch_id, [level(fire)], counting())
        cache.use()
        assert silent(memory, watch_id)
        use_up(cgroup, fire)
        (record, *_) = told(memory, watch_id, RecordKind.CROSSING)
        memory.watch_node(watch_id, [])
    assert fire == record.fire


def test_daemon_evicts_at_the_crossing_of_mem_available_woken_by_ebpf_and_not_for_page_cache(
    service: Service,
) -> None:
    run("systemctl", "set-property", "--runtime", "guarded.slice", "MemoryMax=infinity")
    threshold_mib = (read_meminfo().available_bytes or 0) // MIB - 250
    section = {
        "nodeCgroup": "/",
        "pods": {"parents": ["/guarded.slice"]},
        "sources": {"psi": False},
        "housekeepingInterval": "5s",
        "memoryAvailable": "memAvailable",
    }
    service.configure({"evictionHard": {"memory.available": f"{threshold_mib}Mi"}}, section)
    service.start()
    service.armed_after("ebpf")
    quiet = Tenant("quiet", "hold", "50")
    eventually(quiet.holds_its_memory, "the quiet unit's memory")
    with PageCache() as cache:
        cache.write(300)
        cache.use()
        service.two_more_passes()
        assert [] == service.evicted()
        (shown,) = (one for one in service.status()["signals"] if one["signal"] == "memory.available")
        assert "memAvailable" == shown["counted_as"]
        hog = Tenant("hog", "grow", "380", "100")
        decision = service.wait_for_eviction()
        assert [hog.pod] == service.evicted()
        assert service.was_woken_by("ebpf", decision)
        assert threshold_mib * MIB - 64 * MIB < int(decision["threshold"]["available"]) < threshold_mib * MIB
    assert quiet.is_alive()
