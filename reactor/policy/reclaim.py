"""What the node itself can give back for a signal, before any pod is ended."""

from __future__ import annotations

from reactor.model.signals import RESOURCE, Layout, Reclaim, Resource, Signal

_IMAGEFS = frozenset({Signal.IMAGEFS_AVAILABLE, Signal.IMAGEFS_INODES_FREE})
_NODEFS = frozenset({Signal.NODEFS_AVAILABLE, Signal.NODEFS_INODES_FREE})
_EVERYTHING = (Reclaim.CONTAINERS, Reclaim.IMAGES)


def node_reclaim(signal: Signal, layout: Layout) -> tuple[Reclaim, ...]:
    """Return the node-level reclaims for a signal, in their order. Source: buildSignalToNodeReclaimFuncs."""
    if RESOURCE[signal] in {Resource.MEMORY, Resource.PIDS}:
        return ()
    if layout is Layout.SINGLE:
        return _EVERYTHING
    if layout is Layout.SPLIT:
        return (Reclaim.IMAGES,) if signal in _IMAGEFS else (Reclaim.CONTAINERS,)
    return () if signal in _NODEFS else _EVERYTHING
