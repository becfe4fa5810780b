"""Evictions under way: a hard one kills at once, a soft one waits in the background and can be overtaken."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Final

import trio

from reactor.act.kill import KillReport
from reactor.act.one_process import Chosen, NoProcessError
from reactor.errors import ReactorError
from reactor.guard.parts import Kills, ProcessKills
from reactor.guard.record import PROCESS_KILLED, PROCESS_TERMINATED, EvictionAttempt
from reactor.model.decisions import Eviction, InFlight
from reactor.model.pods import Pod
from reactor.model.signals import ON_DISK, RESOURCE
from reactor.policy.process_victims import evicts_one_process
from reactor.supervisor import Nursery

_LOG: Final = logging.getLogger("reactor.evict")
_COUNTED_POLL_SECONDS: Final = 0.02
CALLED_OFF: Final = "called off"


class Evictor:
    """Ends pods through `kills`; `on_gone` is told the uid of each that has ended.

    It answers whether the pod counts for nothing any more, and is asked again while it does. `empty` removes
    the files that end with a pod that was evicted for a filesystem's sake, and returns what went wrong.
    `confirm` is asked at the end of a soft eviction's grace period whether the node is still short of what
    the pod was to end for; where it is not, the eviction is called off and the pod lives on.
    `on_ended` fills in what has become of an eviction that was carried out; it neither waits nor raises.
    Of pods whose rule says so one process is ended through `one_process`: `on_process_killed` is told where
    that is after a grace period, `on_process_over` the pod's uid when nothing more is done to the process.

    What happens after the kill runs in `nursery`, and no failure there goes further than the log: the
    policy forgets an eviction at its deadline and chooses again.
    """

    def __init__(  # noqa: PLR0913 - each is asked at another moment of an eviction
        self,
        kills: Kills,
        nursery: Nursery,
        on_gone: Callable[[str], bool],
        *,
        deadline_seconds: float,
        dry_run: bool = False,
        empty: Callable[[Pod], Awaitable[tuple[str, ...]]] | None = None,
        confirm: Callable[[Eviction], bool] = lambda _: True,
        on_ended: Callable[[EvictionAttempt], None] = lambda _: None,
        one_process: ProcessKills | None = None,
        on_process_killed: Callable[[EvictionAttempt], None] = lambda _: None,
        on_process_over: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._nursery = nursery
        self._one_process = one_process
        self._on_process_killed = on_process_killed
        self._on_process_over = on_process_over
        self._empty = empty
        self._on_ended = on_ended
        self._on_gone = on_gone
        self._confirm = confirm
        self._kills = kills
        self._waiting: dict[str, tuple[EvictionAttempt, trio.CancelScope]] = {}
        self.adopt(deadline_seconds, dry_run=dry_run)

    def adopt(self, deadline_seconds: float, *, dry_run: bool) -> tuple[str, ...]:
        """Do as a new configuration says from now on; return the uids whose evictions are called off by it.

        A dry run kills no pod, also not at the end of a grace period that began before: the pod may have had
        its SIGTERM, the SIGKILL does not follow. All else that is under way goes on as it began.
        """
        self._deadline_seconds = deadline_seconds
        self._dry_run = dry_run
        return self._call_off() if dry_run else ()

    def _call_off(self) -> tuple[str, ...]:
        called_off = []
        for uid, (attempt, scope) in self._waiting.items():
            if attempt.outcome != "ordered":
                continue  # its grace period is over, and so is the pod
            attempt.outcome = CALLED_OFF
            attempt.add_problems("a dry run was configured in its grace period, after SIGTERM")
            scope.cancel()
            called_off.append(uid)
            _LOG.warning("pod %s: eviction called off: a dry run was configured", attempt.eviction.pod.key)
        return tuple(called_off)

    def prepare(self, pods: Sequence[Pod]) -> None:
        """Hold what it takes to end these pods at once, and no others."""
        wanted = () if self._dry_run else pods
        self._kills.prepare(wanted)
        if self._one_process is not None:
            self._one_process.prepare(wanted)

    def holds(self, pod: Pod) -> bool:
        """Return whether this pod is prepared, and would be killed if it were chosen."""
        return not self._dry_run and self._kills.holds(pod)

    def begin(
        self,
        eviction: Eviction,
        *,
        by_kernel_ns: int | None = None,
        used_bytes: int | None = None,
        whole_because: str | None = None,
        counts_shared: bool = True,
    ) -> EvictionAttempt:
        """Order an eviction: without a grace period the pod is dead on return. Never raises, never waits.

        `by_kernel_ns` is when the kernel killed a process of the pod, under a warrant: here the rest is.
        Where one process of the pod is to end and the pod to live on, `used_bytes` is the pod's working set
        and `counts_shared` whether shared memory counts in the choice; `whole_because` says why it is the
        whole pod all the same.
        """
        if evicts_one_process(eviction) and by_kernel_ns is None:
            if whole_because is None:
                try:
                    return self._begin_process(eviction, used_bytes, counts_shared=counts_shared)
                except (ReactorError, OSError) as error:
                    whole_because = str(error)
            attempt = self._begin_whole(eviction, None)
            attempt.whole_because = whole_because
            return attempt
        return self._begin_whole(eviction, by_kernel_ns)

    def _begin_whole(self, eviction: Eviction, by_kernel_ns: int | None) -> EvictionAttempt:
        if not self._dry_run and eviction.grace_period_seconds <= 0:
            return self._kill(eviction, by_kernel_ns)
        attempt = EvictionAttempt(eviction=eviction)
        if self._dry_run:
            attempt.outcome = "dry-run"
            attempt.ended.set()
        else:
            self._terminate(attempt, eviction.grace_period_seconds)
        return attempt

    def _begin_process(
        self, eviction: Eviction, used_bytes: int | None, *, counts_shared: bool
    ) -> EvictionAttempt:
        """Order the end of one process of a pod. Raises NoProcessError and as a kill where none is chosen."""
        if self._one_process is None:
            raise NoProcessError("no process of a pod is killed alone here")
        attempt = EvictionAttempt(eviction=eviction)
        if self._dry_run:
            choose = partial(self._one_process.choose, counts_shared=counts_shared)
            with closing(choose(eviction.pod, used_bytes)) as chosen:
                attempt.process = chosen.process
            attempt.outcome = "dry-run"
            attempt.ended.set()
        elif eviction.grace_period_seconds <= 0:
            chosen = self._one_process.kill_first(eviction.pod, used_bytes, counts_shared=counts_shared)
            _process_killed(attempt, chosen)
            waiting = self._waiting.get(eviction.pod.uid)
            if waiting is not None and waiting[0].process is not None:
                del self._waiting[eviction.pod.uid]
                waiting[0].outcome = "pre-empted"
                waiting[1].cancel()
            self._nursery.start_soon(self._await_process, attempt, chosen, self._one_process)
        else:
            chosen = self._one_process.choose(eviction.pod, used_bytes, counts_shared=counts_shared)
            attempt.process = chosen.process
            scope = trio.CancelScope()
            self._waiting[eviction.pod.uid] = (attempt, scope)
            self._nursery.start_soon(self._terminate_process, attempt, chosen, self._one_process, scope)
        return attempt

    async def _await_process(
        self, attempt: EvictionAttempt, chosen: Chosen, one_process: ProcessKills
    ) -> None:
        """Wait until the memory of a process that was killed is free."""
        try:
            attempt.freed_ns = await one_process.wait_exited(chosen, self._deadline_seconds)
            if attempt.freed_ns is None:
                attempt.add_problems(
                    f"process {chosen.process.pid} has not exited {self._deadline_seconds:g} s after SIGKILL"
                )
        finally:
            chosen.close()
            self._on_process_over(attempt.eviction.pod.uid)
            self._on_ended(attempt)
            attempt.ended.set()

    async def _terminate_process(
        self,
        attempt: EvictionAttempt,
        chosen: Chosen,
        one_process: ProcessKills,
        scope: trio.CancelScope,
    ) -> None:
        """Ask a process to end, and kill it where it has not in its grace period."""
        uid = attempt.eviction.pod.uid
        is_killed = False
        try:
            with scope:
                is_killed = await self._is_process_killed(attempt, chosen, one_process)
        except (ReactorError, OSError) as error:
            attempt.outcome = "failed"
            attempt.add_problems(str(error))
        finally:
            waiting = self._waiting.get(uid)
            if waiting is not None and waiting[0] is attempt:
                del self._waiting[uid]
            if not is_killed:
                chosen.close()
                if attempt.outcome != "pre-empted":  # what took over answers for the pod
                    self._on_process_over(uid)
                if attempt.outcome == PROCESS_TERMINATED:
                    self._on_ended(attempt)
                attempt.ended.set()
        if is_killed:
            await self._await_process(attempt, chosen, one_process)

    async def _is_process_killed(
        self, attempt: EvictionAttempt, chosen: Chosen, one_process: ProcessKills
    ) -> bool:
        """Return whether the process has outlived its grace period, and was killed."""
        exited_ns: int | None = time.monotonic_ns()
        if one_process.terminate(chosen):
            exited_ns = await one_process.wait_exited(chosen, attempt.eviction.grace_period_seconds)
        if exited_ns is not None:
            attempt.outcome, attempt.freed_ns = PROCESS_TERMINATED, exited_ns
            return False
        if not self._is_still_wanted(attempt):
            return False
        if not one_process.kill(chosen):
            attempt.outcome = "failed"
            attempt.add_problems(f"process {chosen.process.pid} is not in its pod any more")
            return False
        _process_killed(attempt, chosen)
        self._on_process_killed(attempt)
        return True

    def resume(self, pod: Pod, flight: InFlight, now_seconds: float) -> EvictionAttempt:
        """Take up an eviction that was ordered before a restart, with what is left of its grace period."""
        eviction = _resumed(pod, flight, max(0, math.ceil(flight.kill_at_seconds - now_seconds)))
        _LOG.warning("pod %s: eviction taken up again; %d s left", pod.key, eviction.grace_period_seconds)
        return self._begin_whole(eviction, None)

    def await_files(self, pod: Pod, flight: InFlight) -> EvictionAttempt:
        """Take up an eviction of which only the files are left: its pod ended while no daemon ran.

        No process is killed: a cgroup of that name is another pod's by now.
        """
        _LOG.warning("pod %s: has ended; waiting until its files are removed", pod.key)
        attempt = EvictionAttempt(eviction=_resumed(pod, flight, 0))
        self._nursery.start_soon(self._await_files, attempt)
        return attempt

    async def _await_files(self, attempt: EvictionAttempt) -> None:
        try:
            await self._settle(attempt, time.monotonic_ns())
        finally:
            attempt.ended.set()

    def _kill(self, eviction: Eviction, by_kernel_ns: int | None = None) -> EvictionAttempt:
        pod = eviction.pod
        try:
            report = self._kills.kill_now(pod)
        except (ReactorError, OSError) as error:
            attempt = EvictionAttempt(eviction=eviction)
            _failed(attempt, error)
            return attempt
        attempt = EvictionAttempt(eviction=eviction)
        _killed(attempt, report)
        if by_kernel_ns is not None:
            _killed_by_kernel(attempt, by_kernel_ns)
        # Only now: cancelling what waits for the same pod is not on the way of the kill.
        overtaken = self._waiting.pop(pod.uid, None)
        if overtaken is not None:
            overtaken[0].outcome = "pre-empted"
            overtaken[1].cancel()
        self._nursery.start_soon(self._reap, attempt)
        return attempt

    def _terminate(self, attempt: EvictionAttempt, grace_period_seconds: float) -> None:
        scope = trio.CancelScope()
        self._waiting[attempt.eviction.pod.uid] = (attempt, scope)
        self._nursery.start_soon(self._wait_terminated, attempt, scope, grace_period_seconds)

    async def _wait_terminated(
        self, attempt: EvictionAttempt, scope: trio.CancelScope, grace_period_seconds: float
    ) -> None:
        uid = attempt.eviction.pod.uid
        try:
            with scope:
                still_wanted = partial(self._is_still_wanted, attempt)
                report = await self._kills.terminate(attempt.eviction.pod, grace_period_seconds, still_wanted)
                if scope.cancel_called:
                    return  # a hard eviction took over and answers for the pod now, or it was called off
                if attempt.outcome == CALLED_OFF:
                    return
                if report is None:
                    attempt.outcome = "terminated"
                    attempt.stopped.set()
                    await self._settle(attempt, time.monotonic_ns())
                    return
                _killed(attempt, report)
                attempt.stopped.set()
                await self._reap(attempt)
        except (ReactorError, OSError) as error:
            _failed(attempt, error)
        finally:
            waiting = self._waiting.get(uid)
            if waiting is not None and waiting[0] is attempt:
                del self._waiting[uid]
            if attempt.outcome == "terminated":  # of one that was killed it is known by now
                self._on_ended(attempt)
            attempt.ended.set()

    def _is_still_wanted(self, attempt: EvictionAttempt) -> bool:
        """Return whether a pod whose grace period is over is to be killed; where not, it is called off."""
        if self._confirm(attempt.eviction):
            return True
        attempt.outcome = CALLED_OFF
        _LOG.warning(
            "pod %s: not killed after its grace period: no pressure is left", attempt.eviction.pod.key
        )
        return False

    async def _reap(self, attempt: EvictionAttempt) -> None:
        pod = attempt.eviction.pod
        try:
            report = await self._kills.reap(pod, self._deadline_seconds)
        except (ReactorError, OSError) as error:
            attempt.add_problems(str(error))
            _LOG.warning("pod %s: killed, but not waited for: %s", pod.key, error)
        else:
            attempt.add_problems(*report.problems)
            if report.freed_ns is not None:
                await self._settle(attempt, report.freed_ns)
        finally:
            self._on_ended(attempt)
            attempt.ended.set()

    async def _settle(self, attempt: EvictionAttempt, freed_ns: int) -> None:
        """Wait until nothing of a pod that has ended is counted any more, and say that it is gone.

        Memory is given back before a process counts as ended, but its id only when its parent has reaped
        it: of 208 killed processes all were still in pids.current 33 ms later, enough for another victim.
        """
        eviction = attempt.eviction
        if self._empty is not None and eviction.resource in ON_DISK and eviction.pod.storage:
            self._nursery.start_soon(self._remove_files, attempt, self._empty)
        with trio.move_on_after(self._deadline_seconds):
            while not self._on_gone(attempt.eviction.pod.uid):
                await trio.sleep(_COUNTED_POLL_SECONDS)
                freed_ns = time.monotonic_ns()
            attempt.freed_ns = freed_ns

    async def _remove_files(
        self, attempt: EvictionAttempt, empty: Callable[[Pod], Awaitable[tuple[str, ...]]]
    ) -> None:
        problems = await empty(attempt.eviction.pod)
        attempt.add_problems(*problems)
        for problem in problems:
            _LOG.warning("pod %s: %s", attempt.eviction.pod.key, problem)


def _resumed(pod: Pod, flight: InFlight, grace_period_seconds: int) -> Eviction:
    return Eviction(
        pod=pod,
        signal=next(signal for signal, resource in RESOURCE.items() if resource == flight.resource)
        if flight.threshold is None
        else flight.threshold.signal,
        threshold=flight.threshold,
        resource=flight.resource,
        grace_period_seconds=grace_period_seconds,
        message="Ordered before reactor was restarted.",
    )


def _killed(attempt: EvictionAttempt, report: KillReport) -> None:
    # Of a pod that ends for a disk the files go, whether or not a process was left in it.
    is_empty = report.is_empty and not report.processes and attempt.eviction.resource not in ON_DISK
    is_nothing = report.is_gone or is_empty
    attempt.outcome = "gone" if is_nothing else "killed"
    attempt.processes = report.processes
    attempt.is_empty = report.is_empty
    attempt.killed_ns = None if is_nothing else report.killed_ns
    attempt.add_problems(*report.problems)


def _process_killed(attempt: EvictionAttempt, chosen: Chosen) -> None:
    attempt.outcome = PROCESS_KILLED
    attempt.process = chosen.process
    attempt.processes = 1
    attempt.killed_ns = chosen.killed_ns


def _killed_by_kernel(attempt: EvictionAttempt, at_ns: int) -> None:
    """Take note that the pod was killed already: its only process may be gone, and its cgroup with it."""
    attempt.outcome = "killed"
    attempt.is_empty = False
    attempt.killed_ns = at_ns
    attempt.processes = max(1, attempt.processes or 0)


def _failed(attempt: EvictionAttempt, error: Exception) -> None:
    attempt.outcome = "failed"
    attempt.add_problems(str(error))
    attempt.ended.set()
