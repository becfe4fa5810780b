"""The policy as the records use it: passes and events, and nothing of how its state is kept.

What an event does to the state is the policy's (reactor/policy/events.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from reactor.model.decisions import Decision, Eviction, Inputs, PolicyState, Snapshot
from reactor.model.kills import OomKill, ProcessMemory
from reactor.model.pods import Pod
from reactor.model.rules import Firing
from reactor.model.settings import EvictionSettings
from reactor.model.signals import Reclaim
from reactor.policy.claims import are_unknown, is_dying, struck_pods
from reactor.policy.decide import after_reclaim, decide
from reactor.policy.events import (
    Event,
    EvictionCalledOff,
    EvictionOrdered,
    FilesInMemoryObserved,
    KernelKilled,
    ObservationsUsed,
    PodEnded,
    PodsStruck,
    ProcessesExited,
    ProcessEvictionOrdered,
    ProcessKilled,
    ProcessOver,
    ReclaimEnded,
    StruckPodsObserved,
    apply,
)
from reactor.policy.rules import decide_firing


class Core:
    """The policy with its state; the caller has the clock."""

    def __init__(self, settings: EvictionSettings) -> None:
        """Begin with nothing known."""
        self.settings = settings
        self._state = PolicyState()

    # Passes.

    def decide(self, snapshot: Snapshot | None, pods: Sequence[Pod], now_seconds: float) -> Decision:
        """Make a pass; its evictions are not ordered yet."""
        self._state, decision = decide(self.settings, self._state, snapshot, pods, now_seconds)
        return decision

    def after_reclaim(
        self,
        decision: Decision,
        before: Snapshot,
        after: Snapshot | None,
        pods: Sequence[Pod],
        now_seconds: float,
    ) -> Decision:
        """Decide again after a reclaim of the node's; what was observed counts as acted on."""
        self._state, again = after_reclaim(
            self.settings, self._state, decision, before, after, pods, now_seconds
        )
        if after is not None:
            seen = {signal: one.taken_at_seconds for signal, one in after.signals.items()}
            self._apply(ObservationsUsed(taken_at_seconds=seen), now_seconds)
        return again

    def fire(
        self, firing: Firing, snapshot: Snapshot, pods: Sequence[Pod], amounts: Mapping[str, int]
    ) -> Decision:
        """Return what a rule that is due does."""
        decision = Decision(
            at_seconds=firing.at_seconds,
            conditions=self._state.conditions,
            thresholds_met=self._state.thresholds_met,
            slowdowns=self._state.slowdowns,
        )
        firing = replace(firing, amounts=amounts)
        inputs = Inputs(self.settings, self._state, snapshot, pods, firing.at_seconds)
        self._state, decision = decide_firing(inputs, decision, firing)
        return decision

    # Events.

    def _apply(self, event: Event, now_seconds: float) -> None:
        self._state = apply(self.settings, self._state, event, now_seconds)

    def eviction_ordered(
        self,
        eviction: Eviction,
        now_seconds: float,
        snapshot: Snapshot,
        pods: Sequence[Pod],
        held_bytes: int | None = None,
    ) -> None:
        """Record that an eviction was ordered; `held_bytes` is what its pod held then."""
        ordered = EvictionOrdered(eviction=eviction, snapshot=snapshot, pods=pods, held_bytes=held_bytes)
        self._apply(ordered, now_seconds)

    def eviction_called_off(self, uid: str) -> None:
        """Record that an eviction was called off."""
        self._apply(EvictionCalledOff(uid=uid), 0.0)

    def process_eviction_ordered(
        self,
        eviction: Eviction,
        process: ProcessMemory,
        now_seconds: float,
        snapshot: Snapshot,
        pods: Sequence[Pod],
    ) -> None:
        """Record that the eviction of one process was ordered, which is killed at once or after its grace."""
        ordered = ProcessEvictionOrdered(eviction=eviction, process=process, snapshot=snapshot, pods=pods)
        self._apply(ordered, now_seconds)

    def process_killed(self, pod: Pod, process: ProcessMemory, now_seconds: float) -> None:
        """Record that a process was killed at the end of its grace period."""
        self._apply(ProcessKilled(pod=pod, process=process), now_seconds)

    def process_over(self, uid: str) -> None:
        """Record that nothing more is done to a process of a pod."""
        self._apply(ProcessOver(uid=uid), 0.0)

    def pod_ended(self, uid: str, files_bytes: int = 0, charged_bytes: int | None = None) -> None:
        """Record that an evicted pod has ended, with its files in memory and what stays charged to it."""
        self._apply(PodEnded(uid=uid, files_bytes=files_bytes, held_bytes=charged_bytes), 0.0)

    def files_observed(self, left_bytes: Mapping[str, int]) -> None:
        """Record what is left of the files in memory of pods that have ended, by uid; none where absent."""
        self._apply(FilesInMemoryObserved(files_bytes=left_bytes, own_bytes={}), 0.0)

    def kernel_killed(self, kill: OomKill, uid: str | None, now_seconds: float) -> None:
        """Record a kill by the kernel's OOM killer."""
        self._apply(KernelKilled(kill=kill, uid=uid), now_seconds)

    def pods_struck(
        self, held_bytes: Mapping[str, int], now_seconds: float, largest_bytes: Mapping[str, int]
    ) -> None:
        """Record in which pods the kernel has killed without naming a victim."""
        self._apply(PodsStruck(held_bytes=held_bytes, largest_bytes=largest_bytes), now_seconds)

    def struck_pods_observed(self, held_bytes: Mapping[str, int | None], now_seconds: float) -> None:
        """Record what pods hold in which the kernel has killed."""
        self._apply(StruckPodsObserved(held_bytes=held_bytes), now_seconds)

    def processes_exited(self, pids: Collection[int]) -> None:
        """Record that killed processes have exited."""
        self._apply(ProcessesExited(pids=frozenset(pids)), 0.0)

    def memory_reclaim_over(self) -> None:
        """Record that a reclaim of memory which no pod holds is over."""
        self._apply(ReclaimEnded(kind=Reclaim.MEMORY), 0.0)

    def soft_reclaim_over(self) -> None:
        """Record that a reclaim before a soft eviction is over."""
        for hold in self._state.holds:
            self._apply(ReclaimEnded(kind=Reclaim.POD_MEMORY, began_seconds=hold.began_seconds), 0.0)

    def rule_reclaim_over(self) -> None:
        """Record that the reclaim by a rule is over."""
        self._apply(ReclaimEnded(kind=Reclaim.RULE), 0.0)

    # What the guard asks before it observes.

    @property
    def expects_a_victim_without_name(self) -> bool:
        """Return whether the kernel has killed, and not even the pod is known."""
        return are_unknown(self._state)

    @property
    def is_dying(self) -> bool:
        """Return whether a pod that was evicted for memory has not ended yet."""
        return is_dying(self._state)

    @property
    def struck(self) -> tuple[str, ...]:
        """Return the pods, by uid, from which memory is expected since the kernel has killed in them."""
        return struck_pods(self._state)
