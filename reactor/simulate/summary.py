"""The kubelet's Summary API (stats/v1alpha1) to observations. Source: makeSignalObservations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from reactor.config.scalars import Count, Timestamp
from reactor.model.decisions import Snapshot
from reactor.model.pods import ContainerUsage, FilesystemUsage, PodUsage
from reactor.model.signals import Signal
from reactor.model.thresholds import Observation

_PODS_CONTAINER = "pods"
_POD = re.compile(
    r'\{"podRef":\{(?:"name":"[^"]*",)?(?:"namespace":"[^"]*",)?"uid":"([^"]+)"\},'
    r'"memory":\{(?:"availableBytes":[0-9]+,)?"workingSetBytes":([0-9]{1,19})[,}]'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryStats:
    """MemoryStats; capacity is what is available and what is in use."""

    available_bytes: Count | None = None
    working_set_bytes: Count | None = None
    usage_bytes: Count | None = None
    time: Timestamp | None = None

    def observation(self) -> Observation | None:
        """Return what it shows, None where it shows too little."""
        if self.available_bytes is None or self.working_set_bytes is None:
            return None
        return Observation(
            available=self.available_bytes,
            capacity=self.available_bytes + self.working_set_bytes,
            taken_at_seconds=self.time,
            inactive_file_bytes=None
            if self.usage_bytes is None
            else self.usage_bytes - self.working_set_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapStats:
    """SwapStats, of the node or of a pod; capacity is what is available and what is in use."""

    swap_available_bytes: Count | None = None
    swap_usage_bytes: Count | None = None
    time: Timestamp | None = None

    def observations(self) -> Iterator[tuple[Signal, Observation]]:
        """Yield what it shows of the node; nothing of one without swap."""
        if not self.swap_available_bytes and not self.swap_usage_bytes:
            return
        if self.swap_available_bytes is not None and self.swap_usage_bytes is not None:
            seen = Observation(
                available=self.swap_available_bytes,
                capacity=self.swap_available_bytes + self.swap_usage_bytes,
                taken_at_seconds=self.time,
            )
            yield Signal.SWAP_AVAILABLE, seen


@dataclass(frozen=True, slots=True, kw_only=True)
class FsStats:
    """FsStats, of a filesystem of the node or of what a pod holds on one."""

    available_bytes: Count | None = None
    capacity_bytes: Count | None = None
    used_bytes: Count | None = None
    inodes_free: Count | None = None
    inodes: Count | None = None
    inodes_used: Count | None = None
    time: Timestamp | None = None

    def observations(self, space: Signal, inodes: Signal) -> Iterator[tuple[Signal, Observation]]:
        """Yield what it shows of a node's filesystem."""
        for signal, available, capacity in (
            (space, self.available_bytes, self.capacity_bytes),
            (inodes, self.inodes_free, self.inodes),
        ):
            if available is not None and capacity is not None:
                yield signal, Observation(available=available, capacity=capacity, taken_at_seconds=self.time)

    def usage(self) -> FilesystemUsage:
        """Return what it shows of a pod's part."""
        return FilesystemUsage(used_bytes=self.used_bytes, inodes_used=self.inodes_used)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeStats:
    """RuntimeStats."""

    image_fs: FsStats | None = None
    container_fs: FsStats | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RlimitStats:
    """RlimitStats: process ids there are, and those taken."""

    maxpid: Count | None = None
    curproc: Count | None = None
    time: Timestamp | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerStats:
    """ContainerStats, of a pod's container or of the node's own."""

    name: str = ""
    memory: MemoryStats | None = None
    rootfs: FsStats | None = None
    logs: FsStats | None = None

    def usage(self) -> ContainerUsage:
        return ContainerUsage(
            name=self.name,
            memory_working_set_bytes=None if self.memory is None else self.memory.working_set_bytes,
            rootfs=None if self.rootfs is None else self.rootfs.usage(),
            logs=None if self.logs is None else self.logs.usage(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStats:
    """NodeStats."""

    memory: MemoryStats | None = None
    fs: FsStats | None = None
    runtime: RuntimeStats = field(default_factory=RuntimeStats)
    rlimit: RlimitStats | None = None
    swap: SwapStats | None = None
    system_containers: tuple[ContainerStats, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeStats:
    """VolumeStats."""

    name: str = ""
    used_bytes: Count | None = None
    inodes_used: Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodReference:
    """PodReference."""

    name: str = ""
    namespace: str = "default"
    uid: str = ""

    @property
    def key(self) -> str:
        """Return the uid; without one, namespace and name, as for pods."""
        return self.uid or f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStats:
    """ProcessStats."""

    process_count: Count | None = field(default=None, metadata={"key": "process_count"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PodStats:
    """PodStats; its keys are not all in one style upstream."""

    pod_ref: PodReference = field(default_factory=PodReference)
    memory: MemoryStats | None = None
    containers: tuple[ContainerStats, ...] = ()
    volume: tuple[VolumeStats, ...] = ()
    ephemeral_storage: FsStats | None = field(default=None, metadata={"key": "ephemeral-storage"})
    process_stats: ProcessStats | None = field(default=None, metadata={"key": "process_stats"})
    swap: SwapStats | None = None

    def usage(self) -> PodUsage:
        """Return it as the policy takes it."""
        return PodUsage(
            memory_working_set_bytes=None if self.memory is None else self.memory.working_set_bytes,
            process_count=None if self.process_stats is None else self.process_stats.process_count,
            ephemeral_storage_bytes=None
            if self.ephemeral_storage is None
            else self.ephemeral_storage.used_bytes,
            swap_bytes=None if self.swap is None else self.swap.swap_usage_bytes,
            containers=tuple(container.usage() for container in self.containers),
            volumes={
                volume.name: FilesystemUsage(used_bytes=volume.used_bytes, inodes_used=volume.inodes_used)
                for volume in self.volume
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A Summary as written; other keys are accepted and ignored."""

    node: NodeStats = field(default_factory=NodeStats)
    pods: tuple[PodStats, ...] = ()

    def snapshot(self) -> Snapshot:
        """Return what it shows; what it doesn't show is absent."""
        return Snapshot(
            signals=dict(self._signals()), pods={pod.pod_ref.key: pod.usage() for pod in self.pods}
        )

    def _signals(self) -> Iterator[tuple[Signal, Observation]]:
        yield from _memory(Signal.MEMORY_AVAILABLE, self.node.memory)
        for container in self.node.system_containers:
            if container.name == _PODS_CONTAINER:
                yield from _memory(Signal.ALLOCATABLE_MEMORY_AVAILABLE, container.memory)
        for filesystem, space, inodes in (
            (self.node.fs, Signal.NODEFS_AVAILABLE, Signal.NODEFS_INODES_FREE),
            (self.node.runtime.image_fs, Signal.IMAGEFS_AVAILABLE, Signal.IMAGEFS_INODES_FREE),
            (self.node.runtime.container_fs, Signal.CONTAINERFS_AVAILABLE, Signal.CONTAINERFS_INODES_FREE),
        ):
            if filesystem is not None:
                yield from filesystem.observations(space, inodes)
        if self.node.swap is not None:
            yield from self.node.swap.observations()
        rlimit = self.node.rlimit
        if rlimit is not None and rlimit.maxpid is not None and rlimit.curproc is not None:
            yield (
                Signal.PID_AVAILABLE,
                Observation(
                    available=rlimit.maxpid - rlimit.curproc,
                    capacity=rlimit.maxpid,
                    taken_at_seconds=rlimit.time,
                ),
            )


def _memory(signal: Signal, memory: MemoryStats | None) -> Iterator[tuple[Signal, Observation]]:
    observation = None if memory is None else memory.observation()
    if observation is not None:
        yield signal, observation


def working_sets(summary: Any) -> dict[str, int] | None:
    """Return by uid what a Summary as written shows of its pods' working sets, and reads nothing else of it.

    None where that has another form than expected, or a pod has none. Reading all takes 50 times as long.
    """
    try:
        found = {pod["podRef"]["uid"]: pod["memory"]["workingSetBytes"] for pod in summary["pods"]}
    except (KeyError, TypeError):
        return None
    types = {str: set(map(type, found)), int: set(map(type, found.values()))}
    are_sound = all(seen <= {wanted} for wanted, seen in types.items()) and "" not in found
    return (
        found
        if are_sound and 0 <= min(found.values(), default=0) <= max(found.values(), default=0) < 2**64
        else None
    )


def written_working_sets(line: str) -> dict[str, int] | None:
    """Return the same of a Summary in a line as `record` writes it, undecoded, which takes a fifth of that.

    None where a pod is written otherwise, or an escape might hide where a string ends. What has no `podRef`
    is passed over: it is no pod's.
    """
    found = {uid: int(amount) for uid, amount in _POD.findall(line)}
    return found if "\\" not in line and len(found) == line.count('{"podRef":') else None
