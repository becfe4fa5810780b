"""memory.available of a machine on cgroup v2, beside the kernel's own figures of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from guarded import V2, Service, Tenant, eventually, run
from machine_memory import MIB, KernelFigures, NegativeDentries, PageCache, kernel_figures, observed

from reactor.kernel.procfs import read_kernel_memory, read_meminfo

pytestmark = pytest.mark.skipif(not V2, reason="the root of cgroup v2 is meant: run it on bookworm or trixie")

# What two CPUs have not added up yet, and what the system itself does between two readings.
SLACK_BYTES: Final = 8 * MIB
NODE: Final = {"nodeCgroup": "/", "pods": {"parents": ["/guarded.slice"]}, "sources": {"psi": False}}
HUGE_PAGES: Final = Path("/proc/sys/vm/nr_hugepages")


def kubelet_available_bytes() -> int:
    figures = kernel_figures()
    return figures.total_bytes - read_meminfo().huge_pages_bytes - figures.working_set_bytes


def changed(make: Callable[[], object]) -> tuple[int, KernelFigures, KernelFigures]:
    """Return how much less is available after `make`, in bytes, and the kernel's figures before and after."""
    before, available_before = kernel_figures(), observed().available
    make()
    after, available_after = kernel_figures(), observed().available
    assert abs(available_after - kubelet_available_bytes()) < SLACK_BYTES
    return available_before - available_after, before, after


def test_machine_has_available_what_the_kubelet_counts_of_it() -> None:
    assert abs(observed().available - kubelet_available_bytes()) < SLACK_BYTES


def test_page_cache_counts_as_available_until_it_is_active() -> None:
    """With multi-generational LRU lists the kernel takes no page for active that is merely read."""
    with PageCache() as cache:
        less, before, after = changed(lambda: cache.write(200))
        assert before.free_bytes - after.free_bytes > 150 * MIB
        assert abs(less) < SLACK_BYTES
        less, before, after = changed(cache.use)
        assert abs(less - (after.working_set_bytes - before.working_set_bytes)) < SLACK_BYTES


def test_files_in_memory_count_as_used() -> None:
    with PageCache(Path("/dev/shm")) as files:
        less, before, after = changed(lambda: files.write(100))
    assert before.free_bytes - after.free_bytes > 90 * MIB
    assert less > 90 * MIB


def test_slab_counts_as_available() -> None:
    with NegativeDentries() as dentries:
        less, before, after = changed(lambda: dentries.make(60))
    assert after.slab_bytes - before.slab_bytes > 50 * MIB
    assert before.free_bytes - after.free_bytes > 40 * MIB
    assert abs(less) < SLACK_BYTES


def test_anonymous_memory_counts_as_used() -> None:
    kept: list[bytes] = []
    less, before, after = changed(lambda: kept.append(b"\1" * (200 * MIB)))
    assert abs(less - (after.working_set_bytes - before.working_set_bytes)) < SLACK_BYTES
    assert less > 190 * MIB


def test_huge_pages_are_no_part_of_the_capacity() -> None:
    before = observed()
    HUGE_PAGES.write_text("64")
    try:
        taken_bytes = read_meminfo().huge_pages_bytes
        after = observed()
    finally:
        HUGE_PAGES.write_text("0")
    assert taken_bytes > 0
    assert before.capacity - after.capacity == taken_bytes
    assert abs(before.available - after.available - taken_bytes) < SLACK_BYTES


def test_daemon_tells_the_kernels_figure_and_what_the_kernel_itself_holds(service: Service) -> None:
    section = {**NODE, "housekeepingInterval": "2s"}
    service.configure({"evictionHard": {"memory.available": "1Mi"}}, section)
    service.start()
    quiet = Tenant("quiet", "hold", "50")
    eventually(quiet.holds_its_memory, "the quiet unit's memory")
    eventually(lambda: service.status()["memory"] is not None, "who holds the memory")

    def tells_the_kernels_figures() -> bool:
        document = service.status()
        (signal,) = (one for one in document["signals"] if one["signal"] == "memory.available")
        off_bytes = (
            int(signal["available"]) - kubelet_available_bytes(),
            document["memory"]["used_bytes"] - kernel_figures().working_set_bytes,
            document["memory"]["kernel_bytes"] - read_kernel_memory(),
        )
        return max(map(abs, off_bytes)) < SLACK_BYTES

    eventually(tells_the_kernels_figures, "the kernel's figures in status")
    assert service.status()["memory"]["outside"]["kernel_bytes"] == 0


def test_daemon_evicts_at_the_crossing_and_neither_for_slab_nor_for_page_cache(service: Service) -> None:
    """Page cache and slab take more free memory than the threshold leaves; the hog after them is evicted."""
    # What the hog meets is to be the machine's threshold, not the limit of its slice.
    run("systemctl", "set-property", "--runtime", "guarded.slice", "MemoryMax=infinity")
    threshold_mib = kubelet_available_bytes() // MIB - 250
    section = {**NODE, "housekeepingInterval": "5s"}
    service.configure({"evictionHard": {"memory.available": f"{threshold_mib}Mi"}}, section)
    service.start()
    eventually(lambda: service.source("ebpf")[0] == "armed", "eBPF armed")
    quiet = Tenant("quiet", "hold", "50")
    eventually(quiet.holds_its_memory, "the quiet unit's memory")
    with PageCache() as cache, NegativeDentries() as dentries:
        before = kernel_figures()
        cache.write(300)
        dentries.make(60)
        assert before.free_bytes - kernel_figures().free_bytes > 300 * MIB
        passes = service.status()["passes"]
        eventually(lambda: service.status()["passes"] > passes + 1, "two more passes")
        assert [] == service.evicted()
        hog = Tenant("hog", "grow", "380", "100")
        decision = service.wait_for_eviction()
        assert [hog.pod] == service.evicted()
        assert service.was_woken_by("ebpf", decision)
        threshold = decision["threshold"]
        assert threshold_mib * MIB - 64 * MIB < int(threshold["available"]) < threshold_mib * MIB
    assert quiet.is_alive()
