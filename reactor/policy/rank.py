"""The order in which pods are evicted for a signal, what they use of it, and what no pod uses."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from reactor.model.decisions import Measured, RankedPod
from reactor.model.pods import Pod, PodUsage, working_set_bytes
from reactor.model.signals import FREED_TOGETHER, ON_DISK, RESOURCE, Layout, Resource, Signal
from reactor.model.thresholds import Observation, Threshold, ThresholdValue
from reactor.policy.disks import charged_filesystems


def rank(
    pods: Iterable[Pod],
    used: Mapping[str, PodUsage],
    signal: Signal,
    layout: Layout,
    *,
    with_swap: bool = False,
    bounds: Mapping[str, int] = MappingProxyType({}),
) -> tuple[RankedPod, ...]:
    """Return the pods in the order in which they would be evicted; those that never are, last.

    Memory, disk and inodes: pods above their request, then lower priority, then more usage above the
    request. No pod requests inodes, so a pod that uses any is above its request. Processes: lower priority,
    then more processes. A pod without any statistics comes first, for processes first among its priority;
    a number that its statistics lack counts as none used. Ties keep the order given. `used` is by uid.
    Source: rankMemoryPressure, rankDiskPressureFunc, rankPIDPressure.

    Not upstream's: a pod whose number could not be read comes last of those that may be evicted. Before all
    that, the pods that the operator prefers come first and those to be avoided last. For swap the order is
    that for inodes: one that has none in use goes last. `with_swap` counts a pod's memory in swap where the
    ranking is for memory. A pod in `bounds` was not read for the decision: its usage was read later, or is
    that bound. A partition has a limit for memory; all else its pods share with the others.
    """
    resource = RESOURCE[signal]
    pods = pods if resource in FREED_TOGETHER else map(of_no_partition, pods)
    is_requested = resource is not Resource.PIDS
    places = []
    for pod in pods:
        statistics = used.get(pod.uid)
        amount = usage(pod, statistics, signal, layout)
        swap_bytes = None if statistics is None else statistics.swap_bytes
        measured = Measured.AT_DECISION
        if pod.uid in bounds:
            measured = Measured.BOUND if statistics is None else Measured.AFTERWARDS
            amount = bounds[pod.uid] if statistics is None else amount
        if with_swap and swap_bytes is not None and amount is not None and resource is Resource.MEMORY:
            amount += swap_bytes
        request = pod.requests.get(resource, 0)
        exceeds = amount > request if is_requested and amount is not None else None
        places.append(
            RankedPod(
                pod=pod,
                usage=amount,
                request=request,
                exceeds_request=exceeds,
                unreadable=statistics is not None and resource in statistics.unreadable,
                swap_bytes=swap_bytes,
                measured=measured,
            )
        )
    places.sort(key=order_by_request if is_requested else _order_by_processes)
    return tuple(places)


def rank_by_amount(pods: Iterable[Pod], amounts: Mapping[str, int]) -> tuple[RankedPod, ...]:
    """Return the pods by an amount that no pod requests, in the order that holds for inodes; by uid.

    A pod whose amount is not known comes last of those that may be evicted.
    """
    places = (
        RankedPod(
            pod=pod,
            usage=amounts.get(pod.uid),
            request=0,
            exceeds_request=amounts[pod.uid] > 0 if pod.uid in amounts else None,
            unreadable=pod.uid not in amounts,
        )
        for pod in pods
    )
    return tuple(sorted(places, key=order_by_request))


def order_by_request(place: RankedPod) -> tuple[bool, bool, int, bool, bool, int, int]:
    """Return the sort key for what can be requested: least first."""
    pod, amount = place.pod, place.usage
    return (
        pod.critical_because is not None,
        place.unreadable,
        pod.preference,
        amount is not None,
        place.exceeds_request is False,
        pod.priority,
        0 if amount is None else place.request - amount,
    )


def _order_by_processes(place: RankedPod) -> tuple[bool, bool, int, int, bool, int]:
    """Return the sort key for processes, which no pod requests: least first."""
    critical, unreadable, preference, is_known, _, priority, less = order_by_request(place)
    return critical, unreadable, preference, priority, is_known, less


def small_ones_passed_over(
    ranking: Sequence[RankedPod], minimum: ThresholdValue, threshold: Threshold, seen: Observation
) -> tuple[RankedPod, ...]:
    """Return the ranking with the pods that hold less than the minimum behind the others that may go.

    A share is one of what is missing to the threshold and its minimum reclaim. Where no pod holds as much
    the ranking stays as it was. A pod whose usage is not known, or could not be read, keeps its place.
    """
    minimum_bytes = minimum.of(threshold.missing(seen))
    first, small, last = [], [], []
    for place in ranking:
        if place.unreadable or not place.evictable:
            last.append(place)
        elif place.usage is None or place.usage >= minimum_bytes:
            first.append(place)
        else:
            small.append(place._replace(is_passed_over=True))
    return (*first, *small, *last) if first else tuple(ranking)


def is_guess(ranking: Sequence[RankedPod]) -> bool:
    """Return whether the first pod may be evicted as well as the next, and neither could be read."""
    return len(ranking) > 1 and ranking[0].unreadable and ranking[1].evictable


def usage(pod: Pod, used: PodUsage | None, signal: Signal, layout: Layout) -> int | None:
    """Return the pod's usage of what the signal is about: bytes, inodes or processes.

    None where there are no statistics of the pod at all, or where the number could not be read. A number
    that the statistics lack is none used. Source: memoryUsage, processUsage, podDiskUsage.
    """
    resource = RESOURCE[signal]
    if used is None or resource in used.unreadable:
        return None
    if resource not in ON_DISK:
        return counted(used, resource) or 0
    counts = (
        filesystem.inodes_used if resource is Resource.INODES else filesystem.used_bytes
        for filesystem in charged_filesystems(pod, used, signal, layout)
    )
    return sum(count for count in counts if count is not None)


def counted(used: PodUsage, resource: Resource) -> int | None:
    """Return how much memory, swap or processes a pod has; None where that was not observed."""
    if resource is Resource.MEMORY:
        return used.memory_working_set_bytes
    return used.process_count if resource is Resource.PIDS else used.swap_bytes


def of_no_partition(pod: Pod) -> Pod:
    """Return a pod as one that may go, if nothing but its partition keeps it."""
    return pod if pod.partition is None or pod.could_not_be_ended else replace(pod, critical_because=None)


def can_be_evicted(pods: Iterable[Pod]) -> bool:
    return any(pod.critical_because is None for pod in pods)


def memory_outside_pods(
    seen: Observation, pods: Iterable[Pod], used: Mapping[str, PodUsage], *, gone: Collection[str] = ()
) -> int | None:
    """Return how many bytes of the working set belong to none of these pods, 0 at the least.

    `seen` is one of the memory signals: the node's, or that of all pods together (then it is what lies in
    the pods' parents beside them). `used` is by uid. A dying pod counts with what it still holds. None
    where the memory of a pod was not observed that is not in `gone` (by uid), as its cgroup has gone.

    With the node read first, a pod that grows then makes it too small, one that shrinks too big.
    """
    held_bytes = memory_of(pods, used, gone)
    return None if held_bytes is None else max(0, seen.capacity - seen.available - held_bytes)


def memory_of(pods: Iterable[Pod], used: Mapping[str, PodUsage], gone: Collection[str] = ()) -> int | None:
    """Return what pods hold together, None where one was not observed that is not in `gone` (by uid)."""
    held_bytes = 0
    for pod in pods:
        pod_bytes = working_set_bytes(used, pod.uid)
        if pod_bytes is not None:
            held_bytes += pod_bytes
        elif pod.uid not in gone:
            return None
    return held_bytes
