"""The kill path: a pod is killed by its cgroup (kill.py), and what comes before the kill, or after it.

    prepare     beforehand: hold what a kill of the likeliest pods needs
    reap        afterwards: wait until the memory is back, chase stragglers
    terminate   a soft eviction: SIGTERM, the grace period, then the kill
    exercise    at the start: a kill of a process of our own, as a trial

What the system refuses is a line in the report.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Final

import trio

from reactor.act import processes
from reactor.act.cgroup_changes import CPU, frozen_by_ancestor, restore_in, thaw
from reactor.act.kill import HardKills, gone_report, key_of
from reactor.act.one_process import OneProcess
from reactor.act.processes import SignalSweep, has_exited
from reactor.act.reap import REAP_DEADLINE_SECONDS, KillReport, ReapReport, count_processes, wait_empty
from reactor.act.target import Target
from reactor.errors import ReactorError, RefusedError
from reactor.kernel.cgroup import CgroupTree, Controller
from reactor.kernel.cgroup_directory import CgroupDirectory, CgroupVersion, walk
from reactor.kernel.files import GONE
from reactor.model.name_patterns import PodParent
from reactor.model.pods import Pod

_TERM_ROUNDS: Final = 3  # processes that fork faster than they are signalled are left for the kill
_AGAIN_SECONDS: Final = 0.05
_PIECE: Final = 64
_LOOSE_ROUNDS: Final = 3


class KillPath(HardKills):
    """Kills pods whose cgroups lie inside `pod_parents`, at once or after a grace period, and reaps them."""

    def __init__(self, tree: CgroupTree, pod_parents: Sequence[str]) -> None:
        super().__init__(tree, pod_parents)
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

    def close(self) -> None:
        """Close every descriptor that is still held. Harmless when repeated."""
        self.one_process.close()
        self.prepare(())
        self._reserve.close()
        self._dying.close()
        self._release.close()
        self._untouchable.close()

    async def reap(self, pod: Pod, deadline_seconds: float = REAP_DEADLINE_SECONDS) -> ReapReport:
        """Wait until the memory of a pod killed by kill_now is free; kill what is still there again.

        Raises RefusedError as kill_now does; what the system refuses is a problem in the report.
        """
        self._inside(pod)
        problems: dict[str, None] = {}
        freed_ns = None
        standing: Sequence[str] = ()
        target = await self._killed(pod, deadline_seconds, problems)
        if target is not None:
            try:
                with trio.move_on_after(deadline_seconds):
                    await self._finish(pod, target, problems)
                    freed_ns = await self._dying.wait_gone(
                        key_of(pod), target, lambda: self._kill_again(pod, target), problems
                    )
                if freed_ns is None:
                    standing = await self._standing(target, deadline_seconds)
            finally:
                with trio.CancelScope(shield=True):
                    what = "CPU quota and weight not restored"
                    await self._in_pieces(target, "cpu", partial(restore_in, files=CPU), what, problems)
                target.close()
        return ReapReport(freed_ns=freed_ns, problems=tuple(dict.fromkeys((*problems, *standing))))

    async def terminate(
        self, pod: Pod, grace_period_seconds: float, still_wanted: Callable[[], bool] = lambda: True
    ) -> KillReport | None:
        """Ask the pod's processes to end (SIGTERM), and kill what is left when the grace period is over.

        Returns None if all of them exited by themselves, if a kill_now of the same pod killed them meanwhile,
        or if `still_wanted` returns False at the end of the grace period; after a cancellation they have got
        their SIGTERM alone. The cgroup that is killed is the one that was sent SIGTERM. Raises as kill_now.
        """
        target = self._checked(pod)
        try:
            if target.directory is None:
                return gone_report()
            self._untouchable.refuse(target.cgroup)
            sweep = SignalSweep(
                target.directory, signal.SIGTERM, spared=target.spared, never=self._untouchable.pids
            )
            try:
                await self._fire_in_pieces(sweep, _TERM_ROUNDS)
                with trio.move_on_after(grace_period_seconds):
                    await wait_empty(target, sweep.held.values())
                    return None
            finally:
                processes.close_all(sweep.held.values())
            if not (still_wanted() and self._inside(pod)):  # the parents may be others by now
                return None
            return self._kill(pod, self._given(target), sweep.problems)
        finally:
            target.close()

    def exercise(self) -> str | None:
        """Kill a child of our own, in a cgroup of its own, as a trial; return what went wrong.

        A refused kill (a seccomp filter, a missing capability) must be noticed at the start, not when memory
        runs out. The child lives in a cgroup beside the first parent of pods, without patterns (further up
        while that doesn't exist yet), so that it is not taken for a pod, and in the hierarchies in which pods
        of that parent may be mirrored. Blocks for some 50 ms, and for seconds only if the kill doesn't work.
        """
        tree = self._tree
        made: list[Path] = []
        try:
            beside = os.path.dirname(self._pod_parents[0].fence) if self._pod_parents else "/"
            while not tree.exists(beside) and beside != "/":
                beside = os.path.dirname(beside)
            parent = f"{beside.rstrip('/')}/reactor-exercise-{os.getpid()}"
            roots = _mirrors(tree, beside)
            for cgroup in (parent, f"{parent}/child"):
                for directory in dict.fromkeys(tree.path(cgroup, controller) for controller in roots):
                    directory.mkdir()
                    made.append(directory)
            with closing(KillPath(tree, (parent,))) as path:
                return _kill_child(path, f"{parent}/child", made)
        except (OSError, ReactorError) as error:
            return f"kill path: {error}"
        finally:
            for directory in reversed(made):
                _remove(directory)

    async def _finish(self, pod: Pod, target: Target, problems: dict[str, None]) -> None:
        """Signal the last cgroups of a pod that has too many for one go, in pieces. Raises RefusedError.

        If their processes fork ahead of that, they are frozen for a round without a pause.
        """
        if key_of(pod) not in self._unfinished or target.directory is None:
            return
        self._unfinished.discard(key_of(pod))
        found: list[str] = []
        sweep = SignalSweep(
            target.directory, signal.SIGKILL, spared=target.spared, never=self._untouchable.pids
        )
        try:
            if await self._fire_in_pieces(sweep, _LOOSE_ROUNDS):
                with self._held_still(target, found):
                    while self._fire(sweep):
                        pass
        finally:
            processes.close_all(sweep.held.values())
        problems |= dict.fromkeys((*found, *sweep.problems))

    async def _fire_in_pieces(self, sweep: SignalSweep, rounds: int) -> bool:
        """Fire as `_fire` does, with a checkpoint for other tasks after every few cgroups."""
        for _ in range(rounds):
            for _ in sweep.steps(_PIECE):
                await trio.lowlevel.checkpoint()
            if sweep.ran_out_of_fds:
                self._fire(sweep)
            if not sweep.found_new_process:
                return False
        return True

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
        directory = self._dying.directory(key_of(pod))
        if directory is None:
            return self._checked(pod)
        return Target(directory.cgroup, directory, pod.spared_cgroups)

    async def _kill_again(self, pod: Pod, target: Target) -> Sequence[str]:
        problems = dict.fromkeys(self._kill(pod, self._given(target), is_again=True).problems)
        await self._finish(pod, target, problems)
        if self._tree.version is CgroupVersion.V1:  # so that what is paused dies of its SIGKILL
            await self._in_pieces(target, "freezer", thaw, "not thawed", problems, target.spared)
        return tuple(problems)

    async def _in_pieces(
        self,
        target: Target,
        controller: Controller,
        step: Callable[[CgroupDirectory], object],
        failed: str,
        problems: dict[str, None],
        spared: Collection[str] = (),
    ) -> None:
        """Take a step in each of the target's cgroups in a hierarchy; others go first in between."""
        found: list[str] = []

        def refused(cgroup: str, error: OSError) -> None:
            if error.errno not in GONE:
                found.append(f"{cgroup}: {failed}: {error.strerror}")

        with ExitStack() as stack:
            mirror = self._mirrored(target, controller, found, stack)
            if mirror is not None:
                directories = stack.enter_context(closing(walk(mirror, refused, spared=spared)))
                for count, directory in enumerate(directories, 1):
                    try:
                        step(directory)
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

    def _allowed(self, pod: Pod) -> Target:
        """Return the pod's target where neither reactor nor init is in it. Raises RefusedError, OSError."""
        target = self._checked(pod)
        try:
            self._untouchable.refuse(target.cgroup)
        except RefusedError:
            target.close()
            raise
        return target

    async def _standing(self, target: Target, deadline_seconds: float) -> list[str]:
        """Return why the cgroup still has processes, as far as that is known."""
        try:
            count = await count_processes(target)
        except (ReactorError, OSError) as error:
            return [f"{target.cgroup}: unknown whether it ended within {deadline_seconds:g} s: {error}"]
        what = f"{count} processes still listed" if count else "processes are still exiting"
        because = frozen_by_ancestor(self._tree, target.cgroup)
        return [
            f"{target.cgroup}: {what} {deadline_seconds:g} s after the kill",
            *([because] if because else []),
        ]


_DEADLINE_MS: Final = 2_000
_REMOVAL_TRIES: Final = 50


def _mirrors(tree: CgroupTree, cgroup: str) -> list[Controller]:
    everywhere: tuple[Controller, ...] = ("memory", "freezer", "cpu")
    return [one for one in everywhere if one == "memory" or tree.exists(cgroup, one)]  # it is never without


def _kill_child(path: HardKills, cgroup: str, directories: Sequence[Path]) -> str | None:
    # A new program rather than a fork: our own locked memory and threads stay out of it.
    command = [sys.executable, "-I", "-S", "-c", "import signal; signal.pause()"]
    child = os.posix_spawn(sys.executable, command, os.environ, setsigmask=[])
    child_fd = os.pidfd_open(child)
    try:
        for directory in directories[len(directories) // 2 :]:
            (directory / "cgroup.procs").write_text(str(child))
        pod = Pod(name="exercise", namespace="reactor", uid="exercise", cgroup=cgroup)
        problems = "; ".join(path.kill_now(pod).problems)
        if not has_exited(child_fd, _DEADLINE_MS):
            return f"kill path: a test process survived SIGKILL; {problems or 'no errors'}"
        return f"kill path: {problems}" if problems else None
    finally:
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(child_fd, signal.SIGKILL)
        if has_exited(child_fd, _DEADLINE_MS):
            os.waitpid(child, 0)
        os.close(child_fd)


def _remove(directory: Path) -> None:
    """Remove a cgroup; what a child leaves behind may keep it busy for a moment."""
    for _ in range(_REMOVAL_TRIES):
        try:
            directory.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.01)
        else:
            return
