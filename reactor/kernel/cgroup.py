"""Control groups: where their hierarchies are mounted, their limits, their counters, their processes.

Both versions behind one surface. On v1 each controller is a hierarchy of its own and a cgroup is mirrored
under the same path in those where somebody made it; on v2 there is one. Hybrid machines count as what the
memory controller is on. Sources: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/{memory,cgroups}.rst.

Cgroups are named by their path below the hierarchy's root: "/" is the root, "/reactor-demo/pod-a" a cgroup.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Self

from reactor.errors import KernelInterfaceError, RefusedError
from reactor.kernel.cgroup_files import (
    CgroupVersion,
    cgroup_components,
    parse_cgroup_mounts,
    parse_limit,
    parse_own_cgroup,
    parse_processes,
)
from reactor.kernel.files import KernelFile, parse_field, parse_integer, read_file, write_file

__all__ = ["UNLIMITED_BYTES", "CgroupTree", "CgroupVersion", "Controller", "MemoryCounters", "own_cgroup"]

Controller = Literal["memory", "pids", "cpu", "freezer"]

UNLIMITED_BYTES: Final = 9223372036854771712  # what v1 shows where nothing limits
# A cgroup that goes away while it is being walked; a threaded cgroup's cgroup.procs.
_GONE: Final = frozenset({errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP})


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupTree:
    """The mounted hierarchies; None where a controller is not mounted. On v2 all roots are the same."""

    version: CgroupVersion
    memory_root: Path
    pids_root: Path | None = None
    cpu_root: Path | None = None
    freezer_root: Path | None = None

    @classmethod
    def discover(cls, proc_mounts: Path = Path("/proc/self/mounts")) -> Self:
        """Return the hierarchies of this machine.

        Raises KernelInterfaceError where no memory controller is mounted.
        """
        v1, v2 = parse_cgroup_mounts(proc_mounts.read_bytes())
        v2_controllers = _controllers(v2) if v2 else frozenset()
        if "memory" in v1:
            return cls(
                version=CgroupVersion.V1,
                memory_root=v1["memory"],
                pids_root=v1.get("pids", v2 if "pids" in v2_controllers else None),
                cpu_root=v1.get("cpu"),
                freezer_root=v1.get("freezer"),
            )
        if v2 is None or "memory" not in v2_controllers:
            raise KernelInterfaceError(
                str(proc_mounts), sorted(v1) or "no cgroup mounts", "a mounted cgroup memory controller"
            )
        return cls(version=CgroupVersion.V2, memory_root=v2, pids_root=v2, cpu_root=v2, freezer_root=v2)

    def path(self, cgroup: str, controller: Controller = "memory") -> Path:
        """Return the directory of a cgroup, which need not exist.

        Raises RefusedError for a path that is not normal ("..", "//", NUL, no leading "/"), that passes
        through a symlink, or whose controller is not mounted: a name from outside must not reach anything
        but the cgroup that it spells.
        """
        return Path(self._directory(cgroup, controller))

    def exists(self, cgroup: str, controller: Controller = "memory") -> bool:
        """Return whether the cgroup exists in the controller's hierarchy. Raises RefusedError as `path`."""
        return self._root(controller) is not None and self.path(cgroup, controller).is_dir()

    def children(self, cgroup: str, controller: Controller = "memory") -> tuple[str, ...]:
        """Return the names of the cgroups directly below, sorted. Raises OSError where it is gone."""
        return tuple(sorted(_subdirectories(self._directory(cgroup, controller))))

    @staticmethod
    def contains(parent: str, cgroup: str) -> bool:
        """Return whether `cgroup` lies strictly below `parent`; a path that is not normal never does."""
        try:
            above, below = cgroup_components(parent), cgroup_components(cgroup)
        except RefusedError:
            return False
        return len(below) > len(above) and below[: len(above)] == above

    def memory_limit_bytes(self, cgroup: str) -> int | None:
        """Return the cgroup's own memory limit, None where it has none (the root never has)."""
        name = "memory.max" if self.version is CgroupVersion.V2 else "memory.limit_in_bytes"
        return self._limit(cgroup, "memory", name)

    def memory_request_bytes(self, cgroup: str) -> int:
        """Return how much memory the cgroup asks to keep, 0 where nothing.

        v2: memory.low, else memory.min. v1: the soft limit. UNLIMITED_BYTES where v2 protects all of it.
        """
        if self.version is CgroupVersion.V1:
            return self._limit(cgroup, "memory", "memory.soft_limit_in_bytes") or 0
        for name in ("memory.low", "memory.min"):
            path = f"{self._directory(cgroup, 'memory')}/{name}"
            try:
                request_bytes = parse_limit(read_file(path), path)
            except FileNotFoundError:
                continue  # the root has neither
            if request_bytes != 0:
                return UNLIMITED_BYTES if request_bytes is None else request_bytes
        return 0

    def pids_limit(self, cgroup: str) -> int | None:
        """Return how many tasks the cgroup may have, None without a limit or a pids controller."""
        return self._limit(cgroup, "pids", "pids.max")

    def pids_current(self, cgroup: str) -> int | None:
        """Return how many tasks (threads count) are in the subtree, None where the controller has no say."""
        if self.pids_root is None:
            return None
        path = f"{self._directory(cgroup, 'pids')}/pids.current"
        try:
            return parse_integer(read_file(path), path)
        except FileNotFoundError:
            return None  # the root has no counter, and v1 may not mirror the cgroup

    def set_memory_limit(self, cgroup: str, limit_bytes: int | None) -> None:
        """Set the memory limit (None: none). For cgroups of reactor's own: pods' limits are never touched."""
        if self.version is CgroupVersion.V2:
            self._write(cgroup, "memory", "memory.max", "max" if limit_bytes is None else str(limit_bytes))
        else:
            unlimited = limit_bytes is None
            self._write(cgroup, "memory", "memory.limit_in_bytes", "-1" if unlimited else str(limit_bytes))

    def set_memory_request(self, cgroup: str, request_bytes: int) -> None:
        """Set what the cgroup asks to keep: memory.low, on v1 the soft limit. For reactor's own cgroups."""
        name = "memory.low" if self.version is CgroupVersion.V2 else "memory.soft_limit_in_bytes"
        self._write(cgroup, "memory", name, str(request_bytes))

    def set_cpu_quota(self, cgroup: str, quota_us: int | None, period_us: int = 100_000) -> None:
        """Let the cgroup run `quota_us` in each period (None: as long as it likes). Raises OSError."""
        if self.version is CgroupVersion.V2:
            quota = "max" if quota_us is None else str(quota_us)
            self._write(cgroup, "cpu", "cpu.max", f"{quota} {period_us}")
            return
        if quota_us is not None:
            self._write(cgroup, "cpu", "cpu.cfs_period_us", str(period_us))
        self._write(cgroup, "cpu", "cpu.cfs_quota_us", "-1" if quota_us is None else str(quota_us))

    def lift_cpu_quota(self, cgroup: str) -> int:
        """Take the CPU quotas off the cgroup and everything below it; return how many cgroups that was.

        Without the cpu controller, or where nothing mirrors the cgroup there, that is none. A cgroup that
        vanishes meanwhile needs no lifting. Raises OSError where the kernel refuses.
        """
        if self.cpu_root is None:
            return 0
        name, unlimited = (
            ("cpu.max", b"max") if self.version is CgroupVersion.V2 else ("cpu.cfs_quota_us", b"-1")
        )
        lifted = 0
        for directory in self._walk(cgroup, "cpu"):
            with _gone_is_fine():
                if not read_file(f"{directory}/{name}").startswith(unlimited):
                    write_file(f"{directory}/{name}", unlimited.decode())
                    lifted += 1
        return lifted

    def processes(self, cgroup: str, controller: Controller = "memory") -> list[int]:
        """Return the pids in the cgroup and below, each once.

        Cgroups that vanish meanwhile hold none, and threaded ones (v2) show theirs in their domain.

        Processes of another pid namespace show as 0 and are left out: to kill(2) that is the caller's group.
        """
        pids: dict[int, None] = {}
        for directory in self._walk(cgroup, controller):
            with _gone_is_fine():
                pids.update(dict.fromkeys(parse_processes(read_file(f"{directory}/cgroup.procs"))))
        return list(pids)

    def _root(self, controller: Controller) -> Path | None:
        return {
            "memory": self.memory_root,
            "pids": self.pids_root,
            "cpu": self.cpu_root,
            "freezer": self.freezer_root,
        }[controller]

    def _directory(self, cgroup: str, controller: Controller) -> str:
        """Return what `path` does as plain text: pathlib would double the time that listing pods takes."""
        root = self._root(controller)
        if root is None:
            raise RefusedError(f"cgroup {cgroup!r}: the {controller} controller is not mounted")
        spelled = os.fspath(root)
        for part in cgroup_components(cgroup):
            spelled = f"{spelled}/{part}"
            if os.path.islink(spelled):
                raise RefusedError(f"cgroup {cgroup!r}: leads through a symlink")
        return spelled

    def _limit(self, cgroup: str, controller: Controller, name: str) -> int | None:
        if self._root(controller) is None:
            return None
        directory = self._directory(cgroup, controller)
        path = f"{directory}/{name}"
        try:
            return parse_limit(read_file(path), path)
        except FileNotFoundError:
            if os.path.isdir(directory) or controller != "memory":
                return None  # the root has no limits, and v1 may not mirror the cgroup
            raise

    def _write(self, cgroup: str, controller: Controller, name: str, text: str) -> None:
        write_file(self.path(cgroup, controller) / name, text)

    def _walk(self, cgroup: str, controller: Controller) -> Iterator[str]:
        """Yield the cgroup's directory and those below it, parents first; nothing where it doesn't exist."""
        waiting = [self._directory(cgroup, controller)]
        while waiting:
            directory = waiting.pop()
            yield directory
            with _gone_is_fine():
                waiting += [f"{directory}/{name}" for name in _subdirectories(directory)]


