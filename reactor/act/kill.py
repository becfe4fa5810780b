"""The kill path: the end of a pod, by its cgroup.

    get_ready   beforehand: hold what a kill of the likeliest pods needs
    kill_now    hot, synchronous: check the target, SIGKILL everything in it, have its memory freed in our own
                context, give it the CPU
    reap        afterwards: wait until the memory is back, chase stragglers
    terminate   a soft eviction: SIGTERM, the grace period, then kill_now

A victim frees its memory in its own time: with 1 % of a CPU 1 GiB was not back after a minute, with the
quota lifted it was in 0.3 s. Lifted after the signal it helps as much, and the signal need not wait for it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import trio

from reactor.act import processes
from reactor.act.exercise import exercise
from reactor.act.fork_limit import without_forks
from reactor.act.freezer import frozen, frozen_by_ancestor
from reactor.act.hurry import hurry
from reactor.act.processes import NO_DESCRIPTORS, Reserve, Volley
from reactor.act.reap import REAP_DEADLINE_SECONDS, Dying, ReapReport, wait_empty
from reactor.act.release import MemoryRelease
from reactor.act.target import Target
from reactor.errors import ReactorError, RefusedError
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_files import CgroupVersion
from reactor.model.pods import Pod

_Found = TypeVar("_Found")
_Killed = tuple[int, dict[int, int]]  # how many were signalled or listed, and pidfds of some by process id


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


class KillPath:
    """Ends pods whose cgroups lie strictly inside `pod_parents` (relative to the hierarchy's root)."""

    def __init__(self, tree: CgroupTree, pod_parents: Sequence[str]) -> None:
        self._tree = tree
        self._ready: dict[str, Target] = {}
        self.guard(pod_parents)
        self._dying = Dying()
        self._release = MemoryRelease()
        self._reserve = Reserve()

    def guard(self, pod_parents: Sequence[str]) -> None:
        """End pods inside these from now on, and nothing elsewhere, even where it has been told to end."""
        self._pod_parents = tuple(pod_parents)
        self.get_ready(())

    def get_ready(self, pods: Sequence[Pod]) -> None:
        """Hold what a kill of these pods needs, and of no others. Never raises: the kill does."""
        wanted = {pod.uid: pod for pod in pods}
        if wanted:
            self._release.start()
        for uid, target in list(self._ready.items()):
            if uid not in wanted or not target.is_of(wanted[uid]):
                self._ready.pop(uid).close()
        for uid, pod in wanted.items():
            try:
                target = self._ready.get(uid) or self._checked(pod)
                self._ready[uid] = target
                target.get_ready(pod, self._tree)
            except (ReactorError, OSError):
                if uid in self._ready:
                    self._ready.pop(uid).close()

    def close(self) -> None:
        """Close every descriptor that is still held. Harmless when repeated."""
        self.get_ready(())
        self._reserve.close()
        self._dying.close()
        self._release.close()

    def kill_now(self, pod: Pod) -> KillReport:
        """Send SIGKILL to everything in the pod's cgroup and return when it is sent; reap waits for the end.

        Raises RefusedError for a pod that reactor must not touch, OSError where its processes could not be
        listed or signalled. A cgroup that is gone is a kill of zero processes.
        """
        started_ns = time.monotonic_ns()
        problems: list[str] = []
        target = self._taken(pod)
        try:
            count, pidfds = self._despite_want(lambda: self._kill(pod, target, problems))
            killed_ns = time.monotonic_ns()
            self._release.release(pidfds.values())
        finally:
            target.close()
        try:
            self._despite_want(lambda: hurry(self._tree, target.cgroup))
        except OSError as error:
            problems.append(f"not given more of the CPU: {error}")
        if not self._reserve.fill():  # the next kill needs descriptors more than reap does
            processes.close_all(pidfds.values())
            pidfds = {}
            self._reserve.fill()
        self._dying.hold(target.cgroup, pidfds)
        return KillReport(
            cgroup=target.cgroup,
            started_ns=started_ns,
            killed_ns=killed_ns,
            processes=count,
            problems=tuple(problems),
        )

    async def reap(self, pod: Pod, deadline_seconds: float = REAP_DEADLINE_SECONDS) -> ReapReport:
        """Wait until what kill_now ended has given its memory back; kill again what is still there.

        Raises RefusedError as kill_now does; what the system refuses is a problem in the report.
        """
        target = self._checked(pod)
        self._despite_want(lambda: target.listed(pod))
        problems: dict[str, None] = {}
        freed_ns = None
        with trio.move_on_after(deadline_seconds):
            freed_ns = await self._dying.wait_gone(
                target.cgroup, target.members, lambda: self.kill_now(pod).problems, problems
            )
        if freed_ns is None:
            standing = self._despite_want(lambda: self._standing(target, deadline_seconds))
            problems |= dict.fromkeys(standing)
        return ReapReport(cgroup=target.cgroup, freed_ns=freed_ns, problems=tuple(problems))

    async def terminate(self, pod: Pod, grace_period_seconds: float) -> KillReport | None:
        """Ask the pod's processes to end (SIGTERM), and kill what is left when the grace period is over.

        Returns None where they all ended by themselves, or were killed meanwhile by a kill_now of the same
        pod; a cancellation leaves them with their SIGTERM. Raises as kill_now.
        """
        target = self._checked(pod)
        volley = Volley(target.members, signal.SIGTERM, listed=target.listed(pod))
        try:
            while volley.fire():
                pass
            with trio.move_on_after(grace_period_seconds):
                await wait_empty(target.members, volley.held.values())
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

    def _despite_want(self, call: Callable[[], _Found]) -> _Found:
        """Return what the call does; where it lacks descriptors it may have those of the reserve."""
        try:
            return call()
        except OSError as error:
            if error.errno not in NO_DESCRIPTORS:
                raise
        with self._reserve.lent():
            return call()

    def _taken(self, pod: Pod) -> Target:
        """Return the pod's target, ready where it was got ready; it is the caller's to close."""
        ready = self._ready.pop(pod.uid, None)
        if ready is not None:
            if ready.is_of(pod):
                return ready
            ready.close()
        return self._checked(pod)

    def _checked(self, pod: Pod) -> Target:
        """Return the pod's target. Raises RefusedError where reactor must not end it."""
        target = Target.of(self._tree, pod)
        if not any(self._tree.contains(parent, target.cgroup) for parent in self._pod_parents):
            raise RefusedError(
                f"pod {pod.key}: cgroup {target.cgroup!r} is not inside {', '.join(self._pod_parents)}"
            )
        return target

    def _kill(self, pod: Pod, target: Target, problems: list[str]) -> _Killed:
        listed = target.listed(pod)
        killed = None
        if self._tree.version is CgroupVersion.V2:
            killed = self._kill_whole(target, listed, problems)
        return self._kill_each(target, listed, problems) if killed is None else killed

    def _kill_whole(self, target: Target, listed: Sequence[int], problems: list[str]) -> _Killed | None:
        """Kill through v2's cgroup.kill; None where there is no such file."""
        pidfds = target.take_pidfds()
        for gone in pidfds.keys() - set(listed):
            os.close(pidfds.pop(gone))
        with contextlib.suppress(OSError):  # no descriptors left: reap polls instead
            # Opened before the kill: later they would be gone, and with them what reap waits on.
            missing = [pid for pid in listed if pid not in pidfds]
            pidfds |= processes.open_pidfds(missing[: processes.HELD - len(pidfds)])[0]
        try:
            is_killed = all(
                _kill_subtree(directory, target, problems) for directory in target.members.subtrees()
            )
        except OSError:
            processes.close_all(pidfds.values())
            raise
        if is_killed:
            return len(listed), pidfds
        processes.close_all(pidfds.values())
        return None

    def _kill_each(self, target: Target, listed: Sequence[int], problems: list[str]) -> _Killed:
        """Signal every process, frozen and unable to fork where they fork ahead of us.

        Freezing and thawing cost 0.3 ms and hold up the death of who doesn't fork, so the first round goes
        without: from then on whoever was listed can't fork any more (copy_process() fails with a signal
        pending), and a listing without anybody new is the proof that nobody got away.
        """
        volley = Volley(target.members, signal.SIGKILL, listed=listed, ready=target.take_pidfds())
        try:
            if volley.fire():
                cgroup, report = target.cgroup, problems.append
                with without_forks(self._tree, cgroup, report), frozen(self._tree, cgroup, report):
                    while volley.fire():
                        pass
        except OSError:
            processes.close_all(volley.held.values())
            raise
        return volley.sent, volley.held

    def _standing(self, target: Target, deadline_seconds: float) -> list[str]:
        """Return why the cgroup has not ended, as far as it can be told."""
        count = len(target.members())
        what = f"{count} processes still listed" if count else "processes are still exiting"
        because = frozen_by_ancestor(self._tree, target.cgroup)
        return [
            f"{target.cgroup}: {what} {deadline_seconds:g} s after the kill",
            *([because] if because else []),
        ]


def _kill_subtree(directory: str, target: Target, problems: list[str]) -> bool:
    """Kill one subtree; return False where there is no cgroup.kill. Raises OSError where that fails."""
    try:
        kill_fd = target.take_kill_fd(directory)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno in NO_DESCRIPTORS:
            raise
        problems.append(f"{directory}/cgroup.kill: {error.strerror}; killing one by one")
        return False
    try:
        os.write(kill_fd, b"1")
    except OSError as error:
        if error.errno != errno.ENODEV:
            raise
        return False  # the cgroup is gone; another may have its name
    finally:
        os.close(kill_fd)
    return True
