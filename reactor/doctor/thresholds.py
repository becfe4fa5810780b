"""What the configured thresholds come to on this machine, for `reactor doctor` and `reactor config check`."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from reactor.disks.watch import FilesystemObserver
from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.features import Feature
from reactor.kernel.procfs import PROC, read_kernel_memory
from reactor.kernel.swap import machine_swap
from reactor.model.quantity import amount_text, format_bytes, parse_quantity
from reactor.model.settings import MemoryAvailable, Settings
from reactor.model.signals import ON_DISK, RESOURCE, Resource, Signal, filesystems_of
from reactor.model.thresholds import Observation, Threshold
from reactor.observe.filesystems import observations
from reactor.observe.node import NodeObserver
from reactor.policy.disks import may_free
from reactor.policy.messages import absurd_thresholds
from reactor.workloads.manifests import ManifestDirectory

# Source: GetNodeAllocatableReservation, by which the kubelet subtracts its hard thresholds.
RESERVABLE: Final = {Signal.MEMORY_AVAILABLE: "memory", Signal.NODEFS_AVAILABLE: "ephemeral-storage"}
ALLOCATABLE: Final = "node allocatable"
_MEMORY: Final = RESERVABLE[Signal.MEMORY_AVAILABLE]
_LEAST_BYTES: Final = 1 << 20  # below it a unit is missing, which is said of the file itself
_PATIENCE_SECONDS: Final = 2.0  # for a filesystem that may hang for good

_DERIVED: Final = frozenset({Signal.CONTAINERFS_AVAILABLE, Signal.CONTAINERFS_INODES_FREE})
_WHY: Final = (
    "can evict no pod on this node: no manifest names files there that are removed with a pod "
    "(reactor/volumes of an emptyDir, reactor/rootfs)"
)


def absurd_on_this_machine(
    settings: Settings, tree: CgroupTree | None = None, *, proc: Path = PROC
) -> dict[str, str]:
    """Return which thresholds make no sense at this machine's capacities, and why, by their names.

    What can't be observed here and now is not judged. Each filesystem may take two seconds to answer.
    """
    return absurd_thresholds(
        settings.eviction.thresholds, observed_on_this_machine(settings, tree, proc=proc)
    )


def observed_on_this_machine(
    settings: Settings, tree: CgroupTree | None = None, *, proc: Path = PROC
) -> dict[Signal, Observation]:
    """Return what this machine has of what the signals are about; what can't be observed is absent.

    Each filesystem may take two seconds to answer.
    """
    return {**_memory_and_processes(settings, tree, proc), **_filesystems(settings)}


def late_on_this_machine(
    settings: Settings, tree: CgroupTree | None = None, *, proc: Path = PROC
) -> dict[str, str]:
    """Return which thresholds for memory.available this machine runs out of memory before, by their names.

    What the kernel itself holds counts as available on a machine. A threshold no higher than that is crossed
    only when less than nothing is left for the pods. A virtual node's usage has the kernel's part of it, and
    MemAvailable is without it.
    """
    if settings.node_cgroup is not None or settings.memory_available is MemoryAvailable.MEM_AVAILABLE:
        return {}
    try:
        kernel_bytes = read_kernel_memory(proc)
        capacity = _memory_and_processes(settings, tree, proc)[Signal.MEMORY_AVAILABLE].capacity
    except (OSError, ReactorError, KeyError):
        return {}
    held = amount_text(kernel_bytes, Resource.MEMORY)
    return {
        f"threshold {one}": f"{held} of what counts as available are held by the kernel itself (slab, page "
        "tables, stacks): memory runs out before it is crossed; `reactor tune` recommends a threshold"
        for one in settings.eviction.thresholds
        if one.signal is Signal.MEMORY_AVAILABLE
        and _LEAST_BYTES <= int(one.value.of(capacity)) <= kernel_bytes
    }


def without_swap_on_this_machine(settings: Settings, *, proc: Path = PROC) -> dict[str, str]:
    """Return which thresholds this machine never meets because it has no swap, by their names."""
    try:
        if machine_swap(proc).total_bytes:
            return {}
    except (OSError, ReactorError):
        return {}
    return {
        f"threshold {one}": "never met: this machine has no swap (/proc/swaps)"
        for one in settings.eviction.thresholds
        if one.signal is Signal.SWAP_AVAILABLE
    }


def hard_threshold_bytes(
    settings: Settings, tree: CgroupTree | None = None, *, proc: Path = PROC
) -> dict[str, int]:
    """Return what hard thresholds keep free of the node's memory and ephemeral-storage, on this machine."""
    observed = observed_on_this_machine(settings, tree, proc=proc)
    return {
        RESERVABLE[threshold.signal]: int(threshold.value.of(observed[threshold.signal].capacity))
        for threshold in settings.eviction.thresholds
        if threshold.is_hard and threshold.signal in RESERVABLE and threshold.signal in observed
    }


