"""One process of a pod instead of the whole pod, where the operator says so: which, and when no longer.

The ranking of pods is as ever. In the pod that it puts first the process that holds the most is killed, of
those that may be. What a tenant writes (names, forks, what it moves where) decides only which of its own
processes that is; and where it comes to nothing, the whole pod is killed as it would have been at once:

    no process of it may be killed alone, or there are too many to choose among
    the largest holds little: files in memory, or many small processes
    three processes of it were killed within a minute, and it holds as much as before
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from reactor.model.kills import ProcessKill, ProcessMemory
from reactor.model.quantity import bytes_text

UNKILLABLE: Final = -1000
_LEAST_PERCENT: Final = 10
_MOST_IN_VAIN: Final = 3
_WINDOW_SECONDS: Final = 60.0
_HELPED_SHARE: Final = 4  # of what was killed: as much has to be gone, or it did not help


def in_order(processes: Iterable[ProcessMemory], *, counts_shared: bool = True) -> list[ProcessMemory]:
    """Return the processes, that whose death frees most first; of equal ones that of the lowest id.

    Each is returned with so much shared memory as it frees, see `_alone`; with none of it if a kill
    for it has brought back nothing (`counts_shared`).
    """
    seen = list(processes)
    mapped_bytes = sum(one.shared_bytes for one in seen)
    found = [_alone(one, mapped_bytes if counts_shared else None) for one in seen] if mapped_bytes else seen
    return sorted(found, key=lambda one: (-one.held_bytes, one.pid))


def _alone(process: ProcessMemory, mapped_bytes: int | None) -> ProcessMemory:
    """Return a process with the shared memory that no other of its pod has mapped, at the least.

    The kernel counts a shared page to each process that has mapped it. It is free only when the last of them
    is dead, and a file in tmpfs not even then. What a process has mapped beyond all that the others have
    mapped together (`mapped_bytes` is the sum, its own included; None: count none) is certainly its alone.
    """
    if not process.shared_bytes:
        return process
    others_bytes = process.shared_bytes if mapped_bytes is None else mapped_bytes - process.shared_bytes
    return replace(process, shared_bytes=max(0, process.shared_bytes - others_bytes))


def counts_shared_memory(
    kills: Sequence[ProcessKill], uid: str, used_bytes: int | None, now_seconds: float
) -> bool:
    """Return whether shared memory counts in the choice among a pod's processes.

    It does not within a minute of a kill after which the pod holds as much as before: then that was no
    process's alone, and who has the most anonymous memory is next.
    """
    recent = [one for one in kills if one.uid == uid and now_seconds - one.at_seconds < _WINDOW_SECONDS]
    return not recent or _has_helped(recent[-1:], used_bytes)


def too_small_because(
    first: ProcessMemory, processes: Iterable[ProcessMemory], used_bytes: int | None
) -> str | None:
    """Return why the kill of a pod's largest process would not be worth it, None where it is.

    `used_bytes` is the pod's working set (None: not observed); what its processes have in swap comes to it.
    """
    seen = list(processes)
    in_memory_bytes = sum(one.resident_bytes for one in seen) if used_bytes is None else used_bytes
    whole_bytes = in_memory_bytes + sum(one.swap_bytes for one in seen)
    if first.held_bytes > 0 and 100 * first.held_bytes >= _LEAST_PERCENT * whole_bytes:
        return None
    return (
        f"its largest process that may be killed alone holds {bytes_text(first.held_bytes)} of "
        f"{bytes_text(whole_bytes)}, less than {_LEAST_PERCENT} %"
    )


def given_up_because(
    kills: Sequence[ProcessKill], uid: str, used_bytes: int | None, now_seconds: float
) -> str | None:
    """Return why no more processes of a pod are killed one by one, None where one may be.

    Each kill that helped makes the pod smaller. One that holds as much as before the last three, less a
    quarter of what those held, has taken it all again, or never lost it.
    """
    recent = [one for one in kills if one.uid == uid and now_seconds - one.at_seconds < _WINDOW_SECONDS]
    if len(recent) < _MOST_IN_VAIN:
        return None
    if _has_helped(recent[-_MOST_IN_VAIN:], used_bytes):
        return None
    return f"{_MOST_IN_VAIN} of its processes were killed within a minute, and it holds as much as before"


def _has_helped(kills: Sequence[ProcessKill], used_bytes: int | None) -> bool:
    """Return whether a pod holds less than before these kills, by a quarter of what they killed."""
    before_bytes = kills[0].used_bytes
    if before_bytes is None or used_bytes is None:
        return False
    killed_bytes = sum(one.held_bytes for one in kills)
    return used_bytes < before_bytes - killed_bytes // _HELPED_SHARE


# --- processes that go together: a process with its descendants, or those of a cgroup below the pod ---
#
# Both are trees: of processes by their parents, of cgroups by their directories. The tree that holds the most
# is chosen, of those that lie in no other and may be killed. From there the choice descends, to the smallest
# tree that frees enough and holds the better part: of an agent whose one tool has run away the tool goes, of
# an agent whose tools hold a little each, the agent with all of them.
#
# A process whose parent has exited belongs to the leader of its process group, else of its session: the
# kernel keeps both numbers for as long as a process is in them.

_BETTER_PART: Final = 2
_Key = int | str


class Group(NamedTuple):
    """Processes that go together: that with the most memory gives them its name, or the tree's root."""

    named: ProcessMemory
    members: tuple[ProcessMemory, ...]
    held_bytes: int


