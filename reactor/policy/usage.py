"""What a pod uses of a starved resource, and what it asked for."""

from __future__ import annotations

from collections.abc import Iterable

from reactor.model.pods import FilesystemUsage, Pod, PodUsage, StorageKind, Volume
from reactor.model.signals import RESOURCE, Layout, Resource, Signal

_NODEFS = frozenset({Signal.NODEFS_AVAILABLE, Signal.NODEFS_INODES_FREE})
_IMAGEFS = frozenset({Signal.IMAGEFS_AVAILABLE, Signal.IMAGEFS_INODES_FREE})


def usage(pod: Pod, used: PodUsage | None, signal: Signal, layout: Layout) -> int | None:
    """Return the pod's usage of what the signal is about: bytes, inodes or processes.

    None where there are no statistics of the pod at all, or where the number could not be read. A number
    that the statistics lack is none used. Source: memoryUsage, processUsage, podDiskUsage.
    """
    resource = RESOURCE[signal]
    if used is None or is_unreadable(used, resource):
        return None
    if resource is Resource.MEMORY:
        return used.memory_working_set_bytes or 0
    if resource is Resource.PIDS:
        return used.process_count or 0
    if resource is Resource.SWAP:
        return used.swap_bytes or 0
    counts = (
        filesystem.inodes_used if resource is Resource.INODES else filesystem.used_bytes
        for filesystem in _filesystems(pod, used, signal, layout)
    )
    return sum(count for count in counts if count is not None)


def freed(pod: Pod, used: PodUsage | None, signal: Signal, layout: Layout) -> int | None:
    """Return what the pod's end gives back of the signal's filesystem where no kubelet removes its files.

    That is what is removed with the pod: its emptyDirs and writable layers. A directory that is left empty
    still has an inode, and on some filesystems a block; both stay. None where it is not known.
    """
    resource = RESOURCE[signal]
    if used is None or is_unreadable(used, resource):
        return None
    given_back = 0
    for filesystem in _removed_with(pod, used, signal, layout):
        inodes = filesystem.inodes_used
        is_empty = inodes is not None and inodes <= 1
        if resource is Resource.INODES:
            given_back += 0 if inodes is None or is_empty else inodes - 1
        elif not is_empty:
            given_back += filesystem.used_bytes or 0
    return given_back


def may_free(pod: Pod, signal: Signal, layout: Layout) -> bool:
    """Return whether files of the pod that are removed with it can lie on the signal's filesystem at all."""
    layers, volumes = _charged(signal, layout)
    ending = {volume.name for volume in pod.volumes if _ends_with_pod(volume)}
    return any(
        (layers and place.kind is StorageKind.WRITABLE_LAYER)
        or (volumes and place.kind is StorageKind.VOLUME and place.name in ending)
        for place in pod.storage
    )


def is_unreadable(used: PodUsage | None, resource: Resource) -> bool:
    """Return whether the pod's number was looked for and could not be read, which is not the same as none."""
    return used is not None and resource in used.unreadable


def _filesystems(pod: Pod, used: PodUsage, signal: Signal, layout: Layout) -> Iterable[FilesystemUsage]:
    """Yield what is charged to the pod on the signal's filesystem, by where it lies in this layout.

    Images are charged to no pod. Source: buildSignalToRankFunc.
    """
    counts_writable_layers, counts_logs_and_volumes = _charged(signal, layout)
    for container in used.containers:
        if counts_writable_layers and container.rootfs is not None:
            yield container.rootfs
        if counts_logs_and_volumes and container.logs is not None:
            yield container.logs
    if counts_logs_and_volumes:
        for volume in pod.volumes:
            if volume.is_local and volume.name in used.volumes:
                yield used.volumes[volume.name]


def _removed_with(pod: Pod, used: PodUsage, signal: Signal, layout: Layout) -> Iterable[FilesystemUsage]:
    layers, volumes = _charged(signal, layout)
    for container in used.containers:
        if layers and container.rootfs is not None:
            yield container.rootfs
    for volume in pod.volumes:
        if volumes and _ends_with_pod(volume) and volume.name in used.volumes:
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
