"""The counters of the kernel's OOM killer: how many kills, and roughly at whose limit.

/proc/vmstat (`oom_kill`, since 4.13) counts the kills of the whole machine. On v2 memory.events counts those
of a cgroup's subtree, and `oom` in memory.events.local how often reclaim could not keep it below its own
limit. On v1 memory.oom_control counts the kills of the cgroup alone; an eventfd on the same file shows whose
limit it was (`memcg_events.register_oom`). Sources: Documentation/admin-guide/cgroup-v2.rst,
cgroup-v1/memory.rst.
"""

from __future__ import annotations

from contextlib import closing
from itertools import islice
from pathlib import Path

from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupDirectory, walk
from reactor.kernel.cgroup_files import CgroupVersion
from reactor.kernel.files import GONE, parse_field, parse_integer, read_file
from reactor.kernel.procfs import PROC


def machine_kills(proc: Path = PROC) -> int:
    """Return how many processes were killed on the machine so far, at whatever limit."""
    path = proc / "vmstat"
    return parse_field(read_file(path), b"oom_kill", str(path))


def subtree_kills(tree: CgroupTree, cgroup: str) -> int:
    """Return how many processes were killed in a cgroup of v2 and below it. Raises OSError."""
    return _field(tree.path(cgroup) / "memory.events", b"oom_kill")


def subtree_limits_met(tree: CgroupTree, cgroup: str) -> int:
    """Return how often a cgroup of v2, or one below it, was out of memory at its limit. Raises OSError."""
    return _field(tree.path(cgroup) / "memory.events", b"oom")


def own_limit_met(tree: CgroupTree, cgroup: str) -> int:
    """Return how often a cgroup of v2 was out of memory at its own limit. Raises OSError."""
    return _field(tree.path(cgroup) / "memory.events.local", b"oom")


def own_kills(directory: CgroupDirectory) -> int:
    """Return how many of a v1 cgroup's own processes were killed. Raises OSError where it is gone."""
    name = "memory.oom_control"
    return parse_field(directory.read(name), b"oom_kill", f"{directory.cgroup}/{name}")


def kills_within(directory: CgroupDirectory, version: CgroupVersion, most_cgroups: int) -> tuple[int, int]:
    """Return how many processes were killed in a cgroup and below it, and how many cgroups were read.

    On v1 each cgroup counts its own, and no more than `most_cgroups` are read. Raises OSError where the
    cgroup is gone.
    """
    if version is CgroupVersion.V2:
        name = "memory.events"
        return parse_field(directory.read(name), b"oom_kill", f"{directory.cgroup}/{name}"), 1
    counted = []
    with closing(walk(directory, lambda _cgroup, _error: None)) as found:
        for one in islice(found, most_cgroups):
            try:
                counted.append(own_kills(one))
            except OSError as error:
                if one is directory or error.errno not in GONE:
                    raise
    return sum(counted), max(1, len(counted))


def limit_was_met(tree: CgroupTree, cgroup: str) -> bool:
    """Return whether a v1 cgroup has ever been at its own limit, if only with page cache. Raises OSError."""
    path = tree.path(cgroup) / "memory.failcnt"
    return parse_integer(read_file(path), str(path)) > 0


def _field(path: Path, key: bytes) -> int:
    return parse_field(read_file(path), key, str(path))
