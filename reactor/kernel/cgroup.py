"""Control groups: where their hierarchies are mounted, their limits, their counters, their processes.

Both versions behind one surface. On v1 each controller is a hierarchy of its own and a cgroup is mirrored
under the same path in those where it was made; on v2 there is one. Hybrid machines count as what the
memory controller is on. Sources: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/{memory,cgroups}.rst.

Cgroups are named by their path below the hierarchy's root: "/" is the root, "/reactor-demo/pod-a" a cgroup.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final, Self

from reactor.errors import KernelInterfaceError, RefusedError
from reactor.kernel.cgroup_directory import (
    CgroupDirectory,
    CgroupVersion,
    Refused,
    cgroup_components,
    fail,
    parse_limit,
    walk,
)
from reactor.kernel.files import (
    GONE,
    LastingFile,
    parse_integer,
    read_file,
    read_value,
    unescape_mount,
    with_path,
    write_file,
)
from reactor.kernel.hierarchies import UNLIMITED_BYTES, Controller, Hierarchies
from reactor.kernel.procfs import parse_loadavg_tasks

__all__ = [
    "UNLIMITED_BYTES",
    "CgroupTree",
    "CgroupVersion",
    "Controller",
    "own_cgroup",
]
LIFTED_CGROUPS: Final = 512
GUARD: Final = "guard"
STEWARD: Final = "steward"
_ATTRIBUTES: Final = ("user.delegate", "trusted.delegate")
_SERVICE: Final = ".service"


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupTree(Hierarchies):
    """The mounted hierarchies, and what is asked of them seldom."""

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

    def exists(self, cgroup: str, controller: Controller = "memory") -> bool:
        """Return whether the cgroup exists in the controller's hierarchy. Raises RefusedError as `path`."""
        return self._root(controller) is not None and self.path(cgroup, controller).is_dir()

    def children(self, cgroup: str, controller: Controller = "memory") -> tuple[str, ...]:
        """Return the names of the cgroups directly below, sorted. Raises OSError where it is gone."""
        with os.scandir(self._directory(cgroup, controller)) as entries:
            return tuple(sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False)))

    def open_private(self, cgroup: str) -> int | None:
        """Open a file of a cgroup that root alone may open, to be locked; None where there is none.

        No tenant can hold such a lock, and it is one for all mounts of the hierarchy, a container's too. The
        file is memory.force_empty on cgroup v1, memory.reclaim on v2 (since Linux 5.19). Nothing is written.
        """
        name = "memory.force_empty" if self.version is CgroupVersion.V1 else "memory.reclaim"
        try:
            fd = os.open(self.path(cgroup) / name, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except (OSError, RefusedError):
            return None
        found = os.fstat(fd)
        if found.st_mode & 0o077 or found.st_uid not in {0, os.geteuid()}:
            os.close(fd)
            return None
        return fd

    @staticmethod
    def contains(parent: str, cgroup: str) -> bool:
        """Return whether `cgroup` lies strictly below `parent`; a path that is not normal never does."""
        try:
            above, below = cgroup_components(parent), cgroup_components(cgroup)
        except RefusedError:
            return False
        return len(below) > len(above) and below[: len(above)] == above

    @classmethod
    def holds(cls, above: str, cgroup: str) -> bool:
        """Return whether `cgroup` is `above` or lies below it."""
        return above == cgroup or cls.contains(above, cgroup)

    def memory_limit_bytes(self, cgroup: str) -> int | None:
        return self.listed_memory_limit_bytes(self._directory(cgroup, "memory"))

    def memory_request_bytes(self, cgroup: str) -> int:
        """Return how much memory the cgroup asks to keep, 0 where nothing.

        v2: memory.low, else memory.min. v1: the soft limit. UNLIMITED_BYTES where v2 protects all of it.
        """
        return self.listed_memory_request_bytes(self._directory(cgroup, "memory"))

    def pids_current(self, cgroup: str) -> int | None:
        """Return how many tasks (threads count) are in the subtree, None where the controller has no say."""
        if self.pids_root is None:
            return None
        path = f"{self._directory(cgroup, 'pids')}/pids.current"
        try:
            return parse_integer(read_value(path), path)
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

    def processes(self, cgroup: str, controller: Controller = "memory") -> list[int]:
        """Return the pids in the cgroup and below, each once.

        Cgroups that vanish meanwhile hold none, and threaded ones (v2) show theirs in their domain.
        Processes of another pid namespace show as 0 and are left out: to kill(2) that is the caller's group.
        """
        try:
            top = self.open(cgroup, controller)
        except FileNotFoundError:
            return []
        with top:
            return processes_below(top)

    def _write(self, cgroup: str, controller: Controller, name: str, text: str) -> None:
        write_file(self.path(cgroup, controller) / name, text)


class Tasks:
    """How many tasks a node can have and has, threads included; the files are held open.

    They are its cgroup's if that has a limit, else the machine's.
    """

    def __init__(self, tree: CgroupTree, cgroup: str | None, proc: Path) -> None:
        names = ("sys/kernel/pid_max", "sys/kernel/threads-max", "loadavg")
        self._tree = tree
        self._cgroup = cgroup
        self._of_machine = [LastingFile(proc / name) for name in names]
        self._of_cgroup: list[LastingFile] = []

    def read(self) -> tuple[str, int, int]:
        """Return whose they are ("/" is the machine), how many there can be, and how many there are.

        Raises OSError and KernelInterfaceError with the path, RefusedError for a cgroup that is not plain.
        """
        cgroup = self._cgroup
        if cgroup is not None and self._tree.pids_root is not None:
            if not self._of_cgroup:
                pids = self._tree.path(cgroup, "pids")
                self._of_cgroup = [LastingFile(pids / "pids.max"), LastingFile(pids / "pids.current")]
            most, count = self._of_cgroup
            with suppress(FileNotFoundError):  # the root has neither, and v1 may not mirror the cgroup there
                limit, current = parse_limit(most.read(), most.path), parse_integer(count.read(), count.path)
                if limit is not None:
                    return cgroup, limit, current
        *limits, load = self._of_machine
        # pid_max is the first number that is not given out; the kubelet takes it as the count all the same.
        limit = min(parse_integer(one.read(), one.path) for one in limits)
        return "/", limit, parse_loadavg_tasks(load.read(), load.path)

    def close(self) -> None:
        """Close the files; a reading opens them again."""
        for file in (*self._of_machine, *self._of_cgroup):
            file.close()


def processes_below(top: CgroupDirectory, spared: Collection[str] = ()) -> list[int]:
    """Return the pids in a cgroup and below, but for `spared` cgroups, each once.

    Raises the first OSError after everything that can be listed has been.
    """
    pids: dict[int, None] = {}
    with _all_asked() as refused, closing(walk(top, refused, spared=spared)) as directories:
        for directory in directories:
            try:
                pids.update(dict.fromkeys(directory.processes()))
            except OSError as error:
                refused(directory.cgroup, error)
    return list(pids)


def is_in(top: CgroupDirectory, pid: int, most: int) -> bool:
    """Return whether a process is in a cgroup or below.

    Raises OSError where one can't be listed, KernelInterfaceError where it would be in more than `most`.
    """
    with closing(walk(top, fail)) as directories:
        for count, directory in enumerate(directories):
            if count == most:
                raise KernelInterfaceError(top.cgroup, "more cgroups", f"{most}")
            if pid in directory.processes():
                return True
    return False


def is_said_empty(top: CgroupDirectory, spared: Collection[str] = ()) -> bool:
    """Return whether v2 says that no process is in a cgroup or below, but for `spared` ones directly below.

    False where it says nothing.
    """
    try:
        if not spared:
            return b"populated 0\n" in top.read("cgroup.events")
        names = top.children(spared)
        return not top.processes() and all(_is_child_said_empty(top, name) for name in names)
    except (OSError, KernelInterfaceError):
        return False


def _is_child_said_empty(top: CgroupDirectory, name: str) -> bool:
    try:
        with top.child(name) as below:
            return is_said_empty(below)
    except OSError as error:
        return error.errno in GONE


def are_inhabited(top: CgroupDirectory, spared: Collection[str], few: int) -> Iterator[bool | None]:
    """Yield whether a process is in a cgroup or below, but for `spared` ones; before that None after a `few`.

    Raises OSError where one can't be listed.
    """
    for count, directory in enumerate(walk(top, fail, spared=spared, held=1), 1):
        if directory.processes(1):
            yield True
        if count % few == 0:
            yield None
    yield False


def lift_cpu_quota(
    top: CgroupDirectory,
    version: CgroupVersion,
    note: Callable[[CgroupDirectory, str, bytes], object] = lambda _directory, _name, _before: None,
) -> int:
    """Take the CPU quotas off a cgroup and what is below it, parents first; return how many that were.

    `note` is called with what each file held, before it is written.
    A tenant who may make cgroups could make so many that lifting takes seconds: after the first
    LIFTED_CGROUPS the others stay as they are. Raises the first OSError after everything else was lifted.
    """
    name, unlimited = ("cpu.max", b"max") if version is CgroupVersion.V2 else ("cpu.cfs_quota_us", b"-1")
    lifted = 0
    with _all_asked() as refused, closing(walk(top, refused)) as directories:
        for directory in islice(directories, LIFTED_CGROUPS):
            try:
                before = directory.read(name).strip()
                if not before.startswith(unlimited):
                    note(directory, name, before)
                    directory.write(name, unlimited)
                    lifted += 1
            except OSError as error:
                if error.errno not in GONE:
                    refused(f"{directory.cgroup}/{name}", error)
    return lifted


def own_cgroup(tree: CgroupTree, proc_cgroup: Path = Path("/proc/self/cgroup")) -> str | None:
    """Return the cgroup of the process whose /proc/PID/cgroup is given, in the memory hierarchy.

    None where it is not known. In a cgroup namespace it may begin with "/..": then it is outside the tree.
    """
    try:
        return parse_own_cgroup(read_file(proc_cgroup), tree.version)
    except OSError:
        return None


def _controllers(root: Path) -> frozenset[str]:
    try:
        return frozenset(os.fsdecode(read_file(root / "cgroup.controllers")).split())
    except OSError:
        return frozenset()


@contextmanager
def _all_asked() -> Iterator[Refused]:
    """Yield a callback that records an error; the first one is raised at the end, with its path."""
    first: list[OSError] = []

    def refused(cgroup: str, error: OSError) -> None:
        if not first:
            first.append(with_path(error, cgroup))

    yield refused
    if first:
        raise first[0]


# Cgroups that systemd leaves to the service inside: `Delegate=`, and what reactor makes in its own.
#
# systemd marks a delegated cgroup by an extended attribute: trusted.delegate (since 236), and user.delegate
# (since 251), which needs no privilege to read. All else of the tree is systemd's, even if reactor may write
# to it. Source: "Control Group APIs and Delegation" (docs/CGROUP_DELEGATION.md of systemd).


def is_delegated(directory: Path) -> bool:
    """Return whether a cgroup's directory carries the mark; False also where that is not known."""
    return any(_attribute(directory, name) == b"1" for name in _ATTRIBUTES)


def is_service(cgroup: str) -> bool:
    """Return whether a cgroup is that of a service.

    A scope, be it delegated, belongs to who made it: to a container runtime, or a terminal.
    """
    return cgroup.endswith(_SERVICE)


def stewards_beside(own: str) -> str | None:
    """Return the steward's cgroup where `own` is the guard's beside it, None where `own` is another."""
    above, name = os.path.split(own)
    return f"{above}/{STEWARD}" if name == GUARD and is_service(above) else None


def _attribute(directory: Path, name: str) -> bytes | None:
    try:
        return os.getxattr(directory, name)
    except OSError:  # ENODATA; ENOTSUP; EPERM for trusted ones
        return None


def parse_own_cgroup(raw: bytes, version: CgroupVersion) -> str | None:
    """Return the memory hierarchy's path among the `ID:CONTROLLERS:PATH` lines, None where it has none."""
    for line in raw.splitlines():
        number, _, tail = line.partition(b":")
        controllers, _, path = tail.partition(b":")
        found = number == b"0" if version is CgroupVersion.V2 else b"memory" in controllers.split(b",")
        if found and path.startswith(b"/"):
            return os.fsdecode(path)
    return None


def parse_cgroup_mounts(raw: bytes) -> tuple[dict[str, Path], Path | None]:
    """Return the v1 mount points by controller and that of v2 (None: not mounted) from /proc/self/mounts.

    The first mount of a hierarchy counts. Lines of other filesystems, and broken ones, are passed over.
    """
    v1: dict[str, Path] = {}
    v2: Path | None = None
    for line in raw.splitlines():
        fields = line.split(b" ")
        if len(fields) < 4:
            continue
        mount_point, kind, options = Path(os.fsdecode(unescape_mount(fields[1]))), fields[2], fields[3]
        if kind == b"cgroup2":
            v2 = v2 or mount_point
        elif kind == b"cgroup":
            for option in options.split(b","):
                v1.setdefault(os.fsdecode(option), mount_point)
    return v1, v2
