"""Evictions: a hard one kills at once, a soft one begins; each is followed until nothing of it is counted."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Final, Protocol

import trio

from reactor.act.one_process import NoProcessError, OneProcess
from reactor.errors import ReactorError
from reactor.guard.node import Node
from reactor.guard.record import EvictionAttempt
from reactor.guard.termination import Kills, Victim, one_process, whole_pod
from reactor.link.documents import Outcome
from reactor.model.decisions import Claim, Eviction
from reactor.model.pods import Pod
from reactor.model.signals import ON_DISK, RESOURCE
from reactor.policy.forecast import Ahead, Forecast
from reactor.supervisor import Nursery

_LOG: Final = logging.getLogger("reactor.evict")
_CHOICE_SECONDS: Final = 0.5  # takes a few milliseconds at the most
_COUNTED_POLL_SECONDS: Final = 0.02
_FILES_POLL_SECONDS: Final = 0.2  # each has the steward count the files once more
_BY_ITSELF: Final = frozenset({Outcome.TERMINATED, Outcome.PROCESS_TERMINATED})
_ENDED: Final = _BY_ITSELF | {Outcome.KILLED, Outcome.PROCESS_KILLED, Outcome.PRE_EMPTED}


class Aftermath(Protocol):
    """What is asked and done about an eviction after its order, by the configuration in force."""

    async def before_soft(self, eviction: Eviction) -> tuple[str, ...]:
        """Do what comes before a pod is asked to end, in its grace period; return what went wrong."""

    def is_wanted(self, eviction: Eviction) -> bool:
        """Return at a grace period's end whether the pod may be evicted and the node is still short."""

    def pod_ended(self, uid: str) -> bool:
        """Record that a pod has ended; return whether it counts for nothing any more: else asked again."""

    async def remove_files(self, pod: Pod) -> tuple[str, ...]:
        """Remove the files of a pod that was evicted for a filesystem's sake; return what went wrong."""

    def files_removed(self) -> None:
        """Have the disks observed: what was seen of them before is no reason to evict the next pod."""

    def process_over(self, uid: str) -> None:
        """Record that nothing more is done to a process of a pod."""

    def measure_result(self, attempt: EvictionAttempt) -> None:
        """Fill in what has become of an eviction that was carried out, or failed when its time was over.

        Neither waits nor raises.
        """


