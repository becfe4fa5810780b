"""The node-level reclaims for a signal, which come before any eviction."""

from __future__ import annotations

from collections.abc import Collection

from reactor.model.signals import RESOURCE, Filesystem, Layout, Reclaim, Resource, Signal

_IMAGEFS = frozenset({Signal.IMAGEFS_AVAILABLE, Signal.IMAGEFS_INODES_FREE})
_NODEFS = frozenset({Signal.NODEFS_AVAILABLE, Signal.NODEFS_INODES_FREE})
_EVERYTHING = (Reclaim.CONTAINERS, Reclaim.IMAGES)


def node_reclaim(
    signal: Signal, layout: Layout, commands_for: Collection[Filesystem] = ()
) -> tuple[Reclaim, ...]:
    """Return the node-level reclaims for a signal, in their order.

    `commands_for` are the filesystems for which commands are configured: they come first, since an image
    that is removed has to be fetched again. For the rest see upstream's buildSignalToNodeReclaimFuncs.
    """
    if RESOURCE[signal] in {Resource.MEMORY, Resource.PIDS, Resource.SWAP}:
        return ()
    has_commands = any(filesystem in commands_for for filesystem in filesystems_of(signal, layout))
    return (*((Reclaim.COMMANDS,) if has_commands else ()), *_upstream(signal, layout))


def filesystems_of(signal: Signal, layout: Layout) -> tuple[Filesystem, ...]:
    """Return the names under which the filesystem that a signal is about is known in this layout."""
    names = {
        Layout.SINGLE: (tuple(Filesystem),),
        Layout.DEDICATED: ((Filesystem.NODEFS,), (Filesystem.IMAGEFS, Filesystem.CONTAINERFS)),
        Layout.SPLIT: ((Filesystem.NODEFS, Filesystem.CONTAINERFS), (Filesystem.IMAGEFS,)),
    }
    own = next((one for one in Filesystem if signal.startswith(f"{one}.")), None)
    return next((together for together in names[layout] if own in together), ())


def _upstream(signal: Signal, layout: Layout) -> tuple[Reclaim, ...]:
    if layout is Layout.SINGLE:
        return _EVERYTHING
    if layout is Layout.SPLIT:
        return (Reclaim.IMAGES,) if signal in _IMAGEFS else (Reclaim.CONTAINERS,)
    # On nodefs lie the logs of dead containers. So upstream's documentation; its code reclaims nothing there.
    return (Reclaim.CONTAINERS,) if signal in _NODEFS else _EVERYTHING
