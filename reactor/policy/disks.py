"""The policy's part about filesystems: pods' own limits, what their end frees of one, and its reclaims.

A pod is held to its limits for emptyDirs first, then to its own, then to its containers'.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from reactor.model.decisions import Eviction, RankedPod
from reactor.model.pods import ContainerUsage, FilesystemUsage, Pod, PodUsage, StorageKind, Volume
from reactor.model.signals import (
    RESOURCE,
    Filesystem,
    Layout,
    LimitSignal,
    Reclaim,
    Resource,
    Signal,
    filesystems_of,
)
from reactor.text import printable

_NODEFS = frozenset({Signal.NODEFS_AVAILABLE, Signal.NODEFS_INODES_FREE})
_IMAGEFS = frozenset({Signal.IMAGEFS_AVAILABLE, Signal.IMAGEFS_INODES_FREE})


def first_broken_limit(pod: Pod, used: PodUsage, layout: Layout) -> Iterator[Eviction]:
    """Yield the eviction for the first storage limit of its own that a pod exceeds, if there is one."""
    resource = Resource.EPHEMERAL_STORAGE
    for signal, message in islice(_broken_limits(pod, used, layout), 1):
        yield Eviction(pod=pod, signal=signal, resource=resource, grace_period_seconds=0, message=message)


def _broken_limits(pod: Pod, used: PodUsage, layout: Layout) -> Iterator[tuple[LimitSignal, str]]:
    """Yield what is above its limit: emptyDirs, the pod, its containers.

    An emptyDir in memory is held to what its mount has, if that has a size. Its spec may be what somebody
    wishes for: the kubelet resizes the mount later, or can't. No more fits into a mount than it has, so such
    a volume is never above it. Source: KEP-6030, emptyDirLimitEviction. Where images have their own
    filesystem a container is charged for its logs alone.
    """
    sized = {place.name for place in pod.storage if place.kind is StorageKind.VOLUME and place.is_sized}
    for volume in pod.volumes:
        if volume.name in sized:
            continue
        limit = volume.size_limit
        used_bytes = used.volumes.get(volume.name, FilesystemUsage()).used_bytes
        if limit is not None and used_bytes is not None and used_bytes > limit.amount > 0:
            name = printable(volume.name)
            yield LimitSignal.EMPTY_DIR, f'Usage of EmptyDir volume "{name}" exceeds the limit "{limit}". '
    limit, used_bytes = pod.ephemeral_storage_limit, used.ephemeral_storage_bytes
    if limit is not None and used_bytes is not None and used_bytes > limit.amount:
        yield (
            LimitSignal.POD,
            f"Pod ephemeral local storage usage exceeds the total limit of containers {limit}. ",
        )
    limits = {container.name: container.ephemeral_storage_limit for container in pod.containers}
    for container in used.containers:
        limit = limits.get(container.name)
        used_bytes = _container_bytes(container, with_writable_layer=layout is Layout.SINGLE)
        if limit is not None and limit.amount and used_bytes > limit.amount:
            name = printable(container.name)
            message = f'Container {name} exceeded its local ephemeral storage limit "{limit}". '
            yield LimitSignal.CONTAINER, message


def _container_bytes(container: ContainerUsage, *, with_writable_layer: bool) -> int:
    counted = (container.logs, container.rootfs) if with_writable_layer else (container.logs,)
    return sum(filesystem.used_bytes or 0 for filesystem in counted if filesystem is not None)


def freed(pod: Pod, used: PodUsage | None, signal: Signal, layout: Layout) -> int | None:
    """Return what the pod's end frees of the signal's filesystem if no kubelet removes its files.

    That is what is removed with the pod: its emptyDirs and writable layers. A directory that is left empty
    still has an inode, and on some filesystems a block; both stay. None where it is not known.
    """
    resource = RESOURCE[signal]
    if used is None or resource in used.unreadable:
        return None
    amount = 0
    for filesystem in charged_filesystems(pod, used, signal, layout, removed_with_pod=True):
        inodes = filesystem.inodes_used
        is_empty = inodes is not None and inodes <= 1
        if resource is Resource.INODES:
            amount += 0 if inodes is None or is_empty else inodes - 1
        elif not is_empty:
            amount += filesystem.used_bytes or 0
    return amount


def may_free(pod: Pod, signal: Signal, layout: Layout) -> bool:
    """Return whether files of the pod that are removed with it can lie on the signal's filesystem at all."""
    layers, volumes = _charged(signal, layout)
    ending = {volume.name for volume in pod.volumes if _ends_with_pod(volume)}
    return any(
        (layers and place.kind is StorageKind.WRITABLE_LAYER)
        or (volumes and place.kind is StorageKind.VOLUME and place.name in ending)
        for place in pod.storage
    )