@dataclass(eq=False)
class Evictor(Ahead):
    """Orders evictions, prepares for them, and sees each through `kills` to its end.

    Pods in the operator's list lose one process through `one_process`. What an eviction changes is recorded
    with `known`; `loop` returns the one that runs, which takes what follows. A pod that has outlived its
    grace period `is_always_killed`, as in Kubernetes: the API server knows that it is evicted, its owner
    starts another in its place, and the kubelet kills it at the end in any case.

    What happens after the kill runs in `nursery`, and no failure there goes further than the log: the
    policy forgets an eviction at its deadline and chooses again.
    """

    _retry_seconds = math.inf

    kills: Kills
    nursery: Nursery
    known: Node
    loop: Callable[[], Aftermath]
    _: KW_ONLY
    deadline_seconds: float
    dry_run: bool = False
    one_process: OneProcess | None = None
    is_always_killed: bool = False

    def __post_init__(self) -> None:
        self._waiting: dict[str, tuple[EvictionAttempt, trio.CancelScope]] = {}

    def adopt(self, deadline_seconds: float, *, dry_run: bool) -> None:
        """Do as a new configuration says from now on.

        A dry run kills no pod, also not at the end of a grace period that began before: the pod may have had
        its SIGTERM, the SIGKILL does not follow. All else that is under way goes on as it began.
        """
        self.deadline_seconds = deadline_seconds
        self.dry_run = dry_run
        if dry_run:
            self._call_off()

    def prepare(self, pods: Sequence[Pod], gives_way: Callable[[], bool] = bool) -> None:
        """Hold what it takes to end these pods at once, and no others."""
        wanted = () if self.dry_run else pods
        self.kills.prepare(wanted)
        if self.one_process is not None:
            self.one_process.prepare(wanted, gives_way)

    def near(self, forecast: Forecast, gives_way: Callable[[], bool]) -> None:
        """Prepare for a crossing; see policy/forecast.py."""
        self.prepare(forecast.prepared, gives_way)
        is_chosen = any(pod.process_victim is not None for pod in forecast.first)
        self._retry_seconds = forecast.now_seconds + _CHOICE_SECONDS if is_chosen else math.inf

    def far(self) -> None:
        """Hold nothing: no crossing is near."""
        self.prepare(())
        self._retry_seconds = math.inf

    def retry_seconds(self) -> float:
        """Return when the processes of a prepared pod, of which one is to go, are to be read again."""
        return self._retry_seconds

    def holds(self, pod: Pod) -> bool:
        return not self.dry_run and self.kills.holds(pod)

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

        `by_kernel_ns` is when the kernel itself killed a process of the pod: here its others are.
        If one process of the pod is to end and the pod to live on, `used_bytes` is the pod's working set
        and `counts_shared` whether shared memory counts in the choice; `whole_because` says why it is the
        whole pod all the same.
        """
        if eviction.is_of_one_process and by_kernel_ns is None and whole_because is None:
            try:
                return self._begin_process(eviction, used_bytes, counts_shared=counts_shared)
            except (ReactorError, OSError) as error:
                whole_because = str(error)
        attempt = self._begin_whole(eviction, by_kernel_ns)
        attempt.whole_because = whole_because
        return attempt

    def _begin_whole(self, eviction: Eviction, by_kernel_ns: int | None = None) -> EvictionAttempt:
        pod = eviction.pod
        if self.dry_run:
            return _over(EvictionAttempt(eviction=eviction, outcome=Outcome.DRY_RUN))
        if eviction.grace_period_seconds > 0:
            return self._ask(EvictionAttempt(eviction=eviction), whole_pod(self.kills, pod))
        try:
            report = self.kills.kill_now(pod)
        except (ReactorError, OSError) as error:
            attempt = EvictionAttempt(eviction=eviction)
            attempt.fail(error)
            return _over(attempt)
        attempt = EvictionAttempt(eviction=eviction)
        attempt.stop(report)
        if by_kernel_ns is not None:
            attempt.stopped_by_kernel(by_kernel_ns)
        # Only now: cancelling what waits for the same pod is not on the way of the kill.
        self._pre_empt(pod.uid)
        self.nursery.start_soon(self._finish, attempt, whole_pod(self.kills, pod))
        return attempt

    def _begin_process(
        self, eviction: Eviction, used_bytes: int | None, *, counts_shared: bool
    ) -> EvictionAttempt:
        """Order the end of one process of a pod. Raises NoProcessError and as a kill where none is chosen."""
        kills, pod = self.one_process, eviction.pod
        if kills is None:
            raise NoProcessError("no process of a pod is killed alone here")
        is_hard = eviction.grace_period_seconds <= 0
        find = kills.kill_first if is_hard and not self.dry_run else kills.choose
        chosen = find(pod, used_bytes, counts_shared=counts_shared, wanted_bytes=_missing_bytes(eviction))
        attempt = EvictionAttempt(eviction=eviction, process=chosen.process)
        if self.dry_run:
            chosen.close()
            attempt.outcome = Outcome.DRY_RUN
            return _over(attempt)
        victim = one_process(kills, chosen)
        if is_hard:
            attempt.stop(chosen.report())
            waiting = self._waiting.get(pod.uid)
            if waiting is not None and waiting[0].process is not None:
                self._pre_empt(pod.uid)
            self.nursery.start_soon(self._finish, attempt, victim)
            return attempt
        return self._ask(attempt, victim)

    def resume(self, pod: Pod, claim: Claim, now_seconds: float) -> EvictionAttempt:
        """Resume an earlier run's eviction; a soft one that is over, or of a spared pod, only if wanted."""
        eviction = resumed_eviction(
            pod, claim, max(0, math.ceil((claim.kill_at_seconds or 0.0) - now_seconds))
        )
        _LOG.warning(
            "pod %s: resuming eviction after restart; %d s of grace left",
            pod.key,
            eviction.grace_period_seconds,
        )
        is_soft = claim.threshold is not None and not claim.threshold.is_hard
        is_doubted = eviction.grace_period_seconds == 0 or pod.critical_because is not None
        attempt = EvictionAttempt(eviction=eviction, outcome=Outcome.CALLED_OFF)
        is_off = is_soft and is_doubted and not self._is_still_wanted(attempt)
        return _over(attempt) if is_off else self._begin_whole(eviction)

    # --- what follows ---

    def _call_off(self) -> None:
        """Call off what waits for the end of a grace period."""
        while self._waiting:
            uid, (attempt, scope) = self._waiting.popitem()
            attempt.outcome = Outcome.CALLED_OFF
            attempt.add_problems("a dry run was configured in its grace period")
            scope.cancel()
            _LOG.warning("pod %s: eviction called off: a dry run was configured", attempt.eviction.pod.key)
            self.known.called_off(uid)

    def _pre_empt(self, uid: str) -> None:
        """Have a hard eviction take over from a soft one of the same pod."""
        waiting = self._waiting.pop(uid, None)
        if waiting is not None:
            waiting[0].outcome = Outcome.PRE_EMPTED
            waiting[1].cancel()

    def _ask(self, attempt: EvictionAttempt, victim: Victim) -> EvictionAttempt:
        scope = trio.CancelScope()
        self._waiting[attempt.eviction.pod.uid] = (attempt, scope)
        self.nursery.start_soon(self._carry_out, attempt, victim, scope)
        return attempt

    async def _carry_out(self, attempt: EvictionAttempt, victim: Victim, scope: trio.CancelScope) -> None:
        """Ask a victim to end, kill it if it outlives its grace period, and wait until its memory is free."""
        uid = attempt.eviction.pod.uid
        has_stopped = False
        began_seconds = trio.current_time()
        try:
            with scope:
                has_stopped = await attempt.carry_out(
                    victim,
                    await self._after_hooks(attempt),
                    partial(self._is_still_wanted, attempt),
                )
        finally:
            if self._waiting.get(uid) == (attempt, scope):
                del self._waiting[uid]
            if attempt.outcome in _ENDED:
                seconds = trio.current_time() - began_seconds
                self.known.ending_observed(attempt.eviction.pod, seconds, attempt.outcome not in _BY_ITSELF)
            if not has_stopped:
                victim.close()
                # What pre-empted it answers for the pod.
                if attempt.process is not None and attempt.outcome is not Outcome.PRE_EMPTED:
                    self.loop().process_over(uid)
                elif attempt.outcome is Outcome.FAILED:
                    self.loop().measure_result(attempt)
                attempt.ended.set()
        if has_stopped:
            if attempt.process is not None and attempt.outcome is Outcome.PROCESS_KILLED:
                self.known.process_killed(attempt.eviction.pod, attempt.process)
            await self._finish(attempt, victim)

    async def _after_hooks(self, attempt: EvictionAttempt) -> float:
        """Wait for what comes before a soft eviction; return how much of the grace period is left."""
        began_seconds = trio.current_time()
        attempt.add_problems(*await self.loop().before_soft(attempt.eviction))
        return attempt.eviction.grace_period_seconds - (trio.current_time() - began_seconds)

    async def _finish(self, attempt: EvictionAttempt, victim: Victim) -> None:
        """Wait until what has stopped holds nothing any more."""
        try:
            freed_ns: int | None = time.monotonic_ns()
            if attempt.outcome not in _BY_ITSELF:
                freed_ns = await attempt.reap(victim, self.deadline_seconds)
            if attempt.process is not None:
                attempt.freed_ns = freed_ns
            elif freed_ns is not None:
                await self._settle(attempt, freed_ns)
        finally:
            victim.close()
            if attempt.process is not None:
                self.loop().process_over(attempt.eviction.pod.uid)
            self.loop().measure_result(attempt)
            attempt.ended.set()

    def await_files(self, pod: Pod, claim: Claim) -> EvictionAttempt:
        """Resume an eviction of which only the files are left: its pod ended while no daemon ran.

        No process is killed: a cgroup of that name is another pod's by now.
        """
        _LOG.warning("pod %s: has ended; waiting until its files are removed", pod.key)
        attempt = EvictionAttempt(eviction=resumed_eviction(pod, claim, 0))
        self.nursery.start_soon(self._await_files, attempt)
        return attempt

    async def _await_files(self, attempt: EvictionAttempt) -> None:
        try:
            await self._settle(attempt, time.monotonic_ns())
        finally:
            attempt.ended.set()

    def _is_still_wanted(self, attempt: EvictionAttempt) -> bool:
        """Return whether a pod whose grace period is over is to be killed."""
        is_certain = self.is_always_killed and attempt.process is None
        return is_certain or self.loop().is_wanted(attempt.eviction)

    async def _settle(self, attempt: EvictionAttempt, freed_ns: int) -> None:
        """Wait until nothing of a pod that has ended is counted any more.

        Memory is freed before a process counts as ended, but its id only when its parent has reaped
        it: of 208 killed processes all were still in pids.current 33 ms later, enough for another victim.
        """
        eviction = attempt.eviction
        if eviction.resource in ON_DISK and eviction.pod.storage:
            self.nursery.start_soon(self._remove_files, attempt)
        poll_seconds = _FILES_POLL_SECONDS if eviction.resource in ON_DISK else _COUNTED_POLL_SECONDS
        with trio.move_on_after(self.deadline_seconds):
            while not self.loop().pod_ended(eviction.pod.uid):
                await trio.sleep(poll_seconds)
                freed_ns = time.monotonic_ns()
            attempt.freed_ns = freed_ns

    async def _remove_files(self, attempt: EvictionAttempt) -> None:
        """Have the pod's files removed; until then what is counted of them is no longer believed."""
        pod, storage = attempt.eviction.pod, self.known.storage
        storage.hold(pod.uid)
        try:
            problems = await self.loop().remove_files(pod)
        finally:
            storage.release(pod.uid)
            self.loop().files_removed()
        attempt.add_problems(*problems)
        for problem in problems:
            _LOG.warning("pod %s: %s", pod.key, problem)


def resumed_eviction(pod: Pod, claim: Claim, grace_period_seconds: int) -> Eviction:
    return Eviction(
        pod=pod,
        signal=next(signal for signal, resource in RESOURCE.items() if resource == claim.resource)
        if claim.threshold is None
        else claim.threshold.signal,
        threshold=claim.threshold,
        resource=claim.resource,
        grace_period_seconds=grace_period_seconds,
        message="Ordered before reactor was restarted.",
    )


def _missing_bytes(eviction: Eviction) -> int | None:
    if eviction.threshold is None or eviction.shortage is None:
        return None
    return eviction.threshold.missing(eviction.shortage.seen)


def _over(attempt: EvictionAttempt) -> EvictionAttempt:
    attempt.ended.set()
    return attempt