class _Total(NamedTuple):
    """What lies at and below a key: enough to know what goes with it, without a list of who that is."""

    private_bytes: int
    shared_bytes: int
    most_shared_bytes: int
    number: int
    is_touchable: bool


def tree_of(
    processes: Iterable[ProcessMemory],
    wanted_bytes: int | None,
    *,
    is_spared: Callable[[ProcessMemory], bool],
    is_untouchable: Callable[[ProcessMemory], bool],
) -> Group | None:
    """Return the process that goes with its descendants, None if none may.

    `wanted_bytes` is what is missing (None: not known). A spared process is no root, but goes with one; no
    tree with an untouchable one goes.
    """
    by_pid: dict[_Key, ProcessMemory] = {one.pid: one for one in processes}
    parents = {pid: _parent(one, by_pid) for pid, one in by_pid.items()}
    _cut_cycles(parents)
    own = {pid: (one,) for pid, one in by_pid.items()}
    found = _chosen(own, parents, wanted_bytes, lambda pid: not is_spared(by_pid[pid]), is_untouchable)
    if found is None:
        return None
    root, members, held_bytes = found
    return Group(by_pid[root], members, held_bytes)


def leaf_of(
    cgroups: Mapping[str, Sequence[ProcessMemory]],
    wanted_bytes: int | None,
    *,
    is_untouchable: Callable[[ProcessMemory], bool],
) -> Group | None:
    """Return the processes of the cgroup below a pod that goes, None if none may.

    `cgroups` has the processes of each cgroup by its path below the pod; that of the pod itself is ".".
    """
    own: dict[_Key, tuple[ProcessMemory, ...]] = {path: tuple(some) for path, some in cgroups.items()}
    parents: dict[_Key, _Key | None] = {path: _above(path, own) for path in cgroups}
    found = _chosen(own, parents, wanted_bytes, lambda path: path != ".", is_untouchable)
    if found is None:
        return None
    _, members, held_bytes = found
    named = max(members, key=lambda one: (one.held_bytes, -one.pid))
    return Group(named, members, held_bytes)


def joined(group: Group, found: Iterable[ProcessMemory], killed: Collection[int]) -> list[ProcessMemory]:
    """Return those of some processes that a killed process has forked in the meantime, by what they show."""
    pids = {*killed, *(one.pid for one in group.members)}
    return [
        one
        for one in found
        if one.pid not in pids and {one.parent_pid, one.group_pid, one.session_pid} & pids
    ]


def _parent(one: ProcessMemory, by_pid: Collection[_Key]) -> _Key | None:
    return next(
        (pid for pid in (one.parent_pid, one.group_pid, one.session_pid) if pid in by_pid and pid != one.pid),
        None,
    )


