"""Pure parsers of what the cgroup files, /proc/PID/cgroup and the mount table say of cgroups."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Final

from reactor.errors import RefusedError
from reactor.kernel.files import parse_integer, unescape_mount

# v1 has no word for "unlimited": it shows the page counter's maximum, LONG_MAX rounded down to a page
# (9223372036854771712 with 4 KiB pages, less with larger ones). Nothing real comes near 4 EiB.
_UNLIMITED_FROM_BYTES: Final = 1 << 62
_PID_DIGITS: Final = 10


class CgroupVersion(StrEnum):
    """Which interface the memory controller has."""

    V1 = "v1"
    V2 = "v2"


def parse_own_cgroup(raw: bytes, version: CgroupVersion) -> str | None:
    """Return the memory hierarchy's path among the `ID:CONTROLLERS:PATH` lines, None where it has none."""
    for line in raw.splitlines():
        number, _, tail = line.partition(b":")
        controllers, _, path = tail.partition(b":")
        found = number == b"0" if version is CgroupVersion.V2 else b"memory" in controllers.split(b",")
        if found and path.startswith(b"/"):
            return os.fsdecode(path)
    return None


def parse_cgroup_mounts(raw: bytes) -> tuple[dict[str, Path], Path | None]:
    """Return the v1 mount points by controller and that of v2 (None: not mounted) from /proc/self/mounts.

    The first mount of a hierarchy counts. Lines of other filesystems, and broken ones, are passed over.
    """
    v1: dict[str, Path] = {}
    v2: Path | None = None
    for line in raw.splitlines():
        fields = line.split(b" ")
        if len(fields) < 4:
            continue
        mount_point, kind, options = Path(os.fsdecode(unescape_mount(fields[1]))), fields[2], fields[3]
        if kind == b"cgroup2":
            v2 = v2 or mount_point
        elif kind == b"cgroup":
            for option in options.split(b","):
                v1.setdefault(os.fsdecode(option), mount_point)
    return v1, v2


def parse_limit(raw: bytes, interface: str) -> int | None:
    """Return a limit file's number, None where it says there is no limit: `max`, or v1's largest value.

    Raises KernelInterfaceError for anything else.
    """
    if raw.strip() == b"max":
        return None
    limit = parse_integer(raw, interface)
    return None if limit >= _UNLIMITED_FROM_BYTES else limit


def parse_processes(raw: bytes) -> list[int]:
    """Return the pids of a cgroup.procs, without the 0s that stand for other pid namespaces' processes.

    Raises KernelInterfaceError for a line that is no pid.
    """
    # As a whole it is checked in a tenth of the time, on the way to a kill.
    if raw.translate(None, b"0123456789\n") or len(max(raw.split(), key=len, default=b"")) > _PID_DIGITS:
        pids = [parse_integer(line, "cgroup.procs") for line in raw.splitlines() if line]
    else:
        pids = [int(word) for word in raw.split()]
    return [pid for pid in pids if pid] if 0 in pids else pids


def cgroup_components(cgroup: str) -> tuple[str, ...]:
    """Return the names that a cgroup's path consists of, none for the root "/".

    Raises RefusedError for a path that does not begin with "/" or is not in its normal form.
    """
    if cgroup == "/":
        return ()
    root, *parts = cgroup.split("/")
    if root or not parts or any(part in {"", ".", ".."} or "\0" in part for part in parts):
        raise RefusedError(f"cgroup {cgroup!r}: not a plain path such as /kubepods/pod-a")
    try:
        os.fsencode(cgroup)
    except UnicodeEncodeError:
        raise RefusedError(f"cgroup {cgroup!r}: not a name that a file can have") from None
    return tuple(parts)
