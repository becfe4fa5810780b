"""The node as the guard knows it: what outlives a pass, and a reload."""

from __future__ import annotations

import dataclasses
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from reactor.guard.oom_victims import OomVictims
from reactor.guard.told_storage import ToldStorage
from reactor.model.decisions import ClaimKind, PolicyState
from reactor.model.pods import FilesystemUsage, Pod, PodUsage
from reactor.model.rules import Acts
from reactor.model.settings import EvictionSettings
from reactor.observe.latest import Observed
from reactor.policy import apply
from reactor.policy.eligibility import eligible, lingering, with_lingering
from reactor.policy.events import Event, EvictionCalledOff, PodsInhabited, PodsListed, Restarted
from reactor.reclaim.runner import Reclaimed

_KEPT: Final = 256


class UnderWay:
    """When evictions were ordered and when they came to their end, the last few hundred of them, by uid.

    Instants are on CLOCK_MONOTONIC in ns. A report of what happened to a pod may come only after its eviction
    has come to its end, or before a report of the kernel's own kill.
    """

    def __init__(self) -> None:
        self._spans: OrderedDict[str, tuple[int, int | None]] = OrderedDict()

    def began(self, uid: str, at_ns: int) -> None:
        """Record that an eviction was ordered; one that is under way goes on."""
        before = self._spans.get(uid)
        if before is not None and before[1] is None:
            return
        self._spans[uid] = (at_ns, None)
        self._spans.move_to_end(uid)
        while len(self._spans) > _KEPT:
            self._spans.popitem(last=False)

    def ended(self, uid: str, at_ns: int) -> None:
        """Record that nothing more is expected of an eviction."""
        before = self._spans.get(uid)
        if before is not None and before[1] is None:
            self._spans[uid] = (before[0], at_ns)

    def at(self, uid: str, at_ns: int) -> bool:
        """Return whether the pod was being evicted at that moment."""
        began_ns, ended_ns = self._spans.get(uid, (None, None))
        return began_ns is not None and began_ns <= at_ns and (ended_ns is None or at_ns <= ended_ns)


@dataclass(slots=True, kw_only=True)
class Node:
    """Holds the policy's state and the pods. The state changes by `tell` and by what a pass decided.

    `passes` counts them; `reclaimed` is what the node gave back last; `storage` knows what pods take of the
    filesystems; `under_way` when evictions were ordered and came to their end, `oom_victims` whether killed
    processes have exited; `rules_acted` how each rule acted last, by its name. What lives again in a pod that
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
    storage: ToldStorage = dataclasses.field(default_factory=ToldStorage)
    under_way: UnderWay = dataclasses.field(default_factory=UnderWay)
    oom_victims: OomVictims = dataclasses.field(default_factory=OomVictims)
    rules_acted: dict[str, Acts] = dataclasses.field(default_factory=dict)
    is_kept_down: Callable[[str], bool] = lambda _: False

    def tell(self, event: Event) -> None:
        """Take over what an event does to the state."""
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
        self.tell(Restarted())
        for uid in _ending(self.state):
            self.under_way.began(uid, 0)

    def called_off(self, uid: str) -> None:
        """Record that an eviction was called off: nothing is expected of its pod."""
        self.tell(EvictionCalledOff(uid=uid))

    def set_pods(self, pods: tuple[Pod, ...]) -> None:
        """Take over a fresh list of pods."""
        self.pods = pods
        self.tell(PodsListed(uids=frozenset(pod.uid for pod in pods)))

    def eligible(
        self, pods: Sequence[Pod], now_seconds: float, populated: Callable[[Pod], bool]
    ) -> Sequence[Pod]:
        """Return those of these pods that the policy is asked about, and those whose files are awaited.

        `populated` returns whether a process is in a pod.
        """
        emptied = self.state.ineligible.emptied
        if emptied:
            inhabited = frozenset(
                pod.uid
                for pod in pods
                if pod.uid in emptied and not self.is_kept_down(pod.uid) and populated(pod)
            )
            if inhabited:
                self.tell(PodsInhabited(uids=inhabited))
        return eligible(self.state, pods, now_seconds)

    def emptied_among(self, pods: Sequence[Pod]) -> tuple[Pod, ...]:
        """Return which of these pods an eviction has emptied."""
        return tuple(pod for pod in pods if pod.uid in self.state.ineligible.emptied)

    @property
    def lingering(self) -> Mapping[str, Pod]:
        """The pods that were evicted for a filesystem and whose files are awaited, by uid."""
        return lingering(self.state, self.clock_seconds())

    def with_lingering(self, pods: Sequence[Pod]) -> Sequence[Pod]:
        """Return these pods and those whose files are awaited."""
        return with_lingering(self.state, pods, self.clock_seconds())

    def is_freed(self, uid: str) -> bool:
        """Return whether a pod took something of the filesystems and does so no more; True if not awaited.

        For a pod that is not known to have taken anything this can't be told. Others are spared meanwhile, so
        that not all of them go for what none of them holds.
        """
        pod = self.lingering.get(uid)
        if pod is None:
            return True
        if self.storage.is_held(uid):
            return False
        used = self.storage.usages([pod]).get(uid)
        # Of a count under way less may have been found than there is.
        is_known = bool(pod.storage) and used is not None and self.storage.is_whole(pod)
        return used is not None and is_known and not any(map(_takes, _places(used)))


def _ending(state: PolicyState) -> set[str]:
    """Return the pods whose end is awaited, by uid."""
    return {claim.uid for claim in state.claims if claim.uid and claim.kind is ClaimKind.POD}


def _places(used: PodUsage) -> Iterator[FilesystemUsage]:
    yield from used.volumes.values()
    for container in used.containers:
        yield from (one for one in (container.rootfs, container.logs) if one is not None)


def _takes(usage: FilesystemUsage) -> bool:
    """Return whether there is more than the directory itself, which is left of a volume that was emptied."""
    return (usage.inodes_used or 0) > 1
