"""What becomes of evictions after their order, until nothing of the pod is counted any more."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Final

import trio

from reactor.act.one_process import OneProcess
from reactor.guard.node import Node
from reactor.guard.observations import Observations
from reactor.guard.record import EvictionAttempt
from reactor.guard.termination import Kills, Victim
from reactor.link.documents import Outcome
from reactor.model.decisions import Claim, Eviction
from reactor.model.kills import ProcessMemory
from reactor.model.pods import Pod
from reactor.model.quantity import amount_text
from reactor.model.signals import DISK_SIGNALS, ON_DISK, RESOURCE, Resource, Signal
from reactor.model.thresholds import Observation
from reactor.policy.events import EvictionFailed, ObservationsUsed, PodEmptied, PodEnded
from reactor.policy.rank import of_no_partition
from reactor.supervisor import Nursery

_LOG: Final = logging.getLogger("reactor.evict")
_COUNTED_POLL_SECONDS: Final = 0.02
_FILES_POLL_SECONDS: Final = 0.2  # each has the steward count the files once more
_BY_ITSELF: Final = frozenset({Outcome.TERMINATED, Outcome.PROCESS_TERMINATED})
_ENDED: Final = _BY_ITSELF | {Outcome.KILLED, Outcome.PROCESS_KILLED, Outcome.PRE_EMPTED}


class Endings:
    """Sees evictions through `kills` to their end; of pods in the operator's list through `one_process`.

    `on_gone` is called with the uid of each pod that has ended. It returns whether the pod counts for nothing
    any more, and is called again while it does. `empty` removes the files that end with a pod that was
    evicted for a filesystem's sake, and returns what went wrong.
    `confirm` returns at the end of a soft eviction's grace period whether the pod may be evicted and the node
    is still short of what it was to end for; if not, the eviction is called off and the pod lives on.
    `on_ended` fills in what has become of an eviction that was carried out, or failed when its grace period
    was over; it neither waits nor raises.
    `on_process_killed` is called if one process of a pod was killed after a grace period, `on_process_over`
    with the pod's uid when nothing more is done to it. `on_ending` is called with how long a pod took to end
    that was asked to, in seconds, and whether it was killed before. `before_soft` is awaited before a pod is
    asked to end, as a part of its grace period, and returns what went wrong.

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
        one_process: OneProcess | None = None,
        empty: Callable[[Pod], Awaitable[tuple[str, ...]]] | None = None,
        confirm: Callable[[EvictionAttempt], bool] = lambda _: True,
        on_ended: Callable[[EvictionAttempt], None] = lambda _: None,
        on_process_killed: Callable[[Pod, ProcessMemory], None] = lambda *_: None,
        on_process_over: Callable[[str], None] = lambda _: None,
        on_ending: Callable[[Pod, float, bool], None] = lambda *_: None,
        before_soft: Callable[[Eviction], Awaitable[tuple[str, ...]]] | None = None,
    ) -> None:
        self._kills = kills
        self._one_process = one_process
        self._dry_run = dry_run
        self._nursery = nursery
        self._on_process_killed = on_process_killed
        self._on_process_over = on_process_over
        self._on_ending = on_ending
        self._before_soft = before_soft
        self._empty = empty
        self._on_ended = on_ended
        self._on_gone = on_gone
        self._confirm = confirm
        self._deadline_seconds = deadline_seconds
        self._waiting: dict[str, tuple[EvictionAttempt, trio.CancelScope]] = {}

    def call_off(self) -> tuple[str, ...]:
        """Call off what waits for the end of a grace period; return the uids of those pods."""
        called_off = tuple(self._waiting)
        for uid in called_off:
            attempt, scope = self._waiting.pop(uid)
            attempt.outcome = Outcome.CALLED_OFF
            attempt.add_problems("a dry run was configured in its grace period, after SIGTERM")
            scope.cancel()
            _LOG.warning("pod %s: eviction called off: a dry run was configured", attempt.eviction.pod.key)
        return called_off

    def _pre_empt(self, uid: str) -> None:
        """Have a hard eviction take over from a soft one of the same pod."""
        waiting = self._waiting.pop(uid, None)
        if waiting is not None:
            waiting[0].outcome = Outcome.PRE_EMPTED
            waiting[1].cancel()

    def _ask(self, attempt: EvictionAttempt, victim: Victim) -> EvictionAttempt:
        scope = trio.CancelScope()
        self._waiting[attempt.eviction.pod.uid] = (attempt, scope)
        self._nursery.start_soon(self._carry_out, attempt, victim, scope)
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
                    partial(self._confirm, attempt),
                )
        finally:
            if self._waiting.get(uid) == (attempt, scope):
                del self._waiting[uid]
            if attempt.outcome in _ENDED:
                seconds = trio.current_time() - began_seconds
                self._on_ending(attempt.eviction.pod, seconds, attempt.outcome not in _BY_ITSELF)
            if not has_stopped:
                victim.close()
                # What pre-empted it answers for the pod.
                if attempt.process is not None and attempt.outcome is not Outcome.PRE_EMPTED:
                    self._on_process_over(uid)
                elif attempt.outcome is Outcome.FAILED:
                    self._on_ended(attempt)
                attempt.ended.set()
        if has_stopped:
            if attempt.process is not None and attempt.outcome is Outcome.PROCESS_KILLED:
                self._on_process_killed(attempt.eviction.pod, attempt.process)
            await self._finish(attempt, victim)

    async def _after_hooks(self, attempt: EvictionAttempt) -> float:
        """Wait for what comes before a soft eviction; return how much of the grace period is left."""
        grace_period_seconds = float(attempt.eviction.grace_period_seconds)
        if self._before_soft is None or grace_period_seconds <= 0:
            return grace_period_seconds
        began_seconds = trio.current_time()
        attempt.add_problems(*await self._before_soft(attempt.eviction))
        return grace_period_seconds - (trio.current_time() - began_seconds)

    async def _finish(self, attempt: EvictionAttempt, victim: Victim) -> None:
        """Wait until what has stopped holds nothing any more."""
        try:
            freed_ns: int | None = time.monotonic_ns()
            if attempt.outcome not in _BY_ITSELF:
                freed_ns = await attempt.reap(victim, self._deadline_seconds)
            if attempt.process is not None:
                attempt.freed_ns = freed_ns
            elif freed_ns is not None:
                await self._settle(attempt, freed_ns)
        finally:
            victim.close()
            if attempt.process is not None:
                self._on_process_over(attempt.eviction.pod.uid)
            self._on_ended(attempt)
            attempt.ended.set()

    def await_files(self, pod: Pod, claim: Claim) -> EvictionAttempt:
        """Resume an eviction of which only the files are left: its pod ended while no daemon ran.

        No process is killed: a cgroup of that name is another pod's by now.
        """
        _LOG.warning("pod %s: has ended; waiting until its files are removed", pod.key)
        attempt = EvictionAttempt(eviction=resumed_eviction(pod, claim, 0))
        self._nursery.start_soon(self._await_files, attempt)
        return attempt

    async def _await_files(self, attempt: EvictionAttempt) -> None:
        try:
            await self._settle(attempt, time.monotonic_ns())
        finally:
            attempt.ended.set()

    async def _settle(self, attempt: EvictionAttempt, freed_ns: int) -> None:
        """Wait until nothing of a pod that has ended is counted any more.

        Memory is freed before a process counts as ended, but its id only when its parent has reaped
        it: of 208 killed processes all were still in pids.current 33 ms later, enough for another victim.
        """
        eviction = attempt.eviction
        if self._empty is not None and eviction.resource in ON_DISK and eviction.pod.storage:
            self._nursery.start_soon(self._remove_files, attempt, self._empty)
        poll_seconds = _FILES_POLL_SECONDS if eviction.resource in ON_DISK else _COUNTED_POLL_SECONDS
        with trio.move_on_after(self._deadline_seconds):
            while not self._on_gone(attempt.eviction.pod.uid):
                await trio.sleep(poll_seconds)
                freed_ns = time.monotonic_ns()
            attempt.freed_ns = freed_ns

    async def _remove_files(
        self, attempt: EvictionAttempt, empty: Callable[[Pod], Awaitable[tuple[str, ...]]]
    ) -> None:
        problems = await empty(attempt.eviction.pod)
        attempt.add_problems(*problems)
        for problem in problems:
            _LOG.warning("pod %s: %s", attempt.eviction.pod.key, problem)


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


