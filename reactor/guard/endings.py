"""What becomes of evictions after their order, until nothing of the pod is counted any more."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from reactor.act.kill_path import KillPath
from reactor.guard.node import Node
from reactor.guard.observations import Observations
from reactor.guard.record import EvictionAttempt
from reactor.guard.termination import Victim
from reactor.link.documents import Outcome
from reactor.model.decisions import Claim, Eviction
from reactor.model.pods import Pod, working_set_bytes
from reactor.model.quantity import amount_text
from reactor.model.signals import DISK_SIGNALS, ON_DISK, RESOURCE, Resource, Signal
from reactor.model.thresholds import Observation
from reactor.policy.events import (
    EndingObserved,
    EvictionCalledOff,
    EvictionFailed,
    ObservationsUsed,
    PodEmptied,
    PodEnded,
    ProcessKilled,
)
from reactor.policy.rank import of_no_partition
from reactor.supervisor import Nursery

if TYPE_CHECKING:
    from reactor.guard.loop import Loop

_LOG: Final = logging.getLogger("reactor.evict")
_COUNTED_POLL_SECONDS: Final = 0.02
_FILES_POLL_SECONDS: Final = 0.2  # each has the steward count the files once more
_BY_ITSELF: Final = frozenset({Outcome.TERMINATED, Outcome.PROCESS_TERMINATED})
_ENDED: Final = _BY_ITSELF | {Outcome.KILLED, Outcome.PROCESS_KILLED, Outcome.PRE_EMPTED}


@dataclass(eq=False)
class Endings:
    """Sees evictions through `kills` to their end.

    What an eviction changes is recorded with `known`; `loop` returns the one that runs, which takes what
    follows. A pod that has outlived its grace period `is_always_killed`, as in Kubernetes: the API server
    knows that it is evicted, its owner starts another one, and the kubelet kills it at the end in any case.

    What happens after the kill runs in `nursery`, and no failure there goes further than the log: the
    policy forgets an eviction at its deadline and chooses again.
    """

    kills: KillPath
    nursery: Nursery
    known: Node
    loop: Callable[[], Loop]
    _: KW_ONLY
    deadline_seconds: float
    dry_run: bool = False
    is_always_killed: bool = False

    def __post_init__(self) -> None:
        self._waiting: dict[str, tuple[EvictionAttempt, trio.CancelScope]] = {}

    def _call_off(self) -> None:
        while self._waiting:
            uid, (attempt, scope) = self._waiting.popitem()
            attempt.outcome = Outcome.CALLED_OFF
            attempt.add_problems("a dry run was configured in its grace period")
            scope.cancel()
            _LOG.warning("pod %s: eviction called off: a dry run was configured", attempt.eviction.pod.key)
            self.known.apply(EvictionCalledOff(uid=uid))

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
                left_seconds = await self._after_hooks(attempt)
                if attempt.outcome is Outcome.ORDERED:
                    still_wanted = partial(self._is_still_wanted, attempt)
                    has_stopped = await attempt.carry_out(victim, left_seconds, still_wanted)
        finally:
            if self._waiting.get(uid) == (attempt, scope):
                del self._waiting[uid]
            if attempt.outcome in _ENDED:
                seconds, was_cut = trio.current_time() - began_seconds, attempt.outcome not in _BY_ITSELF
                self.known.apply(EndingObserved(pod=attempt.eviction.pod, seconds=seconds, was_cut=was_cut))
            if not has_stopped:
                victim.close()
                # What pre-empted it answers for the pod.
                if attempt.process is not None and attempt.outcome is not Outcome.PRE_EMPTED:
                    self.loop().process_over(uid)
                elif attempt.outcome is Outcome.FAILED:
                    self.loop().measure_result(attempt)
                attempt.end()
        if has_stopped:
            if attempt.process is not None and attempt.outcome is Outcome.PROCESS_KILLED:
                self.known.victims.hold(attempt.process.pid)
                self.known.apply(ProcessKilled(pod=attempt.eviction.pod, process=attempt.process))
            await self._finish(attempt, victim)

    async def _after_hooks(self, attempt: EvictionAttempt) -> float:
        """Wait for what comes before a soft eviction, and may call it off; return how much grace is left."""
        began_seconds = trio.current_time()
        problems = await self.loop().before_soft(attempt.eviction)
        attempt.add_problems(*(problems or ()))
        if problems is not None and not self._is_still_wanted(attempt):
            attempt.outcome = Outcome.CALLED_OFF
        return attempt.eviction.grace_period_seconds - (trio.current_time() - began_seconds)

    async def _finish(self, attempt: EvictionAttempt, victim: Victim) -> None:
        """Wait until what has stopped holds nothing any more."""
        try:
            if attempt.outcome not in _BY_ITSELF:
                attempt.ended_ns = await attempt.reap(victim, self.deadline_seconds)
            else:
                attempt.ended_ns = time.monotonic_ns()
            if attempt.process is not None:
                attempt.freed_ns = attempt.ended_ns
            elif attempt.ended_ns is not None:
                await self._settle(attempt, attempt.ended_ns)
        finally:
            victim.close()
            if attempt.process is not None:
                self.loop().process_over(attempt.eviction.pod.uid)
            self.loop().measure_result(attempt)
            attempt.end()

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
            attempt.end()

    def _is_still_wanted(self, attempt: EvictionAttempt) -> bool:
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


class Results:
    """What evictions have come to, as the counters of the node and its pods say."""

    def __init__(self, seen: Observations) -> None:
        self._node = seen.node
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
            self._node.apply(EvictionCalledOff(uid=uid))
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
        self._node.apply(
            PodEnded(
                uid=uid,
                files_bytes=self._usages.shared_memory_bytes(uid) or 0,
                held_bytes=working_set_bytes(self._usages.of([uid]), uid),
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
            self._node.apply(EvictionCalledOff(uid=eviction.pod.uid))
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
        uid = eviction.pod.uid
        attempt.left_bytes = working_set_bytes(self._usages.of([uid]), uid)
        attempt.left_shared_bytes = self._usages.shared_memory_bytes(uid)
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
