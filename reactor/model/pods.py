"""Pods: what the policy needs to know of them, and what they use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from reactor.model.pod_lists import Preference, ProcessVictim
from reactor.model.quantity import Quantity
from reactor.model.signals import FREED_TOGETHER, Resource

SYSTEM_CRITICAL_PRIORITY = 2_000_000_000
DEFAULT_TERMINATION_GRACE_PERIOD_SECONDS = 30


def is_critical_by_mark(critical_because: str | None, priority: int) -> bool:
    """Return whether a pod is never evicted, and not for its priority: by a mark, a list or its source."""
    return critical_because is not None and priority < SYSTEM_CRITICAL_PRIORITY


class PodSource(StrEnum):
    """Where the kubelet has a pod from; MIRROR is the API server's object of a static one."""

    API = "api"
    MIRROR = "mirror"
    FILE = "file"
    HTTP = "http"
    OTHER = "other"

    @property
    def critical_because(self) -> str | None:
        """Return why a pod from there is never evicted, None where it may be. Source: IsCriticalPod."""
        if self is PodSource.API:
            return None
        if self is PodSource.MIRROR:
            return "mirror pod"
        return "static pod" if self is PodSource.OTHER else f"static pod (source {self})"


class QosClass(StrEnum):
    """How much of what it may use a pod has asked for."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


@dataclass(frozen=True, slots=True, kw_only=True)
class Toleration:
    """A v1.Toleration; absent fields are empty strings, as upstream's comparison takes them."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A container's requests and its limit of local storage (None: none set)."""

    name: str
    requests: Mapping[Resource, Quantity] = field(default_factory=dict)
    ephemeral_storage_limit: Quantity | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """A volume of a pod, as far as it takes the node's storage.

    `is_local`: its usage is charged to the pod on the node's filesystem (hostPath, configMap, gitRepo and
    emptyDir on disk). `is_empty_dir` is an emptyDir of any medium, `size_limit` its limit (None: none set).
    """

    name: str
    is_local: bool = True
    is_empty_dir: bool = False
    size_limit: Quantity | None = None


class StorageKind(StrEnum):
    """What a directory holds for a pod."""

    WRITABLE_LAYER = "writable layer"
    LOGS = "logs"
    VOLUME = "volume"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoragePlace:
    """A directory of which all that lies below is charged to a pod: to its container or volume `name`.

    `ends_with_pod`: what lies there is ours to remove once the pod has been evicted. `is_sized`: it is a
    filesystem of its own, whose size the kernel holds it to.
    """

    kind: StorageKind
    name: str
    path: str
    ends_with_pod: bool = False
    is_sized: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod as the policy sees it; requests are the pod's totals, an absent one is zero.

    `critical_because` says why it may never be evicted (None: it may); where its eviction
    `could_not_be_ended` that holds for a while only. By its `preference`, which only pods
    of a plain node have, it goes before all others or after them. With a `process_victim`
    one of its processes is killed for memory, not all. `labels` are those that the configuration names.
    `cgroup` is its cgroup relative to the hierarchy's root where it is known, `cgroup_inode` that directory's
    inode when the pod was listed (the memory controller's): a directory of the same path and another
    inode is another pod's. Below it lie `container_cgroups`, by the containers' names, and `spared_cgroups`,
    which a kill leaves alone: the sandbox's pause container, the runtime's own monitors.
    `own_memory_request` is what it requests of memory as a whole (pod-level resources; None: nothing).
    `storage` is where its files lie. `partition` is the cgroup with a limit of its own that keeps it from
    being evicted for the node's memory, and for nothing else: a rule for that cgroup may evict it.
    """

    name: str
    namespace: str
    uid: str
    priority: int = 0
    qos_class: QosClass = QosClass.BEST_EFFORT
    critical_because: str | None = None
    could_not_be_ended: bool = False
    preference: Preference = Preference.NONE
    process_victim: ProcessVictim | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    termination_grace_period_seconds: int = DEFAULT_TERMINATION_GRACE_PERIOD_SECONDS
    requests: Mapping[Resource, int] = field(default_factory=dict)
    own_memory_request: Quantity | None = None
    ephemeral_storage_limit: Quantity | None = None
    containers: tuple[Container, ...] = ()
    volumes: tuple[Volume, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    cgroup: str | None = None
    cgroup_inode: int | None = None
    container_cgroups: Mapping[str, str] = field(default_factory=dict)
    spared_cgroups: tuple[str, ...] = ()
    storage: tuple[StoragePlace, ...] = ()
    partition: str | None = None

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    def loses_one_process(self, resource: Resource) -> bool:
        """Return whether an eviction for a resource kills one of its processes: for memory and swap."""
        return self.process_victim is not None and resource in FREED_TOGETHER


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesystemUsage:
    """Bytes and inodes in use on a filesystem (None: not observed)."""

    used_bytes: int | None = None
    inodes_used: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerUsage:
    """What one container uses."""

    name: str
    memory_working_set_bytes: int | None = None
    rootfs: FilesystemUsage | None = None
    logs: FilesystemUsage | None = None


class PodUsage(NamedTuple):
    """What one pod uses (None: not observed, which counts as none used). `volumes` is by volume name.

    A tuple, since one is made of each pod on the way to a kill.

    `swap_bytes` is what of its memory is in swap, and no part of the working set.

    `unreadable` are the resources whose numbers could not be read.
    """

    memory_working_set_bytes: int | None = None
    process_count: int | None = None
    ephemeral_storage_bytes: int | None = None
    swap_bytes: int | None = None
    containers: tuple[ContainerUsage, ...] = ()
    volumes: Mapping[str, FilesystemUsage] = MappingProxyType({})
    unreadable: frozenset[Resource] = frozenset()


def working_set_bytes(used: Mapping[str, PodUsage], uid: str) -> int | None:
    """Return what a pod holds of memory, None where that was not observed."""
    usage = used.get(uid)
    return None if usage is None else usage.memory_working_set_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A container image on the node. Instants are seconds on the pass's clock (None: never, or unknown)."""

    id: str
    size_bytes: int
    first_detected_seconds: float | None = None
    last_used_seconds: float | None = None
    in_use: bool = False
    pinned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimePod:
    """A pod as the runtime knows it. `containers` are the running ones' names by id, `sandboxes` ids.

    `source` is what the sandbox's annotations say of a static pod. They are the pod's, so they count only
    where the pod's uid is none that the API server makes: such a pod was read by the kubelet from a file or a
    URL, whatever a tenant writes; and where they are as the kubelet has them, config.hash being the uid.
    """

    name: str
    namespace: str
    sandboxes: tuple[str, ...] = ()
    containers: Mapping[str, str] = field(default_factory=dict)
    source: PodSource = PodSource.API


Inventory = Mapping[str, RuntimePod]  # by the pod's uid


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFiles:
    """Namespace and name of pods by uid, and the uids that static pods' manifests name."""

    names: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    static_uids: frozenset[str] = frozenset()
