"""Where the node's filesystems lie by the settings, and what the space of one comes to as signals."""

from __future__ import annotations

from collections.abc import Mapping

from reactor.kernel.filesystem import FilesystemSpace, nodefs_path
from reactor.model.settings import Settings
from reactor.model.signals import FILESYSTEM_SIGNALS, Filesystem, Layout, Signal
from reactor.model.thresholds import Observation


def filesystem_paths(settings: Settings) -> Mapping[Filesystem, str]:
    """Return a path on each filesystem; those without one of their own lie where the layout says."""
    configured = settings.filesystems
    nodefs = configured.get(Filesystem.NODEFS) or nodefs_path()
    imagefs = configured.get(Filesystem.IMAGEFS, nodefs)
    # Nothing said of writable layers: they lie with the images, unless a configured layout says otherwise.
    with_images = bool(settings.by_layout) or settings.eviction.layout is Layout.DEDICATED
    return {
        Filesystem.NODEFS: nodefs,
        Filesystem.IMAGEFS: imagefs,
        Filesystem.CONTAINERFS: imagefs if with_images else nodefs,
        **configured,
    }


def observations(filesystem: Filesystem, space: FilesystemSpace) -> dict[Signal, Observation]:
    """Return a filesystem's signals, none where it is read-only.

    Nothing that the reactor could do would free any space there, and one that was made read-only
    (an image, squashfs) is full by nature.
    """
    if space.read_only:
        return {}
    bytes_signal, inodes_signal = FILESYSTEM_SIGNALS[filesystem]
    observed = {bytes_signal: Observation(available=space.available_bytes, capacity=space.capacity_bytes)}
    if space.inodes is not None and space.inodes_free is not None:
        observed[inodes_signal] = Observation(available=space.inodes_free, capacity=space.inodes)
    return observed
