"""A plain Linux node as a scenario has it: what the daemon would observe, in the documents of a kubelet.

A recording of weeks is to stay small. So a step is written where something has changed that could decide
anything, and otherwise once in a while: `Worth` says when.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import trio

from reactor.config.pod import SOURCE_ANNOTATION
from reactor.disks.watch import FilesystemObserver
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.procfs import PROC
from reactor.kernel.psi import PRESSURE
from reactor.model.name_patterns import PodParent
from reactor.model.pod_lists import Preference
from reactor.model.pods import Pod, PodUsage, is_critical_by_mark
from reactor.model.rules import Measure, Metric, RankedBy, Rule
from reactor.model.settings import Settings
from reactor.model.signals import FILESYSTEM_SIGNALS, Filesystem, Resource, Signal
from reactor.model.thresholds import Observation, Threshold
from reactor.observe.filesystems import observations
from reactor.observe.node import NodeObserver
from reactor.observe.pods import PodObserver
from reactor.rules.observe import RuleObserver
from reactor.simulate.scenario import metrics_to_record
from reactor.threads import in_thread, without_pause
from reactor.workloads.cgroups import CgroupPods
from reactor.workloads.search import find_selected

_PATIENCE_SECONDS: Final = 2.0  # for a filesystem that may hang for good
# Where less than this many times a threshold is available, every change may matter.
_NEAR: Final = 2
_SLIGHT, _CLEAR = 0.001, 0.02  # shares of the capacity
_SELDOM_SECONDS, _AT_LEAST_SECONDS = 60.0, 600.0

Usages = Mapping[str, PodUsage]

_MACHINE: Final = "/"
_SWAP_USED: Final = Metric(Measure.SWAP_USED)
_SWAP_TRAFFIC: Final = Metric(Measure.SWAP_TRAFFIC)
_SCANNED: Final = Metric(Measure.PAGES_SCANNED)
_CLEAR_PERCENT: Final = 2.0
_CLEAR_SHARE: Final = 10  # of the growth that a condition asks for

Observed = Mapping[str, Mapping[Metric, float | None]]


class PlainNode:
    """Observes a node as the daemon does by the same settings. Raises OSError without a meminfo."""

    def __init__(self, tree: CgroupTree, settings: Settings, *, proc: Path = PROC) -> None:
        self._node = NodeObserver(tree, settings, proc=proc)
        self._workloads = CgroupPods(tree, settings, proc=proc)
        # In a recording every step has what a rule would rank by if it acted then.
        ranks_swap = settings.eviction.counts_swap or any(rule.by is RankedBy.SWAP for rule in settings.rules)
        self._pods = PodObserver(tree, memory_available=settings.memory_available, counts_swap=ranks_swap)
        self._filesystems = FilesystemObserver(settings)
        self._signals = {threshold.signal for threshold in settings.eviction.thresholds}

    async def observe(self) -> tuple[dict[Signal, Observation], tuple[Pod, ...], Usages]:
        """Return what the node has left, its pods and what they use; what can't be read is absent."""
        seen = {**self._node.memory(), **self._node.processes()}
        if Signal.ALLOCATABLE_MEMORY_AVAILABLE not in self._signals:
            seen.pop(Signal.ALLOCATABLE_MEMORY_AVAILABLE, None)
        if Signal.SWAP_AVAILABLE in self._signals:
            seen |= self._node.swap()
        for filesystem, path in self._filesystems.paths.items():
            with trio.move_on_after(_PATIENCE_SECONDS):
                try:
                    found = await in_thread(self._filesystems.read, path, abandon_on_cancel=True)
                except OSError:
                    continue
                seen |= observations(filesystem, found.space)
        pods = await self._workloads.listed()
        self._pods.track(pods)
        return seen, pods, self._pods.full()

    def close(self) -> None:
        """Close every descriptor."""
        self._pods.close()
        self._node.close()


