"""One process of a pod is killed, and no other: the largest of those that may be; or one group of them.

    prepare     beforehand: see what the pod's processes hold
    choose      hot, synchronous: list them again, read the largest again and those that came since
    kill        SIGKILL, and its memory freed in our own context
    terminate   a soft eviction: SIGTERM, the grace period, then the kill

Who writes what: a tenant forks, moves its processes below its own cgroup, and gives them names. So a process
is held by its pidfd before the pod's cgroup is listed: what is listed then, and may be signalled through the
pidfd, was in this pod meanwhile. It is listed once more before the SIGKILL that ends a grace period. How many
processes are read, and for how much CPU time, is bounded; beyond that no process is chosen, and the whole pod
is killed in its place. What a process calls itself spares or exposes that process alone.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Final, NamedTuple

import trio

from reactor.act.processes import close_all, has_exited
from reactor.act.protect import Untouchable
from reactor.act.reap import REAP_DEADLINE_SECONDS, KillReport, MemoryRelease, ReapReport
from reactor.act.target import Target
from reactor.errors import ReactorError
from reactor.kernel.cgroup_directory import CgroupDirectory, fail, walk
from reactor.kernel.files import close_descriptor
from reactor.kernel.procfs import PROC, MemoryUnknownError, read_oom_score_adj, read_process_memory
from reactor.model.kills import ProcessMemory
from reactor.model.name_patterns import matcher
from reactor.model.pod_lists import ProcessVictim, VictimUnit
from reactor.model.pods import Pod
from reactor.policy.process_victims import (
    UNKILLABLE,
    Group,
    in_order,
    joined,
    leaf_of,
    too_small_because,
    tree_of,
)

# A status file takes 20 us, 40 if cold. A tenant makes it longer by its groups, an emulated machine as it is.
_MOST_CPU_NS: Final = 120_000_000
_FEW: Final = 32  # are read before a crossing is looked for, which takes as long as two
_SELDOM: Final = 10  # prepared again after so many times as long as all took to be read
_AFRESH: Final = 8  # of the largest: what they hold is read again at the kill
# What the others hold is read again after so long, where it is prepared again, and at the latest at the kill.
_RENEWED_SECONDS: Final = 0.25
_STALE_SECONDS: Final = 1.0
_MOST_TRIED: Final = 32  # of those that may go: a tenant has thousands end, or let go of memory, at once
_TRIES: Final = 2  # a process may end between its choice and its signal
_STUCK_SECONDS: Final = 1.0
_MOST_STRUCK: Final = 16
_MOST_PROCESSES: Final = 3072
_MOST_CGROUPS: Final = 128
_MOST_IN_ONE: Final = 512  # cgroups in one directory, which is listed in one piece
_ROUNDS: Final = 3
_UNITS: Final = {
    VictimUnit.PROCESS: "process",
    VictimUnit.TREE: "process with its descendants",
    VictimUnit.LEAF: "cgroup",
}
_CHOICES: Final = 4  # with each a process is found that must not be killed


class NoProcessError(ReactorError):
    """No process of the pod is killed alone, for this reason: the whole pod is."""


@dataclass(slots=True)
class Chosen:
    """A process of a pod, or a `group` of them, by pidfds that are owned, the one that names them first.

    `process` has the sums. `cgroup` is where the group is, by its path below the pod; None: it is a tree.
    `others` were in the pod when it was chosen, and in no tree of theirs: nor will they be. `killed_ns`: when
    SIGKILL was sent.
    """

    process: ProcessMemory
    pod: Pod
    pidfds: dict[int, int]
    group: Group | None = None
    cgroup: str | None = None
    others: frozenset[int] = frozenset()
    killed_ns: int | None = None

    def report(self) -> KillReport:
        return KillReport(killed_ns=self.killed_ns or time.monotonic_ns(), processes=len(self.pidfds))

    def close(self) -> None:
        """Close the pidfds. Harmless when repeated."""
        while self.pidfds:
            close_descriptor(self.pidfds.popitem()[1])


def hold_first(
    pod: Pod,
    target: Target,
    processes: Collection[ProcessMemory],
    wanted_bytes: int | None,
    reserved: Collection[int],
    proc: Path,
    *,
    counts_shared: bool = True,
) -> Chosen:
    """Return the process of a pod that goes, or those that go together. Raises OSError, NoProcessError.

    Each is held by its pidfd before it is listed in the pod once more, and the first read again: until it is
    held its id may be another's. If it holds far less than was read before, the choice is made once more.
    """
    untouchable, by_pid = set(reserved), {one.pid: one for one in processes}
    victim = pod.process_victim or ProcessVictim(entry="")
    names = _names_matcher((*victim.built_in_never, *victim.never))
    may_go = _candidates(victim, target, by_pid, wanted_bytes, untouchable, counts_shared)
    for group, cgroup in islice(may_go, _MOST_TRIED):
        if unkillable := {one.pid for one in group.members if _is_unkillable(one.pid, proc)}:
            untouchable |= unkillable
            continue
        pids = [group.named.pid, *(one.pid for one in group.members if one.pid != group.named.pid)]
        pidfds = _opened(target, pids)
        held = _read_those(pids[:1], proc)
        if held and 2 * held[0].held_bytes < group.named.held_bytes:
            by_pid[held[0].pid] = held[0]
            close_all(pidfds.values())
            continue
        if len(pids) == 1 and (not held or names(held[0].name)):
            close_all(pidfds.values())  # it has taken a spared name; another one spares nobody
        elif pidfds:
            if victim.unit is VictimUnit.PROCESS:
                return Chosen(_summed(group), pod, pidfds)
            others = frozenset(by_pid) - {one.pid for one in group.members}
            return Chosen(_summed(group), pod, pidfds, group, cgroup, others)
        untouchable |= set(pids)
    raise NoProcessError(f"no {_UNITS[victim.unit]} of it may be killed alone")


def _candidates(
    victim: ProcessVictim,
    target: Target,
    by_pid: Mapping[int, ProcessMemory],
    wanted_bytes: int | None,
    untouchable: Collection[int],
    counts_shared: bool,  # noqa: FBT001
) -> Iterator[tuple[Group, str | None]]:
    """Yield what may go, the first choice first; `untouchable` and what is known may change by the next."""
    names = _names_matcher((*victim.built_in_never, *victim.never))
    if victim.unit is VictimUnit.PROCESS:
        for one in in_order(by_pid.values(), counts_shared=counts_shared):
            if one.pid not in untouchable and not names(one.name):
                yield Group(one, (one,), one.held_bytes), None
                if by_pid[one.pid] is not one:
                    yield from _candidates(victim, target, by_pid, wanted_bytes, untouchable, counts_shared)
                    return
        return
    operators, built_in, cgroup = _names_matcher(victim.never), _names_matcher(victim.built_in_never), None
    for _ in range(_CHOICES):
        if victim.unit is VictimUnit.TREE:
            found = tree_of(
                by_pid.values(),
                wanted_bytes,
                is_spared=lambda one: built_in(one.name),
                is_untouchable=lambda one: one.pid in untouchable or operators(one.name),
            )
        else:
            listed = {
                path: [by_pid[pid] for pid in pids if pid in by_pid]
                for path, pids in _by_cgroup(target).items()
            }
            found = leaf_of(
                listed, wanted_bytes, is_untouchable=lambda one: one.pid in untouchable or names(one.name)
            )
            members = set() if found is None else {one.pid for one in found.members}
            holding = [path for path, held in listed.items() if members.intersection(one.pid for one in held)]
            cgroup = os.path.commonpath(holding) if holding else None
        if found is None:
            return
        yield found, cgroup


def _opened(target: Target, pids: Sequence[int]) -> dict[int, int]:
    """Return pidfds of those that are in the pod while they are held. Raises OSError."""
    pidfds: dict[int, int] = {}
    try:
        for pid in pids:
            with suppress(ProcessLookupError):
                pidfds[pid] = os.pidfd_open(pid)
        present = set(_listed(target)) if pidfds else set()
    except BaseException:
        close_all(pidfds.values())
        raise
    held = {pid: fd for pid, fd in pidfds.items() if pid in present and not has_exited(fd)}
    close_all(fd for pid, fd in pidfds.items() if pid not in held)
    return held


def _is_unkillable(pid: int, proc: Path) -> bool:
    """Return whether the kernel's OOM killer may not kill a process: no process may then."""
    try:
        return read_oom_score_adj(pid, proc) <= UNKILLABLE
    except (OSError, ReactorError):
        return False  # it is gone


