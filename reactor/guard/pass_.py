"""The pass: observe fresh, decide, act, re-arm.

From the wake to the kill everything is synchronous and reads nothing but kernel counters: no await, no
thread, no disk, no log line, no metric, no garbage collection stands between the two. All of that follows.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from reactor.guard.ahead import Ahead, Approach, KernelKills, NoKernelKills, Served
from reactor.guard.evictor import Evictor
from reactor.guard.node import Node
from reactor.guard.record import EvictionAttempt, PassRecord, StageTimes
from reactor.link.documents import Outcome
from reactor.model.decisions import ClaimKind, Decision, Eviction, PolicyState, Snapshot
from reactor.model.kills import OomKill, ProcessMemory
from reactor.model.pods import Pod, PodUsage
from reactor.model.quantity import amount_text
from reactor.model.rules import EVICTING, Firing, RankedBy
from reactor.model.settings import EvictionSettings
from reactor.model.signals import (
    MEMORY_SIGNALS,
    ON_DISK,
    RESOURCE,
    LimitSignal,
    Resource,
    RuleSignal,
    Signal,
)
from reactor.model.thresholds import Observation, Threshold
from reactor.model.wakes import Wake, WakeKind
from reactor.observe.latest import PROCESS_SIGNALS, SWAP_SIGNALS, resources_wanting
from reactor.observe.node import NodeObserver, consistent
from reactor.observe.oom_kills import PodOomKills
from reactor.observe.pods import PodObserver
from reactor.observe.storage import with_storage
from reactor.policy.attention import has_grown
from reactor.policy.claims import are_unknown, dying_bytes, is_newly_empty, struck_pods
from reactor.policy.decide import after_reclaim, decide
from reactor.policy.events import (
    CrossingServed,
    EvictionFailed,
    EvictionOrdered,
    FilesInMemoryObserved,
    KernelKilled,
    ObservationsUsed,
    PodEmptied,
    PodEnded,
    PodFoundEmpty,
    PodsStruck,
    ProcessesExited,
    ProcessEvictionOrdered,
    StruckPodsObserved,
)
from reactor.policy.process_victims import counts_shared_memory, given_up_because
from reactor.policy.rank import can_be_evicted
from reactor.policy.storm import is_hard_memory
from reactor.policy.thresholds import absurd_thresholds, thresholds_met
from reactor.reclaim.reclaims import Reclaims
from reactor.reclaim.runner import NodeReclaimer, Observe, Reclaimed
from reactor.sources.oom import OomSource
from reactor.workloads.pods import PodList

RULES: Final = "rules"
_DISK_SIGNALS: Final = frozenset(signal for signal, resource in RESOURCE.items() if resource in ON_DISK)


CheckDisk = Callable[[Threshold, Observation], Awaitable[Mapping[Signal, Observation]]]
_Key = Threshold | tuple[Signal | LimitSignal | RuleSignal, str]


class _Seen(NamedTuple):
    """What was observed: node and pods, which pods the policy is asked about, and the memory alone."""

    snapshot: Snapshot
    pods: Sequence[Pod]
    at_ns: int
    memory: Mapping[Signal, Observation]


class Passes:
    """Makes passes over `known`. Everything runs in Trio's thread.

    `approach` prepares for a crossing that is near: the evictor does, and what is `ahead`; `kernel` has the
    kernel kill at it. `is_powerless`: no pass kills, whatever memory does: in a dry run, and if none of the
    pods of the last pass can be evicted. `is_unfinished`: that pass chose a pod in which no process was, and
    another is to be chosen now, or it evicted for pods' own storage limits although memory is short.

    `populated` returns whether a pod's cgroup has processes. `arm_memory` arms the memory thresholds again by
    the memory signals as just observed. `check_disk` observes the filesystem of a threshold, of which so much
    was reported, before a pod is evicted for it; None: what was reported is enough.
    """

    def __init__(  # noqa: PLR0913 - what a pass goes through
        self,
        settings: EvictionSettings,
        known: Node,
        evictor: Evictor,
        *,
        observer: NodeObserver,
        usages: PodObserver,
        pods: PodList,
        reclaims: Reclaims,
        populated: Callable[[Pod], bool],
        arm_memory: Callable[[Mapping[Signal, Observation]], None],
        oom_source: OomSource,
        oom_kills: PodOomKills,
        check_disk: CheckDisk | None = None,
        ahead: Sequence[Ahead] = (),
        kernel: KernelKills | None = None,
        dry_run: bool = False,
        clock_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self.known = known
        self._settings = dataclasses.replace(settings, rechecks_disks=check_disk is not None)
        self._observer = observer
        self._usages = usages
        self._pod_list = pods
        self._populated = populated
        self._arm_memory = arm_memory
        self._oom_source = oom_source
        self._oom_kills = oom_kills
        self._observe_disk = check_disk
        self._evictor = evictor
        self._kernel = kernel or NoKernelKills()
        self._dry_run = dry_run
        self._clock_seconds = clock_seconds
        known.settings, known.clock_seconds = self._settings, clock_seconds
        self._node_reclaimer = NodeReclaimer(
            self._settings, reclaims, lambda: known.observed.at(clock_seconds())
        )
        self._watches_swap = any(one.signal in SWAP_SIGNALS for one in settings.thresholds)
        self.is_powerless = False
        self.is_unfinished = False
        self._rehearsed = _Rehearsed()
        self._earlier: list[PassRecord] = []
        self.approach = Approach(
            known,
            (evictor, *ahead),
            self._kernel,
            observe=observer.memory,
            usages=usages.memory,
            refresh_pods=self.refresh_pods,
            eligible_pods=self._eligible_pods,
            present_pods=self._present,
            populated=populated,
        )
        usages.track(known.pods)
        self.approach.pods(known.pods)

    def make(self, wakes: Sequence[Wake], firing: Firing | None = None) -> PassRecord:
        """Make one pass for these wakes, or for a rule; a pod that had to die at once is dead on return.

        It is made twice if what it concludes has been observed once, or if it found no process in its pod.
        """
        started_ns = time.monotonic_ns()
        is_repeated = False
        while True:
            self._follow_kernel(wakes)
            now_seconds = self._clock_seconds()
            seen = self._observe_all(wakes, now_seconds, firing)
            state, decision = decide(
                self._settings, self.known.state, seen.snapshot, seen.pods, now_seconds, firing
            )
            if self._kernel.stand_down(self._settings, state, seen.pods, decision):
                continue
            if is_repeated or not decision.again:
                self.known.decided(state)
                record = self._carry_out(decision, seen, wakes, started_ns, arms=True)
                if is_repeated or not self.is_unfinished:
                    break
                self._earlier.append(record)
            is_repeated = True
        if not record.attempts:  # what is left to do of an attempt comes first
            self.approach.after(seen.memory, now_seconds)
        self.is_powerless = self._dry_run or not can_be_evicted(seen.pods)
        if is_housekeeping(wakes):
            self._oom_kills.recount(self.known.pods)
        return record

    def _follow_kernel(self, wakes: Sequence[Wake]) -> None:
        """Evict the pod that the kernel has killed by a decision that it was given: a record of its own."""
        served = self._kernel.served()
        if served is None:
            return
        started_ns, now_seconds = time.monotonic_ns(), self._clock_seconds()
        snapshot = served.at_crossing(Snapshot(signals=self.known.observed.at(now_seconds)))
        decision = dataclasses.replace(served.decision(), at_seconds=now_seconds)
        pods = self._eligible_pods(now_seconds)
        self.known.tell(CrossingServed(snapshot=snapshot, pods=pods))
        seen = _Seen(snapshot=snapshot, pods=pods, at_ns=started_ns, memory={})
        record = self._carry_out(decision, seen, wakes, started_ns, served=served)
        crossed_ns = served.crossed_ns()
        if crossed_ns is not None:
            times = record.times
            times = dataclasses.replace(times, woke_ns=min(times.woke_ns, crossed_ns))
            record = dataclasses.replace(record, times=times)
        self._earlier.append(record)

    def take_earlier(self) -> Sequence[PassRecord]:
        """Return the records that come before that of the last pass, each once.

        They are of what the kernel has killed, and of a pass that was made once more.
        """
        earlier, self._earlier = self._earlier, []
        return earlier

    def _observe_all(self, wakes: Sequence[Wake], now_seconds: float, firing: Firing | None) -> _Seen:
        """Observe the node and its pods, and what victims are giving back."""
        self._observe_left()
        memory, used = consistent(
            lambda: self._observe(wakes, now_seconds),
            lambda: self._observe_pods(wakes, now_seconds, firing),
            is_moving=self._is_moving,
            hard_met=self._hard_met,
        )
        return _Seen(
            snapshot=Snapshot(signals=self.known.observed.at(now_seconds), pods=used),
            pods=self._eligible_pods(now_seconds),
            at_ns=time.monotonic_ns(),
            memory=memory,
        )

    def _is_moving(self) -> bool:
        """Return whether memory is being given back.

        Asked also while there is memory: a kill that is noticed at the next crossing would look fresh then.
        """
        return self._are_victims_dying() or bool(self.known.state.in_flight)

    def usage_of(self, uid: str) -> PodUsage | None:
        """Return what a pod uses of memory now, None where it is gone."""
        return self._usages.of([uid]).get(uid)

    def _hard_met(self, memory: Mapping[Signal, Observation]) -> frozenset[Threshold]:
        return frozenset(
            threshold
            for threshold in thresholds_met(self._settings.thresholds, memory)
            if is_hard_memory(threshold)
        )

    async def give_back(
        self, asked: PassRecord, observe_filesystems: Observe, refresh: Observe | None = None
    ) -> PassRecord:
        """Have the node give back what a pass asked for, observe again, and evict if that was not enough.

        `refresh` observes the filesystems alone, if `observe_filesystems` takes longer than that.
        """
        reclaimed: tuple[Reclaimed, ...] = ()
        if self._dry_run:
            await observe_filesystems()
        else:
            reclaimed = await self._node_reclaimer.run(
                asked.decision, observe_filesystems, refresh or observe_filesystems
            )
            self.known.reclaimed = reclaimed or self.known.reclaimed
        own = await self._check_disk(asked.decision.acted_on)
        started_ns = time.monotonic_ns()
        now_seconds = self._clock_seconds()
        self._kernel.disarm()
        self._observe((), now_seconds)
        used = self._observe_pods((), now_seconds)
        after = Snapshot(signals=self.known.observed.at(now_seconds), pods=used)
        if own is not None:
            others = {signal: one for signal, one in after.signals.items() if signal not in _DISK_SIGNALS}
            after = dataclasses.replace(after, signals={**others, **own})
        pods = self._eligible_pods(now_seconds)
        usages = with_storage(self._usages.full(), self.known.storage.usages(pods), pods)
        shown = asked.snapshot.signals if own is None else {**asked.snapshot.signals, **after.signals}
        before = Snapshot(signals=shown, pods=usages)
        acted_on = dataclasses.replace(after, pods=usages)
        seen = _Seen(snapshot=acted_on, pods=pods, at_ns=time.monotonic_ns(), memory={})
        state, decision = after_reclaim(
            self._settings, self.known.state, asked.decision, before, after, pods, now_seconds
        )
        self.known.decided(state)
        self._acted_on(after.signals, tuple(Resource))
        record = self._carry_out(decision, seen, asked.wakes, started_ns, shown=before)
        times = dataclasses.replace(record.times, woke_ns=asked.times.woke_ns)
        return dataclasses.replace(record, times=times, reclaimed=reclaimed)

    async def _check_disk(self, threshold: Threshold | None) -> Mapping[Signal, Observation] | None:
        """Return what the guard itself observes of a threshold's filesystem; None: it does not look."""
        if self._observe_disk is None or threshold is None:
            return None
        reported = self.known.observed.at(self._clock_seconds()).get(threshold.signal)
        if reported is None:
            return {}
        own = await self._observe_disk(threshold, reported)
        now_seconds = self._clock_seconds()
        self.known.observed.take(own.keys(), own, now_seconds)
        return {signal: one.at(now_seconds) for signal, one in own.items()}

    def refresh_pods(self) -> None:
        """Take over the pods that exist now; only new ones are read."""
        self.set_pods(self._pod_list.refresh())

    def set_pods(self, pods: tuple[Pod, ...]) -> None:
        """Take over a fresh list of pods; a cgroup that vanished and is listed was recreated."""
        if pods != self.known.pods or self._usages.vanished:
            self.known.set_pods(pods)
            self._usages.track(pods)
            self.approach.pods(pods)
        else:  # equal, and from here on the same: a tuple compares those at once
            self.known.pods = pods

    def pod_ended(self, uid: str) -> bool:
        """Record that no process is left in an evicted pod; return whether nothing more is expected of it.

        False if its processes or files are still counted, which the policy goes on crediting.
        """
        state = self.known.state
        resources = {claim.resource for claim in state.in_flight if claim.uid == uid}
        if Resource.PIDS in resources:
            used = self._usages.of([uid], with_processes=True).get(uid)
            if used is not None and used.process_count:
                # What was spared (one process each) stays, and is counted with the pod.
                spared = next((len(pod.spared_cgroups) for pod in self.known.pods if pod.uid == uid), 0)
                if used.process_count > spared:
                    return False
        self.known.tell(PodEmptied(uid=uid))
        if resources & ON_DISK and not self.known.is_freed(uid):
            return False
        self._pod_ended(uid)
        if resources & ON_DISK:
            self.ignore_older_disk_observations()
        return True

    def _pod_ended(self, uid: str) -> None:
        """Expect nothing more of an evicted pod that has ended, but for its files in memory."""
        used = self._usages.of([uid]).get(uid)
        self.known.tell(
            PodEnded(
                uid=uid,
                files_bytes=self._usages.shared_memory_bytes(uid) or 0,
                held_bytes=None if used is None else used.memory_working_set_bytes,
            )
        )

    def _observe_left(self) -> None:
        """Observe which files in memory, left by evicted pods, are still there.

        Page cache that a pod has left is no growth of it.
        """
        left = [one.uid for one in self.known.state.claims if one.uid and one.kind is ClaimKind.FILES]
        if not left:
            return
        usages = self._usages
        used = usages.of(left)
        self.known.tell(
            FilesInMemoryObserved(
                files_bytes={uid: usages.shared_memory_bytes(uid) or 0 for uid in left},
                own_bytes={
                    uid: (one.memory_working_set_bytes or 0) - (usages.active_file_bytes(uid) or 0)
                    for uid, one in used.items()
                },
            )
        )

    def absurd_thresholds(self) -> dict[str, str]:
        """Return which thresholds make no sense at the capacities seen last, and what is done about each."""
        return absurd_thresholds(self._settings.thresholds, self.known.observed.at(self._clock_seconds()))

    def oom_killed(self, kill: OomKill) -> None:
        """Record a kill of the kernel's OOM killer: what its victim gives back is waited for."""
        self._kernel.disarm()
        pod = None if kill.victim_cgroup is None else self.known.pod_in(kill.victim_cgroup)
        if kill.pid is not None:
            self.known.victims.hold(kill.pid)
        self.known.tell(KernelKilled(kill=kill, uid=None if pod is None else pod.uid))

    def ended_cgroups(self) -> tuple[str, ...]:
        """Return the cgroups that evictions have emptied and that are still there."""
        ended = self.known.emptied_among(self._present())
        return tuple(pod.cgroup for pod in ended if pod.cgroup is not None)

    def evictable_cgroups(self, used: Mapping[str, PodUsage]) -> tuple[str, ...]:
        """Return the cgroups of the pods that may be evicted, those that use most first."""
        in_flight = {claim.uid for claim in self.known.state.in_flight}
        pods = [pod for pod in self._present() if pod.critical_because is None and pod.uid not in in_flight]
        held = {uid: one.memory_working_set_bytes or 0 for uid, one in used.items()}
        pods.sort(key=lambda pod: -held.get(pod.uid, 0))
        return tuple(pod.cgroup for pod in pods if pod.cgroup is not None)

    def confirm(self, eviction: Eviction) -> bool:
        """Return whether the node is still short of what an eviction was ordered for, minimum reclaim added.

        Where it is not, the eviction counts as called off. Memory, processes and swap are read afresh; what
        is not observed is no reason to end a pod.
        """
        is_wanted = self._is_wanting(eviction)
        if not is_wanted:
            self.known.called_off(eviction.pod.uid)
        return is_wanted

    def _is_wanting(self, eviction: Eviction) -> bool:
        now_seconds = self._clock_seconds()
        self._observe((), now_seconds)
        if eviction.signal not in MEMORY_SIGNALS:
            self._observe_processes_and_swap(now_seconds)
        thresholds = self._settings.thresholds
        if eviction.threshold in thresholds:
            thresholds = (eviction.threshold,)
        seen = {
            signal: observation
            for signal, observation in self.known.observed.at(now_seconds).items()
            if signal == eviction.signal and observation.absurdity is None
        }
        return bool(thresholds_met(thresholds, seen, with_minimum_reclaim=True))

    def ignore_older_disk_observations(self) -> None:
        """Record that files were removed: what was seen before is nothing to evict the next pod for.

        Nor is an observation that was made before and is still on its way from the steward.
        """
        now_seconds = self._clock_seconds()
        self.known.observed.changed(_DISK_SIGNALS, now_seconds)
        self._acted_on(self.known.observed.at(now_seconds), ON_DISK)

    def _observe(self, wakes: Sequence[Wake], now_seconds: float) -> Mapping[Signal, Observation]:
        memory = self._observer.memory()
        self.known.observed.take(MEMORY_SIGNALS, memory, now_seconds)
        if not _only_memory(wakes):
            self._observe_processes_and_swap(now_seconds)
            if any(wake.kind is WakeKind.HOUSEKEEPING for wake in wakes):
                self._usages.note_swap()
        return memory

    def _observe_processes_and_swap(self, now_seconds: float) -> None:
        self.known.observed.take(PROCESS_SIGNALS, self._observer.processes(), now_seconds)
        if self._watches_swap:
            self.known.observed.take(SWAP_SIGNALS, self._observer.swap(), now_seconds)

    def _observe_pods(
        self, wakes: Sequence[Wake], now_seconds: float, firing: Firing | None = None
    ) -> Mapping[str, PodUsage]:
        """Return what pods use, only if one may have to be chosen: by what was observed, or for a rule."""
        wanting = resources_wanting(self._settings.thresholds, self.known.observed.at(now_seconds))
        usages: Mapping[str, PodUsage] = {}
        if firing is not None and firing.rule.by is RankedBy.SWAP:
            self._usages.note_swap()  # no other pass reads it for a rule
        if wanting or (firing is not None and firing.rule.action in EVICTING):
            # A pod that came since the last housekeeping may be the very one.
            self.refresh_pods()
            # Counting processes takes longer; no pod is chosen by them in a pass that memory woke.
            counted = Resource.PIDS in wanting and not _only_memory(wakes)
            usages = self._usages.full() if counted else self._usages.memory()
        if not _only_memory(wakes):
            # Limits of their own hold for pods whether or not the node is short of anything.
            present = self.known.with_lingering(self._present())
            pods = [pod for pod in present if pod.storage or ON_DISK & wanting]
            usages = with_storage(usages, self.known.storage.usages(pods), pods)
        return usages

    def _are_victims_dying(self) -> bool:
        """Return whether victims of the kernel's were dying until now, and note which of them have exited.

        To be called after memory was observed, which is to be done once more where this is true: what was
        seen before may be of a kill that was not known yet, or from before a victim's exit.
        """
        is_nameless = False
        for kill in self._oom_source.take_now():
            self.oom_killed(kill)
            is_nameless |= kill.pid is None
        if not self.known.state.killed_alone and not is_nameless:
            return False
        self._observe_pods_struck(is_nameless=is_nameless)
        exited = self.known.victims.exited(self.known.state.killed_alone)
        if exited:
            self.known.tell(ProcessesExited(pids=exited))
        return True

    def _observe_pods_struck(self, *, is_nameless: bool) -> None:
        """Record in which pods the kernel has killed without naming the victim, and what those hold.

        It counts an OOM before it chooses a victim, so that the pod may only be found by a later pass.
        """
        if is_nameless or are_unknown(self.known.state):
            struck = self._oom_kills.struck(self.known.pods)
            held = {uid: self._held_by_processes_bytes(uid) for uid in struck}
            known = {uid: held_bytes for uid, held_bytes in held.items() if held_bytes is not None}
            if known and known.keys() == held.keys():
                largest = {
                    pod.uid: self._oom_kills.most_of_one_process(pod, known[pod.uid])
                    for pod in self.known.pods
                    if pod.uid in known
                }
                self.known.tell(PodsStruck(held_bytes=known, largest_bytes=largest))
                return
        pods = struck_pods(self.known.state)
        if pods:
            left = {uid: self._held_by_processes_bytes(uid) for uid in pods}
            self.known.tell(StruckPodsObserved(held_bytes=left))

    def _held_by_processes_bytes(self, uid: str) -> int | None:
        """Return a pod's working set but for its page cache, which no process takes along; None: unreadable.

        0 where it is gone.
        """
        used = self._usages.of([uid]).get(uid)
        if used is None:
            return 0
        if used.memory_working_set_bytes is None:
            return None
        return max(0, used.memory_working_set_bytes - (self._usages.active_file_bytes(uid) or 0))

    def _acted_on(self, seen: Mapping[Signal, Observation], resources: Collection[Resource]) -> None:
        """Take note that these observations have been decided over: the next pass is not to do it again."""
        at = {
            signal: observation.taken_at_seconds
            for signal, observation in seen.items()
            if RESOURCE[signal] in resources
        }
        self.known.tell(ObservationsUsed(taken_at_seconds=at))

    def _eligible_pods(self, now_seconds: float) -> Sequence[Pod]:
        """Return the pods that the policy is asked about; those that linger are in flight, never chosen."""
        return self.known.eligible(self._present(), now_seconds, self._populated)

    def _present(self) -> Sequence[Pod]:
        """Return the known pods but those that were gone when they were read: nothing is left to kill."""
        vanished = self._usages.vanished
        pods = self.known.pods
        if vanished:
            pods = tuple(pod for pod in pods if pod.uid not in vanished)
        return pods

    def is_worth_a_pass(self) -> bool:
        """Return whether a pass now would do what the last one could not; this is asked often.

        If no pod could be evicted, that is so once one can, whatever memory does.
        """
        if self.is_powerless and not self._dry_run:
            self.refresh_pods()
            return can_be_evicted(self._eligible_pods(self._clock_seconds()))
        return self.shortage_has_grown()

    def left_bytes(self) -> int:
        """Return the least that a hard memory threshold's signal had available at the last pass."""
        seen = self.known.observed.at(self._clock_seconds())
        signals = {one.signal for one in self._settings.thresholds if is_hard_memory(one)}
        return min((seen[signal].available for signal in signals if signal in seen), default=0)

    def shortage_has_grown(self) -> bool:
        """Return whether memory has become shorter in a way that is worth a pass.

        The node's counters alone are read: this is asked often.
        """
        before = self.known.observed.at(self._clock_seconds())
        return has_grown(self._settings, self.known.state, before, self._observer.memory())

    def measure_result(self, attempt: EvictionAttempt) -> None:
        """Fill in what came back of an eviction for memory that was carried out, as the node says."""
        eviction = attempt.eviction
        if eviction.resource is not Resource.MEMORY:
            return
        is_by_rule = eviction.threshold is None
        signal = Signal.MEMORY_AVAILABLE if is_by_rule else Signal(eviction.signal)
        seen = self._observer.memory().get(signal)
        if seen is not None and attempt.available_bytes is not None:
            attempt.returned_bytes = seen.available - attempt.available_bytes
        if self._populated(eviction.pod):
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

    def _carry_out(
        self,
        decision: Decision,
        seen: _Seen,
        wakes: Sequence[Wake],
        started_ns: int,
        *,
        arms: bool = False,
        served: Served | None = None,
        shown: Snapshot | None = None,
    ) -> PassRecord:
        """Act on a decision that was just made, and return the record; with `arms` the levels are armed.

        Of one that the kernel has carried out (`served`) the rest is done. `shown` is what the record has as
        observed, if that is not what was `seen` last.
        """
        decided_ns = time.monotonic_ns()
        attempts = self._act(decision, seen.snapshot, seen.pods, served)
        if served is None:
            self._kernel.annotate(attempts)
        if arms:
            self._arm_memory(seen.memory)
        killed = (attempt.killed_ns for attempt in attempts if attempt.killed_ns is not None)
        times = StageTimes(
            woke_ns=min((wake.at_ns for wake in wakes), default=started_ns),
            started_ns=started_ns,
            observed_ns=seen.at_ns,
            decided_ns=decided_ns,
            killed_ns=max(killed, default=None),
            done_ns=time.monotonic_ns(),
        )
        self.known.passes += 1
        return PassRecord(
            id=self.known.passes,
            at_unix_seconds=time.time(),
            wakes=tuple(wakes),
            snapshot=shown or seen.snapshot,
            decision=decision,
            times=times,
            attempts=attempts,
            dry_run=self._dry_run,
        )

    def _act(
        self, decision: Decision, snapshot: Snapshot, pods: Sequence[Pod], served: Served | None
    ) -> tuple[EvictionAttempt, ...]:
        """Begin the evictions of a decision, or what is left to do of one that the kernel has carried out."""
        attempts: list[EvictionAttempt] = []
        self.is_unfinished = False
        ordered_ns = time.monotonic_ns()
        for eviction in self._to_begin(decision):
            if served is None:
                attempt = self._begin(eviction, snapshot)
            else:
                attempt = self._evictor.begin(eviction, by_kernel_ns=served.signalled_ns())
                attempt.served = served.document
            attempts.append(attempt)
            if eviction.resource is Resource.MEMORY:
                is_by_rule = eviction.threshold is None
                signal = Signal.MEMORY_AVAILABLE if is_by_rule else Signal(eviction.signal)
                seen = snapshot.signals.get(signal)
                if attempt.process is None:
                    attempt.credited_bytes = self._held_bytes(eviction.pod.uid, snapshot)
                attempt.available_bytes = None if seen is None else seen.available
            if not self._dry_run:  # in which nothing is freed, nothing is awaited, no pod has ended
                self._record_attempt(attempt, snapshot, pods, ordered_ns)
        # Upstream acts on no threshold in a pass that evicts pods over their own storage limits.
        are_for_limits = bool(attempts) and decision.acted_on is None
        self.is_unfinished |= are_for_limits and any(map(is_hard_memory, decision.thresholds_met))
        return tuple(attempts)

    def _record_attempt(
        self, attempt: EvictionAttempt, snapshot: Snapshot, pods: Sequence[Pod], ordered_ns: int
    ) -> None:
        """Record an eviction that was ordered: what is awaited of it, or why nothing is."""
        eviction = attempt.eviction
        # A kill may take seconds, of a fork bomb: what it brings is waited for from its end on. One that
        # found no process is recorded, too: memory that stays charged to its cgroup shows it was in vain.
        uid = attempt.eviction.pod.uid
        if attempt.process is not None:
            self._acted_on_process(attempt, attempt.process, snapshot, pods)
        elif attempt.outcome is Outcome.FAILED:
            self.known.tell(EvictionFailed(uid=uid, why="; ".join(attempt.problems)))
        else:
            self.known.tell(
                EvictionOrdered(
                    eviction=eviction, snapshot=snapshot, pods=pods, held_bytes=attempt.credited_bytes
                )
            )
            self.known.under_way.began(uid, ordered_ns)
            if attempt.is_empty and eviction.resource not in ON_DISK:
                # No process died, and a pod that comes there later is to be seen as any other.
                now_seconds = self._clock_seconds()
                self.is_unfinished |= is_newly_empty(self.known.state, uid, now_seconds)
                self.known.tell(PodFoundEmpty(uid=uid))
                self._pod_ended(uid)

    def _to_begin(self, decision: Decision) -> Sequence[Eviction]:
        """Return the evictions of a decision; in a dry run those that were not reported for this shortage."""
        if not self._dry_run:
            return decision.evictions
        return self._rehearsed.news(decision, self.known.state, self.known.pods)

    def _begin(self, eviction: Eviction, snapshot: Snapshot) -> EvictionAttempt:
        """Order an eviction, of the whole pod or of one process of it."""
        if not eviction.is_of_one_process:
            return self._evictor.begin(eviction)
        uid, now_seconds = eviction.pod.uid, self._clock_seconds()
        used = snapshot.pods.get(uid)
        used_bytes = None if used is None else used.memory_working_set_bytes
        if used_bytes is not None:
            used_bytes -= dying_bytes(self.known.state, uid)
        kills = self.known.state.process_kills
        return self._evictor.begin(
            eviction,
            used_bytes=used_bytes,
            whole_because=given_up_because(kills, uid, used_bytes, now_seconds),
            counts_shared=counts_shared_memory(kills, uid, used_bytes, now_seconds),
        )

    def _acted_on_process(
        self,
        attempt: EvictionAttempt,
        process: ProcessMemory,
        snapshot: Snapshot,
        pods: Sequence[Pod],
    ) -> None:
        """Take note that one process of a pod was killed, or asked to end; the pod lives on."""
        if attempt.eviction.resource is Resource.MEMORY:
            attempt.credited_bytes = process.resident_bytes
        if attempt.outcome is Outcome.PROCESS_KILLED:
            self.known.victims.hold(process.pid)
        self.known.tell(
            ProcessEvictionOrdered(eviction=attempt.eviction, process=process, snapshot=snapshot, pods=pods)
        )

    def _held_bytes(self, uid: str, snapshot: Snapshot) -> int | None:
        """Return what a pod that was just killed held: as decided on, or what is still to be seen of more."""
        used = (snapshot.pods.get(uid), self._usages.of([uid]).get(uid))
        held = (None if one is None else one.memory_working_set_bytes for one in used)
        return max((held_bytes for held_bytes in held if held_bytes is not None), default=None)


