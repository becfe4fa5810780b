"""How much has gone to swap and come back since the boot, of the machine or of a cgroup: counters.

The machine's are `pswpin` and `pswpout` of /proc/vmstat, in pages; a cgroup's (v2) the same lines of its
memory.stat, which the kernel has since 6.13 (15ff4d409e1a, "mm/memcontrol: add per-memcg pgpgin/pswpin
counter"); v1 counts it of no cgroup. What zswap takes and gives, without a disk, is in `zswpout` and `zswpin`
alone and is added: as much reclaim and as many faults. Sources: mm/vmstat.c, mm/memcontrol.c, mm/page_io.c.
"""

from __future__ import annotations

import os
from mmap import PAGESIZE
from pathlib import Path
from typing import Final, NamedTuple

from reactor.errors import KernelInterfaceError
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_files import CgroupVersion
from reactor.kernel.files import parse_field, read_file
from reactor.kernel.procfs import PROC

_IN: Final = (b"pswpin", b"zswpin")
_OUT: Final = (b"pswpout", b"zswpout")


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
