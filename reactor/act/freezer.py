"""Freezing a cgroup while it is killed, so that nothing in it forks ahead of the signals.

v1: the freezer hierarchy's `freezer.state`. A frozen task keeps SIGKILL pending and dies only once it is
thawed (Documentation/admin-guide/cgroup-v1/freezer-subsystem.rst), so thawing is part of the kill.
v2: `cgroup.freeze`; a frozen task dies of SIGKILL at once.
Writing returns before every task stands still. That is enough: a task that is caught inside fork(2) hands
the frozen state on to its child, and the listing is read again after each round of signals.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from reactor.act.processes import Members
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_files import CgroupVersion


@contextmanager
def frozen(tree: CgroupTree, cgroup: str, report: Callable[[str], None]) -> Iterator[None]:
    """Keep the cgroup frozen for the body; without a freezer, or where it refuses, the body runs as well.

    Every refusal goes to `report` as one line, except that the cgroup is gone: then there is nothing left
    to be killed.
    """
    path, freeze, thaw = _control(tree, cgroup)
    fd = _open(path, report)
    try:
        _write(fd, freeze, path, report)
        try:
            yield
        finally:
            _write(fd, thaw, path, report)
    finally:
        if fd is not None:
            os.close(fd)


def frozen_by_ancestor(tree: CgroupTree, cgroup: str) -> str | None:
    """Return what keeps a v1 cgroup frozen after it has been thawed: an ancestor that somebody else froze."""
    if tree.version is not CgroupVersion.V1 or tree.freezer_root is None:
        return None
    path = tree.path(cgroup, "freezer") / "freezer.parent_freezing"
    try:
        return f"{path}: an ancestor is frozen; thaw it" if path.read_bytes().strip() == b"1" else None
    except OSError:
        return None


def _control(tree: CgroupTree, cgroup: str) -> tuple[Path | None, bytes, bytes]:
    if tree.version is CgroupVersion.V2:
        return tree.path(cgroup) / "cgroup.freeze", b"1", b"0"
    if tree.freezer_root is None or os.getpid() in Members(tree, cgroup, "freezer")():
        return None, b"", b""  # the hierarchies may be laid out differently: never freeze ourselves
    return tree.path(cgroup, "freezer") / "freezer.state", b"FROZEN", b"THAWED"


def _open(path: Path | None, report: Callable[[str], None]) -> int | None:
    if path is None:
        return None
    try:
        return os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # no freezer cgroup mirrors the memory cgroup, or it is gone
        return None
    except OSError as error:
        report(f"{path}: {error.strerror}; killing without freezing")
        return None


def _write(fd: int | None, state: bytes, path: Path | None, report: Callable[[str], None]) -> None:
    if fd is None:
        return
    try:
        os.write(fd, state)
    except ProcessLookupError:
        return
    except OSError as error:  # ENODEV: removed meanwhile
        if error.errno != errno.ENODEV:
            report(f"{path}: writing {state.decode()}: {error.strerror}")
