"""What a kill changes in a cgroup for a moment, noted before it is written, so that it is always restored.

A kill stops forks (`pids.max` 0), freezes, and gives the dying CPU. Each of these outlives the guard where it
is killed meanwhile: the pod would stay frozen, could start no process, or would be without its CPU limit for
as long as its cgroup exists. So before each write an extended attribute of the cgroup's directory keeps what
was there, and by which process. `restore` finds what a guard that has ended left, on the whole machine.

Who writes what: `trusted.*` takes CAP_SYS_ADMIN in the first user namespace (xattr(7)), so no tenant writes a
note. Where reactor has not got it there are no notes, and the kill goes on as without.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterator
from contextlib import closing, suppress
from functools import lru_cache
from typing import Final, NamedTuple

from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupDirectory, walk
from reactor.kernel.files import GONE
from reactor.kernel.procfs import read_start_ticks

_PREFIX: Final = "trusted.reactor.before."
# What a kill writes into each file. Where another value is found since, it is the operator's, and stays.
_OURS: Final = {
    "pids.max": (b"0",),
    "freezer.state": (b"FROZEN", b"FREEZING"),
    "cgroup.freeze": (b"1",),
    "cpu.cfs_quota_us": (b"-1",),
    "cpu.max": (b"max",),
    "cpu.shares": (b"262144",),
    "cpu.weight": (b"10000",),
}
CPU: Final = frozenset({"cpu.cfs_quota_us", "cpu.max", "cpu.shares", "cpu.weight"})


class _Note(NamedTuple):
    """What a file held before a kill, and the process that killed."""

    file: str
    before: bytes
    owner: str


def note(directory: CgroupDirectory, file: str, before: bytes) -> bytes:
    """Note what a file of a cgroup holds before a kill writes to it; return what it held before any kill.

    An earlier note stands: what is in the file by then is a kill's own. If the process that made it has
    ended, the note is this one's from here on, or `restore` would undo this kill under way. Never raises: a
    kill waits for no note that can't be made.
    """
    name, owner = f"{_PREFIX}{file}", f"{_owner()} ".encode()
    try:
        os.setxattr(directory.path, name, owner + before.strip(), os.XATTR_CREATE)
    except OSError as error:
        if error.errno == errno.EEXIST:
            with suppress(OSError, ValueError):
                before = _read(directory, file).before
                os.setxattr(directory.path, name, owner + before)
    return before


def forget(directory: CgroupDirectory, file: str) -> None:
    """Remove the note of a file, which was restored. Never raises."""
    with suppress(OSError):
        os.removexattr(directory.path, f"{_PREFIX}{file}")


def restore_in(directory: CgroupDirectory, files: Collection[str] | None = None) -> list[str]:
    """Restore what kills have changed in one cgroup, all of it or these files; return a line for each.

    Raises OSError where the kernel refuses; what is gone needs no restoring.
    """
    lines: list[str] = []
    for found in _notes(directory):
        if files is not None and found.file not in files:
            continue
        try:
            if directory.read(found.file).strip().startswith(_OURS[found.file]):
                directory.write(found.file, found.before)
                lines.append(
                    f"{directory.cgroup}/{found.file} is {found.before.decode(errors='replace')} again"
                )
        except OSError as error:
            if error.errno not in GONE:
                raise
        forget(directory, found.file)
    return lines


def restore(tree: CgroupTree) -> list[str]:
    """Restore what guards that have ended left of their kills, anywhere; return a line for each.

    By the notes alone; those of a process that lives are left to it. Blocks: it goes through every cgroup.
    """
    lines: list[str] = []
    roots = {tree.cpu_root: "cpu", tree.pids_root: "pids", tree.freezer_root: "freezer"}
    for root in filter(None, roots):
        with suppress(OSError), closing(CgroupDirectory.open(os.fspath(root), "/")) as top:
            for directory in walk(top, lambda _cgroup, _error: None):
                with suppress(ReactorError):
                    lines += _restored(directory)
    return lines


def _restored(directory: CgroupDirectory) -> list[str]:
    try:
        files = {found.file for found in _notes(directory) if not _lives(found.owner)}
        if not files:
            return []
        return [f"{line}, as before a crash" for line in restore_in(directory, files)]
    except OSError as error:
        return [] if error.errno in GONE else [f"{directory.cgroup} was not restored after a crash: {error}"]


def _notes(directory: CgroupDirectory) -> Iterator[_Note]:
    """Yield the notes of a cgroup; what is no note of ours is left alone. Raises OSError."""
    try:
        names = os.listxattr(directory.path)
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return
        raise
    for name in names:
        file = name.removeprefix(_PREFIX)
        if file != name and file in _OURS:
            with suppress(ValueError):
                yield _read(directory, file)


def _read(directory: CgroupDirectory, file: str) -> _Note:
    """Return the note of a file. Raises OSError, ValueError."""
    owner, space, before = os.getxattr(directory.path, f"{_PREFIX}{file}").partition(b" ")
    if not space or not before:
        raise ValueError(f"{directory.cgroup}: no note of reactor's")
    return _Note(file, before, owner.decode("ascii", "replace"))


@lru_cache(maxsize=1)
def _owner_of(pid: int) -> str:
    return f"{pid}:{read_start_ticks(pid=pid)}"


def _owner() -> str:
    return _owner_of(os.getpid())


def _lives(owner: str) -> bool:
    """Return whether the process that made a note is still there."""
    pid, _, started = owner.partition(":")
    try:
        return pid.isdecimal() and str(read_start_ticks(pid=int(pid))) == started
    except (OSError, ReactorError):
        return False
