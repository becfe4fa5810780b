"""What a pod uses of a starved resource, and what it asked for."""

from __future__ import annotations

from collections.abc import Iterable

from reactor.model.pods import FilesystemUsage, Pod, PodUsage
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


def _charged(signal: Signal, layout: Layout) -> tuple[bool, bool]:
    """Return whether writable layers count, and whether logs and local volumes do."""
    if layout is Layout.SINGLE:
        return True, True
    if layout is Layout.SPLIT:
        return (False, False) if signal in _IMAGEFS else (True, True)
    return (False, True) if signal in _NODEFS else (True, False)
