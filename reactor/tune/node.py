"""The node that thresholds are for, and whether anything may be measured on it now."""

from __future__ import annotations

import os
import re
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from reactor.errors import ReactorError, RefusedError
from reactor.kernel.cgroup import CgroupTree, MemoryCounters
from reactor.kernel.files import read_file
from reactor.kernel.procfs import parse_swap, read_kernel_memory
from reactor.model.settings import MemoryAvailable, Settings
from reactor.model.signals import Signal
from reactor.observe.memory import NodeMemory
from reactor.testbed.allocator import MIB
from reactor.testbed.crossing import CAPACITY_BYTES, check_machine
from reactor.tune.measured import NodeFacts, Reserve
from reactor.workloads.search import matches_of

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
# A CPU takes pages from a cgroup's counter 64 at a time (MEMCG_CHARGE_BATCH, mm/memcontrol.c).
_BATCH_BYTES: Final = 64 * _PAGE_BYTES
_DAEMON_BYTES: Final = 45 * MIB
_HUGE_PAGES: Final = Path("sys/kernel/mm/transparent_hugepage/enabled")


def facts(tree: CgroupTree, settings: Settings, root: Path = Path("/")) -> NodeFacts:
    """Return the facts of the node that the settings are for. Raises OSError, ReactorError."""
    with closing(NodeMemory(tree, settings, root / "proc")) as memory:
        seen = memory.node().observation()
    cpus = len(os.sched_getaffinity(0))
    is_machine = settings.node_cgroup is None
    # MemAvailable is without what the kernel holds and keeps.
    holds_back = is_machine and settings.memory_available is MemoryAvailable.WORKING_SET
    watermark_bytes = watermarks_bytes(read_file(root / "proc/zoneinfo")) if holds_back else 0
    swap_bytes, swap_free_bytes = parse_swap(read_file(root / "proc/meminfo")) if is_machine else (0, 0)
    return NodeFacts(
        capacity_bytes=seen.capacity,
        available_bytes=seen.available,
        swap_bytes=swap_bytes,
        swap_free_bytes=swap_free_bytes,
        cpus=cpus,
        huge_pages=huge_pages(root),
        reserve=Reserve(
            watermark_bytes=watermark_bytes,
            batch_bytes=cpus * _BATCH_BYTES,
            daemon_bytes=_DAEMON_BYTES,
            kernel_bytes=read_kernel_memory(root / "proc") if holds_back else 0,
        ),
        largest_pod_bytes=_largest_pod_bytes(tree, settings),
    )


def watermarks_bytes(zoneinfo: bytes) -> int:
    """Return the sum of all zones' high watermarks, at which the kernel's own reclaim comes to rest.

    From /proc/zoneinfo, whose lines `high N` (in pages) stand among each zone's `pages free`; the per-CPU
    lists have lines `high: N`. A temporary boost of a zone's watermarks (vm.watermark_boost_factor) is part
    of them and has a line of its own: it is subtracted.
    """
    pages = {
        name: sum(map(int, re.findall(rb"^ +%s +([0-9]+)$" % name, zoneinfo, re.MULTILINE)))
        for name in (b"high", b"boost")
    }
    return max(0, pages[b"high"] - pages[b"boost"]) * _PAGE_BYTES


def huge_pages(root: Path = Path("/")) -> str:
    """Return who is given huge pages: `always`, `madvise` or `never` (also where the kernel has none)."""
    try:
        chosen = re.search(r"\[(\w+)\]", (root / _HUGE_PAGES).read_text())
    except OSError:
        return "never"
    return chosen[1] if chosen else "never"


def check_calm(tree: CgroupTree, settings: Settings, proc: Path = Path("/proc")) -> None:
    """Raise RefusedError where this node has no room for a virtual one, or is in pressure already.

    What the virtual node takes counts on the real one: at its fullest it must cross no threshold there.
    """
    check_machine(proc)
    _check_thresholds(tree, settings, proc)


def _check_thresholds(tree: CgroupTree, settings: Settings, proc: Path) -> None:
    if settings.node_cgroup is not None:
        return  # what is measured beside it takes nothing from it
    with closing(NodeMemory(tree, settings, proc)) as memory:
        seen = memory.node().observation()
    for threshold in settings.eviction.thresholds:
        if threshold.signal is not Signal.MEMORY_AVAILABLE:
            continue
        wanted = threshold.value.of(seen.capacity)
        if seen.available - CAPACITY_BYTES < wanted:
            raise RefusedError(
                f"{threshold}: {seen.available // MIB} MiB are available on this node, and a virtual node of "
                f"{CAPACITY_BYTES // MIB} MiB would cross it: real pods would be evicted"
            )


def _largest_pod_bytes(tree: CgroupTree, settings: Settings) -> int | None:
    found = []
    for parent in matches_of(tree, settings.pod_parents):
        with suppress(OSError, ReactorError):
            for child in tree.children(parent):
                with closing(MemoryCounters(tree, f"{parent.rstrip('/')}/{child}")) as counters:
                    found.append(counters.working_set_bytes())
    return max(found, default=None)
