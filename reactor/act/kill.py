"""The kill path: a pod is killed by its cgroup.

    prepare     beforehand: hold what a kill of the likeliest pods needs
    kill_now    hot, synchronous: check the target, SIGKILL everything in it, have its memory freed in our own
                context, give it the CPU
    reap        afterwards: wait until the memory is back, chase stragglers
    terminate   a soft eviction: SIGTERM, the grace period, then the kill

On v2 the kill is one write to `cgroup.kill`, before anything is listed; on v1 processes are signalled as they
are found, the cgroup's own first. Each refusal on the way is a line in the report: all else is killed.
All steps act on one directory, by its descriptor and its inode (target.py), and none on a name.

A victim frees its memory in its own time: with 1 % of a CPU 1 GiB was not back after a minute, with the
quota lifted it was in 0.3 s. Lifted after the signal it helps as much, and the signal need not wait for it.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

import trio

from reactor.act import processes
from reactor.act.cgroup_changes import (
    CPU,
    boost_cpu,
    frozen,
    frozen_by_ancestor,
    restore_in,
    thawing,
    without_forks,
)
from reactor.act.exercise import exercise
from reactor.act.one_process import OneProcess
from reactor.act.processes import NO_DESCRIPTORS, Reserve, SignalSweep
from reactor.act.reap import (
    REAP_DEADLINE_SECONDS,
    Dying,
    Key,
    KillReport,
    MemoryRelease,
    ReapReport,
    wait_empty,
)
from reactor.act.target import Target, Untouchable
from reactor.errors import ReactorError, RefusedError
from reactor.kernel.cgroup import CgroupTree, Controller
from reactor.kernel.cgroup_directory import CgroupDirectory, CgroupVersion, walk
from reactor.model.name_patterns import PodParent
from reactor.model.pods import Pod

_Found = TypeVar("_Found")
_TERM_ROUNDS: Final = 3  # processes that fork faster than they are signalled are left for the kill
_AGAIN_SECONDS: Final = 0.05
# Cgroups of one pod that are signalled before other kills have their turn: some milliseconds.
_AT_ONCE: Final = 256
_PIECE: Final = 64
_LOOSE_ROUNDS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Struck:
    """The signals sent: when the last one, to how many processes, pidfds of some by process id.

    `is_any` is False where there was no process to signal. `is_cut`: there are so many cgroups that some
    are left to reap.
    """

    killed_ns: int
    count: int
    pidfds: dict[int, int]
    is_any: bool
    is_cut: bool = False


class KillPath:
    """Kills pods whose cgroups lie inside `pod_parents`, as paths from the hierarchy's root or patterns."""

    def __init__(self, tree: CgroupTree, pod_parents: Sequence[str]) -> None:
        self._tree = tree
        self._ready: dict[str, Target] = {}
        self._untouchable = Untouchable(tree)
        self._pod_parents = tuple(map(PodParent, pod_parents))
        self._dying = Dying()
        self._unfinished: set[Key] = set()
        self._release = MemoryRelease()
        self._reserve = Reserve()
        self.one_process = OneProcess(self._allowed, self._untouchable, self._release)

    def guard(self, pod_parents: Sequence[str]) -> None:
        """Kill pods inside these from now on, and nothing elsewhere, not even pods in their grace period."""
        self._pod_parents = tuple(map(PodParent, pod_parents))
        self.prepare(())

    def prepare(self, pods: Sequence[Pod]) -> None:
        """Open what a kill of these pods needs, and close that of others. Never raises: the kill does."""
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
                self._untouchable.refuse(target.cgroup)
                target.prepare(self._tree)
            except (ReactorError, OSError):
                if uid in self._ready:
                    self._ready.pop(uid).close()

    def holds(self, pod: Pod) -> bool:
        """Return whether this very pod is prepared: checked, and neither reactor nor init in it."""
        target = self._ready.get(pod.uid)
        return target is not None and target.is_of(pod)

    def find_self(self) -> None:
        """Find the cgroups of reactor and of init: where one was moved, the next kill need not."""
        self._untouchable.find()

    def close(self) -> None:
        """Close every descriptor that is still held. Harmless when repeated."""
        self.prepare(())
        self.one_process.close()
        self._reserve.close()
        self._dying.close()
        self._release.close()
        self._untouchable.close()

    def kill_now(self, pod: Pod) -> KillReport:
        """Send SIGKILL to everything in the pod's cgroup and return when it is sent; reap waits for the end.

        If a pod has thousands of cgroups on v1, reap signals the last of them: here they would delay the
        kills of other pods. Raises RefusedError for a pod that reactor must not touch, OSError where none of
        its processes could be signalled. If the cgroup is gone, or its path is another cgroup's, no process
        is killed.
        """
        started_ns = time.monotonic_ns()
        return self._kill(pod, self._taken(pod), started_ns)

    async def reap(self, pod: Pod, deadline_seconds: float = REAP_DEADLINE_SECONDS) -> ReapReport:
        """Wait until the memory of a pod killed by kill_now is free; kill what is still there again.

        Raises RefusedError as kill_now does; what the system refuses is a problem in the report.
        """
        cgroup = self._inside(pod)
        problems: dict[str, None] = {}
        freed_ns = None
        standing: Sequence[str] = ()
        target = await self._killed(pod, deadline_seconds, problems)
        if target is not None:
            try:
                with trio.move_on_after(deadline_seconds):
                    await self._finish(pod, target, problems)
                    freed_ns = await self._dying.wait_gone(
                        _key(pod), target, lambda: self._kill_again(pod, target), problems
                    )
                if freed_ns is None:
                    standing = await self._standing(target, deadline_seconds)
            finally:
                with trio.CancelScope(shield=True):
                    await self._restore_cpu(target, problems)
                target.close()
        return ReapReport(
            cgroup=cgroup, freed_ns=freed_ns, problems=tuple(dict.fromkeys((*problems, *standing)))
        )

    async def terminate(
        self,
        pod: Pod,
        grace_period_seconds: float,
        still_wanted: Callable[[], bool] = lambda: True,
    ) -> KillReport | None:
        """Ask the pod's processes to end (SIGTERM), and kill what is left when the grace period is over.

        Returns None if all of them exited by themselves, if a kill_now of the same pod killed them meanwhile,
        or if `still_wanted` returns False at the end of the grace period; after a cancellation they have got
        their SIGTERM alone. The cgroup that is killed is the one that was sent SIGTERM. Raises as kill_now.
        """
        started_ns = time.monotonic_ns()
        target = self._checked(pod)
        try:
            if target.directory is None:
                return _gone(target, started_ns)
            self._untouchable.refuse(target.cgroup)
            sweep = SignalSweep(
                target.directory, signal.SIGTERM, spared=target.spared, never=self._untouchable.pids
            )
            try:
                await self._fire_in_pieces(sweep, _TERM_ROUNDS)
                with trio.move_on_after(grace_period_seconds):
                    await self._wait_empty(target, sweep)
                    return None
            finally:
                processes.close_all(sweep.held.values())
            if not still_wanted():
                return None
            return self._kill(pod, self._given(target), time.monotonic_ns(), sweep.problems)
        finally:
            target.close()

    def exercise(self) -> str | None:
        """Kill a child of our own, in a cgroup of its own, as a trial; return what went wrong.

        Blocks for some 50 ms, and for seconds only if the kill doesn't work.
        """

        def kill(parent: str, pod: Pod) -> Sequence[str]:
            with closing(KillPath(self._tree, (parent,))) as path:
                return path.kill_now(pod).problems

        return exercise(self._tree, [parent.fence for parent in self._pod_parents], kill)

    def _kill(
        self, pod: Pod, target: Target, started_ns: int, problems_before: Sequence[str] = ()
    ) -> KillReport:
        """Kill a target and close it. Raises as kill_now."""
        problems = list(problems_before)
        try:
            if target.directory is None:
                return _gone(target, started_ns)
            # cgroup.kill counts no processes; on v1 an empty pod has no process to signal.
            is_empty = self._tree.version is CgroupVersion.V2 and target.is_unpopulated()
            struck = self._strike(target, problems)
            self._release.release(struck.pidfds.values())
            if not struck.is_any and not _exists(target, problems):
                processes.close_all(struck.pidfds.values())
                return _gone(target, started_ns)
            self._boost_cpu(target, problems)
            self._hold(pod, target, struck)
            if struck.is_cut:
                self._unfinished.add(_key(pod))
        finally:
            target.close()
        return KillReport(
            cgroup=target.cgroup,
            started_ns=started_ns,
            killed_ns=struck.killed_ns,
            processes=struck.count,
            is_empty=is_empty or not struck.is_any,
            problems=tuple(dict.fromkeys(problems)),
        )

    def _strike(self, target: Target, problems: list[str]) -> _Struck:
        """Signal everything in the target. Raises OSError where nothing of it could be, RefusedError."""
        taken = 0
        if self._tree.version is CgroupVersion.V2:
            if not self._untouchable.refuse(target.cgroup):
                self._refuse_listed(target)
            taken, refused = self._kill_whole(target)
            if not refused:
                killed_ns = time.monotonic_ns()
                count, pidfds = target.take_killed() if taken else (0, {})
                return _Struck(killed_ns=killed_ns, count=count, pidfds=pidfds, is_any=taken > 0)
            problems += _refusals(refused)
        elif not target.is_ready:  # a prepared one was checked already, and the sweep never signals reactor
            self._untouchable.refuse(target.cgroup)
        return self._kill_each(target, problems, is_any_dead=taken > 0)

    def _kill_whole(self, target: Target) -> tuple[int, Mapping[str, OSError]]:
        """Kill through v2's cgroup.kill; return the number of subtrees killed, and the refusals."""
        taken, refused = target.kill_whole()
        if any(error.errno in NO_DESCRIPTORS for error in refused.values()):
            with self._reserve.lent():
                again, refused = target.kill_whole()
            taken += again
        return taken, refused

    def _kill_each(self, target: Target, problems: list[str], *, is_any_dead: bool) -> _Struck:
        """Signal every process; if they fork ahead of the signals, freeze them and refuse their forks.

        Freezing and thawing cost 0.3 ms and delay the death of processes that don't fork, so the first round
        is without: after it a signalled process can't fork any more (copy_process() fails with a signal
        pending), and a round that finds no new process proves that all are signalled.
        """
        if target.directory is None:
            return _Struck(killed_ns=time.monotonic_ns(), count=0, pidfds={}, is_any=False)
        sweep = SignalSweep(
            target.directory,
            signal.SIGKILL,
            spared=target.spared,
            ready=target.take_pidfds(),
            never=self._untouchable.pids,
        )
        try:
            self._fire(sweep, 1, _AT_ONCE)
            if not sweep.is_cut and self._fire(sweep, 1):
                with self._held_still(target, problems):
                    while self._fire(sweep, 1):
                        pass
        except BaseException:
            processes.close_all(sweep.held.values())
            raise
        if sweep.problems and not sweep.sent and not is_any_dead and not sweep.is_cut:
            raise sweep.error
        problems += sweep.problems
        return _Struck(
            killed_ns=time.monotonic_ns(),
            count=sweep.sent,
            pidfds=sweep.held,
            is_any=is_any_dead or sweep.is_cut or sweep.sent > 0,
            is_cut=sweep.is_cut,
        )

    async def _finish(self, pod: Pod, target: Target, problems: dict[str, None]) -> None:
        """Signal the last cgroups of a pod that has too many for one go, in pieces. Raises RefusedError.

        If their processes fork ahead of that, they are frozen for a round without a pause.
        """
        if _key(pod) not in self._unfinished or target.directory is None:
            return
        self._unfinished.discard(_key(pod))
        found: list[str] = []
        sweep = SignalSweep(
            target.directory, signal.SIGKILL, spared=target.spared, never=self._untouchable.pids
        )
        try:
            if await self._fire_in_pieces(sweep, _LOOSE_ROUNDS):
                with self._held_still(target, found):
                    while self._fire(sweep, 1):
                        pass
        finally:
            processes.close_all(sweep.held.values())
        problems |= dict.fromkeys((*found, *sweep.problems))

    def _fire(self, sweep: SignalSweep, rounds: int, most_cgroups: int = sys.maxsize) -> bool:
        """Fire up to so many rounds; repeat one that lacks descriptors with those of the reserve.

        Returns whether the last round found a new process.
        """
        found = False
        for _ in range(rounds):
            found = sweep.fire(most_cgroups)
            if sweep.ran_out_of_fds:
                sweep.use_fewer_fds()
                with self._reserve.lent():
                    found |= sweep.fire(most_cgroups)
            if not found:
                break
        return found

    async def _fire_in_pieces(self, sweep: SignalSweep, rounds: int) -> bool:
        """Fire as `_fire` does, with a checkpoint for other tasks after every few cgroups."""
        for _ in range(rounds):
            for _ in sweep.steps(_PIECE):
                await trio.lowlevel.checkpoint()
            if sweep.ran_out_of_fds:
                self._fire(sweep, 1)
            if not sweep.found_new_process:
                return False
        return True

    def _held_still(self, target: Target, problems: list[str]) -> ExitStack:
        """Return the context in which no process of the target forks or runs, as far as the node allows."""
        stack = ExitStack()
        pids = self._mirrored(target, "pids", problems, stack)
        freezer = self._mirrored(target, "freezer", problems, stack)
        stack.enter_context(without_forks(pids, problems.append))
        stack.enter_context(frozen(freezer, self._tree.version, problems.append))
        return stack

    def _mirrored(
        self, target: Target, controller: Controller, problems: list[str], stack: ExitStack
    ) -> CgroupDirectory | None:
        """Return the target in a controller's hierarchy until the stack closes; a refusal is a problem."""
        try:
            mirror = self._twice(lambda: target.mirrored(self._tree, controller))
        except OSError as error:
            problems.append(f"{target.cgroup}: {controller}: {error.strerror}")
            return None
        if mirror is not None:
            stack.enter_context(mirror)
        return mirror

    def _boost_cpu(self, target: Target, problems: list[str]) -> None:
        try:
            with ExitStack() as stack:
                directory = self._mirrored(target, "cpu", problems, stack)
                self._twice(lambda: boost_cpu(directory, self._tree.version))
        except OSError as error:
            problems.append(f"CPU quota and weight not raised: {error}")

    def _hold(self, pod: Pod, target: Target, struck: _Struck) -> None:
        """Keep the descriptors that reap waits on, unless the next kill would lack them."""
        if self._reserve.fill():
            self._dying.hold(_key(pod), target.take_directory(), struck.pidfds)
            return
        processes.close_all(struck.pidfds.values())
        target.close()
        self._reserve.fill()

    async def _killed(self, pod: Pod, deadline_seconds: float, problems: dict[str, None]) -> Target | None:
        """Return the target that was killed, for the caller to close; None if it can't be opened in time."""
        with trio.move_on_after(deadline_seconds):
            while True:
                try:
                    return self._twice(lambda: self._killed_or_checked(pod))
                except OSError as error:
                    problems[str(error)] = None
                await trio.sleep(_AGAIN_SECONDS)
        return None

    def _killed_or_checked(self, pod: Pod) -> Target:
        directory = self._dying.directory(_key(pod))
        if directory is None:
            return self._checked(pod)
        return Target(directory.cgroup, directory, pod.spared_cgroups)

    async def _kill_again(self, pod: Pod, target: Target) -> Sequence[str]:
        problems = dict.fromkeys(self._kill(pod, self._given(target), time.monotonic_ns()).problems)
        await self._finish(pod, target, problems)
        await self._thaw(target, problems)
        return tuple(problems)

    async def _thaw(self, target: Target, problems: dict[str, None]) -> None:
        """Thaw what is paused in a v1 target, so that it dies of its SIGKILL; others go first in between."""
        if self._tree.version is not CgroupVersion.V1:
            return
        found: list[str] = []
        with ExitStack() as stack:
            freezer = self._mirrored(target, "freezer", found, stack)
            if freezer is not None:
                steps = stack.enter_context(closing(thawing(freezer, target.spared, found.append)))
                for count, _ in enumerate(steps, 1):
                    if count % _PIECE == 0:
                        await trio.lowlevel.checkpoint()
        problems |= dict.fromkeys(found)

    async def _restore_cpu(self, target: Target, problems: dict[str, None]) -> None:
        """Restore the CPU quotas and weights that the kill has lifted, where the cgroup is still there."""
        found: list[str] = []
        with ExitStack() as stack:
            cpu = self._mirrored(target, "cpu", found, stack)
            if cpu is not None:
                refused = partial(_not_restored, found)
                steps = stack.enter_context(closing(walk(cpu, refused)))
                for count, directory in enumerate(steps, 1):
                    try:
                        restore_in(directory, CPU)
                    except OSError as error:
                        refused(directory.cgroup, error)
                    if count % _PIECE == 0:
                        await trio.lowlevel.checkpoint()
        problems |= dict.fromkeys(found)

    def _given(self, target: Target) -> Target:
        """Return the same target by a descriptor of its own. Raises OSError."""
        directory = target.directory
        copy = None if directory is None else self._twice(directory.duplicate)
        return Target(target.cgroup, copy, target.spared)

    async def _wait_empty(self, target: Target, sweep: SignalSweep) -> None:
        """Wait until a target is empty. If it can't be listed, try again: the grace period ends that."""
        while True:
            try:
                await wait_empty(target, sweep.held.values())
            except (ReactorError, OSError):
                await trio.sleep(_AGAIN_SECONDS)
            else:
                return

    def _refuse_listed(self, target: Target) -> None:
        """Raise RefusedError where a listing shows reactor or init. Raises OSError."""
        for pid in self._untouchable.pids.intersection(self._twice(target.processes)):
            what = "init" if pid == 1 else "reactor"
            raise RefusedError(f"cgroup {target.cgroup!r} holds process {pid}, {what}")

    def _twice(self, call: Callable[[], _Found]) -> _Found:
        """Return the call's result; if it fails, call again with the reserve's descriptors.

        Neither a signal in between nor a moment without memory must spare a pod.
        """
        try:
            return call()
        except OSError:
            pass
        with self._reserve.lent():
            return call()

    def _taken(self, pod: Pod) -> Target:
        """Return the pod's target, prepared or new, for the caller to close."""
        ready = self._ready.pop(pod.uid, None)
        if ready is not None:
            if ready.is_of(pod):
                return ready
            ready.close()
        return self._checked(pod)

    def _checked(self, pod: Pod) -> Target:
        """Return the pod's target. Raises RefusedError where reactor must not kill it, OSError."""
        self._inside(pod)
        return self._twice(lambda: Target.of(self._tree, pod))

    def _allowed(self, pod: Pod) -> Target:
        """Return the pod's target where neither reactor nor init is in it. Raises RefusedError, OSError."""
        target = self._checked(pod)
        try:
            self._untouchable.refuse(target.cgroup)
        except RefusedError:
            target.close()
            raise
        return target

    def _inside(self, pod: Pod) -> str:
        """Return the pod's cgroup. Raises RefusedError where it is not known or not inside the parents."""
        if pod.cgroup is None:
            raise RefusedError(f"pod {pod.key}: its cgroup is not known")
        if not any(parent.holds(pod.cgroup) for parent in self._pod_parents):
            parents = ", ".join(parent.text for parent in self._pod_parents)
            raise RefusedError(f"pod {pod.key}: cgroup {pod.cgroup!r} is not inside {parents}")
        return pod.cgroup

    async def _standing(self, target: Target, deadline_seconds: float) -> list[str]:
        """Return why the cgroup still has processes, as far as that is known."""
        try:
            count = await target.count()
        except (ReactorError, OSError) as error:
            return [f"{target.cgroup}: unknown whether it ended within {deadline_seconds:g} s: {error}"]
        what = f"{count} processes still listed" if count else "processes are still exiting"
        because = frozen_by_ancestor(self._tree, target.cgroup)
        return [
            f"{target.cgroup}: {what} {deadline_seconds:g} s after the kill",
            *([because] if because else []),
        ]


def _key(pod: Pod) -> Key:
    return pod.uid, pod.cgroup


def _not_restored(problems: list[str], cgroup: str, error: OSError) -> None:
    problems.append(f"{cgroup}: CPU quota and weight not restored: {error.strerror}")


def _gone(target: Target, started_ns: int) -> KillReport:
    return KillReport(
        cgroup=target.cgroup,
        started_ns=started_ns,
        killed_ns=time.monotonic_ns(),
        processes=0,
        is_gone=True,
    )


def _exists(target: Target, problems: list[str]) -> bool:
    try:
        return target.exists()
    except OSError as error:
        problems.append(f"{target.cgroup}: {error.strerror}")
        return True


def _refusals(refused: Mapping[str, OSError]) -> list[str]:
    """Return a line for each refusal of a whole kill; a kernel without cgroup.kill is no problem."""
    return [
        f"{cgroup}/cgroup.kill: {error.strerror}; killing one by one"
        for cgroup, error in refused.items()
        if not isinstance(error, FileNotFoundError)
    ]
