"""The node as the guard knows it: what outlives a pass, and a reload."""

from __future__ import annotations

import dataclasses
import os
import select
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from reactor.guard.usage_facts import UsageFacts
from reactor.kernel.cgroup import CgroupTree
from reactor.model.decisions import Claim, ClaimKind, Ineligible, PolicyState, TimeLeft
from reactor.model.kills import ProcessMemory
from reactor.model.pods import Pod
from reactor.model.settings import EvictionSettings
from reactor.model.signals import Reclaim, Signal
from reactor.model.thresholds import Observed
from reactor.policy.claims import eligible, lingering, with_lingering
from reactor.policy.events import (
    EndingObserved,
    Event,
    EvictionCalledOff,
    PodsInhabited,
    PodsListed,
    ProcessKilled,
    ReclaimEnded,
    Restarted,
    apply,
)
from reactor.reclaim.runner import Reclaimed

_ALL_ELIGIBLE: Final = Ineligible()
_KEPT: Final = 256  # evictions
_NONE: Final = -1


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


class Victims:
    """Holds a pidfd of each killed process, by its id: whether it has exited. Nothing waits or raises.

    A pidfd taken after the kill may be that of a later process of the same number, or can't be had though
    the victim is there: such a victim is waited for until the policy gives it up.
    """

    def __init__(self) -> None:
        self._pidfds: dict[int, int] = {}

    def hold(self, pid: int) -> None:
        """Hold a victim; a second time is harmless."""
        if pid not in self._pidfds:
            try:
                self._pidfds[pid] = os.pidfd_open(pid)
            except ProcessLookupError:
                return  # it has exited already
            except OSError:
                self._pidfds[pid] = _NONE

    def exited(self, victims: Sequence[Claim]) -> frozenset[int]:
        """Return which of these victims have exited, and let go of all others than these.

        The memory of a process is freed before it counts as exited.
        """
        wanted = {victim.pid for victim in victims if victim.pid is not None}
        for pid in self._pidfds.keys() - wanted:
            _close(self._pidfds.pop(pid))
        poll = select.poll()
        for fd in self._pidfds.values():
            if fd != _NONE:
                poll.register(fd, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(0)}
        return frozenset(pid for pid in wanted if pid not in self._pidfds or self._pidfds[pid] in ready)

    def close(self) -> None:
        """Close every descriptor. Harmless when repeated."""
        while self._pidfds:
            _close(self._pidfds.popitem()[1])


def _close(fd: int) -> None:
    if fd != _NONE:
        os.close(fd)


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

    def called_off(self, uid: str) -> None:
        self.apply(EvictionCalledOff(uid=uid))

    def ending_observed(self, pod: Pod, seconds: float, was_cut: bool) -> None:  # noqa: FBT001 - a callback
        self.apply(EndingObserved(pod=pod, seconds=seconds, was_cut=was_cut))

    def process_killed(self, pod: Pod, process: ProcessMemory) -> None:
        """Record that a process was killed at the end of its grace period."""
        self.victims.hold(process.pid)
        self.apply(ProcessKilled(pod=pod, process=process))

    def reclaim_ended(
        self, kind: Reclaim, reclaimed: Reclaimed | None = None, *, began_seconds: float | None = None
    ) -> None:
        """Record that a reclaim of memory is over, and what it came to (None: it was cancelled)."""
        if reclaimed is not None:
            self.reclaimed = (reclaimed,)
        self.apply(ReclaimEnded(kind=kind, began_seconds=began_seconds))

    def pod_in(self, cgroup: str) -> Pod | None:
        return next(
            (
                pod
                for pod in self.pods
                if pod.cgroup is not None
                and (pod.cgroup == cgroup or CgroupTree.contains(pod.cgroup, cgroup))
            ),
            None,
        )

    def set_pods(self, pods: tuple[Pod, ...]) -> None:
        """Take over a fresh list of pods."""
        self.pods = pods
        if self.state.ineligible != _ALL_ELIGIBLE:
            self.apply(PodsListed(uids=frozenset(pod.uid for pod in pods)))

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
