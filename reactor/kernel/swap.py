"""Swap: the machine's, and what a cgroup has of it and may have.

v2: memory.swap.current and memory.swap.max of the cgroup and of each above it. v1, where the kernel counts
swap (swapaccount): `total_swap` of memory.stat, and what memory.memsw.limit_in_bytes leaves above the memory
limit, both as memory.stat has them for the whole path. Sources: Documentation/admin-guide/cgroup-v2.rst and
cgroup-v1/memory.rst.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from mmap import PAGESIZE
from pathlib import Path
from typing import Final, NamedTuple

from reactor.errors import KernelInterfaceError
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupVersion, parse_limit
from reactor.kernel.files import parse_field, parse_integer, read_file
from reactor.kernel.procfs import PROC, parse_swap

SWAP_EVENTS: Final = "memory.swap.events"
_UNLIMITED_FROM_BYTES: Final = 1 << 62

_IN: Final = (b"pswpin", b"zswpin")
_OUT: Final = (b"pswpout", b"zswpout")


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapSpace:
    """How much swap there is, and how much of it is free, in bytes: 0 and 0 without any."""

    total_bytes: int
    free_bytes: int


class SwapCounter:
    """How much of one cgroup is swapped out, by a file held open.

    Raises OSError (with the path; FileNotFoundError where the kernel does not count it, ENODEV once the
    cgroup is gone) and KernelInterfaceError.
    """

    __slots__ = ("_file", "_is_v2")

    def __init__(self, tree: CgroupTree, cgroup: str, *, inode: int | None = None) -> None:
        self._is_v2 = tree.version is CgroupVersion.V2
        name = "memory.swap.current" if self._is_v2 else "memory.stat"
        path = tree.spelled(cgroup)
        with tree.open_for(f"{path}/{name}", cgroup, inode) as directory:
            self._file = directory.kernel_file(name, path)

    def swapped_bytes(self) -> int:
        """Return how much of the cgroup and of what is below it is in swap."""
        raw = self._file.read()
        if self._is_v2:
            return parse_integer(raw, self._file.path)
        return parse_field(raw, b"total_swap", self._file.path)

    def close(self) -> None:
        """Close the descriptor; a second time is harmless."""
        self._file.close()


def machine_swap(proc: Path = PROC) -> SwapSpace:
    """Return the machine's swap. Raises OSError with the path, KernelInterfaceError."""
    path = proc / "meminfo"
    total_bytes, free_bytes = parse_swap(read_file(path), str(path))
    return SwapSpace(total_bytes=total_bytes, free_bytes=free_bytes)


def cgroup_swap(tree: CgroupTree, cgroup: str, machine: SwapSpace) -> SwapSpace:
    """Return what swap a cgroup may have and what of that is free; the machine's where nothing limits it.

    What limits a cgroup above it limits it too, and others may take it. Raises as SwapCounter, but for files
    that are not there.
    """
    if tree.version is CgroupVersion.V1:
        return _v1(tree, cgroup, machine)
    total_bytes, free_bytes = machine.total_bytes, machine.free_bytes
    while cgroup != "/":
        directory = tree.path(cgroup)
        limit, current = f"{directory}/memory.swap.max", f"{directory}/memory.swap.current"
        try:
            limit_bytes = parse_limit(read_file(limit), limit)
            if limit_bytes is not None:
                free_bytes = min(free_bytes, max(0, limit_bytes - parse_integer(read_file(current), current)))
                total_bytes = min(total_bytes, limit_bytes)
        except FileNotFoundError:
            if not directory.is_dir():
                raise
        cgroup = os.path.dirname(cgroup)
    return SwapSpace(total_bytes=total_bytes, free_bytes=min(free_bytes, total_bytes))


def _v1(tree: CgroupTree, cgroup: str, machine: SwapSpace) -> SwapSpace:
    path = f"{tree.path(cgroup)}/memory.stat"
    stat = read_file(path)
    if b"\nhierarchical_memsw_limit " not in stat:
        return machine
    both_bytes, memory_bytes = (
        parse_field(stat, name, path) for name in (b"hierarchical_memsw_limit", b"hierarchical_memory_limit")
    )
    limit_bytes = max(0, both_bytes - memory_bytes)
    if both_bytes >= _UNLIMITED_FROM_BYTES or limit_bytes >= machine.total_bytes:
        return machine
    swapped_bytes = parse_field(stat, b"total_swap", path)
    free_bytes = min(machine.free_bytes, max(0, limit_bytes - swapped_bytes))
    return SwapSpace(total_bytes=limit_bytes, free_bytes=free_bytes)


# How much has gone to swap and come back since the boot, of the machine or of a cgroup: counters.
#
# The machine's are `pswpin` and `pswpout` of /proc/vmstat, in pages; a cgroup's (v2) the same lines of its
# memory.stat, which the kernel has since 6.13 (15ff4d409e1a, "mm/memcontrol: add per-memcg pgpgin/pswpin
# counter"); v1 counts it of no cgroup. What zswap takes and gives, without a disk, is in `zswpout` and
# `zswpin` alone and is added: as much reclaim and as many faults. Sources: mm/vmstat.c, mm/memcontrol.c,
# mm/page_io.c.


class SwapTraffic(NamedTuple):
    """Bytes that have come back from swap, and that have gone there, since the boot."""

    in_bytes: int
    out_bytes: int

    @property
    def total_bytes(self) -> int:
        """Return both together."""
        return self.in_bytes + self.out_bytes


def parse_swap_traffic(raw: bytes, interface: str) -> SwapTraffic | None:
    """Return what /proc/vmstat or a memory.stat of v2 says; None where the kernel does not count it there.

    Raises KernelInterfaceError for a line that holds no number.
    """
    counted = b"\n" + raw
    if any(b"\n" + key + b" " not in counted for key in (_IN[0], _OUT[0])):
        return None
    in_pages, out_pages = (
        sum(parse_field(raw, key, interface) for key in keys if b"\n" + key + b" " in counted)
        for keys in (_IN, _OUT)
    )
    return SwapTraffic(in_bytes=in_pages * PAGESIZE, out_bytes=out_pages * PAGESIZE)


def read_swap_traffic(tree: CgroupTree | None, cgroup: str | None, *, proc: Path = PROC) -> SwapTraffic:
    """Return the traffic of a cgroup, or of the machine (None, and "/").

    Raises OSError with the path, RefusedError as CgroupTree.path, and KernelInterfaceError where it is not
    counted.
    """
    accepted = "lines pswpin and pswpout"
    if tree is None or cgroup is None or cgroup == "/":
        path = os.fspath(proc / "vmstat")
    else:
        path = os.fspath(tree.path(cgroup) / "memory.stat")
        if tree.version is CgroupVersion.V1:
            raise KernelInterfaceError(path, "cgroup v1", f"cgroup v2 with {accepted}")
        accepted += ", which Linux has since 6.13"
    found = parse_swap_traffic(read_file(path), path)
    if found is None:
        raise KernelInterfaceError(path, "neither", accepted)
    return found