def _read_those(pids: Sequence[int], proc: Path) -> list[ProcessMemory]:
    found = []
    for pid in pids:
        with suppress(OSError, ReactorError):
            if (one := read_process_memory(pid, proc)) is not None:
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
def _names_matcher(patterns: tuple[str, ...]) -> Callable[[str], bool]:
    matchers = [matcher(pattern) for pattern in patterns]
    return lambda name: any(matches(name) for matches in matchers)


def _by_cgroup(target: Target) -> dict[str, list[int]]:
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


def _listed(target: Target) -> Iterator[int]:
    """Yield the processes in a pod. Raises as `_by_cgroup`."""
    return chain.from_iterable(_by_cgroup(target).values())


def _directories(target: Target) -> Iterator[CgroupDirectory]:
    """Yield the pod's cgroups, its own first. Raises OSError, NoProcessError where they are too many."""
    if target.directory is None:
        return
    with closing(walk(target.directory, fail, spared=target.spared)) as found:
        for number, directory in enumerate(found):
            if number >= _MOST_CGROUPS:
                raise NoProcessError(f"it has more than {_MOST_CGROUPS} cgroups")
            yield directory


class _UnreadError(NoProcessError):
    """There was no time to read all processes; what was read is kept, and the next observation goes on."""


class _DyingProcess(NamedTuple):
    """A killed process until it has exited, by a pidfd that is owned."""

    pid: int
    pidfd: int
    at_seconds: float