def is_housekeeping(wakes: Sequence[Wake]) -> bool:
    """Return whether a pass is the first one, or for housekeeping."""
    return not wakes or any(wake.kind is WakeKind.HOUSEKEEPING for wake in wakes)


def _only_memory(wakes: Sequence[Wake]) -> bool:
    return all(wake.kind is WakeKind.MEMORY for wake in wakes)


class _Rehearsed:
    """What a dry run has reported: each pod that it would evict, once for one shortage.

    It is remembered until its threshold is not met any more, or its pod has gone.
    """

    def __init__(self) -> None:
        self._reported: set[_Key] = set()

    def news(self, decision: Decision, state: PolicyState, pods: Iterable[Pod]) -> Sequence[Eviction]:
        """Return which evictions of a decision were not reported for this shortage.

        A rule has a cool-down of its own, and is reported each time.
        """
        if self._reported:
            present = {pod.uid for pod in pods}
            self._reported = {key for key in self._reported if _lasts(key, state, present)}
        if decision.rule is not None:
            return decision.evictions
        fresh = [one for one in decision.evictions if _key(one) not in self._reported]
        self._reported.update(map(_key, fresh))
        return fresh


def _key(eviction: Eviction) -> _Key:
    return eviction.threshold or (eviction.signal, eviction.pod.uid)


def _lasts(key: _Key, state: PolicyState, present: set[str]) -> bool:
    return key in state.first_observed if isinstance(key, Threshold) else key[1] in present
