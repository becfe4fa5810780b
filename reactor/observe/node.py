"""What the node has left: memory, process ids, filesystems.

Memory is counted as the kubelet's Summary API does, so that thresholds mean the same: available is the
capacity less the working set, and the working set is usage less inactive page cache. The node is the machine
or, where settings name one, a cgroup whose limit is the capacity.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree, CgroupVersion
from reactor.kernel.files import KernelFile, parse_field
from reactor.kernel.filesystem import FilesystemSpace, read_space
from reactor.kernel.procfs import PROC, MemoryInfo, parse_meminfo, read_task_count, read_task_limit
from reactor.model.settings import Settings
from reactor.model.signals import Filesystem, Layout, Signal
from reactor.model.thresholds import Observation
from reactor.observe.cgroup_memory import CgroupMemory, MemoryReading

_SIGNALS: Final = {
    Filesystem.NODEFS: (Signal.NODEFS_AVAILABLE, Signal.NODEFS_INODES_FREE),
    Filesystem.IMAGEFS: (Signal.IMAGEFS_AVAILABLE, Signal.IMAGEFS_INODES_FREE),
    Filesystem.CONTAINERFS: (Signal.CONTAINERFS_AVAILABLE, Signal.CONTAINERFS_INODES_FREE),
}
_Observations = dict[Signal, Observation]
_Found = TypeVar("_Found")


class NodeObserver:
    """Reads the node afresh with each call; what can't be read is absent from the answer and in `problems`.

    Raises OSError where the machine's meminfo can't even be opened.
    """

    def __init__(self, tree: CgroupTree, settings: Settings, *, proc: Path = PROC) -> None:
        self._tree = tree
        self._settings = settings
        self._proc = proc
        self._meminfo = KernelFile(proc / "meminfo")
        self._node = CgroupMemory(tree, settings.node_cgroup or "/")
        self._root_stat: KernelFile | None = None
        self._parents = tuple(CgroupMemory(tree, parent) for parent in _outermost(settings.pod_parents))
        self._problems: dict[str, dict[str, str]] = {}

    @property
    def problems(self) -> Mapping[str, str]:
        """Return what could not be read the last time it was tried, and why, one line each."""
        return {what: why for group in tuple(self._problems.values()) for what, why in group.items()}

    def memory(self) -> Mapping[Signal, Observation]:
        """Return memory.available and allocatableMemory.available; once begun, by preads only."""
        problems: dict[str, str] = {}
        observed: _Observations = {}
        machine = _tried(problems, "machine memory", self._machine)
        if machine is not None:
            node = _tried(problems, str(Signal.MEMORY_AVAILABLE), lambda: self._node_reading(machine))
            if node is not None:
                observed[Signal.MEMORY_AVAILABLE] = _observation(node, node.limit_bytes, machine)
            parents = _tried(problems, str(Signal.ALLOCATABLE_MEMORY_AVAILABLE), self._parents_reading)
            if parents is not None and node is not None:
                capacity_bytes = _lowest(parents.limit_bytes, node.limit_bytes)
                observed[Signal.ALLOCATABLE_MEMORY_AVAILABLE] = _observation(parents, capacity_bytes, machine)
        self._problems["memory"] = problems
        return observed

    def processes(self) -> Mapping[Signal, Observation]:
        """Return pid.available, threads included: the node cgroup's if it has a limit, else the machine's."""
        problems: dict[str, str] = {}
        found = _tried(problems, str(Signal.PID_AVAILABLE), self._tasks)
        self._problems["processes"] = problems
        return {} if found is None else {Signal.PID_AVAILABLE: found}

    def filesystems(self) -> Mapping[Signal, Observation]:
        """Return the filesystems' signals.

        For a worker thread: a dead network filesystem holds the caller for as long as it likes.
        """
        problems: dict[str, str] = {}
        observed: _Observations = {}
        for filesystem, path in self._paths().items():
            space = _tried(problems, f"{filesystem} {path}", partial(read_space, path))
            if space is not None:
                observed |= _filesystem_observations(filesystem, space)
        self._problems["filesystems"] = problems
        return observed

    def close(self) -> None:
        """Close every descriptor."""
        self._meminfo.close()
        for held in (self._node, *self._parents):
            held.close()
        if self._root_stat is not None:
            self._root_stat.close()

    def _machine(self) -> MemoryInfo:
        return parse_meminfo(self._meminfo.read(), self._meminfo.path)

    def _node_reading(self, machine: MemoryInfo) -> MemoryReading:
        """Return the node's memory; its limit is its capacity."""
        if self._settings.node_cgroup is None and self._tree.version is CgroupVersion.V2:
            # The root of v2 has no memory.current: what is not free is used, as cAdvisor has it.
            if self._root_stat is None:
                self._root_stat = KernelFile(self._tree.memory_root / "memory.stat")
            raw, interface = self._root_stat.read(), self._root_stat.path
            return MemoryReading(
                usage_bytes=machine.usage_bytes,
                inactive_file_bytes=parse_field(raw, b"inactive_file", interface),
                limit_bytes=machine.total_bytes,
            )
        found = self._node.read()
        return MemoryReading(
            usage_bytes=found.usage_bytes,
            inactive_file_bytes=found.inactive_file_bytes,
            limit_bytes=_lowest(found.limit_bytes, machine.total_bytes),
        )

    def _parents_reading(self) -> MemoryReading | None:
        """Return the sum over the pods' parents, None without any; limited only where every one is.

        A parent that doesn't exist (yet) holds no pod and uses nothing; one of them has to.
        """
        readings = []
        missing = ""
        for parent in self._parents:
            try:
                readings.append(parent.read())
            except FileNotFoundError as error:
                missing = str(error.filename)
        if not readings:
            if missing:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), missing)
            return None
        limits = [reading.limit_bytes for reading in readings if reading.limit_bytes is not None]
        return MemoryReading(
            usage_bytes=sum(reading.usage_bytes for reading in readings),
            inactive_file_bytes=sum(reading.inactive_file_bytes for reading in readings),
            limit_bytes=sum(limits) if len(limits) == len(readings) else None,
        )

    def _tasks(self) -> Observation:
        node = self._settings.node_cgroup
        if node is not None:
            limit, current = self._tree.pids_limit(node), self._tree.pids_current(node)
            if limit is not None and current is not None:
                return Observation(available=max(0, limit - current), capacity=limit)
        limit = read_task_limit(self._proc)
        return Observation(available=max(0, limit - read_task_count(self._proc)), capacity=limit)

    def _paths(self) -> Mapping[Filesystem, str]:
        """Return a path on each filesystem; those without one of their own lie where the layout says."""
        configured = self._settings.filesystems
        paths = dict(configured)
        nodefs = configured.get(Filesystem.NODEFS)
        imagefs = configured.get(Filesystem.IMAGEFS, nodefs)
        dedicated = self._settings.eviction.layout is Layout.DEDICATED
        for filesystem, path in (
            (Filesystem.IMAGEFS, imagefs),
            (Filesystem.CONTAINERFS, imagefs if dedicated else nodefs),
        ):
            if path is not None:
                paths.setdefault(filesystem, path)
        return paths