@dataclass(slots=True)
class _Seen:
    """A pod's processes as they were seen last, by id. `target` is owned.

    `whole_seconds` is when it was begun to read what each of them holds, and not only the largest, which took
    `cost_seconds` until now; `unread` are those that are still to be read for it.
    """

    target: Target
    processes: dict[int, ProcessMemory] = field(default_factory=dict)
    unread: set[int] = field(default_factory=set)
    whole_seconds: float = -math.inf
    cost_seconds: float = 0.0


@dataclass(eq=False)
class OneProcess:
    """Kills single processes of pods. `opened` returns a pod's target where it may be killed, else it raises.

    Nothing here waits but what is async.
    """

    opened: Callable[[Pod], Target]
    untouchable: Untouchable
    release: MemoryRelease
    proc: Path = PROC

    def __post_init__(self) -> None:
        self._seen: dict[str, _Seen] = {}
        self._struck: dict[str, list[_DyingProcess]] = {}

    def prepare(self, pods: Sequence[Pod], gives_way: Callable[[], bool] = bool) -> None:
        """See what the processes of these pods hold, and forget all others. Never raises: the choice does.

        Processes are left to the next observation once `gives_way`, asked after every few, returns True.
        """
        self._sweep()
        wanted = {pod.uid: pod for pod in pods if pod.process_victim is not None}
        for uid, seen in list(self._seen.items()):
            if uid not in wanted or not seen.target.is_of(wanted[uid]):
                self._seen.pop(uid).target.close()
        for uid, pod in wanted.items():
            try:
                if uid not in self._seen:
                    self._seen[uid] = _Seen(self.opened(pod))
                with suppress(_UnreadError):
                    self._observe(self._seen[uid], _RENEWED_SECONDS, gives_way)
            except (ReactorError, OSError):
                if uid in self._seen:
                    self._seen.pop(uid).target.close()

    def close(self) -> None:
        """Close every descriptor. Harmless when repeated."""
        self.prepare(())
        while self._struck:
            for one in self._struck.popitem()[1]:
                close_descriptor(one.pidfd)

    def choose(
        self, pod: Pod, used_bytes: int | None, *, counts_shared: bool = True, wanted_bytes: int | None = None
    ) -> Chosen:
        """Return the process of a pod that is killed first, or the group of them, for the caller to close.

        `used_bytes` is the pod's working set, without what was killed of it and is dying; `counts_shared` is
        False where a kill for shared memory has brought nothing back; `wanted_bytes` is what is missing.
        Raises NoProcessError with the reason where none does, RefusedError and OSError as a kill of the pod
        does.
        """
        self._refuse_stuck(pod.uid)
        seen = self._seen.pop(pod.uid, None)
        if seen is not None and not seen.target.is_of(pod):
            seen.target.close()
            seen = None
        seen = seen or _Seen(self.opened(pod))
        try:
            self._observe(seen, _STALE_SECONDS)
            struck = {one.pid for one in self._struck.get(pod.uid, ())}
            living = [one for one in seen.processes.values() if one.pid not in struck]
            reserved = self.untouchable.pids | struck
            chosen = hold_first(
                pod, seen.target, living, wanted_bytes, reserved, self.proc, counts_shared=counts_shared
            )
            if chosen.group and used_bytes is not None:  # what several inherited of one is counted for each
                process = chosen.process
                anonymous_bytes = min(process.anonymous_bytes, used_bytes)
                shared_bytes = min(process.shared_bytes, used_bytes - anonymous_bytes)
                chosen.process = replace(process, anonymous_bytes=anonymous_bytes, shared_bytes=shared_bytes)
            why = too_small_because(chosen.process, living, used_bytes)
            if why is not None:
                chosen.close()
                raise NoProcessError(why)
            if chosen.process.pid not in chosen.pidfds:  # the one that gave its name has just exited
                chosen.process = replace(chosen.process, pid=next(iter(chosen.pidfds)))
            return chosen
        finally:
            seen.target.close()

    def kill_first(
        self, pod: Pod, used_bytes: int | None, *, counts_shared: bool = True, wanted_bytes: int | None = None
    ) -> Chosen:
        """Choose a process and send it SIGKILL. Raises as `choose`, OSError also where that is refused."""
        for _ in range(_TRIES):
            chosen = self.choose(pod, used_bytes, counts_shared=counts_shared, wanted_bytes=wanted_bytes)
            try:
                if self._kill(chosen):
                    return chosen
            except BaseException:
                chosen.close()
                raise
            chosen.close()
        raise NoProcessError("its processes end before they are killed")

    def kill(self, chosen: Chosen) -> bool:
        """Send SIGKILL to what was chosen some time ago, and return and raise as `_present` and `_kill`."""
        return self._kill(chosen, self._present(chosen))

    def _present(self, chosen: Chosen) -> set[int]:
        """Return the processes in the pod. Raises RefusedError if it must not be touched any more, OSError.

        Raises NoProcessError if what was chosen lives, and is not in it any more.
        """
        with closing(self.opened(chosen.pod)) as target:
            present = {pid for directory in _directories(target) for pid in directory.processes()}
        if present.isdisjoint(chosen.pidfds) and not all(map(has_exited, chosen.pidfds.values())):
            raise NoProcessError(f"process {chosen.process.pid} is not in its pod any more")
        return present

    def _kill(self, chosen: Chosen, present: Collection[int] | None = None) -> bool:
        """Send SIGKILL to what was chosen, of a group to those that are `present`; return whether any lived.

        Raises OSError if all that live are refused.
        """
        forked = self._add_forked(chosen, kill=False)
        wanted = {
            pid: pidfd
            for pid, pidfd in chosen.pidfds.items()
            if present is None or pid in present or pidfd in forked
        }
        if not (killed := _signalled(wanted, signal.SIGKILL)):
            return False
        chosen.killed_ns = time.monotonic_ns()
        late = self._add_forked(chosen, kill=True)
        killed |= {pid: pidfd for pid, pidfd in chosen.pidfds.items() if pidfd in late}
        self.release.release(tuple(killed.values()))
        with suppress(OSError):  # no descriptors left
            struck = self._struck.setdefault(chosen.pod.uid, [])
            at_seconds = time.monotonic()
            for pid, pidfd in killed.items():
                struck.append(_DyingProcess(pid, os.dup(pidfd), at_seconds))
        return True

    def _add_forked(self, chosen: Chosen, *, kill: bool) -> list[int]:
        """Add what a group has forked since it was chosen, as far as that can be had; return its pidfds.

        With `kill` that is killed. It is asked for before anything is killed as well: the child of a dead
        process has another parent.
        """
        added: list[int] = []
        if chosen.group is None:
            return added
        reserved = {*self.untouchable.pids, chosen.process.pid}
        with suppress(ReactorError, OSError), closing(self.opened(chosen.pod)) as target:
            for _ in range(_ROUNDS):
                known = {*reserved, *chosen.pidfds, *(one.pid for one in chosen.group.members)}
                new = [
                    pid
                    for path, pids in _by_cgroup(target).items()
                    if chosen.cgroup is None or f"{path}/".startswith(f"{chosen.cgroup}/")
                    for pid in pids
                    if pid not in known
                ]
                if chosen.cgroup is None:
                    late = _read_those([pid for pid in new if pid not in chosen.others], self.proc)
                    new = [one.pid for one in joined(chosen.group, late, chosen.pidfds)]
                pidfds = _opened(target, [pid for pid in new if not _is_unkillable(pid, self.proc)])
                if not pidfds:
                    break
                for pidfd in pidfds.values() if kill else ():
                    with suppress(OSError):
                        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                chosen.pidfds.update(pidfds)
                added += pidfds.values()
        return added

    async def terminate(
        self, chosen: Chosen, grace_period_seconds: float, still_wanted: Callable[[], bool] = lambda: True
    ) -> KillReport | None:
        """Ask the process to end (SIGTERM), and kill it when the grace period is over.

        Returns None if it exited by itself, or if `still_wanted` returns False at the end of the grace
        period. Raises as `kill`.
        """
        close_all(map(chosen.pidfds.pop, chosen.pidfds.keys() - self._present(chosen)))
        if not _signalled(chosen.pidfds, signal.SIGTERM):
            return None
        if (await self.reap(chosen, grace_period_seconds)).freed_ns is not None or not still_wanted():
            return None
        return chosen.report() if self.kill(chosen) else None

    async def reap(self, chosen: Chosen, deadline_seconds: float = REAP_DEADLINE_SECONDS) -> ReapReport:
        """Wait until the process has exited: its memory is free by then."""
        with trio.move_on_after(deadline_seconds) as patience:
            for pidfd in tuple(chosen.pidfds.values()):
                await trio.lowlevel.wait_readable(pidfd)
        freed_ns = None if patience.cancelled_caught else time.monotonic_ns()
        self._sweep()
        late = f"process {chosen.process.pid} has not exited {deadline_seconds:g} s after SIGKILL"
        problems = () if freed_ns is not None else (late,)
        return ReapReport(freed_ns=freed_ns, problems=problems)

    def _observe(self, seen: _Seen, renewed_seconds: float, gives_way: Callable[[], bool] = bool) -> None:
        """Bring up to date what is known of a pod's processes. Raises NoProcessError, OSError.

        Those that came since and the largest are always read, all others again after `renewed_seconds`, and
        where that takes long, later. If that takes more CPU time than there is, or it `gives_way`, what they
        held before counts until the next observation, which goes on there.
        """
        began_ns = time.thread_time_ns()
        pids = list(dict.fromkeys(_listed(seen.target)))
        seen.unread.intersection_update(pids)
        now_seconds = time.monotonic()
        age_seconds = now_seconds - seen.whole_seconds
        if not seen.unread and age_seconds >= max(renewed_seconds, _SELDOM * seen.cost_seconds):
            seen.unread, seen.whole_seconds, seen.cost_seconds = set(pids), now_seconds, 0.0
        is_renewed = bool(seen.unread)
        known = seen.processes
        found = {pid: known[pid] for pid in pids if pid in known}
        new = [pid for pid in pids if pid not in known]
        largest = [one.pid for one in in_order(found.values())[:_AFRESH]]
        others = seen.unread.difference(new, largest)
        wanted = deque((*new, *largest, *others))
        while wanted and time.thread_time_ns() - began_ns <= _MOST_CPU_NS:
            if len(wanted) % _FEW == 0 and gives_way():
                break
            pid = wanted.popleft()
            process = self._read(pid)
            seen.unread.discard(pid)
            if process is None:
                found.pop(pid, None)
            else:
                found[pid] = process
        seen.processes = found
        if is_renewed:
            seen.cost_seconds += (time.thread_time_ns() - began_ns) / 1e9
        if len(wanted) > len(others):
            raise _UnreadError("what its processes hold can't be read in time")

    def _read(self, pid: int) -> ProcessMemory | None:
        """Return what a process holds, None where it is gone. Raises NoProcessError where it is unknown."""
        try:
            return read_process_memory(pid, self.proc)
        except MemoryUnknownError as error:
            raise NoProcessError(str(error)) from None
        except (OSError, ReactorError):
            return None  # gone

    def _refuse_stuck(self, uid: str) -> None:
        """Raise NoProcessError where a process of the pod that was killed should have exited by now."""
        self._sweep()
        left = self._struck.get(uid, [])
        if left and time.monotonic() - left[0].at_seconds > _STUCK_SECONDS:
            raise NoProcessError(f"its process {left[0].pid} was killed, and has not exited")
        if len({one.at_seconds for one in left}) >= _MOST_STRUCK:
            raise NoProcessError(f"what was killed of it {_MOST_STRUCK} times has not exited")

    def _sweep(self) -> None:
        """Forget the killed processes that have exited."""
        for uid, struck in list(self._struck.items()):
            for one in [one for one in struck if has_exited(one.pidfd)]:
                struck.remove(one)
                close_descriptor(one.pidfd)
            if not struck:
                del self._struck[uid]


def _signalled(pidfds: Mapping[int, int], number: signal.Signals) -> dict[int, int]:
    """Send a signal to each; return those that it has reached. One that refuses it spares no other.

    Raises OSError if it has reached none, and not only because all have exited.
    """
    reached: dict[int, int] = {}
    refused: OSError | None = None
    for pid, pidfd in pidfds.items():
        try:
            signal.pidfd_send_signal(pidfd, number)
        except ProcessLookupError:
            continue
        except OSError as error:
            refused = refused or error
        else:
            reached[pid] = pidfd
    if refused is not None and not reached:
        raise refused
    return reached
