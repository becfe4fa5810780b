"""What the node has left: memory, process ids, filesystems.

The node is the machine or, where settings name one, a cgroup whose limits are the capacity.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.filesystem import FilesystemSpace, layout_of, nodefs_path, read_mounts, read_space
from reactor.kernel.procfs import PROC, read_task_count, read_task_limit
from reactor.model.settings import Settings
from reactor.model.signals import Filesystem, Layout, Signal
from reactor.model.thresholds import Observation
from reactor.observe.memory import NodeMemory

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
        self._memory = NodeMemory(tree, settings, proc)
        self._problems: dict[str, dict[str, str]] = {}

    @property
    def problems(self) -> Mapping[str, str]:
        """Return what could not be read the last time it was tried, and why, one line each."""
        return {what: why for group in tuple(self._problems.values()) for what, why in group.items()}

    def memory(self) -> Mapping[Signal, Observation]:
        """Return memory.available and allocatableMemory.available; once begun, by preads only."""
        problems: dict[str, str] = {}
        observed: _Observations = {}
        node = _tried(problems, str(Signal.MEMORY_AVAILABLE), self._memory.node)
        if node is not None:
            observed[Signal.MEMORY_AVAILABLE] = node.observation()
            allocatable = str(Signal.ALLOCATABLE_MEMORY_AVAILABLE)
            pods = _tried(problems, allocatable, partial(self._memory.pods, node))
            if pods is not None:
                observed[Signal.ALLOCATABLE_MEMORY_AVAILABLE] = pods.observation()
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
        paths = self._paths()
        for filesystem, path in paths.items():
            space = _tried(problems, f"{filesystem} {path}", partial(read_space, path))
            if space is not None:
                observed |= _filesystem_observations(filesystem, space)
        layout = _tried(
            problems, "layout", lambda: layout_of(paths, read_mounts(self._proc / "self/mountinfo"))
        )
        configured = self._settings.eviction.layout
        if layout not in {None, configured}:
            problems["layout"] = f"configured is {configured}, but the paths lie as {layout}"
        self._problems["filesystems"] = problems
        return observed

    def close(self) -> None:
        """Close every descriptor."""
        self._memory.close()

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
        nodefs = configured.get(Filesystem.NODEFS) or nodefs_path()
        imagefs = configured.get(Filesystem.IMAGEFS, nodefs)
        dedicated = self._settings.eviction.layout is Layout.DEDICATED
        return {
            Filesystem.NODEFS: nodefs,
            Filesystem.IMAGEFS: imagefs,
            Filesystem.CONTAINERFS: imagefs if dedicated else nodefs,
            **configured,
        }


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
