"""What pods use, put together: memory and processes by the kernel's counters, disks by counted files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from reactor.model.pods import ContainerUsage, FilesystemUsage, Pod, PodUsage, StorageKind, StoragePlace
from reactor.model.signals import ON_DISK, Resource

_NEITHER_MEMORY_NOR_PROCESSES: Final = PodUsage(unreadable=frozenset({Resource.MEMORY, Resource.PIDS}))


def pod_usage(pod: Pod, usages: Mapping[StoragePlace, FilesystemUsage]) -> PodUsage:
    """Return a pod's usage, made up of that of its places.

    Its ephemeral storage is what its containers and its local volumes take; an emptyDir in memory is not
    part of it. Source: podLocalEphemeralStorageUsage.
    """
    by_kind: dict[StorageKind, dict[str, FilesystemUsage]] = {kind: {} for kind in StorageKind}
    for place, usage in usages.items():
        by_kind[place.kind][place.name] = usage
    layers, logs = by_kind[StorageKind.WRITABLE_LAYER], by_kind[StorageKind.LOGS]
    volumes = by_kind[StorageKind.VOLUME]
    local = [volumes[volume.name] for volume in pod.volumes if volume.is_local and volume.name in volumes]
    return PodUsage(
        ephemeral_storage_bytes=sum(
            usage.used_bytes or 0 for usage in (*layers.values(), *logs.values(), *local)
        ),
        containers=tuple(
            ContainerUsage(name=name, rootfs=layers.get(name), logs=logs.get(name))
            for name in dict.fromkeys((*layers, *logs))
        ),
        volumes=volumes,
    )


def with_storage(
    usages: Mapping[str, PodUsage], storage: Mapping[str, PodUsage], pods: Sequence[Pod]
) -> dict[str, PodUsage]:
    """Return what these pods use of memory and processes together with what they take of filesystems, by uid.

    What is in neither of the two has not been observed: that is unreadable, and not the same as none.
    """
    joined = dict(usages)
    for pod in pods:
        known, taken = usages.get(pod.uid, _NEITHER_MEMORY_NOR_PROCESSES), storage.get(pod.uid)
        if taken is None:
            joined[pod.uid] = known._replace(unreadable=known.unreadable | ON_DISK)
        else:
            joined[pod.uid] = known._replace(
                ephemeral_storage_bytes=taken.ephemeral_storage_bytes,
                containers=_joined(known.containers, taken.containers),
                volumes=taken.volumes,
                unreadable=known.unreadable | taken.unreadable,
            )
    return joined


def _joined(
    memory: Sequence[ContainerUsage], storage: Sequence[ContainerUsage]
) -> tuple[ContainerUsage, ...]:
    """Return what containers use of memory with what they take of filesystems, by name."""
    joined = {container.name: container for container in storage}
    for container in memory:
        taken = joined.get(container.name, container)
        joined[container.name] = replace(taken, memory_working_set_bytes=container.memory_working_set_bytes)
    return tuple(joined.values())