class Worth:
    """Says whether what was seen is worth a step; `thresholds` are those that the recording is for."""

    def __init__(self, thresholds: Sequence[Threshold]) -> None:
        self._thresholds = thresholds
        self._written: tuple[float, Mapping[Signal, Observation], Usages, Sequence[object]] | None = None

    def is_step(
        self, at_seconds: float, seen: Mapping[Signal, Observation], usages: Usages, pods: Sequence[object]
    ) -> bool:
        """Return it, and take it as written where it is so.

        Near a threshold every change is; else what moves by a fiftieth of the node, a slight change after a
        minute, and anything after ten. Pods that come, go or change always are.
        """
        wanted = self._is_step(at_seconds, seen, usages, pods)
        if wanted:
            self._written = (at_seconds, seen, usages, pods)
        return wanted

    def _is_step(
        self, at_seconds: float, seen: Mapping[Signal, Observation], usages: Usages, pods: Sequence[object]
    ) -> bool:
        if self._written is None:
            return True
        written_at_seconds, before, used_before, pods_before = self._written
        gone_seconds = at_seconds - written_at_seconds
        if pods != pods_before or seen.keys() != before.keys() or gone_seconds >= _AT_LEAST_SECONDS:
            return True
        moved = max(_moved(seen, before), _used(seen, usages, used_before))
        if moved >= _CLEAR:
            return True
        return moved >= _SLIGHT and (gone_seconds >= _SELDOM_SECONDS or self._is_near(seen))

    def _is_near(self, seen: Mapping[Signal, Observation]) -> bool:
        return any(
            one.signal in seen
            and seen[one.signal].available < _NEAR * one.value.of(seen[one.signal].capacity)
            for one in self._thresholds
        )


def _moved(seen: Mapping[Signal, Observation], before: Mapping[Signal, Observation]) -> float:
    """Return by how much of its capacity the signal that has changed most has changed."""
    return max(
        (
            abs(one.available - before[signal].available) / max(1, one.capacity)
            for signal, one in seen.items()
        ),
        default=0.0,
    )


def _used(seen: Mapping[Signal, Observation], usages: Usages, before: Usages) -> float:
    """Return by how much of the node's memory the pod that has changed most has changed."""
    memory = seen.get(Signal.MEMORY_AVAILABLE)
    if memory is None:
        return 0.0
    changes = (
        abs((usage.memory_working_set_bytes or 0) - (before[uid].memory_working_set_bytes or 0))
        for uid, usage in usages.items()
        if uid in before
    )
    return max(changes, default=0) / max(1, memory.capacity)


def summary_of(seen: Mapping[Signal, Observation], pods: Sequence[Pod], usages: Usages) -> dict[str, Any]:
    """Return what was seen as a stats/v1alpha1 Summary."""
    node: dict[str, Any] = {}
    if Signal.MEMORY_AVAILABLE in seen:
        node["memory"] = _memory(seen[Signal.MEMORY_AVAILABLE])
    if Signal.ALLOCATABLE_MEMORY_AVAILABLE in seen:
        memory = _memory(seen[Signal.ALLOCATABLE_MEMORY_AVAILABLE])
        node["systemContainers"] = [{"name": "pods", "memory": memory}]
    if Signal.PID_AVAILABLE in seen:
        tasks = seen[Signal.PID_AVAILABLE]
        node["rlimit"] = {"maxpid": tasks.capacity, "curproc": tasks.capacity - tasks.available}
    swap = seen.get(Signal.SWAP_AVAILABLE)
    if swap is not None:
        taken = swap.capacity - swap.available
        node["swap"] = {"swapAvailableBytes": swap.available, "swapUsageBytes": taken}
    nodefs = _filesystem(seen, Filesystem.NODEFS)
    runtime = {
        key: _filesystem(seen, filesystem)
        for key, filesystem in (("imageFs", Filesystem.IMAGEFS), ("containerFs", Filesystem.CONTAINERFS))
    }
    if nodefs:
        node["fs"] = nodefs
    if any(runtime.values()):
        node["runtime"] = {key: value for key, value in runtime.items() if value}
    return {"node": node, "pods": [_usage(pod, usages[pod.uid]) for pod in pods if pod.uid in usages]}


def pod_document(pod: Pod) -> dict[str, Any]:
    """Return a pod as a v1.Pod with what a decision depends on."""
    metadata: dict[str, Any] = {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid}
    if is_critical_by_mark(pod.critical_because, pod.priority):
        metadata["annotations"] = {SOURCE_ANNOTATION: "file"}  # never evicted, as user.oomd_omit says here
    container: dict[str, Any] = {"name": "main"}
    request_bytes = pod.requests.get(Resource.MEMORY)
    if request_bytes:
        container["resources"] = {"requests": {"memory": str(request_bytes)}}
    return {
        "metadata": metadata,
        "spec": {
            "priority": pod.priority,
            "terminationGracePeriodSeconds": pod.termination_grace_period_seconds,
            "containers": [container],
        },
        "status": {"qosClass": pod.qos_class},
    }


def preferences_of(pods: Sequence[Pod]) -> dict[str, str]:
    """Return which of the pods go first or last by the operator's lists, by uid."""
    return {pod.uid: pod.preference.name.lower() for pod in pods if pod.preference is not Preference.NONE}