def _observation(reading: MemoryReading, capacity_bytes: int | None, machine: MemoryInfo) -> Observation:
    """Return the observation of memory that is used against a capacity.

    A cgroup may stand above its limit for a moment, or for long where the limit was lowered: nothing is
    available then. More than the machine has is no usage but nonsense, and stays visible as such.
    """
    capacity_bytes = machine.total_bytes if capacity_bytes is None else capacity_bytes
    available = capacity_bytes - reading.working_set_bytes
    if reading.usage_bytes <= machine.total_bytes:
        available = max(0, available)
    return Observation(
        available=available,
        capacity=capacity_bytes,
        inactive_file_bytes=reading.usage_bytes - reading.working_set_bytes,
    )


def _filesystem_observations(filesystem: Filesystem, space: FilesystemSpace) -> _Observations:
    space_signal, inodes_signal = _SIGNALS[filesystem]
    observed = {space_signal: Observation(available=space.available_bytes, capacity=space.capacity_bytes)}
    if space.inodes is not None and space.inodes_free is not None:
        observed[inodes_signal] = Observation(available=space.inodes_free, capacity=space.inodes)
    return observed


def _tried(problems: dict[str, str], what: str, read: Callable[[], _Found]) -> _Found | None:
    """Return what `read` gives, None with the reason noted where it can't."""
    try:
        return read()
    except (OSError, ReactorError) as error:
        problems[what] = str(error)
        return None


def _outermost(cgroups: Sequence[str]) -> tuple[str, ...]:
    """Return the cgroups that lie below none of the others: usage counts whole subtrees."""
    return tuple(
        cgroup
        for cgroup in dict.fromkeys(cgroups)
        if not any(CgroupTree.contains(other, cgroup) for other in cgroups)
    )


def _lowest(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)