def charged_filesystems(
    pod: Pod, used: PodUsage, signal: Signal, layout: Layout, *, removed_with_pod: bool = False
) -> Iterable[FilesystemUsage]:
    """Yield what is charged to the pod on the signal's filesystem, by where it lies in this layout.

    No images are charged. With `removed_with_pod`: of files those alone. Source: buildSignalToRankFunc.
    """
    layers, logs_and_volumes = _charged(signal, layout)
    for container in used.containers:
        if layers and container.rootfs is not None:
            yield container.rootfs
        if logs_and_volumes and container.logs is not None and not removed_with_pod:
            yield container.logs
    for volume in pod.volumes:
        counts = _ends_with_pod(volume) if removed_with_pod else volume.is_local
        if logs_and_volumes and counts and volume.name in used.volumes:
            yield used.volumes[volume.name]


def _ends_with_pod(volume: Volume) -> bool:
    return volume.is_local and volume.is_empty_dir


def _charged(signal: Signal, layout: Layout) -> tuple[bool, bool]:
    """Return whether writable layers count, and whether logs and local volumes do."""
    if layout is Layout.SINGLE:
        return True, True
    if layout is Layout.SPLIT:
        return (False, False) if signal in _IMAGEFS else (True, True)
    return (False, True) if signal in _NODEFS else (True, False)


def holders_first(
    ranking: Sequence[RankedPod], used: Mapping[str, PodUsage], signal: Signal, layout: Layout
) -> tuple[RankedPod, ...]:
    """Return the ranking with the pods whose end is not known to free anything behind those that may go."""
    known = (
        place._replace(holds_nothing=not freed(place.pod, used.get(place.pod.uid), signal, layout))
        if place.evictable
        else place
        for place in ranking
    )
    return tuple(sorted(known, key=lambda one: (one.pod.critical_because is not None, one.holds_nothing)))


def node_reclaim(
    signal: Signal, layout: Layout, commands_for: Collection[Filesystem] = ()
) -> tuple[Reclaim, ...]:
    """Return the node-level reclaims for a signal about a filesystem, in their order: one or more.

    `commands_for` are the filesystems for which commands are configured: they come first, since an image
    that is removed has to be fetched again. For the others see upstream's buildSignalToNodeReclaimFuncs.
    """
    has_commands = any(filesystem in commands_for for filesystem in filesystems_of(signal, layout))
    return (*((Reclaim.COMMANDS,) if has_commands else ()), *_upstream(signal, layout))


def _upstream(signal: Signal, layout: Layout) -> tuple[Reclaim, ...]:
    if layout is Layout.SINGLE:
        return (Reclaim.CONTAINERS, Reclaim.IMAGES)
    if layout is Layout.SPLIT:
        return (Reclaim.IMAGES,) if signal in _IMAGEFS else (Reclaim.CONTAINERS,)
    # On nodefs lie the logs of dead containers. So upstream's documentation; its code reclaims nothing there.
    return (Reclaim.CONTAINERS,) if signal in _NODEFS else (Reclaim.CONTAINERS, Reclaim.IMAGES)
