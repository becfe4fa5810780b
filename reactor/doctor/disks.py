"""Thresholds for filesystems that can evict no pod of a plain node: no pod's end frees anything there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from reactor.model.settings import Settings
from reactor.model.signals import ON_DISK, RESOURCE, Signal
from reactor.model.thresholds import Threshold
from reactor.policy.reclaim import filesystems_of
from reactor.policy.usage import may_free
from reactor.workloads.manifests import ManifestDirectory

_DERIVED: Final = frozenset({Signal.CONTAINERFS_AVAILABLE, Signal.CONTAINERFS_INODES_FREE})
_WHY: Final = (
    "can evict no pod on this node: no manifest names files there that are removed with a pod "
    "(reactor/volumes of an emptyDir, reactor/rootfs)"
)


def without_holders(settings: Settings) -> dict[Threshold, str]:
    """Return the thresholds for filesystems that can evict no pod, and why.

    A threshold for whose filesystem commands are configured is there for these. Reads the manifests.
    """
    eviction = settings.eviction
    on_disk = [
        one
        for one in eviction.thresholds
        if RESOURCE[one.signal] in ON_DISK
        and one.signal not in _DERIVED
        and eviction.commands_for.isdisjoint(filesystems_of(one.signal, eviction.layout))
    ]
    if not on_disk or not eviction.evicts_holders_only or not settings.pod_parents:
        return {}
    path = settings.manifests_path
    pods = [] if path is None else [manifest.pod for manifest in ManifestDirectory(path).read()]
    return {
        one: _WHY for one in on_disk if not any(may_free(pod, one.signal, eviction.layout) for pod in pods)
    }


def without_holders_by_name(settings: Settings) -> Mapping[str, str]:
    """Return the same by the thresholds' names."""
    return {f"threshold {threshold}": why for threshold, why in without_holders(settings).items()}
