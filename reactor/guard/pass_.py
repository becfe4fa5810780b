"""The pass: observe fresh, decide, act, re-arm.

From the wake to the kill everything is synchronous and reads nothing but kernel counters: no await, no
thread, no disk, no log line, no metric, no garbage collection stands between the two. All of that follows.
The pass of a memory wake is made at once, in the task of the source that woke (sources/wakes.py). The loop
has those of all others made (loop.py).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import trio

from reactor.act.reap import let_die
from reactor.guard.ahead import Served
from reactor.guard.approach import Approach, LastStretch
from reactor.guard.endings import Results
from reactor.guard.evictor import Evictor
from reactor.guard.observations import Observations, Seen, is_housekeeping
from reactor.guard.record import EvictionAttempt, PassRecord, StageTimes
from reactor.guard.recorder import OnPass, Rehearsed
from reactor.link.documents import Outcome
from reactor.model.decisions import Decision, Eviction, Inputs, PolicyState, Snapshot
from reactor.model.kills import ProcessMemory
from reactor.model.pods import Pod, working_set_bytes
from reactor.model.rules import Firing
from reactor.model.signals import DISK_SIGNALS, MEMORY_SIGNALS, ON_DISK, Resource, Signal
from reactor.model.thresholds import Observation, Threshold
from reactor.model.wakes import Wake
from reactor.observe.storage import with_storage
from reactor.policy.attention import Pace
from reactor.policy.claims import dying_bytes, is_newly_empty
from reactor.policy.decide import after_reclaim, decide, with_whole_ranking
from reactor.policy.events import (
    CrossingServed,
    EvictionFailed,
    EvictionOrdered,
    PodEmptied,
    ProcessEvictionOrdered,
)
from reactor.policy.process_victims import counts_shared_memory, given_up_because
from reactor.policy.rank import can_be_evicted
from reactor.policy.thresholds import is_hard_memory
from reactor.reclaim.reclaims import Reclaims
from reactor.reclaim.runner import NodeReclaimer, Observe, Reclaimed
from reactor.sources.levels import MemoryLevel, MemoryLevels

RULES: Final = "rules"
# To observe and to decide takes 1 to 2 ms with 1,000 pods.
_OLD_SECONDS: Final = 0.004
_STALE_SECONDS: Final = 0.02

CheckDisk = Callable[[Threshold, Observation], Awaitable[Mapping[Signal, Observation]]]


@dataclass(eq=False, kw_only=True)
class Passes:
    """Makes passes over a node by its `settings`. Everything runs in Trio's thread.

    `approach` prepares for a crossing that is near. `is_powerless`: no pass kills, whatever memory does: in a
    dry run, and if none of the pods of the last pass can be evicted. `is_unfinished`: that pass chose a pod
    in which no process was, and another is to be chosen now, or it evicted for pods' own storage limits
    although memory is short.

    `arm_memory` arms the memory thresholds again by the memory signals as just observed, and returns the
    levels of hard thresholds, without those ahead of one: the `crossings`. `check_disk` observes the
    filesystem of a threshold, of which so much was reported, before a pod is evicted for it; None: what was
    reported is enough.
    """

    observations: Observations
    evictor: Evictor
    reclaims: Reclaims
    arm_memory: Callable[[Mapping[Signal, Observation]], Sequence[MemoryLevel]]
    check_disk: CheckDisk | None = None
    dry_run: bool = False
    crossings: Sequence[MemoryLevel] = ()
    is_powerless: bool = False
    is_unfinished: bool = False

    def __post_init__(self) -> None:
        self.known = known = self.observations.node
        self._clock_seconds = known.clock_seconds
        self._node_reclaimer = NodeReclaimer(
            known.settings, self.reclaims, lambda: known.observed.at(known.clock_seconds())
        )
        self._rehearsed = Rehearsed()
        self._earlier: list[PassRecord] = []
        self.results = Results(self.observations)
        self.approach = Approach(self.observations)

    def make(self, wakes: Sequence[Wake], firing: Firing | None = None) -> PassRecord:
        """Make one pass for these wakes, or for a rule; a pod that had to die at once is dead on return.

        It is made twice if what it concludes was observed once or too long ago, or if its pod had no process.
        """
        started_ns = time.monotonic_ns()
        is_repeated = False
        while True:
            self._follow_kernel(wakes)
            now_seconds = self._clock_seconds()
            seen = self.observations.observe(wakes, now_seconds, firing)
            state, decision = self._decided(seen, now_seconds, firing)
            if self.observations.kernel.stand_down(self.known.settings, state, seen.pods, decision):
                continue
            if is_repeated or not (decision.again or self._is_stale(decision, seen)):
                self.known.decided(state)
                record = self._carry_out(decision, seen, wakes, started_ns, arms=True)
                if is_repeated or not self.is_unfinished:
                    break
                self._earlier.append(record)
            is_repeated = True
        if not record.attempts:  # what is left to do of an attempt comes first
            self.approach.after(seen.memory, now_seconds)
        self.is_powerless = self.dry_run or not can_be_evicted(seen.pods)
        if is_housekeeping(wakes):
            self.observations.oom_kills.recount(self.known.pods)
        return replace(record, is_repeated=is_repeated)

    def _decided(self, seen: Seen, now_seconds: float, firing: Firing | None) -> tuple[PolicyState, Decision]:
        """Return what is decided; a dry run that has reported all pods over own limits goes on without."""
        inputs = self.known.state, seen.snapshot, seen.pods, now_seconds, firing, seen.due
        state, decision = decide(self.known.settings, *inputs)
        if decision.acted_on is None and self._rehearsed.has_reported(decision.evictions):
            settings = replace(self.known.settings, local_storage_capacity_isolation=False)
            return decide(settings, *inputs)
        return state, decision

    def _is_stale(self, decision: Decision, seen: Seen) -> bool:
        """Return whether a pod would be evicted by what was observed too long ago.

        The guard may be held up in any line: by SIGSTOP, the hypervisor, a suspend, a CPU that another has.
        What the node was short of may be there again by then: the node is read once more, and after a while
        its pods too, of which another may be the first.
        """
        age_seconds = self._clock_seconds() - seen.node_at_seconds
        if not decision.evictions or age_seconds <= _OLD_SECONDS:
            return False
        memory = (one for one in decision.evictions if one.signal in MEMORY_SIGNALS)
        return age_seconds > _STALE_SECONDS or not all(map(self.observations.is_wanting, memory))

    def _follow_kernel(self, wakes: Sequence[Wake]) -> None:
        """Evict the pod that the kernel has killed by a decision that it was given: a record of its own."""
        served = self.observations.kernel.served()
        if served is None:
            return
        started_ns, now_seconds = time.monotonic_ns(), self._clock_seconds()
        snapshot = served.at_crossing(Snapshot(signals=self.known.observed.at(now_seconds)))
        decision = served.decision()._replace(at_seconds=now_seconds)
        pods = self.observations.eligible_pods(now_seconds)
        self.known.apply(CrossingServed(snapshot=snapshot, pods=pods))
        seen = Seen(snapshot=snapshot, pods=pods, at_ns=started_ns, memory={})
        record = self._carry_out(decision, seen, wakes, started_ns, served=served)
        crossed_ns, times = served.crossed_ns(), record.times
        if crossed_ns is not None:
            times = replace(times, woke_ns=min(times.woke_ns, crossed_ns))
        self._earlier.append(replace(record, times=times))

    def take_earlier(self) -> Sequence[PassRecord]:
        """Return the records that come before that of the last pass, each once.

        They are of what the kernel has killed, and of a pass that was made once more.
        """
        earlier, self._earlier = self._earlier, []
        return earlier

    async def reclaim(
        self, asked: PassRecord, observe_filesystems: Observe, refresh: Observe | None = None
    ) -> PassRecord:
        """Have the node reclaim what a pass asked for, observe again, and evict if that was not enough.

        `refresh` observes the filesystems alone, if `observe_filesystems` takes longer than that.
        """
        reclaimed: tuple[Reclaimed, ...] = ()
        if self.dry_run:
            await observe_filesystems()
        else:
            reclaimed = await self._node_reclaimer.run(
                asked.decision, observe_filesystems, refresh or observe_filesystems
            )
            self.known.reclaimed = reclaimed or self.known.reclaimed
        own = await self._check_disk(asked.decision.acted_on)
        started_ns = time.monotonic_ns()
        now_seconds = self._clock_seconds()
        self.observations.kernel.far()
        self.observations.observe_node((), now_seconds)
        used = self.observations.observe_pods((), now_seconds)
        after = Snapshot(signals=self.known.observed.at(now_seconds), pods=used)
        if own is not None:
            others = {signal: one for signal, one in after.signals.items() if signal not in DISK_SIGNALS}
            after = after._replace(signals={**others, **own})
        pods = self.observations.eligible_pods(now_seconds)
        usages = with_storage(self.observations.usages.full(), self.known.storage.usages(pods), pods)
        shown = asked.snapshot.signals if own is None else {**asked.snapshot.signals, **after.signals}
        before = Snapshot(signals=shown, pods=usages)
        seen = Seen(snapshot=after._replace(pods=usages), pods=pods, at_ns=time.monotonic_ns(), memory={})
        state, decision = after_reclaim(
            self.known.settings, self.known.state, asked.decision, before, after, pods, now_seconds
        )
        self.known.decided(state)
        self.results.used(after.signals, tuple(Resource))
        record = self._carry_out(decision, seen, asked.wakes, started_ns, shown=before)
        times = replace(record.times, woke_ns=asked.times.woke_ns)
        return replace(record, times=times, reclaimed=reclaimed)

    async def _check_disk(self, threshold: Threshold | None) -> Mapping[Signal, Observation] | None:
        """Return what the guard itself observes of a threshold's filesystem; None: not observed."""
        if self.check_disk is None or threshold is None:
            return None
        reported = self.known.observed.at(self._clock_seconds()).get(threshold.signal)
        if reported is None:
            return {}
        own = await self.check_disk(threshold, reported)
        now_seconds = self._clock_seconds()
        self.known.observed.take(own.keys(), own, now_seconds)
        return {signal: one.at(now_seconds) for signal, one in own.items()}

    def is_worth_a_pass(self) -> bool:
        """Return whether a pass now would do what the last one could not; this is asked often.

        If no pod could be evicted, that is so once one can, whatever memory does.
        """
        if self.is_powerless and not self.dry_run:
            self.observations.refresh_pods()
            return can_be_evicted(self.observations.eligible_pods(self._clock_seconds()))
        return self.observations.shortage_has_grown()

    def _carry_out(
        self,
        decision: Decision,
        seen: Seen,
        wakes: Sequence[Wake],
        started_ns: int,
        *,
        arms: bool = False,
        served: Served | None = None,
        shown: Snapshot | None = None,
    ) -> PassRecord:
        """Act on a decision that was just made, and return the record; with `arms` the levels are armed.

        Of one that the kernel has carried out (`served`) what is left is done. `shown` is what the record has
        as observed, if that is not what was `seen` last.
        """
        decided_ns, state = time.monotonic_ns(), self.known.state
        self.is_unfinished = False
        fresh = self._rehearsed.news(decision, state, self.known.pods) if self.dry_run else decision.evictions
        attempts = [self._begun(one, seen.snapshot, served) for one in fresh]
        if killed := [attempt.killed_ns for attempt in attempts if attempt.killed_ns is not None]:
            let_die()  # once, however many were killed: another crossing waits meanwhile
        for attempt in attempts:
            if served is None and is_hard_memory(attempt.eviction.threshold):
                attempt.not_served_because = self.observations.kernel.why_not_served()
        if arms:  # before anything that takes its time
            self.crossings = self.arm_memory(seen.memory)
            self.observations.kernel.levels(self.crossings)
            self.observations.doubt_cache(wakes, seen.memory)
        self.observations.report_pods()
        if seen.snapshot.bounds and (attempts or decision.ranking or decision.soft_reclaim is not None):
            seen = self.observations.complete(seen)
            inputs = Inputs(self.known.settings, state, seen.snapshot, seen.pods, decision.at_seconds)
            decision = with_whole_ranking(inputs, decision)
        self._record_attempts(attempts, decision, seen, decided_ns)
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
            attempts=tuple(attempts),
            dry_run=self.dry_run,
        )

    def _begun(self, eviction: Eviction, snapshot: Snapshot, served: Served | None) -> EvictionAttempt:
        """Begin an eviction, or what is left to do of one that the kernel has carried out."""
        if served is None:
            attempt = self._begin(eviction, snapshot)
        else:
            attempt = self.evictor.begin(eviction, by_kernel_ns=served.signalled_ns())
            attempt.served = served.document
        if eviction.resource is Resource.MEMORY:
            is_by_rule = eviction.threshold is None
            signal = Signal.MEMORY_AVAILABLE if is_by_rule else Signal(eviction.signal)
            memory = snapshot.signals.get(signal)
            if attempt.process is None:
                attempt.credited_bytes = self.observations.held_bytes(eviction.pod.uid, snapshot)
            attempt.available_bytes = None if memory is None else memory.available
        return attempt

    def _record_attempts(
        self, attempts: Sequence[EvictionAttempt], decision: Decision, seen: Seen, ordered_ns: int
    ) -> None:
        if not self.dry_run:  # in which nothing is freed, nothing is awaited, no pod has ended
            for attempt in attempts:
                self._record_attempt(attempt, seen.snapshot, seen.pods, ordered_ns)
        # Upstream acts on no threshold in a pass that evicts pods over their own storage limits.
        are_for_limits = bool(attempts) and decision.acted_on is None
        self.is_unfinished |= are_for_limits and any(map(is_hard_memory, decision.thresholds_met))

    def _record_attempt(
        self, attempt: EvictionAttempt, snapshot: Snapshot, pods: Sequence[Pod], ordered_ns: int
    ) -> None:
        """Record an eviction that was ordered: what is awaited of it, or why nothing is."""
        eviction = attempt.eviction
        # A kill may take seconds, of a fork bomb: what it brings is waited for from its end on. One that
        # found no process is recorded, too: memory that stays charged to its cgroup shows it was in vain.
        uid, held_bytes = eviction.pod.uid, attempt.credited_bytes
        if attempt.process is not None:
            self._acted_on_process(attempt, attempt.process, snapshot, pods)
        elif attempt.outcome is Outcome.FAILED:
            self.known.apply(EvictionFailed(uid=uid, why="; ".join(attempt.problems)))
        else:
            self.known.apply(
                EvictionOrdered(eviction=eviction, snapshot=snapshot, pods=pods, held_bytes=held_bytes)
            )
            self.known.under_way.began(uid, ordered_ns)
            if attempt.is_empty and eviction.resource not in ON_DISK:
                # No process died, and a pod that comes there later is to be seen as any other.
                now_seconds = self._clock_seconds()
                self.is_unfinished |= is_newly_empty(self.known.state, uid, now_seconds)
                self.known.apply(PodEmptied(uid=uid, was_found=True))
                self.results.record_end(uid)

    def _begin(self, eviction: Eviction, snapshot: Snapshot) -> EvictionAttempt:
        if not eviction.is_of_one_process:
            return self.evictor.begin(eviction)
        uid, now_seconds = eviction.pod.uid, self._clock_seconds()
        used_bytes = working_set_bytes(snapshot.pods, uid)
        if used_bytes is not None:
            used_bytes -= dying_bytes(self.known.state, uid)
        kills = self.known.state.process_kills
        return self.evictor.begin(
            eviction,
            used_bytes=used_bytes,
            whole_because=given_up_because(kills, uid, used_bytes, now_seconds),
            counts_shared=counts_shared_memory(kills, uid, used_bytes, now_seconds),
        )

    def _acted_on_process(
        self, attempt: EvictionAttempt, process: ProcessMemory, snapshot: Snapshot, pods: Sequence[Pod]
    ) -> None:
        """Record that one process of a pod was killed, or asked to end; the pod lives on."""
        if attempt.eviction.resource is Resource.MEMORY:
            attempt.credited_bytes = process.resident_bytes
        if attempt.outcome is Outcome.PROCESS_KILLED:
            self.known.victims.hold(process.pid)
        self.known.apply(
            ProcessEvictionOrdered(eviction=attempt.eviction, process=process, snapshot=snapshot, pods=pods)
        )