class Results:
    """What evictions have come to, as the counters of the node and its pods say."""

    def __init__(self, node: Node, seen: Observations) -> None:
        self._node = node
        self._seen = seen
        self._usages = seen.usages

    def confirm(self, eviction: Eviction) -> bool:
        """Return whether the node is still short of what an eviction was ordered for, minimum reclaim added.

        Where it is not, or the pod may not be evicted any more, the eviction counts as called off. Memory,
        processes and swap are read afresh; what is not observed is no reason to end a pod.
        """
        uid = eviction.pod.uid
        pods = (of_no_partition(pod) for pod in self._node.pods if pod.uid == uid)
        is_spared = any(pod.critical_because is not None for pod in pods)
        is_wanted = not is_spared and self._seen.is_wanting(eviction)
        if not is_wanted:
            self._node.called_off(uid)
        return is_wanted

    def pod_ended(self, uid: str) -> bool:
        """Record that no process is left in an evicted pod; return whether nothing more is expected of it.

        False if its processes or files are still counted, which the policy goes on crediting.
        """
        state = self._node.state
        resources = {claim.resource for claim in state.in_flight if claim.uid == uid}
        if Resource.PIDS in resources:
            used = self._usages.of([uid], with_processes=True).get(uid)
            if used is not None and used.process_count:
                # What was spared (one process each) stays, and is counted with the pod.
                spared = next((len(pod.spared_cgroups) for pod in self._node.pods if pod.uid == uid), 0)
                if used.process_count > spared:
                    return False
        self._node.apply(PodEmptied(uid=uid))
        if resources & ON_DISK and not self._node.is_freed(uid):
            return False
        self.record_end(uid)
        if resources & ON_DISK:
            self.ignore_older_disk_observations()
        return True

    def record_end(self, uid: str) -> None:
        """Expect nothing more of an evicted pod that has ended, but for its files in memory."""
        used = self._usages.of([uid]).get(uid)
        self._node.apply(
            PodEnded(
                uid=uid,
                files_bytes=self._usages.shared_memory_bytes(uid) or 0,
                held_bytes=None if used is None else used.memory_working_set_bytes,
            )
        )

    def ignore_older_disk_observations(self) -> None:
        """Record that files were removed: what was seen before is nothing to evict the next pod for.

        Nor is an observation that was made before and is still on its way from the steward.
        """
        now_seconds = self._node.clock_seconds()
        self._node.observed.changed(DISK_SIGNALS, now_seconds)
        self.used(self._node.observed.at(now_seconds), ON_DISK)

    def used(self, seen: Mapping[Signal, Observation], resources: Collection[Resource]) -> None:
        """Record that these observations have been decided over: the next pass is not to do it again."""
        at = {
            signal: observation.taken_at_seconds
            for signal, observation in seen.items()
            if RESOURCE[signal] in resources
        }
        self._node.apply(ObservationsUsed(taken_at_seconds=at))

    def measure_result(self, attempt: EvictionAttempt) -> None:
        """Fill in what came back of an eviction for memory, as the node says: of a failed one nothing."""
        eviction = attempt.eviction
        if attempt.outcome is Outcome.FAILED:
            self._node.called_off(eviction.pod.uid)
            self._node.apply(EvictionFailed(uid=eviction.pod.uid, why="; ".join(attempt.problems)))
        if attempt.outcome is Outcome.FAILED or eviction.resource is not Resource.MEMORY:
            return
        is_by_rule = eviction.threshold is None
        signal = Signal.MEMORY_AVAILABLE if is_by_rule else Signal(eviction.signal)
        seen = self._seen.observer.memory().get(signal)
        if seen is not None and attempt.available_bytes is not None:
            attempt.returned_bytes = seen.available - attempt.available_bytes
        if self._seen.is_populated(eviction.pod):
            return  # lives again, and what it uses now is another's
        left = self._usages.of([eviction.pod.uid]).get(eviction.pod.uid)
        attempt.left_bytes = None if left is None else left.memory_working_set_bytes
        attempt.left_shared_bytes = self._usages.shared_memory_bytes(eviction.pod.uid)
        if not attempt.left_bytes or not attempt.credited_bytes or attempt.freed_ns is None:
            return
        if 4 * attempt.left_bytes > 3 * attempt.credited_bytes:
            attempt.freed_ns = None
            kept, shared = (
                amount_text(amount or 0, Resource.MEMORY)
                for amount in (attempt.left_bytes, attempt.left_shared_bytes)
            )
            attempt.add_problems(
                f"has ended, but {kept} stay charged to its cgroup, {shared} of it shared memory or tmpfs"
            )
