"""The kill: a pod is killed by its cgroup, hot and synchronous; kill_path.py has what comes before and after.

The target is checked, everything in it gets SIGKILL, its memory is freed in our own context, and it gets the
CPU.

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
from contextlib import ExitStack
from typing import Final, NamedTuple, TypeVar

from reactor.act import processes
from reactor.act.cgroup_changes import boost_cpu, frozen, without_forks
from reactor.act.processes import SignalSweep
from reactor.act.protect import Untouchable
from reactor.act.reap import Dying, Key, KillReport, MemoryRelease
from reactor.act.target import Target
from reactor.errors import RefusedError
from reactor.kernel.cgroup import CgroupTree, Controller
from reactor.kernel.cgroup_directory import CgroupDirectory, CgroupVersion
from reactor.kernel.files import NO_DESCRIPTORS, Reserve
from reactor.model.name_patterns import PodParent
from reactor.model.pods import Pod

_Found = TypeVar("_Found")
OnStruck = Callable[[CgroupDirectory, int], object]
# Cgroups of one pod that are signalled before other kills have their turn: some milliseconds.
_AT_ONCE: Final = 256


class _Struck(NamedTuple):
    """The signals sent: when the last one, to how many processes, pidfds of some by process id.

    `is_any` is False where there was no process to signal. `is_cut`: there are so many cgroups that some
    are left to reap.
    """

    killed_ns: int
    processes: int
    pidfds: dict[int, int]
    is_any: bool
    is_cut: bool = False


class HardKills:
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
        # Called after each kill with what was killed, and how many processes are known to be: neither raises
        # nor waits. Its victim is not yet known to have ended then.
        self.on_struck: OnStruck | None = None

    def kill_now(self, pod: Pod) -> KillReport:
        """Send SIGKILL to everything in the pod's cgroup and return when it is sent; reap waits for the end.

        If a pod has thousands of cgroups on v1, reap signals the last of them: here they would delay the
        kills of other pods. Raises RefusedError for a pod that reactor must not touch, OSError where none of
        its processes could be signalled. If the cgroup is gone, or its path is another cgroup's, no process
        is killed.
        """
        return self._kill(pod, self._taken(pod))

    def _kill(
        self, pod: Pod, target: Target, problems_before: Sequence[str] = (), *, is_again: bool = False
    ) -> KillReport:
        """Kill a target and close it. Raises as kill_now."""
        problems = list(problems_before)
        try:
            if target.directory is None:
                return gone_report()
            # cgroup.kill counts no processes; on v1 an empty pod has no process to signal.
            is_empty = self._tree.version is CgroupVersion.V2 and target.is_unpopulated()
            struck = self._strike(target, problems)
            self._release.release(struck.pidfds.values())
            if not struck.is_any and not _exists(target, problems):
                processes.close_all(struck.pidfds.values())
                return gone_report()
            if self.on_struck is not None and not is_again:
                self.on_struck(target.directory, struck.processes)
            self._boost_cpu(target, problems)
            self._hold(pod, target, struck)
            if struck.is_cut:
                self._unfinished.add(key_of(pod))
        finally:
            target.close()
        return KillReport(
            killed_ns=struck.killed_ns,
            processes=struck.processes,
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
                return _Struck(killed_ns, count, pidfds, is_any=taken > 0)
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
            return _Struck(time.monotonic_ns(), 0, {}, is_any=False)
        sweep = SignalSweep(
            target.directory,
            signal.SIGKILL,
            spared=target.spared,
            ready=target.take_pidfds(),
            never=self._untouchable.pids,
        )
        try:
            self._fire(sweep, _AT_ONCE)
            if not sweep.is_cut and self._fire(sweep):
                with self._held_still(target, problems):
                    while self._fire(sweep):
                        pass
        except BaseException:
            processes.close_all(sweep.held.values())
            raise
        if sweep.problems and not sweep.sent and not is_any_dead and not sweep.is_cut:
            raise sweep.error
        problems += sweep.problems
        is_any = is_any_dead or sweep.is_cut or sweep.sent > 0
        killed_ns = sweep.sent_ns or time.monotonic_ns()
        return _Struck(killed_ns, sweep.sent, sweep.held, is_any=is_any, is_cut=sweep.is_cut)

    def _fire(self, sweep: SignalSweep, most_cgroups: int = sys.maxsize) -> bool:
        """Fire a round, once more with the reserve's descriptors if it lacks some.

        Returns whether it found a new process.
        """
        found = sweep.fire(most_cgroups)
        if sweep.ran_out_of_fds:
            sweep.use_fewer_fds()
            with self._reserve.lent():
                found |= sweep.fire(most_cgroups)
        return found

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
        if self._reserve.fill() and (directory := target.take_directory()) is not None:
            self._dying.hold(key_of(pod), directory, struck.pidfds)
            return
        processes.close_all(struck.pidfds.values())
        target.close()
        self._reserve.fill()

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

    def _inside(self, pod: Pod) -> str:
        """Return the pod's cgroup. Raises RefusedError where it is not known or not inside the parents."""
        if pod.cgroup is None:
            raise RefusedError(f"pod {pod.key}: its cgroup is not known")
        if not any(parent.holds(pod.cgroup) for parent in self._pod_parents):
            parents = ", ".join(parent.text for parent in self._pod_parents)
            raise RefusedError(f"pod {pod.key}: cgroup {pod.cgroup!r} is not inside {parents}")
        return pod.cgroup


def key_of(pod: Pod) -> Key:
    return pod.uid, pod.cgroup


def gone_report() -> KillReport:
    return KillReport(killed_ns=time.monotonic_ns(), processes=0, is_gone=True)


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
