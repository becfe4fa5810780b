"""Project quotas: what a directory tree takes, counted by the filesystem itself as it is written.

Source: quotactl(2), ioctl FS_IOC_FSGETXATTR (linux/fs.h). ext4 made with `-O project,quota`, and xfs, count
where they are mounted with `prjquota`. A tree is counted for itself where its directories carry a project id
that new entries inherit (`chattr -p ID +P`, `xfs_quota -x -c 'project -s -p DIR ID'`); the kubelet assigns
such ids where its feature LocalStorageCapacityIsolationFSQuotaMonitoring is on.
"""

from __future__ import annotations

import fcntl
import struct
from typing import Final

from reactor.errors import KernelInterfaceError
from reactor.kernel.libc import quotactl_fd
from reactor.model.pods import FilesystemUsage

_FSGETXATTR: Final = 0x801C581F  # _IOR('X', 31, struct fsxattr)
_FSXATTR: Final = struct.Struct("=5I8x")  # xflags, extsize, nextents, projid, cowextsize, padding
_INHERITED: Final = 0x200  # FS_XFLAG_PROJINHERIT
_GET_PROJECT_QUOTA: Final = 0x800007 << 8 | 2  # QCMD(Q_GETQUOTA, PRJQUOTA)
# struct if_dqblk: limits of blocks, bytes in use, limits of inodes, inodes in use, times, what is valid.
_DQBLK: Final = struct.Struct("=8QI4x")


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
