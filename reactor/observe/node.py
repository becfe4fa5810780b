"""What the node has left of memory and process ids.

The node is the machine or, where settings name one, a cgroup whose limits are the capacity.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree, Tasks
from reactor.kernel.mem_available import Watermarks
from reactor.kernel.procfs import PROC
from reactor.kernel.swap import SwapSpace, cgroup_swap, machine_swap
from reactor.model.settings import Settings
from reactor.model.signals import Signal
from reactor.model.thresholds import Observation
from reactor.observe.memory import NodeMemory

_Observations = dict[Signal, Observation]
_Found = TypeVar("_Found")
_Pods = TypeVar("_Pods")
_LATE_NS: Final = 2_000_000


class NodeObserver:
    """Reads the node afresh with each call; what can't be read is absent from the answer and in `problems`.

    `processes_of` is whose tasks were counted last, the node's cgroup or "/" for the machine.
    Raises OSError where the machine's meminfo can't even be opened.
    """

    def __init__(self, tree: CgroupTree, settings: Settings, *, proc: Path = PROC) -> None:
        self._tree = tree
        self._settings = settings
        self._proc = proc
        self._memory = NodeMemory(tree, settings, proc)
        self._task_counts = Tasks(tree, settings.node_cgroup, proc)
        self._problems: dict[str, dict[str, str]] = {}
        self.processes_of = "/"

    @property
    def watermarks(self) -> Watermarks | None:
        """Return the machine's, where memory counts as MemAvailable; None where it does not."""
        return self._memory.watermarks

    @property
    def has_swap(self) -> bool:
        """Return whether the machine had swap when its processes were observed last."""
        return self._memory.has_swap

    @property
    def problems(self) -> Mapping[str, str]:
        """Return what could not be read the last time it was tried, and why, one line each."""
        return {what: why for group in tuple(self._problems.values()) for what, why in group.items()}

    def memory(self) -> Mapping[Signal, Observation]:
        """Return memory.available and allocatableMemory.available; after the first call, by preads only."""
        problems: dict[str, str] = {}
        observed: _Observations = {}
        what = Signal.MEMORY_AVAILABLE
        try:
            node = self._memory.node()
            observed[what] = node.observation()
            what = Signal.ALLOCATABLE_MEMORY_AVAILABLE
            pods = self._memory.pods(node)
            if pods is not None:
                observed[what] = pods.observation()
        except (OSError, ReactorError) as error:
            problems[str(what)] = str(error)
            if what is Signal.MEMORY_AVAILABLE:
                self._name_what_is_missing(problems)
        self._problems["memory"] = problems
        return observed

    def processes(self) -> Mapping[Signal, Observation]:
        """Return pid.available, threads included: the node cgroup's if it has a limit, else the machine's.

        The machine's own size is observed along with it, and whether it has swap.
        """
        problems: dict[str, str] = {}
        _tried(problems, "machine", self._memory.refresh_machine)
        found = _tried(problems, str(Signal.PID_AVAILABLE), self._tasks)
        self._problems["processes"] = problems
        return {} if found is None else {Signal.PID_AVAILABLE: found}

    def swap(self) -> Mapping[Signal, Observation]:
        """Return swap.available; nothing, with a problem, where the node has no swap."""
        problems: dict[str, str] = {}
        signal = Signal.SWAP_AVAILABLE
        found = _tried(problems, str(signal), self._swap)
        if found is not None and not found.total_bytes:
            problems[str(signal)] = "the node has no swap: its thresholds are never met"
        self._problems["swap"] = problems
        if problems or found is None:
            return {}
        return {signal: Observation(available=found.free_bytes, capacity=found.total_bytes)}

    def close(self) -> None:
        """Close every descriptor."""
        self._memory.close()
        self._task_counts.close()

    def _name_what_is_missing(self, problems: dict[str, str]) -> None:
        """Say in words that there is no such cgroup (yet); any other reason stays as it is."""
        cgroup = self._settings.node_cgroup
        try:
            is_missing = cgroup is not None and not self._tree.exists(cgroup)
        except (OSError, ReactorError):
            return
        if is_missing:
            why = f"the cgroup {cgroup} (nodeCgroup) does not exist: no pod is guarded until it does"
            problems[str(Signal.MEMORY_AVAILABLE)] = why

    def _swap(self) -> SwapSpace:
        machine = machine_swap(self._proc)
        node = self._settings.node_cgroup
        return machine if node is None else cgroup_swap(self._tree, node, machine)

    def _tasks(self) -> Observation:
        self.processes_of, limit, count = self._task_counts.read()
        return Observation(available=max(0, limit - count), capacity=limit)


def _tried(problems: dict[str, str], what: str, read: Callable[[], _Found]) -> _Found | None:
    """Return what `read` gives, None with the reason noted where it can't."""
    try:
        return read()
    except (OSError, ReactorError) as error:
        problems[what] = str(error)
        return None


# --- the node and its pods ---
#
# The kernel shows them at no one instant. The node is read first, then its pods. What a dying pod freed
# while it was read would count neither as available nor as its own, and another would be chosen for it. So if
# something is being freed the node is read again: then it counts as both, until the next pass. The same
# holds if the reader was held up between the two: what pods have grown by since would be missing from the
# node, and the next pass would see it outside the pods, like a kill that did not help.


def consistent(
    read_node: Callable[[], Mapping[Signal, Observation]],
    read_pods: Callable[[], _Pods],
    is_moving: Callable[[], bool],
    asked: Callable[[Mapping[Signal, Observation]], frozenset[object]],
) -> tuple[Mapping[Signal, Observation], _Pods]:
    """Return the node and what its pods use, as if both were read at one instant.

    What `read_pods` returns is false if it has read none. `is_moving` returns whether something is being
    freed, and is asked after both were read. `asked` returns what a node's pods are read for: whom to evict
    is chosen by what they hold at the crossing, and of one that was not read nothing is known.
    """
    began_ns = time.monotonic_ns()
    node, pods = read_node(), read_pods()
    is_late = time.monotonic_ns() - began_ns > _LATE_NS
    if (is_moving() or is_late) and pods:
        known, node = asked(node), read_node()
        while asked(node) - known:
            known, pods, node = asked(node), read_pods(), read_node()
    return node, pods
