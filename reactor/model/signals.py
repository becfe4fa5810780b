"""Signals, and the resources, conditions, filesystems and reclaims that belong to them.

Source: pkg/kubelet/eviction/{helpers,api/types}.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class Signal(StrEnum):
    """What is observed of a node, by upstream's name; of swap upstream observes nothing."""

    MEMORY_AVAILABLE = "memory.available"
    ALLOCATABLE_MEMORY_AVAILABLE = "allocatableMemory.available"
    NODEFS_AVAILABLE = "nodefs.available"
    NODEFS_INODES_FREE = "nodefs.inodesFree"
    IMAGEFS_AVAILABLE = "imagefs.available"
    IMAGEFS_INODES_FREE = "imagefs.inodesFree"
    CONTAINERFS_AVAILABLE = "containerfs.available"
    CONTAINERFS_INODES_FREE = "containerfs.inodesFree"
    PID_AVAILABLE = "pid.available"
    SWAP_AVAILABLE = "swap.available"


class LimitSignal(StrEnum):
    """Why a pod is evicted for its own storage limit rather than for the node's sake."""

    EMPTY_DIR = "emptydirfs.limit"
    POD = "ephemeralpodfs.limit"
    CONTAINER = "ephemeralcontainerfs.limit"


class RuleSignal(StrEnum):
    """Why a pod is evicted, or memory reclaimed, where a rule of the operator's says so."""

    RULE = "rule"


class Resource(StrEnum):
    """What is starved, as eviction messages name it."""

    MEMORY = "memory"
    EPHEMERAL_STORAGE = "ephemeral-storage"
    INODES = "inodes"
    PIDS = "pids"
    SWAP = "swap"


class NodeCondition(StrEnum):
    """A node condition, in the order in which conditions are reported."""

    MEMORY_PRESSURE = "MemoryPressure"
    DISK_PRESSURE = "DiskPressure"
    PID_PRESSURE = "PIDPressure"


class Filesystem(StrEnum):
    """The filesystems that signals are about."""

    NODEFS = "nodefs"
    IMAGEFS = "imagefs"
    CONTAINERFS = "containerfs"


class Layout(StrEnum):
    """How images and writable layers lie on filesystems.

    `SINGLE`: all on the node's. `DEDICATED`: images and writable layers on their own. `SPLIT`: images on
    their own, writable layers on the node's.
    """

    SINGLE = "single"
    DEDICATED = "dedicated"
    SPLIT = "split"


class Reclaim(StrEnum):
    """What a node can reclaim before a pod is evicted, in the order in which it is asked to.

    `COMMANDS`: what the operator configured. `MEMORY`: what no pod holds, before a further pod is evicted for
    it. `POD_MEMORY`: what pods hold and have not used for long, before a soft eviction. `RULE`: memory of a
    cgroup, where a rule of the operator's says so. Upstream knows `CONTAINERS` and `IMAGES` alone.
    """

    COMMANDS = "commands"
    CONTAINERS = "containers"
    IMAGES = "images"
    MEMORY = "memory"
    POD_MEMORY = "pod-memory"
    RULE = "rule"


MEMORY_SIGNALS: Final = frozenset({Signal.MEMORY_AVAILABLE, Signal.ALLOCATABLE_MEMORY_AVAILABLE})
# A pod that ends frees both.
FREED_TOGETHER: Final = frozenset({Resource.MEMORY, Resource.SWAP})
ON_DISK: Final = frozenset({Resource.EPHEMERAL_STORAGE, Resource.INODES})

RESOURCE: Final[dict[Signal, Resource]] = {
    Signal.MEMORY_AVAILABLE: Resource.MEMORY,
    Signal.ALLOCATABLE_MEMORY_AVAILABLE: Resource.MEMORY,
    Signal.NODEFS_AVAILABLE: Resource.EPHEMERAL_STORAGE,
    Signal.NODEFS_INODES_FREE: Resource.INODES,
    Signal.IMAGEFS_AVAILABLE: Resource.EPHEMERAL_STORAGE,
    Signal.IMAGEFS_INODES_FREE: Resource.INODES,
    Signal.CONTAINERFS_AVAILABLE: Resource.EPHEMERAL_STORAGE,
    Signal.CONTAINERFS_INODES_FREE: Resource.INODES,
    Signal.PID_AVAILABLE: Resource.PIDS,
    Signal.SWAP_AVAILABLE: Resource.SWAP,
}
DISK_SIGNALS: Final = frozenset(signal for signal, resource in RESOURCE.items() if resource in ON_DISK)

# What is observed of each filesystem: bytes, and inodes.
FILESYSTEM_SIGNALS: Final[Mapping[Filesystem, tuple[Signal, Signal]]] = {
    Filesystem.NODEFS: (Signal.NODEFS_AVAILABLE, Signal.NODEFS_INODES_FREE),
    Filesystem.IMAGEFS: (Signal.IMAGEFS_AVAILABLE, Signal.IMAGEFS_INODES_FREE),
    Filesystem.CONTAINERFS: (Signal.CONTAINERFS_AVAILABLE, Signal.CONTAINERFS_INODES_FREE),
}

IN_BYTES: Final = frozenset({Resource.MEMORY, Resource.EPHEMERAL_STORAGE, Resource.SWAP})
# What a status document calls the unit of an amount, and a resource that is counted in it.
UNIT: Final[dict[Resource, str]] = {
    resource: "bytes" if resource in IN_BYTES else {Resource.PIDS: "processes"}.get(resource, resource.value)
    for resource in Resource
}
RESOURCE_IN: Final = {"bytes": Resource.MEMORY, "inodes": Resource.INODES, "processes": Resource.PIDS}

CONDITION: Final[dict[Signal, NodeCondition]] = {
    signal: {
        Resource.MEMORY: NodeCondition.MEMORY_PRESSURE,
        Resource.SWAP: NodeCondition.MEMORY_PRESSURE,
        Resource.PIDS: NodeCondition.PID_PRESSURE,
    }.get(resource, NodeCondition.DISK_PRESSURE)
    for signal, resource in RESOURCE.items()
}


def filesystems_of(signal: Signal, layout: Layout) -> tuple[Filesystem, ...]:
    """Return the names under which the filesystem that a signal is about is known in this layout."""
    names = {
        Layout.SINGLE: (tuple(Filesystem),),
        Layout.DEDICATED: ((Filesystem.NODEFS,), (Filesystem.IMAGEFS, Filesystem.CONTAINERFS)),
        Layout.SPLIT: ((Filesystem.NODEFS, Filesystem.CONTAINERFS), (Filesystem.IMAGEFS,)),
    }
    own = next((one for one in Filesystem if signal.startswith(f"{one}.")), None)
    return next((together for together in names[layout] if own in together), ())
