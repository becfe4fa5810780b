"""No forks ahead of the signals, in a cgroup that is killed process by process: it is frozen meanwhile.

v1: the freezer hierarchy's `freezer.state`. A frozen task keeps SIGKILL pending and dies only once it is
thawed (Documentation/admin-guide/cgroup-v1/freezer-subsystem.rst), so thawing is part of the kill.
v2: `cgroup.freeze`; a frozen task dies of SIGKILL at once.
Writing returns before every task stands still. That is enough: a task that is caught inside fork(2) hands
the frozen state on to its child, and the listing is read again after each round of signals.

systemd makes no freezer cgroups on v1: there the cgroup's limit of processes is 0 for that long. Without
either, a fork bomb on a slow machine was ahead of the signals for 22 s. A limit below the present number ends
no process, and fork(2) fails with EAGAIN (Documentation/admin-guide/cgroup-v1/pids.rst).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from reactor.act.leftovers import forget, note
from reactor.errors import KernelInterfaceError
from reactor.kernel.cgroup import CgroupTree, processes_below
from reactor.kernel.cgroup_directory import CgroupDirectory, walk
from reactor.kernel.cgroup_files import CgroupVersion
from reactor.kernel.files import GONE, close_descriptor

_STATES: Final = {
    CgroupVersion.V1: ("freezer.state", b"FROZEN", b"THAWED"),
    CgroupVersion.V2: ("cgroup.freeze", b"1", b"0"),
}

_PIDS_LIMIT: Final = "pids.max"


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
    directory: CgroupDirectory, spared: Collection[str], report: Callable[[str], None]
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
