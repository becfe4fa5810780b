"""The policy as the records use it: passes and events, and nothing of how its state is kept.

What an event does to the state is what the guard does with it (reactor/guard/passes.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from reactor.model.decisions import Decision, Eviction, PolicyState, Snapshot
from reactor.model.oom import OomKill
from reactor.model.pods import Pod
from reactor.model.processes import ProcessMemory
from reactor.model.rules import Firing
from reactor.model.settings import EvictionSettings
from reactor.model.signals import Resource
from reactor.policy import after_reclaim, decide, record_eviction, record_oom_kill
from reactor.policy.in_flight import is_dying
from reactor.policy.oom_victims import are_unknown, found_in_pods, with_held_by_pods
from reactor.policy.process_victims import killed_process, landed_process, record_process_eviction
from reactor.policy.rules import decide_firing
from reactor.policy.storm import with_left


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
            self._state = replace(self._state, observed_at={**self._state.observed_at, **seen})
        return again

    def fire(
        self, firing: Firing, snapshot: Snapshot, pods: Sequence[Pod], amounts: Mapping[str, int]
    ) -> Decision:
        """Return what a rule that is due does."""
        return decide_firing(self.settings, self._state, firing, snapshot, pods, amounts)

    # Events.

    def eviction_ordered(
        self,
        eviction: Eviction,
        now_seconds: float,
        snapshot: Snapshot,
        pods: Sequence[Pod],
        held_bytes: int | None = None,
    ) -> None:
        """Record that an eviction was ordered; `held_bytes` is what its pod held then."""
        self._state = record_eviction(
            self.settings,
            self._state,
            eviction,
            now_seconds,
            snapshot=snapshot,
            pods=pods,
            held_bytes=held_bytes,
        )

    def eviction_called_off(self, uid: str) -> None:
        """Record that an eviction was called off."""
        flights = tuple(one for one in self._state.in_flight if one.uid != uid)
        self._state = replace(self._state, in_flight=flights)

    def process_eviction_ordered(
        self,
        eviction: Eviction,
        process: ProcessMemory,
        now_seconds: float,
        snapshot: Snapshot,
        pods: Sequence[Pod],
    ) -> None:
        """Record that the eviction of one process was ordered, which is killed at once or after its grace."""
        self._state = record_process_eviction(
            self.settings, self._state, eviction, process, now_seconds, snapshot=snapshot, pods=pods
        )

    def process_killed(self, pod: Pod, process: ProcessMemory, now_seconds: float) -> None:
        """Record that a process was killed at the end of its grace period."""
        self._state = killed_process(self.settings, self._state, pod, process, now_seconds)

    def process_over(self, uid: str) -> None:
        """Record that nothing more is done to a process of a pod."""
        self._state = landed_process(self._state, uid)

    def pod_ended(self, uid: str, files_bytes: int = 0, charged_bytes: int | None = None) -> None:
        """Record that an evicted pod has ended, with its files in memory and what stays charged to it."""
        flights = []
        for flight in self._state.in_flight:
            if flight.uid != uid:
                flights.append(flight)
            elif flight.resource is Resource.MEMORY and files_bytes:
                flights.append(replace(flight, left_bytes=files_bytes))
        self._state = replace(self._state, in_flight=tuple(flights))
        if charged_bytes is not None:
            self._state = with_left(self._state, uid, charged_bytes)

    def files_observed(self, left_bytes: Mapping[str, int]) -> None:
        """Record what is left of the files in memory of pods that have ended, by uid; none where absent."""
        flights = []
        for flight in self._state.in_flight:
            if flight.left_bytes is None:
                flights.append(flight)
            elif left_bytes.get(flight.uid):
                now_left = min(flight.left_bytes, left_bytes[flight.uid])
                flights.append(replace(flight, left_bytes=now_left))
        self._state = replace(self._state, in_flight=tuple(flights))

    def kernel_killed(self, kill: OomKill, uid: str | None, now_seconds: float) -> None:
        """Record a kill by the kernel's OOM killer."""
        self._state = record_oom_kill(self.settings, self._state, kill, uid, now_seconds)

    def pods_struck(
        self, held_bytes: Mapping[str, int], now_seconds: float, largest_bytes: Mapping[str, int]
    ) -> None:
        """Record in which pods the kernel has killed without naming a victim."""
        evicted = [one.uid for one in self._state.in_flight if one.resource is Resource.MEMORY]
        self._state = found_in_pods(
            self.settings, self._state, held_bytes, evicted, now_seconds, largest_bytes
        )

    def struck_pods_observed(self, held_bytes: Mapping[str, int | None], now_seconds: float) -> None:
        """Record what pods hold in which the kernel has killed."""
        self._state = with_held_by_pods(self._state, held_bytes, now_seconds)

    def processes_exited(self, pids: Collection[int]) -> None:
        """Record that killed processes have exited."""
        victims = tuple(one for one in self._state.oom_victims if one.pid not in pids)
        self._state = replace(self._state, oom_victims=victims)

    def memory_reclaim_over(self) -> None:
        """Record that a reclaim of memory which no pod holds is over."""
        reclaim = self._state.memory_reclaim
        if reclaim is not None:
            self._state = replace(self._state, memory_reclaim=replace(reclaim, is_over=True))

    def soft_reclaim_over(self) -> None:
        """Record that a reclaim before a soft eviction is over."""
        reclaim = self._state.soft_reclaim
        if reclaim is not None:
            self._state = replace(self._state, soft_reclaim=replace(reclaim, is_over=True))

    def rule_reclaim_began(self, until_seconds: float) -> None:
        """Record that a rule reclaims memory, until then at the most."""
        self._state = replace(self._state, rule_reclaim_until_seconds=until_seconds)

    def rule_reclaim_over(self) -> None:
        """Record that the reclaim by a rule is over."""
        self._state = replace(self._state, rule_reclaim_until_seconds=None)

    # What the guard asks before it observes.

    @property
    def expects_a_victim_without_name(self) -> bool:
        """Return whether the kernel has killed, and not even the pod is known."""
        return are_unknown(self._state.oom_victims)

    @property
    def is_dying(self) -> bool:
        """Return whether a pod that was evicted for memory has not ended yet."""
        return is_dying(self._state)

    @property
    def struck(self) -> tuple[str, ...]:
        """Return the pods, by uid, from which memory is expected since the kernel has killed in them."""
        victims = self._state.oom_victims
        return tuple(one.uid for one in victims if one.left_bytes and one.uid is not None)
