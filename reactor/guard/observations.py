"""What a pass observes: the node, its pods, and what victims are freeing.

All of it is read from the kernel's counters and applied to the node as events: what follows is the policy's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from reactor.act.reap import let_die
from reactor.guard.ahead import KernelKills, NoKernelKills
from reactor.guard.bounded import FEW_PODS, BoundedPods, Known
from reactor.guard.node import Node
from reactor.model.decisions import ClaimKind, Eviction, Inputs, Snapshot
from reactor.model.kills import OomKill
from reactor.model.pods import Pod, PodUsage, working_set_bytes
from reactor.model.rules import EVICTING, Firing, RankedBy
from reactor.model.signals import MEMORY_SIGNALS, ON_DISK, Resource, Signal
from reactor.model.thresholds import PROCESS_SIGNALS, SWAP_SIGNALS, Observation, resources_wanting
from reactor.model.wakes import Wake, WakeKind
from reactor.observe.node import NodeObserver, consistent
from reactor.observe.oom_kills import PodOomKills
from reactor.observe.pods import PodObserver
from reactor.observe.storage import with_storage
from reactor.policy.attention import OLD_CACHE_SECONDS, cache_has_gone, has_grown
from reactor.policy.bounds import completed
from reactor.policy.claims import are_unknown, struck_pods
from reactor.policy.decide import Due
from reactor.policy.events import (
    FilesInMemoryObserved,
    KernelKilled,
    PodsStruck,
    ProcessesExited,
    StruckPodsObserved,
)
from reactor.policy.forecast import Ahead
from reactor.policy.holds import may_be_due
from reactor.policy.messages import absurd_thresholds
from reactor.policy.thresholds import is_hard_memory, is_kept_by_cache, thresholds_met
from reactor.sources.oom import OomSource
from reactor.workloads.cgroups import PodList
from reactor.workloads.parents import all_spared


class Seen(NamedTuple):
    """What was observed: node and pods, which pods the policy is asked about, and the memory alone.

    `at_ns` is when all was read. `node_at_seconds` is the instant before the node was, by the pass's clock:
    no sooner than then it was as short as this shows. `due` is what is due by it, None: not worked out.
    """

    snapshot: Snapshot
    pods: Sequence[Pod]
    at_ns: int
    memory: Mapping[Signal, Observation]
    node_at_seconds: float = -math.inf
    due: Due | None = None


@dataclass(eq=False, kw_only=True)
class Observations:
    """Observes for one configuration. `is_populated` returns whether a pod's cgroup has processes, if known.

    Each of those `ahead` is given the pods when they have changed; `kernel` is among them.
    """

    node: Node
    observer: NodeObserver
    usages: PodObserver
    pod_list: PodList
    is_populated: Callable[[Pod], bool | None]
    oom_source: OomSource
    oom_kills: PodOomKills
    kernel: KernelKills = field(default_factory=NoKernelKills)
    ahead: Sequence[Ahead] = ()

    def __post_init__(self) -> None:
        self._settings = settings = self.node.settings
        self._clock_seconds = self.node.clock_seconds
        self._watches_swap = any(one.signal in SWAP_SIGNALS for one in settings.thresholds)
        self._doubted_until_seconds = -math.inf
        self._has_new_pods = True
        self.bounded = BoundedPods(settings, self.usages)
        self.usages.track(self.node.pods)

    def observe(self, wakes: Sequence[Wake], now_seconds: float, firing: Firing | None) -> Seen:
        """Observe the node and its pods, and what victims are freeing.

        A pass that memory has woken reads of many pods only as much as its decision needs.
        """
        self._observe_left()
        if firing is None and len(self.node.pods) > FEW_PODS and _only_memory(wakes):
            found = self._by_bounds(wakes, now_seconds)
            if found is not None:
                return found._replace(pods=self.eligible_pods(now_seconds), at_ns=time.monotonic_ns())
        return self._observed(wakes, now_seconds, lambda: self._all_pods(wakes, now_seconds, firing))[0]

    def _by_bounds(self, wakes: Sequence[Wake], now_seconds: float) -> Seen | None:
        """Return what was seen once a decision over it is settled, by wide bounds if they do; None: by none.

        While a victim frees its memory, what its parent has is no bound for others.
        """
        state = self.node.state
        is_wide = not (state.claims or may_be_due(self._settings, state, now_seconds, now_seconds))
        for read in (self.bounded.observe_few, self.bounded.observe)[not is_wide :]:
            seen, found = self._observed(wakes, now_seconds, partial(self._bounds, read, now_seconds))
            if found is None:
                continue
            inputs = Inputs(self._settings, self.node.state, seen.snapshot, seen.pods, now_seconds)
            due = self.bounded.settle(inputs, found)
            if due is not None:
                return seen._replace(due=due)
        return None

    def _observed(
        self, wakes: Sequence[Wake], now_seconds: float, read_pods: Callable[[], Known | None]
    ) -> tuple[Seen, Known | None]:
        node_at_seconds = now_seconds

        def read_node() -> Mapping[Signal, Observation]:
            nonlocal node_at_seconds
            node_at_seconds = self._clock_seconds()
            return self.observe_node(wakes, now_seconds)

        memory, found = consistent(read_node, read_pods, self._is_moving, partial(self._asked, now_seconds))
        known = found or Known({}, {})
        seen = Seen(
            snapshot=Snapshot(
                signals=self.node.observed.at(now_seconds),
                pods=known.used,
                time_left=self.node.time_left,
                bounds=known.bounds,
            ),
            pods=self.eligible_pods(now_seconds),
            at_ns=time.monotonic_ns(),
            memory=memory,
            node_at_seconds=node_at_seconds,
        )
        return seen, found

    def _bounds(self, read: Callable[[], Known | None], now_seconds: float) -> Known | None:
        """Return the most that each pod can hold; if none has to be chosen, what the kept ones use."""
        if not self._wanting(now_seconds):
            return Known({}, dict(self._of_kept()))
        self._take_pods(self.pod_list.refresh())
        found = read()
        if found is not None:  # before the node is read again: else what victims free in between is nowhere
            self.bounded.read(found, {claim.uid for claim in self.node.state.claims})
        return found

    def _all_pods(self, wakes: Sequence[Wake], now_seconds: float, firing: Firing | None) -> Known | None:
        used = self.observe_pods(wakes, now_seconds, firing)
        return Known({}, dict(used)) if used else None

    def complete(self, seen: Seen) -> Seen:
        """Return what was seen with all pods, once what was decided over it is carried out.

        The victim has the CPU before each few pods. All are read even if memory runs out meanwhile: a kill of
        which it is not known what the others held can't be judged, and the next would take an innocent where
        another pod, never evicted, is what grows.
        """
        used = self.usages.memory(let_die)
        return seen._replace(snapshot=completed(self._settings, seen.snapshot, used))

    def _is_moving(self) -> bool:
        # Asked also while there is memory: a kill that is noticed at the next crossing would seem fresh then.
        return self._are_victims_dying() or bool(self.node.state.in_flight)

    def _asked(self, now_seconds: float, memory: Mapping[Signal, Observation]) -> frozenset[object]:
        met = thresholds_met(self._settings.thresholds, memory)
        return frozenset(filter(is_hard_memory, met)) | self._wanting(now_seconds)

    def _wanting(self, now_seconds: float) -> frozenset[Resource]:
        return resources_wanting(self._settings.thresholds, self.node.observed.at(now_seconds))

    def observe_node(self, wakes: Sequence[Wake], now_seconds: float) -> Mapping[Signal, Observation]:
        """Observe what the wakes are about, memory in any case; return what was observed of it."""
        memory = self.observer.memory()
        self.node.observed.take(MEMORY_SIGNALS, memory, now_seconds)
        if not _only_memory(wakes):
            self._observe_processes_and_swap(now_seconds)
            if is_housekeeping(wakes):
                self.usages.note_swap(has_swap=self.observer.has_swap)
        return memory

    def _observe_processes_and_swap(self, now_seconds: float) -> None:
        self.node.observed.take(PROCESS_SIGNALS, self.observer.processes(), now_seconds)
        if self._watches_swap:
            self.node.observed.take(SWAP_SIGNALS, self.observer.swap(), now_seconds)

    def observe_pods(
        self, wakes: Sequence[Wake], now_seconds: float, firing: Firing | None = None
    ) -> Mapping[str, PodUsage]:
        """Return what pods use; if none may have to be chosen, what those do that are never evicted."""
        wanting, is_of_memory = self._wanting(now_seconds), _only_memory(wakes)
        if firing is not None and firing.rule.by is RankedBy.SWAP:
            self.usages.note_swap(has_swap=self.observer.has_swap)  # no other pass does for a rule
        if not wanting and (firing is None or firing.rule.action not in EVICTING):
            usages = self._of_kept()
        else:
            self._take_pods(self.pod_list.refresh())  # one that came since may be the very one
            # Counting processes takes longer; no pod is chosen by them in a pass that memory woke.
            counted = Resource.PIDS in wanting and not is_of_memory
            usages = self.usages.full() if counted else self.usages.memory()
        if not is_of_memory:
            # Limits of their own hold for pods whether or not the node is short of anything.
            present, is_of_all = self.node.with_lingering(self.present_pods()), bool(ON_DISK & wanting)
            pods = [pod for pod in present if is_of_all or pod.storage]
            usages = with_storage(usages, self.node.storage.usages(pods), pods)
        return usages

    def _of_kept(self) -> Mapping[str, PodUsage]:
        """Return what the pods use that are never evicted: later kills are judged by it."""
        kept = [pod.uid for pod in self.node.pods if pod.critical_because is not None]
        return {**dict.fromkeys(kept, PodUsage()), **self.usages.of(kept)}

    # --- pods ---

    def refresh_pods(self) -> None:
        """Take over the pods that exist now; only new ones are read."""
        self.set_pods(self.pod_list.refresh())

    def set_pods(self, pods: tuple[Pod, ...]) -> None:
        """Take over a fresh list of pods; a cgroup that vanished and is listed was recreated."""
        self._take_pods(pods)
        self.report_pods()

    def _take_pods(self, pods: tuple[Pod, ...]) -> None:
        if pods != self.node.pods or self.usages.vanished:
            self.node.set_pods(pods)
            self.usages.track(pods)
            self._has_new_pods = True
        else:  # equal, and from here on the same: a tuple compares those at once
            self.node.pods = pods

    def report_pods(self) -> None:
        """Report the pods to what is ahead if they have changed; a pass does so once it has killed."""
        if self._has_new_pods:
            self._has_new_pods = False
            for one in self.ahead:
                one.pods(self.node.pods)

    def present_pods(self) -> Sequence[Pod]:
        """Return the known pods but those that were gone when they were read: nothing is left to kill."""
        pods, vanished = self.node.pods, self.usages.vanished
        return tuple(pod for pod in pods if pod.uid not in vanished) if vanished else pods

    def eligible_pods(self, now_seconds: float) -> Sequence[Pod]:
        """Return the pods that the policy is asked about; those that linger are in flight, never chosen."""
        pods = all_spared(self.present_pods()) if self.usages.unseen else self.present_pods()
        return self.node.eligible(pods, now_seconds, self.is_populated)

    def held_bytes(self, uid: str, snapshot: Snapshot) -> int | None:
        """Return what a pod that was just killed held: as decided on, or what is still to be seen of more."""
        held = (working_set_bytes(used, uid) for used in (snapshot.pods, self.usages.of([uid])))
        return max((held_bytes for held_bytes in held if held_bytes is not None), default=None)

    def ended_cgroups(self) -> tuple[str, ...]:
        """Return the cgroups that evictions have emptied and that are still there."""
        ended = self.node.emptied_among(self.present_pods())
        return tuple(pod.cgroup for pod in ended if pod.cgroup is not None)

    def evictable_cgroups(self, used: Mapping[str, PodUsage]) -> tuple[str, ...]:
        """Return the cgroups of the pods that may be evicted, those that use most first."""
        in_flight = {claim.uid for claim in self.node.state.in_flight}
        pods = [
            pod for pod in self.present_pods() if pod.critical_because is None and pod.uid not in in_flight
        ]
        pods.sort(key=lambda pod: -(working_set_bytes(used, pod.uid) or 0))
        return tuple(pod.cgroup for pod in pods if pod.cgroup is not None)

    # --- what is short ---

    def absurd_thresholds(self) -> dict[str, str]:
        """Return which thresholds make no sense at the capacities seen last, and what is done about each."""
        return absurd_thresholds(self._settings.thresholds, self.node.observed.at(self._clock_seconds()))

    def left_bytes(self) -> int:
        """Return the least that a hard memory threshold's signal had available at the last pass."""
        seen = self.node.observed.at(self._clock_seconds())
        signals = {one.signal for one in self._settings.thresholds if is_hard_memory(one)}
        return min((seen[signal].available for signal in signals if signal in seen), default=0)

    def shortage_has_grown(self) -> bool:
        """Return whether memory has become shorter in a way that is worth a pass.

        The node's counters alone are read: this is asked often.
        """
        before, seen = self.node.observed.at(self._clock_seconds()), self.observer.memory()
        is_less = self.is_cache_doubted() and cache_has_gone(before, seen)
        return is_less or has_grown(self._settings, self.node.state, before, seen)

    def doubt_cache(self, wakes: Sequence[Wake], memory: Mapping[Signal, Observation]) -> None:
        """Doubt page cache, if it alone kept a threshold from being met in a pass that memory has woken."""
        if _only_memory(wakes) and is_kept_by_cache(self._settings.thresholds, memory):
            self._doubted_until_seconds = self._clock_seconds() + OLD_CACHE_SECONDS

    def is_cache_doubted(self) -> bool:
        """Return whether page cache alone kept a threshold from being met when memory last woke a pass.

        False after a while. If that cache has gone, though the kernel still counts it, no level reports it.
        """
        return self._clock_seconds() < self._doubted_until_seconds

    def is_wanting(self, eviction: Eviction) -> bool:
        """Return whether the node, read afresh, is short of what an eviction is for, or of its reclaim."""
        now_seconds = self._clock_seconds()
        self.observe_node((), now_seconds)
        if eviction.signal not in MEMORY_SIGNALS:
            self._observe_processes_and_swap(now_seconds)
        thresholds = self._settings.thresholds
        if eviction.threshold in thresholds:
            thresholds = (eviction.threshold,)
        known = self.node.observed.at(now_seconds).items()
        seen = {signal: one for signal, one in known if signal == eviction.signal and not one.absurdity}
        return bool(thresholds_met(thresholds, seen, with_minimum_reclaim=True))

    # --- what victims free ---

    def oom_killed(self, kill: OomKill) -> None:
        """Record a kill of the kernel's OOM killer: what its victim frees is waited for."""
        self.kernel.far()
        pod = None if kill.victim_cgroup is None else self.node.pod_in(kill.victim_cgroup)
        if kill.pid is not None:
            self.node.victims.hold(kill.pid)
        self.node.apply(KernelKilled(kill=kill, uid=None if pod is None else pod.uid))

    def _are_victims_dying(self) -> bool:
        """Return whether victims of the kernel's were dying until now, and note which of them have exited.

        To be called after memory was observed, which is to be done once more where this is true: what was
        seen before may be of a kill that was not known yet, or from before a victim's exit.
        """
        is_nameless = False
        for kill in self.oom_source.take_now():
            self.oom_killed(kill)
            is_nameless |= kill.pid is None
        if not self.node.state.killed_alone and not is_nameless:
            return False
        self._observe_pods_struck(is_nameless=is_nameless)
        exited = self.node.victims.exited(self.node.state.killed_alone)
        if exited:
            self.node.apply(ProcessesExited(pids=exited))
        return True

    def _observe_pods_struck(self, *, is_nameless: bool) -> None:
        """Record in which pods the kernel has killed without naming the victim, and what those hold.

        It counts an OOM before it chooses a victim, so that the pod may only be found by a later pass.
        """
        if is_nameless or are_unknown(self.node.state):
            struck = self.oom_kills.struck(self.node.pods)
            held = {uid: self._held_by_processes_bytes(uid) for uid in struck}
            known = {uid: held_bytes for uid, held_bytes in held.items() if held_bytes is not None}
            if known and known.keys() == held.keys():
                largest = {
                    pod.uid: self.oom_kills.most_of_one_process(pod, known[pod.uid])
                    for pod in self.node.pods
                    if pod.uid in known
                }
                self.node.apply(PodsStruck(held_bytes=known, largest_bytes=largest))
                return
        pods = struck_pods(self.node.state)
        if pods:
            left = {uid: self._held_by_processes_bytes(uid) for uid in pods}
            self.node.apply(StruckPodsObserved(held_bytes=left))

    def _held_by_processes_bytes(self, uid: str) -> int | None:
        """Return a pod's working set but for its page cache, which no process takes along; None: unreadable.

        0 where it is gone.
        """
        used = self.usages.of([uid]).get(uid)
        if used is None:
            return 0
        if used.memory_working_set_bytes is None:
            return None
        return max(0, used.memory_working_set_bytes - (self.usages.active_file_bytes(uid) or 0))

    def _observe_left(self) -> None:
        """Observe which files in memory, left by evicted pods, are still there.

        Page cache that a pod has left is no growth of it.
        """
        left = [one.uid for one in self.node.state.claims if one.uid and one.kind is ClaimKind.FILES]
        if not left:
            return
        usages, used = self.usages, self.usages.of(left)
        self.node.apply(
            FilesInMemoryObserved(
                files_bytes={uid: usages.shared_memory_bytes(uid) or 0 for uid in left},
                own_bytes={
                    uid: (one.memory_working_set_bytes or 0) - (usages.active_file_bytes(uid) or 0)
                    for uid, one in used.items()
                },
            )
        )


def is_housekeeping(wakes: Sequence[Wake]) -> bool:
    return not wakes or any(wake.kind is WakeKind.HOUSEKEEPING for wake in wakes)


def _only_memory(wakes: Sequence[Wake]) -> bool:
    return {wake.kind for wake in wakes} <= {WakeKind.MEMORY}