def outside_pods_bytes(
    settings: Settings, tree: CgroupTree | None = None, *, proc: Path = PROC
) -> int | None:
    """Return what the node uses now outside its pods, without inactive page cache; None if unknown."""
    observed = _memory_and_processes(settings, tree, proc)
    node = observed.get(Signal.MEMORY_AVAILABLE)
    pods = observed.get(Signal.ALLOCATABLE_MEMORY_AVAILABLE)
    if node is None or pods is None:
        return None
    return max(0, (node.capacity - node.available) - (pods.capacity - pods.available))


def reserved_feature(
    node: Mapping[str, Any], kept_bytes: Mapping[str, int], outside_bytes: int | None = None
) -> Feature:
    """Return whether the scheduler leaves free what reactor's hard thresholds keep free.

    `node` is the v1.Node: its capacity less its allocatable is reserved, the kubelet's own hard thresholds
    included. Memory that is used outside the pods has to be reserved, too. If pods may request more than
    that, a node of pods that all stay within their requests crosses the threshold.
    """
    reserved = _reserved_bytes(node)
    said, short = [], {}
    for name, kept in kept_bytes.items():
        if name not in reserved:
            continue
        outside = (outside_bytes or 0) if name == _MEMORY else 0
        wanted = kept + outside
        used = f" and {format_bytes(outside)} are used outside the pods" if outside else ""
        said.append(
            f"{name}: {format_bytes(reserved[name])} reserved, reactor keeps {format_bytes(kept)} free{used}"
        )
        if reserved[name] < wanted:
            short[name] = wanted - reserved[name]
    if not short:
        known = "; ".join(said) or "nothing to compare: no hard threshold, or a Node without allocatable"
        return Feature(name=ALLOCATABLE, available=True, detail=known)
    return Feature(
        name=ALLOCATABLE,
        available=False,
        detail=f"{'; '.join(said)}: pods within their requests can be evicted",
        remedy="add to systemReserved in the kubelet's configuration "
        + ", ".join(f"{name} {format_bytes(amount)}" for name, amount in short.items())
        + ", or lower the hard threshold",
    )


def _reserved_bytes(node: Mapping[str, Any]) -> dict[str, int]:
    """Return capacity less allocatable of memory and ephemeral-storage, where the Node has both."""
    status: Any = node.get("status")
    found = {}
    for name in RESERVABLE.values():
        try:
            capacity, allocatable = (
                int(parse_quantity(str(status[key][name])).value) for key in ("capacity", "allocatable")
            )
        except (KeyError, TypeError, ValueError):
            continue
        found[name] = max(0, capacity - allocatable)
    return found


def _memory_and_processes(
    settings: Settings, tree: CgroupTree | None, proc: Path
) -> Mapping[Signal, Observation]:
    try:
        node = NodeObserver(tree or CgroupTree.discover(), settings, proc=proc)
    except (OSError, ReactorError):
        return {}
    try:
        return {**node.memory(), **node.processes(), **node.swap()}
    finally:
        node.close()


def _filesystems(settings: Settings) -> Mapping[Signal, Observation]:
    observer = FilesystemObserver(settings)
    found: dict[Signal, Observation] = {}

    def read_all() -> None:
        for filesystem, path in observer.paths.items():
            try:
                found.update(observations(filesystem, observer.read(path).space))
            except OSError:
                continue

    reading = threading.Thread(target=read_all, daemon=True)
    reading.start()
    reading.join(_PATIENCE_SECONDS * len(observer.paths))
    return dict(found)


def without_holders(settings: Settings) -> dict[Threshold, str]:
    """Return the thresholds for filesystems that can evict no pod, and why.

    A threshold for whose filesystem commands are configured is there for these. Reads the manifests.
    """
    eviction = settings.eviction
    on_disk = [
        one
        for one in eviction.thresholds
        if RESOURCE[one.signal] in ON_DISK
        and one.signal not in _DERIVED
        and eviction.commands_for.isdisjoint(filesystems_of(one.signal, eviction.layout))
    ]
    if not on_disk or not eviction.evicts_holders_only or not settings.pod_parents:
        return {}
    path = settings.manifests_path
    pods = [] if path is None else [manifest.pod for manifest in ManifestDirectory(path).read()]
    return {
        one: _WHY for one in on_disk if not any(may_free(pod, one.signal, eviction.layout) for pod in pods)
    }


def without_holders_by_name(settings: Settings) -> Mapping[str, str]:
    return {f"threshold {threshold}": why for threshold, why in without_holders(settings).items()}
