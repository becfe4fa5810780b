"""What is killed of a pod in its place: one process, one with its descendants, or a cgroup below the pod's.

Which ones is decided by policy/process_victims.py. A tenant forks while it is killed: what has come of the
killed processes meanwhile is looked for again, a few times, and killed as well. What a process has moved out
of its tree or its cgroup by then lives on; the next crossing finds it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from reactor.act.processes import close_all, has_exited
from reactor.act.target import Target
from reactor.errors import ReactorError
from reactor.kernel.cgroup_directory import CgroupDirectory, fail, walk
from reactor.kernel.procfs import read_oom_score_adj, read_process_memory
from reactor.model.kills import ProcessMemory
from reactor.model.name_patterns import matcher
from reactor.model.pod_lists import ProcessVictim, VictimUnit
from reactor.policy.process_victims import UNKILLABLE, Group, in_order, joined, leaf_of, tree_of

_MOST_PROCESSES: Final = 3072
_MOST_CGROUPS: Final = 64
_MOST_IN_ONE: Final = 512  # cgroups in one directory, which is listed in one piece
_ROUNDS: Final = 3
_CHOICES: Final = 4  # with each a process is found that must not be killed


class NoProcessError(ReactorError):
    """No process of the pod is killed alone, for this reason: the whole pod is."""


class Held(NamedTuple):
    """Processes that go together, by pidfds that are the caller's, the one that names them first.

    `process` has the sums. `cgroup` is where they are, by its path below the pod; None: they are a tree.
    `others` were in the pod when they were chosen, and in no tree of theirs: nor will they be.
    """

    process: ProcessMemory
    group: Group
    pidfds: dict[int, int]
    cgroup: str | None
    others: frozenset[int] = frozenset()


def hold_first(
    victim: ProcessVictim,
    target: Target,
    processes: Collection[ProcessMemory],
    *,
    wanted_bytes: int | None,
    counts_shared: bool = True,
    reserved: Collection[int],
    proc: Path,
) -> Held | None:
    """Return the process of a pod that goes, or those that go together; None if none may. Raises OSError.

    Each is held by its pidfd before it is listed in the pod once more.
    """
    untouchable = set(reserved)
    for group, cgroup in _candidates(victim, target, processes, wanted_bytes, untouchable, counts_shared):
        unkillable = {one.pid for one in group.members if is_unkillable(one.pid, proc)}
        if unkillable:
            untouchable |= unkillable
            continue
        pids = [group.named.pid, *(one.pid for one in group.members if one.pid != group.named.pid)]
        pidfds = _opened(target, pids)
        if len(pids) == 1 and [one.name for one in _read(pids, proc)] != [group.named.name]:
            close_all(pidfds.values())  # the id is another's by now, or it has taken another name
            pidfds = {}
        if pidfds:
            others = frozenset(one.pid for one in processes) - {one.pid for one in group.members}
            return Held(_summed(group), group, pidfds, cgroup, others)
        untouchable |= set(pids)
    return None


def _candidates(
    victim: ProcessVictim,
    target: Target,
    processes: Collection[ProcessMemory],
    wanted_bytes: int | None,
    untouchable: Collection[int],
    counts_shared: bool,  # noqa: FBT001
) -> Iterator[tuple[Group, str | None]]:
    """Yield what may go, the first choice first; of `untouchable` there may be more by the next."""
    if victim.unit is VictimUnit.PROCESS:
        is_never = names_matcher((*victim.built_in_never, *victim.never))
        for one in in_order(processes, counts_shared=counts_shared):
            if one.pid not in untouchable and not is_never(one.name):
                yield Group(one, (one,), one.held_bytes), None
        return
    for _ in range(_CHOICES):
        group, cgroup = _chosen(victim, target, processes, wanted_bytes, untouchable)
        if group is None:
            return
        yield group, cgroup


def add_forked(
    target: Target,
    held: Held,
    reserved: Collection[int],
    proc: Path,
    *,
    kill: bool,
) -> list[int]:
    """Add to `held` what its processes have forked meanwhile, and kill that if asked to; return its pidfds.

    It is asked for before anything is killed as well: the child of a dead process has another parent.
    """
    added: list[int] = []
    for _ in range(_ROUNDS):
        known = {*held.pidfds, *(one.pid for one in held.group.members)}
        listed = by_cgroup(target)
        new = [pid for pids in listed.values() for pid in pids if pid not in known and pid not in reserved]
        if held.cgroup is not None:
            found = [pid for pid in new if pid in _within(listed, held.cgroup)]
        else:
            late = [pid for pid in new if pid not in held.others]
            found = [one.pid for one in joined(held.group, _read(late, proc), known)]
        pidfds = _opened(target, [pid for pid in found if not is_unkillable(pid, proc)])
        if not pidfds:
            break
        for pidfd in pidfds.values() if kill else ():
            with suppress(OSError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        held.pidfds.update(pidfds)
        added += pidfds.values()
    return added


def _chosen(
    victim: ProcessVictim,
    target: Target,
    processes: Collection[ProcessMemory],
    wanted_bytes: int | None,
    untouchable: Collection[int],
) -> tuple[Group | None, str | None]:
    operators = names_matcher(victim.never)
    if victim.unit is VictimUnit.TREE:
        built_in = names_matcher(victim.built_in_never)
        found = tree_of(
            processes,
            wanted_bytes,
            is_spared=lambda one: built_in(one.name),
            is_untouchable=lambda one: one.pid in untouchable or operators(one.name),
        )
        return found, None
    names = names_matcher((*victim.built_in_never, *victim.never))
    by_pid = {one.pid: one for one in processes}
    listed = {
        path: [by_pid[pid] for pid in pids if pid in by_pid] for path, pids in by_cgroup(target).items()
    }
    found = leaf_of(
        listed, wanted_bytes, is_untouchable=lambda one: one.pid in untouchable or names(one.name)
    )
    if found is None:
        return None, None
    pids = {one.pid for one in found.members}
    holding = [path for path in listed if {one.pid for one in listed[path]} & pids]
    return found, os.path.commonpath(holding)


def _within(listed: Mapping[str, Sequence[int]], cgroup: str) -> set[int]:
    return {
        pid
        for path, pids in listed.items()
        if path == cgroup or path.startswith(f"{cgroup}/")
        for pid in pids
    }


def _opened(target: Target, pids: Sequence[int]) -> dict[int, int]:
    """Return pidfds of those that are in the pod while they are held. Raises OSError."""
    pidfds: dict[int, int] = {}
    try:
        for pid in pids:
            with suppress(ProcessLookupError):
                pidfds[pid] = os.pidfd_open(pid)
        present = {pid for some in by_cgroup(target).values() for pid in some} if pidfds else set()
    except BaseException:
        close_all(pidfds.values())
        raise
    held = {pid: fd for pid, fd in pidfds.items() if pid in present and not has_exited(fd)}
    close_all(fd for pid, fd in pidfds.items() if pid not in held)
    return held


def is_unkillable(pid: int, proc: Path) -> bool:
    """Return whether the kernel's OOM killer may not kill a process: no process may then."""
    try:
        return read_oom_score_adj(pid, proc) <= UNKILLABLE
    except (OSError, ReactorError):
        return False  # it is gone


