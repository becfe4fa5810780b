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
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from functools import lru_cache
from typing import Final, NamedTuple

from reactor.errors import KernelInterfaceError, ReactorError
from reactor.kernel.cgroup import CgroupTree, lift_cpu_quota, processes_below
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

_STATES: Final = {
    CgroupVersion.V1: ("freezer.state", b"FROZEN", b"THAWED"),
    CgroupVersion.V2: ("cgroup.freeze", b"1", b"0"),
}

_PIDS_LIMIT: Final = "pids.max"


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


def restoring_cpu(directory: CgroupDirectory, report: Callable[[str], None]) -> Generator[None, None, None]:
    """Restore the CPU quotas and weights that kills have lifted in a cgroup and below it, step by step."""

    def refused(cgroup: str, error: OSError) -> None:
        report(f"{cgroup}: CPU quota and weight not restored: {error.strerror}")

    for below in walk(directory, refused):
        try:
            restore_in(below, CPU)
        except OSError as error:
            refused(below.cgroup, error)
        yield


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
def frozen(
    directory: CgroupDirectory | None, version: CgroupVersion, report: Callable[[str], None]
) -> Iterator[None]:
    """Keep a cgroup frozen for the body.

    `directory` is the one in the freezer's hierarchy. Without it (None), or where it refuses, the body runs
    as well. Every refusal goes to `report` as one line, except that the cgroup is gone: then there is nothing
    left to be killed.
    """
    name, freeze, thaw = _STATES[version]
    fd = None if directory is None else _open(directory, name, version, report)
    where = "" if directory is None else f"{directory.cgroup}/{name}"
    try:
        if directory is not None and fd is not None:
            note(directory, name, thaw)
        _write(fd, freeze, where, report)
        try:
            yield
        finally:
            if _write(fd, thaw, where, report) and directory is not None:
                forget(directory, name)
    finally:
        if fd is not None:
            close_descriptor(fd)


def thawing(
    directory: CgroupDirectory, report: Callable[[str], None], *, spared: Collection[str]
) -> Generator[None, None, None]:
    """Thaw a v1 cgroup and those below it, step by step, where a runtime or a tenant has paused them.

    `directory` is the one in the freezer's hierarchy. What is frozen keeps the SIGKILL of a kill pending.
    """

    def refused(cgroup: str, error: OSError) -> None:
        if error.errno not in GONE:
            report(f"{cgroup}: not thawed: {error.strerror}")

    name, _, thawed = _STATES[CgroupVersion.V1]
    for below in walk(directory, refused, spared=spared):
        try:
            if below.read(name).strip() != thawed:
                below.write(name, thawed)
        except OSError as error:
            refused(below.cgroup, error)
        yield


def frozen_by_ancestor(tree: CgroupTree, cgroup: str) -> str | None:
    """Return what keeps a v1 cgroup frozen after it has been thawed: an ancestor that is frozen itself."""
    if tree.version is not CgroupVersion.V1 or tree.freezer_root is None:
        return None
    path = tree.path(cgroup, "freezer") / "freezer.parent_freezing"
    try:
        return f"{path}: an ancestor is frozen; thaw it" if path.read_bytes().strip() == b"1" else None
    except OSError:
        return None


def _open(
    directory: CgroupDirectory, name: str, version: CgroupVersion, report: Callable[[str], None]
) -> int | None:
    try:
        if version is CgroupVersion.V1 and os.getpid() in processes_below(directory):
            return None  # the hierarchies may be laid out differently: never freeze ourselves
        return directory.open_file(name, os.O_WRONLY)
    except OSError as error:
        if error.errno not in GONE:
            report(f"{directory.cgroup}/{name}: {error.strerror}; killing without freezing")
        return None
    except KernelInterfaceError as error:
        report(f"{error}; killing without freezing")
        return None


def _write(fd: int | None, state: bytes, where: str, report: Callable[[str], None]) -> bool:
    """Write a state; return whether it was taken."""
    if fd is None:
        return False
    try:
        os.write(fd, state)
    except ProcessLookupError:
        return False
    except OSError as error:  # ENODEV: removed meanwhile
        if error.errno != errno.ENODEV:
            report(f"{where}: writing {state.decode()}: {error.strerror}")
        return False
    return True


@contextmanager
def without_forks(directory: CgroupDirectory | None, report: Callable[[str], None]) -> Iterator[None]:
    """Let no process in the cgroup fork during the body; afterwards it has the limit that it had.

    `directory` is the one in the pids controller's hierarchy. Without it (None), or where it refuses, the
    body runs as well; a refusal goes to `report` as one line, except that the cgroup is gone.
    """
    fd, before = -1, b""
    if directory is not None:
        try:
            fd = directory.open_file(_PIDS_LIMIT, os.O_RDWR)
            before = note(directory, _PIDS_LIMIT, os.read(fd, 64).strip())
            os.pwrite(fd, b"0", 0)
        except OSError as error:
            if error.errno not in GONE:
                report(f"{directory.cgroup}/{_PIDS_LIMIT}: {error.strerror}; killing among forks")
    try:
        yield
    finally:
        if fd >= 0 and directory is not None:
            if before:  # never a limit that was not read
                with suppress(OSError):  # removed meanwhile
                    os.pwrite(fd, before, 0)
                    forget(directory, _PIDS_LIMIT)
            close_descriptor(fd)


# A victim whose memory is not released for it (MemoryRelease) frees it itself, in its CPU quota and at its
# weight. On two busy CPUs freeing 400 MiB takes 25 ms of CPU time; at a weight of 2, the kubelet's for
# BestEffort pods, that was 13.6 s of time, and with 1 % of quota 1 GiB was not free after a minute. So quota
# and weight are raised, to the most that each version takes. Both are noted before, and restored once the pod
# has ended: its cgroup may outlive its processes, and its tenant must not be rid of a limit by having been
# evicted.
_WEIGHT: Final = {CgroupVersion.V1: ("cpu.shares", b"262144"), CgroupVersion.V2: ("cpu.weight", b"10000")}


def boost_cpu(directory: CgroupDirectory | None, version: CgroupVersion) -> None:
    """Lift the CPU quotas in a cgroup, and have it outweigh its siblings. Raises OSError where refused.

    `directory` is the one in the cpu controller's hierarchy; without it (None) there is nothing to do.
    """
    if directory is None:
        return
    name, most = _WEIGHT[version]
    try:
        before = directory.read(name).strip()
        if before != most:
            note(directory, name, before)
            directory.write(name, most)
    except OSError as error:
        if error.errno not in GONE:
            raise with_path(error, f"{directory.cgroup}/{name}") from None
    finally:
        lift_cpu_quota(directory, version, note)
