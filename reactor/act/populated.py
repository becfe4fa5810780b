"""Whether a process lives in the target of a kill, before and after it.

On v2 the kernel says so of each subtree, however many cgroups a tenant has made in it; on v1 they are listed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing, closing

import trio

from reactor.act.target import AT_ONCE, Target, is_said_unpopulated
from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupDirectory, CgroupVersion, walk
from reactor.kernel.files import GONE
from reactor.model.pods import Pod


def populated(tree: CgroupTree, pod: Pod, *, if_unknown: bool) -> bool:
    """Return whether a process lives in a pod's cgroup, but for what a kill spares."""
    if pod.cgroup is None:
        return False
    is_said = tree.version is CgroupVersion.V2  # v1 has no file to ask: not to look for it saves a fifth
    try:
        with closing(Target.of(tree, pod)) as target:
            return not (is_said and _is_said_empty(target)) and bool(target.processes())
    except (ReactorError, OSError):
        return if_unknown


def may_be_populated(tree: CgroupTree, pod: Pod) -> bool:
    """Return whether a process may live in a pod's cgroup, without listing it."""
    try:
        with closing(Target.of(tree, pod)) as target:
            return not _is_said_empty(target)
    except (ReactorError, OSError):
        return True


async def has_no_process(target: Target) -> bool:
    """Return whether no process lives in it; others go first after every few cgroups. Raises OSError."""
    if _is_said_empty(target):
        return True
    async with aclosing(_found(target)) as found:
        async for _ in found:
            return False
    return True


async def count_processes(target: Target) -> int:
    """Return how many processes are in it; others go first after every few cgroups. Raises OSError."""
    async with aclosing(_found(target)) as found:
        return len({pid async for pid in found})


async def _found(target: Target) -> AsyncGenerator[int]:
    """Yield the processes in the target. Raises OSError once all that can be listed has been."""
    if target.directory is None:
        return
    failed: list[OSError] = []
    rounds = walk(target.directory, lambda _, error: failed.append(error), spared=target.spared)
    with closing(rounds) as directories:
        for count, directory in enumerate(directories, 1):
            for pid in directory.processes():
                yield pid
            if count % AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
    if failed:
        raise failed[0]


def _is_said_empty(target: Target) -> bool:
    """Return whether the kernel says that no process lives in the target, but for what is spared."""
    if target.directory is None:
        return True
    if not target.spared:
        return is_said_unpopulated(target.directory)
    try:
        return not target.directory.processes() and all(
            _is_child_unpopulated(target.directory, name) for name in target.unspared(target.directory)
        )
    except (OSError, ReactorError):
        return False


def _is_child_unpopulated(directory: CgroupDirectory, name: str) -> bool:
    try:
        with directory.child(name) as below:
            return is_said_unpopulated(below)
    except OSError as error:
        return error.errno in GONE
