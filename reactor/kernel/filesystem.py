"""Filesystems: how full they are, and which paths lie on the same one.

Sources: statvfs(3), proc_pid_mountinfo(5). A statvfs on a dead network filesystem can hang for good: it is
for a worker thread, never for the loop's own.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from reactor.errors import KernelInterfaceError
from reactor.kernel.files import read_file, unescape_mount
from reactor.kernel.libc import quotactl_fd
from reactor.kernel.procfs import PROC
from reactor.model.pods import FilesystemUsage
from reactor.model.signals import Filesystem, Layout

NODEFS_PATHS: Final = ("/var/lib/kubelet/pods", "/var/lib/kubelet", "/")
_FSGETXATTR: Final = 0x801C581F  # _IOR('X', 31, struct fsxattr)
_FSXATTR: Final = struct.Struct("=5I8x")  # xflags, extsize, nextents, projid, cowextsize, padding
_INHERITED: Final = 0x200  # FS_XFLAG_PROJINHERIT
_GET_PROJECT_QUOTA: Final = 0x800007 << 8 | 2  # QCMD(Q_GETQUOTA, PRJQUOTA)
# struct if_dqblk: limits of blocks, bytes in use, limits of inodes, inodes in use, times, what is valid.
_DQBLK: Final = struct.Struct("=8QI4x")

_UPPER: Final = b"upperdir="


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
    `is_sized`: it was mounted with a size, as a tmpfs may be.
    """

    mount_point: str
    device: str
    kind: str
    source: str
    read_only: bool = False
    is_sized: bool = False


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


class MountTable:
    """Tells whether the mount table that this process sees has changed, without reading it.

    proc_pid_mountinfo(5): poll(2) on the open file reports each change once, as POLLPRI and POLLERR. Tables
    of a thousand lines are usual on a node with many pods.
    """

    def __init__(self, path: Path = Path("/proc/self/mountinfo")) -> None:
        self._path = path
        self._fd = -1
        self._poll = select.poll()
        self._changes = 0

    def changes(self) -> int:
        """Return how often it was seen to change: the same number as before, the same table.

        A table that can't be opened changes each time. Waits for nothing.
        """
        if self._fd < 0:
            self._changes += 1
            with suppress(OSError):
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                weakref.finalize(self, os.close, self._fd)
                self._poll.register(self._fd, select.POLLPRI)  # POLLERR is reported in any case
        elif self._poll.poll(0):
            self._changes += 1
        return self._changes


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
            options = b"".join(source[2:3]).split(b",")
            mounts.append(
                Mount(
                    mount_point=os.fsdecode(unescape_mount(fields[4])),
                    device=os.fsdecode(fields[2]),
                    kind=os.fsdecode(source[0]),
                    source=os.fsdecode(unescape_mount(source[1])),
                    read_only=b"ro" in options,
                    is_sized=any(option.startswith(b"size=") for option in options),
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


# Project quotas: what a directory tree takes, counted by the filesystem itself as it is written.
#
# Source: quotactl(2), ioctl FS_IOC_FSGETXATTR (linux/fs.h). ext4 made with `-O project,quota`, and xfs,
# count where they are mounted with `prjquota`. A tree is counted for itself where its directories carry a
# project id that new entries inherit (`chattr -p ID +P`, `xfs_quota -x -c 'project -s -p DIR ID'`); the
# kubelet assigns such ids where its feature LocalStorageCapacityIsolationFSQuotaMonitoring is on.


def project_of(fd: int) -> int | None:
    """Return the project id that all that is made in a directory inherits, None where there is none.

    A filesystem that knows no projects has none.
    """
    try:
        answer = fcntl.ioctl(fd, _FSGETXATTR, bytes(_FSXATTR.size))
    except OSError:
        return None
    flags, _, _, project, _ = _FSXATTR.unpack(answer)
    return project if project and flags & _INHERITED else None


def read_project_quota(fd: int, project: int) -> bytes:
    """Return the kernel's struct if_dqblk for a project on the filesystem of a descriptor.

    Raises OSError, see quotactl_fd: EPERM without CAP_SYS_ADMIN.
    """
    return quotactl_fd(fd, _GET_PROJECT_QUOTA, project, _DQBLK.size)


def parse_project_quota(raw: bytes) -> FilesystemUsage:
    """Return what a project takes."""
    if len(raw) != _DQBLK.size:
        raise KernelInterfaceError("quotactl_fd", raw[:64], f"{_DQBLK.size} bytes")
    fields = _DQBLK.unpack(raw)
    return FilesystemUsage(used_bytes=fields[2], inodes_used=fields[5])


def project_usage(fd: int, project: int) -> FilesystemUsage:
    """Return what a project takes on a descriptor's filesystem. Raises OSError, see read_project_quota."""
    return parse_project_quota(read_project_quota(fd, project))


def counts_by_project(mountinfo: bytes) -> bool:
    """Return whether a filesystem in /proc/PID/mountinfo keeps project quotas."""
    return any(
        option in {b"prjquota", b"pquota", b"pqnoenforce"}
        for line in mountinfo.splitlines()
        for option in line.rpartition(b" ")[2].split(b",")
    )


# overlayfs: where what a container has written lies. Source: Documentation/filesystems/overlayfs.rst.


def parse_upper_directory(raw: bytes) -> str | None:
    """Return the upper directory of the overlay at "/" in a mountinfo, None where no overlay is there.

    The path is as the mounting process saw it. Of several mounts on one point the last hides the others.
    """
    found = None
    for line in raw.split(b"\n"):
        head, _, tail = line.partition(b" - ")
        fields, source = head.split(b" "), tail.split(b" ")
        if len(fields) < 6 or fields[4] != b"/" or len(source) < 3:
            continue
        upper = [option for option in source[2].split(b",") if option.startswith(_UPPER)]
        is_overlay = source[0] == b"overlay" and len(upper) == 1
        found = os.fsdecode(unescape_mount(upper[0].removeprefix(_UPPER))) if is_overlay else None
    return found


def read_upper_directory(pid: int, proc: Path = PROC) -> str | None:
    """Return where what a process writes to its root lies, None where its root is no overlay.

    Raises OSError with the path where the process is gone.
    """
    return parse_upper_directory(read_file(proc / str(pid) / "mountinfo"))
