"""What a pod uses of a starved resource, and what it asked for."""

from __future__ import annotations

from collections.abc import Iterable

from reactor.model.pods import FilesystemUsage, Pod, PodUsage
from reactor.model.signals import RESOURCE, Layout, Resource, Signal

_NODEFS = frozenset({Signal.NODEFS_AVAILABLE, Signal.NODEFS_INODES_FREE})
_IMAGEFS = frozenset({Signal.IMAGEFS_AVAILABLE, Signal.IMAGEFS_INODES_FREE})


def usage(pod: Pod, used: PodUsage | None, signal: Signal, layout: Layout) -> int | None:
    """Return the pod's usage of what the signal is about: bytes, inodes or processes.

    None where it was not observed.
    """
    if used is None:
        return None
    resource = RESOURCE[signal]
    if resource is Resource.MEMORY:
        return used.memory_working_set_bytes
    if resource is Resource.PIDS:
        return used.process_count
    if not any(_charged(signal, layout)):
        return 0  # known without looking
    if not _has_filesystem_statistics(used):
        return None
    counts = (
        filesystem.inodes_used if resource is Resource.INODES else filesystem.used_bytes
        for filesystem in _filesystems(pod, used, signal, layout)
    )
    return sum(count for count in counts if count is not None)


def _filesystems(pod: Pod, used: PodUsage, signal: Signal, layout: Layout) -> Iterable[FilesystemUsage]:
    """Yield what is charged to the pod on the signal's filesystem, by where it lies in this layout.

    Images are charged to nobody. Source: buildSignalToRankFunc.
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


def _has_filesystem_statistics(used: PodUsage) -> bool:
    return (
        used.ephemeral_storage_bytes is not None
        or bool(used.volumes)
        or any(container.rootfs is not None or container.logs is not None for container in used.containers)
    )