class WakePasses:
    """Makes the passes of one configuration. `begin_reclaims` starts what a decision reclaims.

    `after_pass` are called with the record of each pass, once it is over.
    """

    def __init__(
        self, passes: Passes, levels: MemoryLevels, begin_reclaims: OnPass, *after_pass: OnPass
    ) -> None:
        self.pace = Pace()
        self.nursery: trio.Nursery | None = None
        self.on_pass: OnPass = lambda _: None
        self._passes = passes
        self._begin_reclaims = begin_reclaims
        self.after_pass: Sequence[OnPass] = after_pass
        self._last_stretch = LastStretch(levels, passes.approach)

    def begin(self, nursery: trio.Nursery, on_pass: OnPass) -> None:
        """Record passes by `on_pass`, and end by an error in one what runs in the nursery."""
        self.nursery, self.on_pass = nursery, on_pass

    def on_memory_wake(self, taken: tuple[Wake, ...], reclaimed: tuple[Reclaimed, ...] = ()) -> None:
        """Make a pass in the task of the source that woke; what goes wrong in it is not its fault.

        If it was an early wake, the crossing may follow at once, and is attended to here too: the kernel
        reports none while what crosses does not run.
        """
        try:
            record = self.run_pass(taken, reclaimed)
            passes, wake = self._passes, taken[0]
            if (crossed := self._last_stretch.watch(passes.crossings)) is not None:
                wake = replace(wake, signal=crossed.signal)
            elif record.attempts or not passes.approach.is_near or not passes.is_worth_a_pass():
                return
            self.run_pass((replace(wake, at_ns=time.monotonic_ns()),))
        except Exception as error:
            if self.nursery is None:
                raise
            self.nursery.start_soon(_raise, error)  # where it ends the loop

    def run_pass(
        self, taken: Sequence[Wake], reclaimed: tuple[Reclaimed, ...] = (), firing: Firing | None = None
    ) -> PassRecord:
        """Make a pass, record it, and begin what it reclaims; who has it made for a rule does so for that."""
        record = self._passes.make(taken, firing)
        if not record.attempts:
            self.pace.pass_seconds = (time.monotonic_ns() - record.times.started_ns) / 1e9
        if reclaimed:
            record = replace(record, reclaimed=reclaimed)
        for one in (*self._passes.take_earlier(), record):
            if one.decision.rule_reclaim is None:
                self.on_pass(one)
            self._begin_reclaims(one)
        for hook in self.after_pass:
            hook(record)
        return record


async def _raise(error: Exception) -> None:
    raise error
