"""Memory that can be had without swapping, as the kernel's MemAvailable counts it.

MemAvailable is what is free above the reserves, and of page cache and of reclaimable slab all but what the
low watermarks keep: half of each, or the watermarks where they are less. Source: si_mem_available in
mm/show_mem.c, calculate_totalreserve_pages in mm/page_alloc.c.

The kernel says it of the machine alone. Of a cgroup it is counted here from memory.stat, by the machine's
watermarks: a limit has none, but the kernel leaves a share of the cache that is in use there too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from reactor.errors import KernelInterfaceError
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.kernel.cgroup_memory import MemoryCounters
from reactor.kernel.files import PAGE_BYTES, KernelFile, parse_field
from reactor.kernel.procfs import PROC, parse_meminfo

_ZONE: Final = re.compile(rb"^Node +[0-9]+, zone +\S+$", re.MULTILINE)
_AMOUNT: Final = re.compile(rb"^ +(low|high|managed) +([0-9]{1,18})$", re.MULTILINE)
_PROTECTION: Final = re.compile(rb"^ +protection: \(([0-9, ]*)\)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermarks:
    """What the kernel keeps of a machine's memory, in bytes: 0 and 0 keep nothing.

    `low_bytes` are the low watermarks of all zones, `reserved_bytes` what no ordinary allocation can have.
    """

    low_bytes: int = 0
    reserved_bytes: int = 0


def parse_watermarks(raw: bytes, interface: str = "/proc/zoneinfo") -> Watermarks:
    """Return the watermarks of all zones; a zone that has no memory (yet) has none.

    A temporary boost of a zone's watermarks is part of them, for the kernel too.
    """
    low_pages = reserved_pages = 0
    heads = list(_ZONE.finditer(raw))
    if not heads:
        raise KernelInterfaceError(interface, raw[:64], "the machine's zones")
    ends = [head.start() for head in heads[1:]] + [len(raw)]
    for head, end in zip(heads, ends, strict=True):
        zone = raw[head.end() : end]
        amounts = {name: int(number) for name, number in _AMOUNT.findall(zone)}
        protections = _PROTECTION.search(zone)
        if amounts.keys() != {b"low", b"high", b"managed"} or protections is None:
            raise KernelInterfaceError(interface, head[0][:64], "a zone with its watermarks")
        kept = max((int(one) for one in protections[1].split(b", ") if one), default=0) + amounts[b"high"]
        low_pages += amounts[b"low"]
        reserved_pages += min(kept, amounts[b"managed"])
    return Watermarks(low_bytes=low_pages * PAGE_BYTES, reserved_bytes=reserved_pages * PAGE_BYTES)


def reclaimable_bytes(file_bytes: int, slab_bytes: int, low_bytes: int) -> int:
    """Return how much of page cache and reclaimable slab the kernel would give, in bytes."""
    return sum(kind - min(kind // 2, low_bytes) for kind in (file_bytes, slab_bytes))


class AvailableCounters(MemoryCounters):
    """One cgroup's counters, of which all page cache and slab that can be reclaimed counts as available.

    With `low_bytes` 0 all of it does: of a pod all can be reclaimed. v1 has no figure for slab.
    """

    __slots__ = ("_low_bytes", "_prefix")

    def __init__(
        self, tree: CgroupTree, cgroup: str, low_bytes: int = 0, *, inode: int | None = None
    ) -> None:
        super().__init__(tree, cgroup, inode=inode)
        self._low_bytes = low_bytes
        self._prefix = b"" if tree.version is CgroupVersion.V2 else b"total_"

    def available_cache_bytes(self) -> int:
        """Return how much of the usage counts as available."""
        stat, path = self._stat.read(), self._stat.path
        file_bytes = sum(
            parse_field(stat, self._prefix + name, path) for name in (b"inactive_file", b"active_file")
        )
        has_slab = not self._prefix and b"\nslab_reclaimable " in stat
        slab_bytes = parse_field(stat, b"slab_reclaimable", path) if has_slab else 0
        return reclaimable_bytes(file_bytes, slab_bytes, self._low_bytes)


class MachineCounters(MemoryCounters):
    """The root's usage on v1, of which MemAvailable says how much counts as available.

    That may be less than nothing: what the kernel itself holds is not available, and in no usage.
    """

    __slots__ = ("_meminfo",)

    def __init__(self, tree: CgroupTree, proc: Path = PROC) -> None:
        super().__init__(tree, "/")
        try:
            self._meminfo = KernelFile(proc / "meminfo")
        except OSError:
            super().close()
            raise

    def available_cache_bytes(self) -> int:
        """Return how much of the usage counts as available."""
        machine = parse_meminfo(self._meminfo.read(), self._meminfo.path)
        return self.usage_bytes() - (machine.capacity_bytes - available_bytes_of(machine.available_bytes))

    def close(self) -> None:
        """Close the descriptors; a second time is harmless."""
        self._meminfo.close()
        super().close()


def available_bytes_of(available_bytes: int | None) -> int:
    """Return MemAvailable. Raises KernelInterfaceError where the kernel does not show it (before 3.14)."""
    if available_bytes is None:
        raise KernelInterfaceError("/proc/meminfo", b"", "a line 'MemAvailable:'")
    return available_bytes


def counters_of(tree: CgroupTree, cgroup: str, watermarks: Watermarks | None) -> MemoryCounters:
    """Return a cgroup's counters, open: by its working set, or as MemAvailable where watermarks are given.

    "/" is the machine. Raises OSError and RefusedError as MemoryCounters.
    """
    if watermarks is None:
        return MemoryCounters(tree, cgroup)
    if cgroup == "/":
        return MachineCounters(tree)
    return AvailableCounters(tree, cgroup, watermarks.low_bytes)
