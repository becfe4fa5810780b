"""The kill path: the end of a pod, by its cgroup, with what the pod would need to die quickly.

    kill_now    hot, synchronous: check the target, lift its CPU quota, SIGKILL everything in it
    reap        afterwards: wait until the memory is back, free it in our own context, chase stragglers
    terminate   a soft eviction: SIGTERM, the grace period, then kill_now

The quota comes first because a victim frees its memory in its own time: with 1 % of a CPU 1 GiB was not
back after a minute, with the quota lifted it was in 0.3 s.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from reactor.act import processes
from reactor.act.exercise import exercise
from reactor.act.freezer import frozen, frozen_by_ancestor
from reactor.act.processes import Members, Reserve, Volley
from reactor.errors import RefusedError
from reactor.kernel import libc
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_files import CgroupVersion
from reactor.kernel.scheduling import following
from reactor.model.pods import Pod

REAP_DEADLINE_SECONDS: Final = 10.0
_STRAGGLER_INTERVAL_SECONDS: Final = 0.25
_POLL_SECONDS: Final = 0.02  # for processes that no pidfd can be had of


@dataclass(frozen=True, slots=True, kw_only=True)
class KillReport:
    """What one kill did. Instants are CLOCK_MONOTONIC nanoseconds.

    `processes` counts those signalled; `problems` are one line each: what was refused on the way and did
    not stop the kill.
    """

    cgroup: str
    started_ns: int
    killed_ns: int
    processes: int
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReapReport:
    """How a killed pod ended. `freed_ns` is None where it had not ended by the deadline."""

    cgroup: str
    freed_ns: int | None
    problems: tuple[str, ...] = ()


class KillPath:
    """Ends pods whose cgroups lie strictly inside `pod_parents` (relative to the hierarchy's root)."""

    def __init__(self, tree: CgroupTree, pod_parents: Sequence[str]) -> None:
        self._tree = tree
        self.guard(pod_parents)
        self._dying: dict[str, dict[int, int]] = {}  # cgroup -> pidfds by process id, of what was signalled
        self._reaping: dict[str, trio.Lock] = {}
        self._reserve = Reserve()

    def guard(self, pod_parents: Sequence[str]) -> None:
        """End pods inside these from now on, and nothing elsewhere, even where it has been told to end."""
        self._pod_parents = tuple(pod_parents)

    def close(self) -> None:
        """Close every descriptor that is still held. Harmless when repeated."""
        self._reserve.close()
        while self._dying:
            processes.close_all(self._dying.popitem()[1].values())

    def kill_now(self, pod: Pod) -> KillReport:
        """Send SIGKILL to everything in the pod's cgroup and return when it is sent; reap waits for the end.

        Raises RefusedError for a pod that reactor must not touch, OSError where its processes could not be
        listed or signalled. A cgroup that is gone is a kill of zero processes.
        """
        started_ns = time.monotonic_ns()
        problems: list[str] = []
        with self._reserve.lent():
            cgroup, members = self._checked(pod)
            try:
                self._tree.lift_cpu_quota(cgroup)
            except OSError as error:
                problems.append(f"CPU quota not lifted: {error}")
            killed = self._kill_whole(members, problems)
            if killed is None:
                killed = self._kill_each(cgroup, members, problems)
        killed_ns = time.monotonic_ns()
        count, pidfds = killed
        if not self._reserve.fill():  # the next kill needs descriptors more than reap does
            processes.close_all(pidfds.values())
            pidfds = {}
            self._reserve.fill()
        self._hold(cgroup, pidfds)
        return KillReport(
            cgroup=cgroup,
            started_ns=started_ns,
            killed_ns=killed_ns,
            processes=count,
            problems=tuple(problems),
        )

    async def reap(self, pod: Pod, deadline_seconds: float = REAP_DEADLINE_SECONDS) -> ReapReport:
        """Wait until what kill_now ended has given its memory back; kill again what is still there.

        Raises RefusedError as kill_now does; what the system refuses is a problem in the report.
        """
        with self._reserve.lent():
            cgroup, members = self._checked(pod)
        problems: dict[str, None] = {}
        freed_ns = None
        # One after the other: no two tasks may wait on a descriptor, nor one close it under the other.
        turn = self._reaping.setdefault(cgroup, trio.Lock())
        with trio.move_on_after(deadline_seconds):
            async with turn:
                try:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(_release, list(self._dying.get(cgroup, {}).values()))
                        await self._wait_gone(pod, cgroup, members, problems)
                        freed_ns = time.monotonic_ns()
                        nursery.cancel_scope.cancel()
                finally:
                    processes.close_all(self._dying.pop(cgroup, {}).values())
        if not turn.locked():
            self._reaping.pop(cgroup, None)
        if freed_ns is None:
            with self._reserve.lent():
                problems |= dict.fromkeys(self._standing(cgroup, members, deadline_seconds))
        return ReapReport(cgroup=cgroup, freed_ns=freed_ns, problems=tuple(problems))

    async def terminate(self, pod: Pod, grace_period_seconds: float) -> KillReport | None:
        """Ask the pod's processes to end (SIGTERM), and kill what is left when the grace period is over.

        Returns None where they all ended by themselves, or were killed meanwhile by a kill_now of the same
        pod; a cancellation leaves them with their SIGTERM. Raises as kill_now.
        """
        _, members = self._checked(pod)
        volley = Volley(members, signal.SIGTERM)
        try:
            while volley.fire():
                pass
            with trio.move_on_after(grace_period_seconds):
                await _wait_empty(members, volley.held.values())
                return None
        finally:
            processes.close_all(volley.held.values())
        return self.kill_now(pod)

    def exercise(self) -> str | None:
        """Run the path once against a child of our own, in a cgroup of its own; return what went wrong.

        A kill that is refused (a seccomp filter, a missing capability) must show at the start, not when the
        memory runs out. Blocks for some 50 ms, and for seconds only where the kill doesn't work.
        """
        return exercise(self._tree, self._pod_parents, KillPath)

    def _checked(self, pod: Pod) -> tuple[str, Members]:
        """Return the pod's cgroup and what lists it. Raises RefusedError where reactor must not end it."""
        cgroup = pod.cgroup
        if cgroup is None:
            raise RefusedError(f"pod {pod.key}: its cgroup is not known")
        if not any(self._tree.contains(parent, cgroup) for parent in self._pod_parents):
            raise RefusedError(
                f"pod {pod.key}: cgroup {cgroup!r} is not inside {', '.join(self._pod_parents)}"
            )
        members = Members(self._tree, cgroup, spared=pod.spared_cgroups)  # refuses symlinks
        for pid in {1, os.getpid()}.intersection(members()):
            raise RefusedError(
                f"pod {pod.key}: {cgroup!r} holds process {pid}, {'init' if pid == 1 else 'reactor'}"
            )
        return cgroup, members

    def _kill_whole(self, members: Members, problems: list[str]) -> tuple[int, dict[int, int]] | None:
        """Kill through v2's cgroup.kill; None where there is no such file.

        Returns how many were listed, and pidfds of some of them by process id.
        """
        if self._tree.version is not CgroupVersion.V2:
            return None
        count, pidfds = 0, dict[int, int]()
        subtrees = members.subtrees()
        for directory in subtrees:
            listed = _kill_subtree(directory, members, pidfds, problems)
            if listed is None:
                processes.close_all(pidfds.values())
                return None
            count += listed
        return (count, pidfds) if subtrees else None

    def _kill_each(self, cgroup: str, members: Members, problems: list[str]) -> tuple[int, dict[int, int]]:
        """Signal every process, frozen where they fork ahead of us; return as _kill_whole does.

        Freezing and thawing cost 0.3 ms and hold up the death of who doesn't fork, so the first round goes
        without: from then on whoever was listed can't fork any more (copy_process() fails with a signal
        pending), and a listing without anybody new is the proof that nobody got away.
        """
        volley = Volley(members, signal.SIGKILL)
        try:
            if volley.fire():
                with frozen(self._tree, cgroup, problems.append):
                    while volley.fire():
                        pass
        except OSError:
            processes.close_all(volley.held.values())
            raise
        return volley.sent, volley.held

    def _hold(self, cgroup: str, pidfds: dict[int, int]) -> None:
        """Keep pidfds for reap; those of an earlier kill of the same cgroup stay as they are."""
        kept = self._dying.setdefault(cgroup, {})
        for pid, fd in pidfds.items():
            if pid in kept or len(kept) >= processes.HELD:
                os.close(fd)
            else:
                kept[pid] = fd

    async def _wait_gone(self, pod: Pod, cgroup: str, members: Members, problems: dict[str, None]) -> None:
        while True:
            try:
                with trio.move_on_after(_STRAGGLER_INTERVAL_SECONDS) as patience:
                    await _wait_empty(members, list(self._dying.get(cgroup, {}).values()))
                if not patience.cancelled_caught:
                    return
                if members():
                    problems |= dict.fromkeys(self.kill_now(pod).problems)
            except (RefusedError, OSError) as error:
                problems[str(error)] = None
                await trio.sleep(_STRAGGLER_INTERVAL_SECONDS)

    def _standing(self, cgroup: str, members: Members, deadline_seconds: float) -> list[str]:
        """Return why the cgroup has not ended, as far as it can be told."""
        count = len(members())
        what = f"{count} processes still listed" if count else "processes are still exiting"
        because = frozen_by_ancestor(self._tree, cgroup)
        return [f"{cgroup}: {what} {deadline_seconds:g} s after the kill", *([because] if because else [])]


def _kill_subtree(
    directory: str, members: Members, pidfds: dict[int, int], problems: list[str]
) -> int | None:
    """Kill one subtree and return how many were listed in it; None where there is no cgroup.kill.

    Adds pidfds of some of them; where the write fails, all are closed and OSError is raised.
    """
    path = f"{directory}/cgroup.kill"
    try:
        kill_fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:  # before 5.14, or the cgroup is gone
        return None
    except OSError as error:
        problems.append(f"{path}: {error.strerror}; killing one by one")
        return None
    try:
        listed = members.within(directory)
        with contextlib.suppress(OSError):  # no descriptors left: reap polls instead
            # Opened before the kill: later they would be gone, and with them what reap waits on.
            opened, _ = processes.open_pidfds(listed[: processes.HELD - len(pidfds)])
            pidfds |= opened
        os.write(kill_fd, b"1")
    except OSError:
        processes.close_all(pidfds.values())
        raise
    finally:
        os.close(kill_fd)
    return len(listed)


async def _wait_empty(members: Members, pidfds: Collection[int]) -> None:
    await processes.wait_exited(pidfds)
    while members():  # noqa: ASYNC110 - v1 has no event for an empty cgroup
        await trio.sleep(_POLL_SECONDS)


async def _release(pidfds: Sequence[int]) -> None:
    """Free the victims' memory in our own context, so that it is not bound to their CPU share or priority.

    Only what has not begun to exit can be helped (ESRCH otherwise), so most calls do nothing; the one that
    counts is a victim that gets no CPU among busy siblings. Never raises OSError: it is only a help.
    """
    await trio.lowlevel.checkpoint_if_cancelled()
    own: list[int] = []  # the thread may outlive the caller's interest, and its descriptors
    with contextlib.suppress(OSError):
        own.extend(os.dup(fd) for fd in pidfds)
    # A limiter of its own, so that nothing is waited for, or cancelled, between here and the thread's begin.
    try:
        await trio.to_thread.run_sync(  # noqa: TID251 - in_thread may be cancelled before it begins
            following(_release_and_close), own, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1)
        )
    except RuntimeError:  # no thread can be started: a fork bomb has the last process id
        processes.close_all(own)


def _release_and_close(pidfds: Sequence[int]) -> None:
    for fd in pidfds:
        with contextlib.suppress(OSError):
            libc.process_mrelease(fd)
        os.close(fd)
