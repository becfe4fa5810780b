"""Filesystems: how full they are, and which paths lie on the same one.

Sources: statvfs(3), proc_pid_mountinfo(5). A statvfs on a dead network filesystem can hang for good: it is
for a worker thread, never for the loop's own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from reactor.kernel.files import read_file, unescape_mount
from reactor.model.signals import Filesystem, Layout

_BETWEEN_LOOKS_SECONDS: Final = 0.05
_STILL_LOOKS: Final = 2
NODEFS_PATHS: Final = ("/var/lib/kubelet/pods", "/var/lib/kubelet", "/")


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesystemSpace:
    """What is left of a filesystem. Inodes are None where it doesn't count them (btrfs and others show 0).

    `identity` is the same for as long as the same filesystem lies there (statvfs's f_fsid).
    """

    capacity_bytes: int
    available_bytes: int
    free_bytes: int
    inodes: int | None
    inodes_free: int | None
    read_only: bool
    identity: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A line of the mount table. `device` is `MAJOR:MINOR`, the same for every mount of one filesystem.

    `read_only` is the filesystem's own flag: this mount of it may be read-only although others are not.
    """

    mount_point: str
    device: str
    kind: str
    source: str
    read_only: bool = False


def read_space(path: str) -> FilesystemSpace:
    """Return what is left of the filesystem that holds `path`. Raises OSError with the path.

    Available is what a user without privileges could still write, as the kubelet counts it.
    """
    found = os.statvfs(path)
    return FilesystemSpace(
        capacity_bytes=found.f_blocks * found.f_frsize,
        available_bytes=found.f_bavail * found.f_frsize,
        free_bytes=found.f_bfree * found.f_frsize,
        inodes=found.f_files or None,
        inodes_free=found.f_ffree if found.f_files else None,
        read_only=bool(found.f_flag & os.ST_RDONLY) and not _writable_elsewhere(path),
        identity=found.f_fsid,
    )


def read_mounts(path: Path = Path("/proc/self/mountinfo")) -> tuple[Mount, ...]:
    """Return the mounts that this process sees. Raises OSError with the path."""
    return parse_mountinfo(read_file(path))


def _writable_elsewhere(path: str) -> bool:
    """Return whether only our mount of the filesystem is read-only, as in a pod that may only read."""
    mount = mount_of(os.path.realpath(path), read_mounts())
    return mount is not None and not mount.read_only


def parse_mountinfo(raw: bytes) -> tuple[Mount, ...]:
    """Return the mounts in their order; broken lines are passed over.

    `36 35 98:0 /root /mnt rw,noatime master:1 - ext3 /dev/root rw`: optional fields end with the `-`, and
    what follows the source are the filesystem's own options.
    """
    mounts = []
    for line in raw.split(b"\n"):
        head, _, tail = line.partition(b" - ")
        fields, source = head.split(b" "), tail.split(b" ")
        if len(fields) >= 6 and len(source) >= 2:
            mounts.append(
                Mount(
                    mount_point=os.fsdecode(unescape_mount(fields[4])),
                    device=os.fsdecode(fields[2]),
                    kind=os.fsdecode(source[0]),
                    source=os.fsdecode(unescape_mount(source[1])),
                    read_only=b"ro" in b"".join(source[2:3]).split(b","),
                )
            )
    return tuple(mounts)


def mount_of(path: str, mounts: Sequence[Mount]) -> Mount | None:
    """Return the mount that a path without symlinks lies on, None where the table has none.

    The longest mount point above the path counts, and of several on one point the last, which hides the
    others. st_dev would not do: btrfs gives each subvolume its own.
    """
    found = None
    for mount in mounts:
        point = mount.mount_point.rstrip("/")
        above = path == point or path.startswith(point + "/")
        if above and (found is None or len(mount.mount_point) >= len(found.mount_point)):
            found = mount
    return found


def same_filesystem(one: str, other: str, mountinfo: Path = Path("/proc/self/mountinfo")) -> bool:
    """Return whether two paths lie on one filesystem. Raises OSError where the mount table can't be read."""
    mounts = read_mounts(mountinfo)
    found = [mount_of(os.path.realpath(path), mounts) for path in (one, other)]
    return found[0] is not None and found[1] is not None and found[0].device == found[1].device


def wait_given_back(path: str, most_seconds: float = 1.0) -> None:
    """Return when a filesystem's free blocks rise no more, after `most_seconds` in any case. Raises OSError.

    xfs frees what was removed in the background (since 5.14, `xfs_inodegc`), which statvfs hastens but does
    not wait for (since 5.19). Blocks: for a worker thread.
    """
    deadline = time.monotonic() + most_seconds
    free, still = os.statvfs(path).f_bfree, 0
    while still < _STILL_LOOKS and time.monotonic() < deadline:
        time.sleep(_BETWEEN_LOOKS_SECONDS)
        before, free = free, os.statvfs(path).f_bfree
        still = 0 if free > before else still + 1


def nodefs_path(candidates: Sequence[str] = NODEFS_PATHS) -> str:
    """Return a path on the node's own filesystem: where the kubelet keeps pods' volumes, else the root.

    In a container nothing else of the kubelet's directory may be mounted; the directory above is then one
    of the image.
    """
    return next((path for path in candidates if os.path.isdir(path)), "/")


def layout_of(paths: Mapping[Filesystem, str], mounts: Sequence[Mount]) -> Layout | None:
    """Return how the node's, the images' and the containers' filesystems lie, by the devices they are on.

    The paths are without symlinks. None where one is missing or lies on no mount that is known.
    """
    devices = {
        filesystem: mount.device
        for filesystem, path in paths.items()
        if (mount := mount_of(path, mounts)) is not None
    }
    if len(devices) < len(Filesystem):
        return None
    if devices[Filesystem.IMAGEFS] == devices[Filesystem.NODEFS]:
        return Layout.SINGLE
    on_node = devices[Filesystem.CONTAINERFS] == devices[Filesystem.NODEFS]
    return Layout.SPLIT if on_node else Layout.DEDICATED