def _cut_cycles(parents: dict[_Key, _Key | None]) -> None:
    """Make a root of a process that is above itself: one whose leader it has forked, for example."""
    done: set[_Key] = set()
    for key in parents:
        path: dict[_Key, None] = {}
        above: _Key | None = key
        while above is not None and above not in done and above not in path:
            path[above] = None
            above = parents[above]
        if above is not None and above in path:
            parents[above] = None
        done.update(path)


def _above(path: str, known: Collection[_Key]) -> _Key | None:
    """Return the nearest cgroup above one that is known."""
    while path != ".":
        path = path.rpartition("/")[0] or "."
        if path in known:
            return path
    return None


def _chosen(
    own: Mapping[_Key, tuple[ProcessMemory, ...]],
    parents: Mapping[_Key, _Key | None],
    wanted_bytes: int | None,
    may_be_root: Callable[[_Key], bool],
    is_untouchable: Callable[[ProcessMemory], bool],
) -> tuple[_Key, tuple[ProcessMemory, ...], int] | None:
    """Return the tree that goes: its key, who is in it and what they hold.

    Each step is taken once for each process: a tenant may have thousands, each the child of the one before.
    """
    below: dict[_Key | None, list[_Key]] = {}
    for key, parent in parents.items():
        below.setdefault(parent, []).append(key)
    totals = _totals(own, below, is_untouchable)
    mapped_bytes = sum(one.shared_bytes for some in own.values() for one in some)

    def held_bytes(key: _Key) -> int:
        """Return what certainly goes with it; see `_alone` on shared memory."""
        total = totals[key]
        outside_bytes = mapped_bytes - total.shared_bytes
        return total.private_bytes + max(0, total.most_shared_bytes - outside_bytes)

    def may_go(key: _Key) -> bool:
        total = totals[key]
        return total.number > 0 and total.is_touchable and may_be_root(key)

    chosen: _Key | None = None
    candidates = _topmost(below.get(None, ()), below, may_go)
    while candidates:
        largest = max(candidates, key=held_bytes)
        if chosen is not None and not _is_enough(held_bytes(largest), held_bytes(chosen), wanted_bytes):
            break
        chosen = largest
        candidates = _topmost(below.get(chosen, ()), below, may_go)
    if chosen is None:
        return None
    members = tuple(one for key in _downwards([chosen], below) for one in own[key])
    return chosen, members, held_bytes(chosen)


def _totals(
    own: Mapping[_Key, tuple[ProcessMemory, ...]],
    below: Mapping[_Key | None, Sequence[_Key]],
    is_untouchable: Callable[[ProcessMemory], bool],
) -> dict[_Key, _Total]:
    totals: dict[_Key, _Total] = {}
    for key in reversed(_downwards(below.get(None, ()), below)):
        members, parts = own[key], [totals[child] for child in below.get(key, ())]
        shared = [one.shared_bytes for one in members]
        totals[key] = _Total(
            sum(one.anonymous_bytes + one.swap_bytes for one in members) + sum(one[0] for one in parts),
            sum(shared) + sum(one.shared_bytes for one in parts),
            max([*shared, *(one.most_shared_bytes for one in parts)], default=0),
            len(members) + sum(one.number for one in parts),
            all(one.is_touchable for one in parts) and not any(map(is_untouchable, members)),
        )
    return totals


def _downwards(keys: Sequence[_Key], below: Mapping[_Key | None, Sequence[_Key]]) -> list[_Key]:
    """Return these keys and all below them, each before those below it."""
    found, waiting = [], list(reversed(keys))
    while waiting:
        key = waiting.pop()
        found.append(key)
        waiting.extend(reversed(below.get(key, ())))
    return found


def _topmost(
    keys: Sequence[_Key], below: Mapping[_Key | None, Sequence[_Key]], may_go: Callable[[_Key], bool]
) -> list[_Key]:
    """Return those of some keys that may go, and in place of the others the ones below them that may."""
    found, waiting = [], list(reversed(keys))
    while waiting:
        key = waiting.pop()
        if may_go(key):
            found.append(key)
        else:
            waiting.extend(reversed(below.get(key, ())))
    return found


def _is_enough(part_bytes: int, whole_bytes: int, wanted_bytes: int | None) -> bool:
    if wanted_bytes is None or part_bytes < wanted_bytes:
        return False
    return _BETTER_PART * part_bytes > whole_bytes
