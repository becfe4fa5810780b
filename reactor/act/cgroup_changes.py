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
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import lru_cache
from typing import Final, NamedTuple

from reactor.errors import KernelInterfaceError, ReactorError
from reactor.kernel.cgroup import CgroupTree, is_in, lift_cpu_quota
from reactor.kernel.cgroup_directory import CgroupDirectory, CgroupVersion, walk
from reactor.kernel.files import GONE, close_descriptor, with_path
from reactor.kernel.procfs import lasting_name, lives

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

_MOST_FROZEN: Final = 128  # a tenant may have made 5,000 in this hierarchy alone: 200 ms
_FREEZERS: Final = {CgroupVersion.V1: ("freezer.state", b"THAWED"), CgroupVersion.V2: ("cgroup.freeze", b"0")}


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
    name, owner = f"{_PREFIX}{file}", f"{_owner_of(os.getpid())} ".encode()
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
        files = {found.file for found in _notes(directory) if not lives(found.owner)}
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
    return lasting_name(pid=pid)


# No forks ahead of the signals, in a cgroup that is killed process by process: it is frozen meanwhile.
#
# v1: the freezer hierarchy's `freezer.state`. A frozen task keeps SIGKILL pending and dies only once it is
# thawed (Documentation/admin-guide/cgroup-v1/freezer-subsystem.rst), so thawing is part of the kill.
# v2: `cgroup.freeze`; a frozen task dies of SIGKILL at once.
# Writing returns before every task stands still. That is enough: a task that is caught inside fork(2) hands
# the frozen state on to its child, and the listing is read again after each round of signals.
#
# systemd makes no freezer cgroups on v1: there the cgroup's limit of processes is 0 for that long. Without
# either, a fork bomb on a slow machine was ahead of the signals for 22 s. A limit below the present number
# ends no process, and fork(2) fails with EAGAIN (Documentation/admin-guide/cgroup-v1/pids.rst).


@contextmanager
def _changed(
    directory: CgroupDirectory | None, file: str, before: bytes, report: Callable[[str], None], otherwise: str
) -> Iterator[None]:
    """Have a file of a cgroup say for the body what a kill writes there, and afterwards what it said.

    `directory` is the one in the controller's hierarchy. Without it (None), or where it refuses, the body
    runs as well. Every refusal goes to `report` as one line, except that the cgroup is gone: then there is
    nothing left to be killed. `before` is restored whatever the file said; empty: what it said.
    """
    if directory is None:
        yield
        return
    fd = -1
    try:
        # The hierarchies of v1 may be laid out differently: never freeze ourselves.
        if file != "freezer.state" or not is_in(directory, os.getpid(), _MOST_FROZEN):
            fd = directory.open_file(file, os.O_RDWR)
            before = note(directory, file, before or os.read(fd, 64).strip())
            os.pwrite(fd, _OURS[file][0], 0)
    except OSError as error:
        if error.errno not in GONE:
            report(f"{directory.cgroup}/{file}: {error.strerror}; {otherwise}")
    except KernelInterfaceError as error:
        report(f"{error}; {otherwise}")
    try:
        yield
    finally:
        if fd >= 0:
            try:
                if before:  # never a limit that was not read
                    os.pwrite(fd, before, 0)
                    forget(directory, file)
            except OSError as error:
                if error.errno not in GONE:
                    report(f"{directory.cgroup}/{file}: {error.strerror}; it is not {before.decode()} again")
            finally:
                close_descriptor(fd)


def frozen(
    directory: CgroupDirectory | None, version: CgroupVersion, report: Callable[[str], None]
) -> AbstractContextManager[None]:
    """Keep a cgroup frozen for the body; see `_changed`."""
    return _changed(directory, *_FREEZERS[version], report, "killing without freezing")


def without_forks(
    directory: CgroupDirectory | None, report: Callable[[str], None]
) -> AbstractContextManager[None]:
    """Let no process in the cgroup fork during the body; see `_changed`."""
    return _changed(directory, "pids.max", b"", report, "killing among forks")


def thaw(directory: CgroupDirectory) -> None:
    """Thaw a v1 cgroup where a runtime or a tenant has paused it: that keeps a kill's SIGKILL pending.

    `directory` is the one in the freezer's hierarchy. Raises OSError.
    """
    name, thawed = _FREEZERS[CgroupVersion.V1]
    if directory.read(name).strip() != thawed:
        directory.write(name, thawed)


def frozen_by_ancestor(tree: CgroupTree, cgroup: str) -> str | None:
    """Return what keeps a v1 cgroup frozen after it has been thawed: an ancestor that is frozen itself."""
    if tree.version is not CgroupVersion.V1 or tree.freezer_root is None:
        return None
    path = tree.path(cgroup, "freezer") / "freezer.parent_freezing"
    try:
        return f"{path}: an ancestor is frozen; thaw it" if path.read_bytes().strip() == b"1" else None
    except OSError:
        return None


# A victim whose memory is not released for it (MemoryRelease) frees it itself, in its CPU quota and at its
# weight. On two busy CPUs freeing 400 MiB takes 25 ms of CPU time; at a weight of 2, the kubelet's for
# BestEffort pods, that was 13.6 s of time, and with 1 % of quota 1 GiB was not free after a minute. So quota
# and weight are raised, to the most that each version takes. Both are noted before, and restored once the pod
# has ended: its cgroup may outlive its processes, and its tenant must not be rid of a limit by having been
# evicted.
_WEIGHT: Final = {CgroupVersion.V1: "cpu.shares", CgroupVersion.V2: "cpu.weight"}


def boost_cpu(directory: CgroupDirectory | None, version: CgroupVersion) -> None:
    """Lift the CPU quotas in a cgroup, and have it outweigh its siblings. Raises OSError where refused.

    `directory` is the one in the cpu controller's hierarchy; without it (None) there is nothing to do.
    """
    if directory is None:
        return
    name = _WEIGHT[version]
    try:
        before = directory.read(name).strip()
        if before not in _OURS[name]:
            note(directory, name, before)
            directory.write(name, _OURS[name][0])
    except OSError as error:
        if error.errno not in GONE:
            raise with_path(error, f"{directory.cgroup}/{name}") from None
    finally:
        lift_cpu_quota(directory, version, note)