def _read(pids: Sequence[int], proc: Path) -> list[ProcessMemory]:
    found = []
    for pid in pids:
        with suppress(OSError, ReactorError):
            one = read_process_memory(pid, proc)
            if one is not None:
                found.append(one)
    return found


def _summed(group: Group) -> ProcessMemory:
    """Return the processes as one, by the name of the first."""
    swap_bytes = sum(one.swap_bytes for one in group.members)
    anonymous_bytes = sum(one.anonymous_bytes for one in group.members)
    return replace(
        group.named,
        anonymous_bytes=anonymous_bytes,
        swap_bytes=swap_bytes,
        shared_bytes=group.held_bytes - anonymous_bytes - swap_bytes,
        processes=len(group.members),
    )


@lru_cache(maxsize=64)
def names_matcher(patterns: tuple[str, ...]) -> Callable[[str], bool]:
    """Return the test whether a process's name is one of these, which may be patterns."""
    matchers = [matcher(pattern) for pattern in patterns]
    return lambda name: any(matches(name) for matches in matchers)


def by_cgroup(target: Target) -> dict[str, list[int]]:
    """Return the processes in a pod by their cgroup's path below it, "." for its own.

    Raises OSError, and NoProcessError where they are too many to choose among.

    No more than that is listed: a tenant can have thousands of processes, and of cgroups in one directory.
    """
    found: dict[str, list[int]] = {}
    count = 0
    for directory in _directories(target):
        pids = directory.processes(_MOST_PROCESSES)
        found[directory.cgroup[len(target.cgroup) + 1 :] or "."] = pids
        count += len(pids)
        if count > _MOST_PROCESSES:
            raise NoProcessError(f"it has more than {_MOST_PROCESSES} processes")
        if directory.children_count() > _MOST_IN_ONE:
            raise NoProcessError(f"it has more than {_MOST_IN_ONE} cgroups in one directory")
    return found


def present_in(target: Target) -> set[int]:
    """Return the processes in a pod, however many there are. Raises OSError."""
    return {pid for directory in _directories(target) for pid in directory.processes()}


def _directories(target: Target) -> Iterator[CgroupDirectory]:
    """Yield the pod's first cgroups, its own first. Raises OSError."""
    if target.directory is None:
        return
    with closing(walk(target.directory, fail, spared=target.spared)) as found:
        yield from islice(found, _MOST_CGROUPS)