def _memory(seen: Observation) -> dict[str, int]:
    working_set = seen.capacity - seen.available
    inactive = seen.inactive_file_bytes
    usage = {} if inactive is None else {"usageBytes": working_set + inactive}
    return {"availableBytes": seen.available, "workingSetBytes": working_set, **usage}


def _filesystem(seen: Mapping[Signal, Observation], filesystem: Filesystem) -> dict[str, int]:
    space, inodes = (seen.get(signal) for signal in FILESYSTEM_SIGNALS[filesystem])
    found = {} if space is None else {"availableBytes": space.available, "capacityBytes": space.capacity}
    return found if inodes is None else {**found, "inodesFree": inodes.available, "inodes": inodes.capacity}


def _usage(pod: Pod, usage: PodUsage) -> dict[str, Any]:
    found: dict[str, Any] = {"podRef": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid}}
    if usage.memory_working_set_bytes is not None:
        found["memory"] = {"workingSetBytes": usage.memory_working_set_bytes}
    if usage.process_count is not None:
        found["process_stats"] = {"process_count": usage.process_count}
    if usage.swap_bytes is not None:
        found["swap"] = {"swapUsageBytes": usage.swap_bytes}
    return found


class RuleRecording:
    """Observes for a recording what rules observe, and says when that is worth a step."""

    def __init__(
        self,
        tree: CgroupTree,
        rules: Sequence[Rule],
        *,
        proc: Path = PROC,
        pressure: Path = PRESSURE,
        clock_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tree = tree
        self._rules = rules
        self._observer = RuleObserver(tree, proc=proc, pressure=pressure, clock_seconds=clock_seconds)
        self._metrics = metrics_to_record(rules) if rules else ()
        self._selectors = [PodParent(one) for rule in rules for one in rule.cgroups]
        self._ranks_by_scans = any(rule.by is RankedBy.PGSCAN for rule in rules)
        self._written: Observed | None = None

    def observe(self, pods: Iterable[Pod]) -> dict[str, dict[Metric, float | None]]:
        """Return what is observed of each cgroup that a rule is for, and of the pods that it may rank."""
        found = {
            one.cgroup: self._observer.read(one.cgroup, one.directory, self._metrics)
            for one in without_pause(find_selected(self._tree, self._selectors, {})).values()
        }
        if self._ranks_by_scans:
            for cgroup in (pod.cgroup for pod in pods if pod.cgroup is not None):
                directory = f"{self._tree.memory_root}{cgroup}"
                found.setdefault(cgroup, {}).update(self._observer.read(cgroup, directory, (_SCANNED,)))
        machine = self._observer.read(_MACHINE, "", (_SWAP_USED, _SWAP_TRAFFIC))
        if machine[_SWAP_USED] is not None:  # the machine has swap
            found.setdefault(_MACHINE, {}).update(machine)
        return found

    def is_step(self, observed: Observed) -> bool:
        """Return whether this is worth a step: conditions hold, or their numbers have changed clearly."""
        before = self._written
        if before is None or before.keys() != observed.keys():
            return True
        return any(
            _may_hold(rule, observed[cgroup], before[cgroup])
            or _has_moved(rule, observed[cgroup], before[cgroup])
            for cgroup in observed
            for rule in self._rules
        )

    def written(self, observed: Observed) -> None:
        self._written = observed

    def too_short(self, interval_seconds: float) -> Iterator[str]:
        """Yield the conditions whose windows pass between two observations at this pace."""
        for rule in self._rules:
            for one in rule.conditions:
                if one.metric.is_counter and one.within_seconds < interval_seconds:
                    yield f"{rule.name}: {one}"


def _may_hold(rule: Rule, seen: Mapping[Metric, float | None], before: Mapping[Metric, float | None]) -> bool:
    """Return whether all gauges of a rule are past their limits, and all of its counters have grown."""
    for metric, limit, _ in rule.conditions:
        value, old = seen.get(metric), before.get(metric)
        if value is None or (value <= (old or 0.0) if metric.is_counter else value < limit):
            return False
    return True


def _has_moved(
    rule: Rule, seen: Mapping[Metric, float | None], before: Mapping[Metric, float | None]
) -> bool:
    """Return whether a metric of a rule is on the other side of its limit, or clearly another one."""
    for metric, limit, _ in rule.conditions:
        value, old = seen.get(metric), before.get(metric)
        if (value is None) != (old is None):
            return True
        if value is None or old is None:
            continue
        is_other_side = not metric.is_counter and (value >= limit) != (old >= limit)
        least = limit / _CLEAR_SHARE if metric.is_counter else _CLEAR_PERCENT
        if is_other_side or abs(value - old) >= least:
            return True
    return False
