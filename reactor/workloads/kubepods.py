"""The kubelet's cgroup tree: which pods there are, their QoS classes and their containers, from names alone.

    cgroupfs  kubepods/besteffort/podUID/CONTAINER
    systemd   kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podUID.slice/crio-ID.scope

Guaranteed pods lie directly in `kubepods`, the other two classes in a cgroup each. If the kubelet has a
`systemPartition` (cgroup v2), that one's pods lie in the same way in `kubepods/system`. The systemd driver
writes a uid's dashes as underscores. A container's cgroup ends in its id, 64 hexadecimal digits with every
runtime. Sources: pkg/kubelet/cm/{qos_,pod_}container_manager_linux.go, KEP-5894; containerd and CRI-O name
the others.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from reactor.kernel.cgroup import CgroupTree
from reactor.model.pods import QosClass

_PARTITION: Final = "system"
_INNER: Final = {"burstable": QosClass.BURSTABLE, "besteffort": QosClass.BEST_EFFORT} | {
    _PARTITION: QosClass.GUARANTEED
}
_SLICE: Final = ".slice"
_POD: Final = re.compile(r"pod([0-9A-Za-z][0-9A-Za-z._-]*)")
_POD_SLICE: Final = re.compile(r".*-pod([0-9A-Za-z][0-9A-Za-z._]*)\.slice")
_CONTAINER: Final = re.compile(r"(?:(.+)-)?([0-9a-f]{64})(?:\.scope)?")
_MONITOR: Final = "conmon"  # CRI-O's process beside each container: crio-conmon-ID
# The kubelet calls a static pod by the MD5 of its manifest; every other uid is a UUID.
_CONFIG_HASH: Final = re.compile(r"[0-9a-f]{32}")
_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)


class PodCgroup(NamedTuple):
    """A pod's cgroup; one that is recreated under the same name has another inode.

    A tuple, since a listing lies on the path from a wake to a kill.
    """

    uid: str
    qos_class: QosClass
    cgroup: str
    inode: int


class ContainerCgroup(NamedTuple):
    """A container's cgroup below its pod's; `is_monitor` where it is not the container but who watches it."""

    id: str
    cgroup: str
    is_monitor: bool


def pod_cgroups(
    tree: CgroupTree,
    parent: str,
    before_listing: Callable[[str], object] | None = None,
    qos_class: QosClass = QosClass.GUARANTEED,
) -> Iterator[PodCgroup]:
    """Yield every pod below the cgroup that holds them, or those of a class. Raises OSError if it is gone.

    `before_listing` is called with each directory that is about to be read.
    """
    for name, inode in _children(tree, parent, before_listing):
        within, inner = f"{parent}/{name}", _INNER.get(_last_word(name))
        if inner is not None:
            with suppress(FileNotFoundError):
                yield from pod_cgroups(tree, within, before_listing, inner)
        elif (uid := uid_of(name)) is not None:
            yield PodCgroup(uid, qos_class, within, inode)


def partition_of(cgroup: str, parents: Iterable[str]) -> str | None:
    """Return the system partition, of one of the cgroups that hold all pods, in which a pod lies, or None."""
    for parent in parents:
        if cgroup.startswith(f"{parent}/"):
            name = cgroup[len(parent) + 1 :].partition("/")[0]
            if _last_word(name) == _PARTITION:
                return f"{parent}/{name}"
    return None


def container_cgroups(tree: CgroupTree, pod: str) -> tuple[ContainerCgroup, ...]:
    """Return what lies in a pod's cgroup, the oldest first. Raises OSError where it is gone."""
    found = sorted((inode, name) for name, inode in _children(tree, pod))  # kernfs counts inodes upwards
    return tuple(
        ContainerCgroup(match[2], f"{pod}/{name}", _MONITOR in (match[1] or ""))
        for _, name in found
        if (match := _CONTAINER.fullmatch(name)) is not None
    )


def uid_of(name: str) -> str | None:
    """Return the uid in the name of a pod's cgroup, None where it is no pod's."""
    if name.endswith(_SLICE):
        match = _POD_SLICE.fullmatch(name)
        return None if match is None else match[1].replace("_", "-")
    match = _POD.fullmatch(name)
    return None if match is None else match[1]


def is_config_hash(uid: str) -> bool:
    return _CONFIG_HASH.fullmatch(uid) is not None


def may_be_api_uid(uid: str) -> bool:
    return _UUID.fullmatch(uid) is not None


def _last_word(name: str) -> str:
    return name.removesuffix(_SLICE).rpartition("-")[2]


def _children(
    tree: CgroupTree, cgroup: str, before_listing: Callable[[str], object] | None = None
) -> Sequence[tuple[str, int]]:
    directory = os.fspath(tree.path(cgroup))
    if before_listing is not None:
        before_listing(directory)
    with os.scandir(directory) as entries:
        return [(entry.name, entry.inode()) for entry in entries if entry.is_dir(follow_symlinks=False)]
