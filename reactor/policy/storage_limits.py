"""Whether a pod is above a limit of its own for storage: emptyDirs, then the pod, then its containers."""

from __future__ import annotations

from collections.abc import Iterator

from reactor.model.decisions import Eviction
from reactor.model.pods import ContainerUsage, FilesystemUsage, Pod, PodUsage, StorageKind
from reactor.model.quantity import Quantity
from reactor.model.signals import Layout, LimitSignal, Resource
from reactor.text import printable


def empty_dir_message(volume_name: str, limit: Quantity) -> str:
    return f'Usage of EmptyDir volume "{printable(volume_name)}" exceeds the limit "{limit}". '


def pod_limit_message(limit: Quantity) -> str:
    return f"Pod ephemeral local storage usage exceeds the total limit of containers {limit}. "


def container_limit_message(container_name: str, limit: Quantity) -> str:
    return f'Container {printable(container_name)} exceeded its local ephemeral storage limit "{limit}". '


def first_broken_limit(pod: Pod, used: PodUsage, layout: Layout) -> Iterator[Eviction]:
    """Yield the eviction for the first storage limit of its own that a pod exceeds, if there is one."""
    broken = (*_empty_dirs(pod, used), *_pod_limit(pod, used), *_container_limits(pod, used, layout))
    resource = Resource.EPHEMERAL_STORAGE
    for signal, message in broken[:1]:
        yield Eviction(pod=pod, signal=signal, resource=resource, grace_period_seconds=0, message=message)


def _empty_dirs(pod: Pod, used: PodUsage) -> Iterator[tuple[LimitSignal, str]]:
    """Yield the emptyDirs above their limit; one in memory is held to what its mount has, if that has a size.

    Its spec may be what somebody wishes for: the kubelet resizes the mount later, or can't. No more fits into
    a mount than it has, so such a volume is never above it. Source: KEP-6030, emptyDirLimitEviction.
    """
    sized = {place.name for place in pod.storage if place.kind is StorageKind.VOLUME and place.is_sized}
    for volume in pod.volumes:
        if volume.name in sized:
            continue
        limit = volume.size_limit
        used_bytes = used.volumes.get(volume.name, FilesystemUsage()).used_bytes
        if limit is not None and used_bytes is not None and used_bytes > limit.amount > 0:
            yield LimitSignal.EMPTY_DIR, empty_dir_message(volume.name, limit)


def _pod_limit(pod: Pod, used: PodUsage) -> Iterator[tuple[LimitSignal, str]]:
    limit, used_bytes = pod.ephemeral_storage_limit, used.ephemeral_storage_bytes
    if limit is not None and used_bytes is not None and used_bytes > limit.amount:
        yield LimitSignal.POD, pod_limit_message(limit)


def _container_limits(pod: Pod, used: PodUsage, layout: Layout) -> Iterator[tuple[LimitSignal, str]]:
    """Yield containers above their limit. Where images have their own filesystem only logs are charged."""
    limits = {container.name: container.ephemeral_storage_limit for container in pod.containers}
    for container in used.containers:
        limit = limits.get(container.name)
        used_bytes = _container_bytes(container, with_writable_layer=layout is Layout.SINGLE)
        if limit is not None and limit.amount and used_bytes > limit.amount:
            yield LimitSignal.CONTAINER, container_limit_message(container.name, limit)


def _container_bytes(container: ContainerUsage, *, with_writable_layer: bool) -> int:
    counted = (container.logs, container.rootfs) if with_writable_layer else (container.logs,)
    return sum(filesystem.used_bytes or 0 for filesystem in counted if filesystem is not None)
