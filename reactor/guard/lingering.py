"""Pods that were evicted for a filesystem's sake and whose files may still be there.

A killed pod's memory comes back by itself; its files go when the kubelet or its unit removes them. Until then
what they take is credited to the node, although the pod's cgroup may be gone, and no other pod is evicted for
it; at the latest until the eviction's deadline, which bounds it in the policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from reactor.guard.told_storage import ToldStorage
from reactor.model.decisions import InFlight
from reactor.model.pods import FilesystemUsage, Pod, PodUsage


class Lingering:
    """Holds such pods by uid."""

    def __init__(self) -> None:
        self._pods: dict[str, Pod] = {}

    def __iter__(self) -> Iterator[Pod]:
        return iter(tuple(self._pods.values()))

    def __contains__(self, uid: object) -> bool:
        return uid in self._pods

    def add(self, pod: Pod) -> None:
        """Hold a pod that has just been evicted."""
        self._pods[pod.uid] = pod

    def resume(self, in_flight: Iterable[InFlight]) -> None:
        """Hold those that an earlier run had evicted, and whose files it still awaited."""
        self._pods |= {flight.uid: flight.pod for flight in in_flight if flight.pod is not None}

    def forget(self, uid: str) -> None:
        """Hold it no longer."""
        self._pods.pop(uid, None)

    def keep(self, uids: Iterable[str]) -> None:
        """Hold none but these: of the others nothing more is expected."""
        if self._pods:
            kept = set(uids)
            self._pods = {uid: pod for uid, pod in self._pods.items() if uid in kept}

    def beside(self, pods: Sequence[Pod]) -> Sequence[Pod]:
        """Return the pods, and those held that are not among them."""
        if not self._pods:
            return pods
        uids = {pod.uid for pod in pods}
        return (*pods, *(pod for uid, pod in self._pods.items() if uid not in uids))

    def is_freed(self, uid: str, storage: ToldStorage) -> bool:
        """Return whether the pod took something of the filesystems and does so no more; True if not held.

        For a pod that is not known to have taken anything this can't be told. Others are spared meanwhile, so
        that not all of them go for what none of them holds.
        """
        pod = self._pods.get(uid)
        if pod is None:
            return True
        if storage.is_held(uid):
            return False
        used = storage.usages([pod]).get(uid)
        # Of a count under way less may have been found than there is.
        is_known = bool(pod.storage) and used is not None and storage.is_whole(pod)
        return used is not None and is_known and not any(map(_takes, _places(used)))


def _places(used: PodUsage) -> Iterator[FilesystemUsage]:
    yield from used.volumes.values()
    for container in used.containers:
        yield from (one for one in (container.rootfs, container.logs) if one is not None)


def _takes(usage: FilesystemUsage) -> bool:
    """Return whether there is more than the directory itself, which is left of a volume that was emptied."""
    return (usage.inodes_used or 0) > 1