class MemoryCounters:
    """One cgroup's memory counters, held open: two preads for a fresh working set, no path walk.

    v1 counts the subtree in memory.usage_in_bytes and in the `total_` lines of memory.stat; v2 counts it in
    memory.current and plain memory.stat. Raises OSError (with the path; ENODEV once the cgroup is gone)
    and KernelInterfaceError for content that is no counter.
    """

    __slots__ = ("_key", "_stat", "_usage")

    def __init__(self, tree: CgroupTree, cgroup: str) -> None:
        directory = tree.path(cgroup)
        v2 = tree.version is CgroupVersion.V2
        self._key = b"inactive_file" if v2 else b"total_inactive_file"
        self._usage = KernelFile(directory / ("memory.current" if v2 else "memory.usage_in_bytes"))
        try:
            self._stat = KernelFile(directory / "memory.stat")
        except OSError:
            self._usage.close()
            raise

    def usage_bytes(self) -> int:
        """Return the memory charged to the cgroup and below, page cache included."""
        return parse_integer(self._usage.read(), self._usage.path)

    def inactive_file_bytes(self) -> int:
        """Return the page cache that the kernel gives back before anything else."""
        return parse_field(self._stat.read(), self._key, self._stat.path)

    def working_set_bytes(self) -> int:
        """Return usage without inactive page cache, 0 at the least, as the kubelet reports it.

        The two counters are read one after the other and batched by the kernel, so their difference may
        come out below zero.
        """
        usage_bytes = self.usage_bytes()
        if usage_bytes == 0:
            return 0
        return max(0, usage_bytes - self.inactive_file_bytes())

    def close(self) -> None:
        """Close the descriptors; a second time is harmless."""
        self._usage.close()
        self._stat.close()


def own_cgroup(tree: CgroupTree, proc_cgroup: Path = Path("/proc/self/cgroup")) -> str | None:
    """Return the cgroup of the process whose /proc/PID/cgroup is given, in the memory hierarchy.

    None where it can't be told. In a cgroup namespace it may begin with "/..": then it is outside the tree.
    """
    try:
        return parse_own_cgroup(read_file(proc_cgroup), tree.version)
    except OSError:
        return None


def _subdirectories(directory: str) -> list[str]:
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]


def _controllers(root: Path) -> frozenset[str]:
    try:
        return frozenset(os.fsdecode(read_file(root / "cgroup.controllers")).split())
    except OSError:
        return frozenset()


@contextmanager
def _gone_is_fine() -> Iterator[None]:
    """Leave the block where its cgroup turns out to be gone; any other OSError goes on."""
    try:
        yield
    except OSError as error:
        if error.errno not in _GONE:
            raise
