"""Who holds the node's memory: the pods, and what belongs to none of them, by its kinds.

The working set of the machine is what processes and files use. What the kernel itself holds counts as
available there, unlike in a cgroup that stands for the node, and is told apart from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from reactor.errors import ReactorError
from reactor.guard.record import counted_as
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.procfs import PROC, read_kernel_memory
from reactor.model.amounts import amount_text
from reactor.model.pods import Pod, PodUsage
from reactor.model.signals import Resource
from reactor.model.thresholds import Observation
from reactor.observe.memory_kinds import MemoryKinds
from reactor.policy.outside import memory_outside_pods
from reactor.text import printable

_SAYS: Final = {
    "anonymous_bytes": "anonymous",
    "shared_bytes": "shmem",
    "active_file_bytes": "active file",
    "kernel_bytes": "slab and other kernel memory",
}
_MENTIONED_BYTES: Final = 1 << 20
_MACHINE: Final = "/"
_LARGEST: Final = 3


def memory_held(
    seen: Observation | None, pods: Sequence[Pod], used: Mapping[str, PodUsage]
) -> dict[str, Any] | None:
    """Return how much of the working set the pods hold, and their cgroups; None where that is not known."""
    if seen is None or seen.absurdity is not None:
        return None
    outside_bytes = memory_outside_pods(seen, pods, used)
    if outside_bytes is None:
        return None
    return {
        **counted_as(seen),
        "used_bytes": seen.capacity - seen.available,
        "outside_bytes": outside_bytes,
        "never_evicted": _never_evicted(pods, used),
        "cgroups": [pod.cgroup for pod in pods if pod.cgroup is not None],
    }


def _never_evicted(pods: Sequence[Pod], used: Mapping[str, PodUsage]) -> dict[str, Any]:
    """Return how much the pods hold that are never evicted, and the largest of them."""
    held = [
        (used[pod.uid].memory_working_set_bytes or 0, pod.key)
        for pod in pods
        if pod.critical_because is not None and pod.uid in used
    ]
    held.sort(reverse=True)
    return {
        "bytes": sum(amount for amount, _ in held),
        "largest": [{"pod": pod, "bytes": amount} for amount, pod in held[:_LARGEST]],
    }


def memory_holders(
    tree: CgroupTree, node: str, held: Mapping[str, Any], *, proc: Path = PROC
) -> dict[str, Any]:
    """Return who holds the working set of the node's cgroup, as plain JSON values and one line in words.

    `held` is what `memory_held` returned. Reads memory.stat of the node and of each pod: not for the guard.
    `kernel_bytes` is what the kernel holds of the machine ("/") beside the working set, None for a cgroup.
    """
    used_bytes, outside_bytes = held["used_bytes"], held["outside_bytes"]
    kinds = _outside(tree, node, held["cgroups"])
    kernel_bytes = None
    if node == _MACHINE:
        kinds = kinds and replace(kinds, kernel_bytes=0)
        with suppress(OSError, ReactorError):
            kernel_bytes = read_kernel_memory(proc)
    if "counted_as" in held:  # as MemAvailable: page cache is not used, the kernel's memory is
        kinds = kinds and replace(kinds, active_file_bytes=0, kernel_bytes=kernel_bytes or kinds.kernel_bytes)
        kernel_bytes = None
    told = [] if kinds is None else [(name, getattr(kinds, name)) for name in _SAYS]
    parts = ", ".join(
        f"{_SAYS[name]} {amount_text(amount, Resource.MEMORY)}"
        for name, amount in told
        if amount >= _MENTIONED_BYTES
    )
    used_text, pods_text, outside_text = (
        amount_text(amount, Resource.MEMORY)
        for amount in (used_bytes, used_bytes - outside_bytes, outside_bytes)
    )
    return {
        "used_bytes": used_bytes,
        "pods_bytes": used_bytes - outside_bytes,
        "outside_bytes": outside_bytes,
        "outside": dict(told) or None,
        "kernel_bytes": kernel_bytes,
        "never_evicted": held["never_evicted"],
        "message": f"{used_text} used, {pods_text} by pods; {outside_text} belong to no pod"
        + (f" ({parts})" if parts else "")
        + _kept(held["never_evicted"])
        + _beside(kernel_bytes),
    }


def _kept(never_evicted: Mapping[str, Any]) -> str:
    """Return, in words, what pods hold that are never evicted, and the largest of them."""
    if never_evicted["bytes"] < _MENTIONED_BYTES:
        return ""
    largest = ", ".join(
        f"{printable(one['pod'])} {amount_text(one['bytes'], Resource.MEMORY)}"
        for one in never_evicted["largest"]
        if one["bytes"] >= _MENTIONED_BYTES
    )
    whole = amount_text(never_evicted["bytes"], Resource.MEMORY)
    return f"; {whole} are held by pods that are never evicted" + (f" ({largest})" if largest else "")


def _beside(kernel_bytes: int | None) -> str:
    if kernel_bytes is None:
        return ""
    return f"; {amount_text(kernel_bytes, Resource.MEMORY)} of the kernel itself count as available"


def _outside(tree: CgroupTree, node: str, cgroups: Sequence[str]) -> MemoryKinds | None:
    try:
        whole = MemoryKinds.of(tree, node)
    except (OSError, ReactorError):
        return None
    of_pods = []
    for cgroup in cgroups:
        with suppress(OSError, ReactorError):  # gone meanwhile
            of_pods.append(MemoryKinds.of(tree, cgroup))
    return whole.without(of_pods)
