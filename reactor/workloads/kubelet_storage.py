"""Where the files of a Kubernetes node's pods lie: writable layers, logs, and the volumes on the node's disk.

    writable layer  the upper directory of the overlay that a container's first process has for its root
    logs            /var/log/pods/NAMESPACE_NAME_UID/CONTAINER
    volumes         /var/lib/kubelet/pods/UID/volumes/PLUGIN/NAME; a hostPath is charged to no pod, as
                    upstream has it: its files are the node's. An emptyDir in memory is a tmpfs there, which
                    the kubelet mounts with the volume's size (since 1.22), and again when it is resized

Paths are the node's: a reactor in a pod sees them where it has them mounted at the same places.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.filesystem import read_mounts, read_upper_directory
from reactor.kernel.procfs import PROC
from reactor.model.pods import Pod, StorageKind, StoragePlace

_PLUGINS: Final = ("kubernetes.io~empty-dir", "kubernetes.io~configmap", "kubernetes.io~git-repo")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePaths:
    """Where a node keeps what is read of its pods."""

    proc: Path = PROC
    logs: Path = Path("/var/log/pods")
    kubelet: Path = Path("/var/lib/kubelet")


class KubeletStorage:
    """Finds pods' places; a container's writable layer is searched for once. Reads a disk."""

    def __init__(self, tree: CgroupTree, paths: NodePaths) -> None:
        self._tree = tree
        self._paths = paths
        self._layers: Mapping[str, str] = {}

    def places(self, pods: Mapping[str, Pod]) -> Mapping[str, tuple[StoragePlace, ...]]:
        """Return the places of each pod, by its uid; those that aren't there are left out."""
        self._layers = {
            cgroup: layer
            for pod in pods.values()
            for cgroup in pod.container_cgroups.values()
            if (layer := self._layers.get(cgroup) or self._layer(cgroup)) is not None
        }
        in_memory = any(not one.is_local and one.size_limit for pod in pods.values() for one in pod.volumes)
        sized = self._sized() if in_memory else frozenset[str]()
        return {
            uid: (*self._of_layers(pod), *self._of_logs(uid, pod), *self._of_volumes(uid, pod, sized))
            for uid, pod in pods.items()
        }

    def _sized(self) -> frozenset[str]:
        """Return where filesystems are mounted that have a size of their own; none if that can't be read."""
        try:
            mounts = read_mounts(self._paths.proc / "self/mountinfo")
        except (OSError, ReactorError):
            return frozenset()
        return frozenset(one.mount_point for one in mounts if one.kind == "tmpfs" and one.is_sized)

    def _of_layers(self, pod: Pod) -> Iterator[StoragePlace]:
        for name, cgroup in pod.container_cgroups.items():
            if cgroup in self._layers and Path(self._layers[cgroup]).is_dir():
                yield StoragePlace(kind=StorageKind.WRITABLE_LAYER, name=name, path=self._layers[cgroup])

    def _of_logs(self, uid: str, pod: Pod) -> Iterator[StoragePlace]:
        own = f"{pod.namespace}_{pod.name}_{uid}"
        directory = self._paths.logs / own
        for name in dict.fromkeys((*pod.container_cgroups, *(one.name for one in pod.containers))):
            if _are_names(own, name) and (directory / name).is_dir():
                yield StoragePlace(kind=StorageKind.LOGS, name=name, path=str(directory / name))

    def _of_volumes(self, uid: str, pod: Pod, sized: Collection[str]) -> Iterator[StoragePlace]:
        for volume in pod.volumes:
            if not (volume.is_local or volume.is_empty_dir) or not _are_names(uid, volume.name):
                continue
            for plugin in _PLUGINS:
                path = self._paths.kubelet / "pods" / uid / "volumes" / plugin / volume.name
                if path.is_dir():
                    is_sized = bool(sized) and str(path.resolve()) in sized
                    yield StoragePlace(
                        kind=StorageKind.VOLUME, name=volume.name, path=str(path), is_sized=is_sized
                    )
                    break

    def _layer(self, cgroup: str) -> str | None:
        """Return the upper directory of the overlay that the first process has for its root, None if none.

        The runtime mounts it before the container's own code runs, but that code may mount another over it,
        in a user namespace of its own too, and name any directory of the node there. So this is the tenant's
        word, for the tenant's own pod alone: it can understate what the pod has written to its layer, until
        the disk is full of it, or claim a tree that is not its own. No other pod's number changes, nothing is
        written to or removed from the path, and the walker's bounds of time and memory hold for it.
        """
        try:
            pids = self._tree.processes(cgroup)
            return read_upper_directory(pids[0], self._paths.proc) if pids else None
        except (OSError, ReactorError):
            return None


def _are_names(*parts: str) -> bool:
    """Return whether each is a single name of a file: what others report must not lead to others' files."""
    return all(part not in {"", ".", ".."} and "/" not in part and "\0" not in part for part in parts)
