"""The node as the guard knows it: what outlives a pass, and a reload."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from reactor.guard.termination import UnderWay, Victims
from reactor.guard.usage_facts import UsageFacts
from reactor.kernel.cgroup import CgroupTree
from reactor.model.decisions import ClaimKind, Hold, Ineligible, PolicyState, TimeLeft
from reactor.model.pods import Pod
from reactor.model.settings import EvictionSettings
from reactor.model.signals import Signal
from reactor.model.thresholds import Observed
from reactor.policy.claims import eligible, lingering, with_lingering
from reactor.policy.events import (
    Event,
    PodsInhabited,
    PodsListed,
    ReclaimEnded,
    Restarted,
    apply,
)
from reactor.reclaim.runner import Reclaimed

_ALL_ELIGIBLE: Final = Ineligible()


@dataclass(slots=True, kw_only=True)
class Node:
    """Holds the policy's state and the pods. The state changes by `apply` and by what a pass decided.

    `passes` counts them; `reclaimed` is what the node reclaimed last; `storage` knows what pods take of the
    filesystems; `under_way` when evictions were ordered and came to their end, `victims` whether killed
    processes have exited; `time_left` are the estimates of the moment. What lives again in a pod that
    `is_kept_down` is killed without being chosen: a kubelet that does not know of the eviction starts its
    containers again.
    """

    observed: Observed
    settings: EvictionSettings = dataclasses.field(default_factory=EvictionSettings)
    clock_seconds: Callable[[], float] = time.monotonic
    state: PolicyState = dataclasses.field(default_factory=PolicyState)
    pods: tuple[Pod, ...] = ()
    passes: int = 0
    reclaimed: tuple[Reclaimed, ...] = ()
    storage: UsageFacts = dataclasses.field(default_factory=UsageFacts)
    under_way: UnderWay = dataclasses.field(default_factory=UnderWay)
    victims: Victims = dataclasses.field(default_factory=Victims)
    time_left: Mapping[Signal, TimeLeft] = dataclasses.field(default_factory=dict)
    is_kept_down: Callable[[str], bool] = lambda _: False

    def apply(self, event: Event) -> None:
        self.decided(apply(self.settings, self.state, event, self.clock_seconds()))

    def decided(self, state: PolicyState) -> None:
        """Take over the state that a pass leaves."""
        before, self.state = self.state, state
        if before.claims and before.claims is not state.claims:
            now_ns = time.monotonic_ns()
            for uid in _ending(before) - _ending(state):
                self.under_way.ended(uid, now_ns)

    def restore(self, saved: PolicyState) -> None:
        """Take over the state of an earlier run."""
        self.state = saved
        self.apply(Restarted())
        for uid in _ending(self.state):
            self.under_way.began(uid, 0)

    def reclaim_ended(self, hold: Hold, reclaimed: Reclaimed | None = None) -> None:
        """Record that a reclaim of memory is over, and what it came to (None: it was cancelled)."""
        if reclaimed is not None:
            self.reclaimed = (reclaimed,)
        self.apply(ReclaimEnded(kind=hold.kind, began_seconds=hold.began_seconds))

    def pod_in(self, cgroup: str) -> Pod | None:
        return next((pod for pod in self.pods if pod.cgroup and CgroupTree.holds(pod.cgroup, cgroup)), None)

    def set_pods(self, pods: tuple[Pod, ...]) -> None:
        """Take over a fresh list of pods."""
        self.pods = pods
        if self.state.ineligible != _ALL_ELIGIBLE:
            self.apply(PodsListed(uids=frozenset(pod.uid for pod in pods)))

    def eligible(
        self, pods: Sequence[Pod], now_seconds: float, populated: Callable[[Pod], bool | None]
    ) -> Sequence[Pod]:
        """Return those of these pods that the policy is asked about, and those whose files are awaited.

        `populated` returns whether a process is in a pod, None if that is not known.
        """
        emptied = self.state.ineligible.emptied
        if emptied:
            inhabited = frozenset(
                pod.uid
                for pod in pods
                if pod.uid in emptied and not self.is_kept_down(pod.uid) and populated(pod)
            )
            if inhabited:
                self.apply(PodsInhabited(uids=inhabited))
        return eligible(self.state, pods, now_seconds)

    def emptied_among(self, pods: Sequence[Pod]) -> tuple[Pod, ...]:
        return tuple(pod for pod in pods if pod.uid in self.state.ineligible.emptied)

    @property
    def lingering(self) -> Mapping[str, Pod]:
        return lingering(self.state, self.clock_seconds())

    def with_lingering(self, pods: Sequence[Pod]) -> Sequence[Pod]:
        return with_lingering(self.state, pods, self.clock_seconds())

    def is_freed(self, uid: str) -> bool:
        """Return whether a pod takes nothing more of the filesystems; True if its files are not awaited."""
        pod = self.lingering.get(uid)
        return pod is None or self.storage.is_emptied(pod)


def _ending(state: PolicyState) -> set[str]:
    return {claim.uid for claim in state.claims if claim.uid and claim.kind is ClaimKind.POD}
