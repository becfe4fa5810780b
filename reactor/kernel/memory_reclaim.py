"""memory.reclaim of cgroup v2: the kernel reclaims so much of a cgroup, in the writer's time.

Since Linux 5.19 (94968384dde1, "memcg: introduce per-memcg reclaim interface"); `swappiness=` came later, and
a kernel that does not know it refuses the whole write with EINVAL. What memory.low and memory.min protect
stays. Source: Documentation/admin-guide/cgroup-v2.rst.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Final

from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_files import CgroupVersion
from reactor.kernel.files import write_file

NAME: Final = "memory.reclaim"
_ANONYMOUS: Final = 200  # of 200: page cache is left alone as far as the kernel can


def unavailable_because(tree: CgroupTree) -> str | None:
    """Return why nothing can be reclaimed from a cgroup of one's choice here, None where it can."""
    if tree.version is CgroupVersion.V1:
        return "the memory controller is on cgroup v1, which has no memory.reclaim"
    if not (tree.memory_root / NAME).exists():  # the root has one, too
        return "this kernel has no memory.reclaim (it needs Linux 5.19)"
    return None


def reclaim(tree: CgroupTree, cgroup: str, wanted_bytes: int, *, to_swap: bool = False) -> bool:
    """Reclaim so much from a cgroup; return whether all of it was found. Blocks in the kernel meanwhile.

    With `to_swap` anonymous memory and tmpfs go first, where the kernel can be told so. Raises OSError with
    the path, RefusedError as CgroupTree.path.
    """
    path = tree.path(cgroup) / NAME
    if to_swap:
        try:
            return _is_found(path, f"{wanted_bytes} swappiness={_ANONYMOUS}")
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
    return _is_found(path, str(wanted_bytes))


def _is_found(path: Path, text: str) -> bool:
    try:
        write_file(path, text)
    except OSError as error:
        if error.errno != errno.EAGAIN:
            raise
        return False
    return True
