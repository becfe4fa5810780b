"""What the guard reports: `status`, `top`, `explain`, what is scraped, and what is wrong.

Each thing that has something to report makes a `Report` of it; `status`, a scrape and the problems are three
merges over one list (`Reports`). The steward adds what it knows itself (reactor/steward/answers.py).

`status`, `top` and `explain` read pods on behalf of people. A thousand pods read at once would keep the loop
from a wake for 6 ms. One who asks every second is not to cost a kill that: pods are read a few at a time, the
loop goes first between them, and the more a reading of `top` has cost the longer it is good for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import trio

import reactor
from reactor.guard.node import Node
from reactor.guard.record import counted_as, ranked_document, reclaimed_document, slowdown_document
from reactor.link.documents import REMOVED_FROM_STATUS, attributes, instant
from reactor.model.decisions import Claim, ClaimKind, PolicyState, RankedPod
from reactor.model.pods import Pod, PodUsage
from reactor.model.settings import EvictionSettings, Settings
from reactor.model.signals import FREED_TOGETHER, RESOURCE, UNIT, NodeCondition, Resource, Signal
from reactor.model.thresholds import Observation, Threshold
from reactor.model.wakes import SourceHealth, SourceState
from reactor.observe.pods import PodObserver
from reactor.observe.storage import with_storage
from reactor.policy.rank import memory_outside_pods, rank
from reactor.sources.catalogue import chain_of
from reactor.text import printable

_LARGEST_HOLDERS: Final = 3
# 0.25 ms on cgroup v1, 0.6 ms at the most of 640 times.
PODS_AT_ONCE: Final = 32
_MOST_PLACES: Final = 200
# Of the time, for reading pods on behalf of people: a reading of 20 ms is good for 4 s.
_SHARE: Final = 0.005
# Of a place in the ranking, as `explain` has it.
_EXPLAINED: Final = (
    *("pod", "uid", "qos_class", "priority", "preference"),
    *("usage", "request", "swap_bytes", "because"),
)


def _nothing() -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one thing reports; each is called at any moment, and neither waits nor raises.

    `problems` is what is not as it should be, and why. `document` are its keys of `status`, `explanation`
    those of them that `explain` has too, `counts` what is scraped besides (reactor/tell/metrics.py).
    """

    problems: Callable[[], Mapping[str, str]] = _nothing
    document: Callable[[], Mapping[str, Any]] = _nothing
    explanation: Callable[[], Mapping[str, Any]] = _nothing
    counts: Callable[[], Mapping[str, Any]] = _nothing


def problem(what: str, why: Callable[[], str | None]) -> Callable[[], Mapping[str, str]]:
    """Return the `problems` of what has one at the most, by this name."""

    def problems() -> Mapping[str, str]:
        found = why()
        return {} if found is None else {what: found}

    return problems


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """The merges over the reports of a moment, with what there is to report of the node and the loop.

    Of two `others` that have the same key, the later one counts; the node's own stand before them.
    """

    settings: Settings
    known: Node
    others: Sequence[Report] = ()
    sources: tuple[SourceState, ...] = ()
    started_unix_seconds: float = 0.0

    def problems(self) -> dict[str, str]:
        return {what: why for one in self.others for what, why in one.problems().items()}

    def status(self, memory: Mapping[Signal, Observation] = {}) -> dict[str, Any]:
        """Return how the node stands: `memory` as read afresh, other signals as a pass saw them last."""
        others = {key: value for one in self.others for key, value in one.document().items()}
        problems = {printable(what): printable(why) for what, why in self.problems().items()}
        return {**self._node(memory), **others, "problems": problems}

    def reading(self) -> dict[str, Any]:
        """Return what is scraped: the status, and what is counted."""
        return {
            **self.status(),
            **{key: value for one in self.others for key, value in one.counts().items()},
        }

    async def explain(self, usages: PodObserver) -> dict[str, Any]:
        """Return where every pod stands in the ranking now.

        The ranking is for the threshold met now, else for the memory signal: which pods would have to go if
        memory ran out this moment. Pods that are being evicted, or were and have no process since, are not in
        it. Pods are read a few at a time, and the loop goes first between them.
        """
        now_seconds = self.known.clock_seconds()
        observations = self.known.observed.at(now_seconds)
        signal = _ranked_signal(self.known.state)
        gone = {pod.uid for pod in self.known.emptied_among(self.known.pods)}
        gone |= {claim.uid for claim in self.known.state.in_flight if claim.uid is not None}
        pods = tuple(pod for pod in self.known.pods if pod.uid not in gone)
        used = await _in_turns(lambda some: _usages(self, usages, some, signal), pods)
        resource = RESOURCE[signal]
        ranking: list[dict[str, Any]] = []
        places = _rank_now(self.settings.eviction, pods, used, signal)
        for number, place in enumerate(places, 1):
            if number % PODS_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
            shown = ranked_document(place, resource)
            victim = "process" if place.pod.loses_one_process(resource) else "pod"
            ranking.append({"place": number, "victim": victim, **{key: shown[key] for key in _EXPLAINED}})
        return {
            "signal": signal,
            "observation": _amounts(observations.get(signal)),
            "ranking": ranking,
            "pods": len(places),
            "slowdowns": [slowdown_document(one, now_seconds) for one in self.known.state.slowdowns],
            **{key: value for one in self.others for key, value in one.explanation().items()},
        }

    async def top(
        self, order: EvictionOrder, usages: PodObserver, memory: Mapping[Signal, Observation], places: int
    ) -> dict[str, Any]:
        """Return how the node stands this moment, and the head of the present order of eviction.

        `memory` is read afresh, without any pass: the last one may have been ten seconds ago.
        """
        return {**self.status(memory), "order": await order.first(self, usages, places)}

    def _node(self, memory: Mapping[Signal, Observation]) -> dict[str, Any]:
        state, now_seconds = self.known.state, self.known.clock_seconds()
        return {
            "version": reactor.__version__,
            "pid": os.getpid(),
            "started": instant(self.started_unix_seconds),
            "dry_run": self.settings.dry_run,
            "runtime": None,  # the steward's to know
            "kubernetes": None,  # unless there is a report of it
            "node_cgroup": self.settings.node_cgroup,
            "memory_available": self.settings.memory_available,
            "pods": len(self.known.pods),
            "process_victims": {"pods": sum(1 for pod in self.known.pods if pod.process_victim is not None)},
            "passes": self.known.passes,
            "signals": self._signals(memory),
            "reclaimed": [reclaimed_document(one) for one in self.known.reclaimed],
            "conditions": [self._condition(condition, now_seconds) for condition in NodeCondition],
            "in_flight": [self._in_flight(claim, now_seconds) for claim in state.in_flight],
            "oom_victims": [_killed_alone(claim, now_seconds) for claim in state.killed_alone],
            "slowdowns": [slowdown_document(one, now_seconds) for one in state.slowdowns],
            "sources": [_source(source) for source in self.sources],
            **REMOVED_FROM_STATUS,
        }

    def _signals(self, fresh: Mapping[Signal, Observation]) -> list[dict[str, Any]]:
        """Return the signals as observed last, but for those that are read afresh."""
        now_seconds = self.known.clock_seconds()
        read = {signal: seen._replace(taken_at_seconds=now_seconds) for signal, seen in fresh.items()}
        seen = {**self.known.observed.at(now_seconds), **read}
        return [
            self._signal(signal, seen.get(signal), now_seconds)
            for signal in Signal
            if signal in seen or self._thresholds(signal)
        ]

    def _thresholds(self, signal: Signal) -> list[Threshold]:
        return [one for one in self.settings.eviction.thresholds if one.signal == signal]

    def _signal(self, signal: Signal, seen: Observation | None, now_seconds: float) -> dict[str, Any]:
        source = _source_of(signal, self.sources)
        taken = None if seen is None else seen.taken_at_seconds
        return {
            "signal": signal,
            "unit": UNIT[RESOURCE[signal]],
            **_amounts(seen),
            "absurd": None if seen is None else seen.absurdity,
            "age_seconds": None if taken is None else round(now_seconds - taken, 3),
            "source": None if source is None else _source(source),
            "thresholds": [self._threshold(one, seen, now_seconds) for one in self._thresholds(signal)],
        }

    def _threshold(
        self, threshold: Threshold, seen: Observation | None, now_seconds: float
    ) -> dict[str, Any]:
        amount = None if seen is None else int(threshold.value.of(seen.capacity))
        since = self.known.state.first_observed.get(threshold)
        return {
            "threshold": str(threshold),
            "kind": "hard" if threshold.is_hard else "soft",
            "amount": amount,
            "margin": None if seen is None or amount is None else seen.available - amount,
            "reached_in_seconds": self._reached_in_seconds(threshold),  # the steward knows that of disks
            "grace_period_seconds": threshold.grace_period_seconds,
            "met": threshold in self.known.state.thresholds_met,
            "absurd": seen is not None and seen.absurdity is None and threshold.is_absurd_at(seen.capacity),
            "below_for_seconds": None if since is None else round(now_seconds - since, 3),
        }

    def _reached_in_seconds(self, threshold: Threshold) -> float | None:
        left = self.known.time_left.get(threshold.signal) if threshold.is_hard else None
        return None if left is None or left.seconds is None else round(left.seconds, 3)

    def _condition(self, condition: NodeCondition, now_seconds: float) -> dict[str, Any]:
        state = self.known.state
        since = state.condition_since.get(condition) if condition in state.conditions else None
        return {
            "condition": condition,
            "in_force": condition in state.conditions,
            "since": None if since is None else instant(time.time() - (now_seconds - since)),
            "for_seconds": None if since is None else round(now_seconds - since, 3),
        }

    def _in_flight(self, claim: Claim, now_seconds: float) -> dict[str, Any]:
        pod = next((pod for pod in self.known.pods if pod.uid == claim.uid), claim.pod)
        kill_at_seconds = claim.kill_at_seconds or 0.0
        return {
            "pod": claim.uid if pod is None else pod.key,
            "uid": claim.uid,
            "resource": claim.resource,
            "left_bytes": claim.amount if claim.kind is ClaimKind.FILES else None,
            "pod_lives": claim.kind is ClaimKind.ENDING_PROCESS,
            "killed_in_seconds": round(max(0.0, kill_at_seconds - now_seconds), 3),
            "given_up_in_seconds": round(max(0.0, claim.deadline_seconds - now_seconds), 3),
        }


def _ranked_signal(state: PolicyState) -> Signal:
    return state.thresholds_met[0].signal if state.thresholds_met else Signal.MEMORY_AVAILABLE


class _Order(NamedTuple):
    """The head of a ranking; `until_seconds` is how long it is good."""

    signal: Signal
    places: tuple[RankedPod, ...]
    pods: int
    at_seconds: float
    until_seconds: float


class EvictionOrder:
    """The head of the ranking. All who ask share one reading; nothing of it takes part in a pass."""

    def __init__(self) -> None:
        self._reading = trio.Lock()
        self._last: _Order | None = None

    async def first(self, node: Reports, usages: PodObserver, places: int) -> dict[str, Any]:
        """Return up to `places` (200 at the most) of the ranking as plain JSON values, and how old it is."""
        places, now_seconds = max(0, min(places, _MOST_PLACES)), node.known.clock_seconds
        signal = _ranked_signal(node.known.state)
        async with self._reading:
            last = self._last
            if (
                last is None
                or last.signal is not signal
                or len(last.places) < min(places, last.pods)
                or now_seconds() >= last.until_seconds
            ):
                last = self._last = await self._read(node, usages, signal, places)
        resource = RESOURCE[signal]
        ending = {claim.uid for claim in node.known.state.in_flight}
        return {
            "signal": signal,
            "resource": resource,
            "pods": last.pods,
            "age_seconds": round(now_seconds() - last.at_seconds, 3),
            "first": [
                {
                    "place": number,
                    "being_evicted": place.pod.uid in ending,
                    **ranked_document(place, resource),
                }
                for number, place in enumerate(last.places[:places], 1)
            ],
        }

    async def _read(self, node: Reports, usages: PodObserver, signal: Signal, places: int) -> _Order:
        pods, now_seconds = node.known.pods, node.known.clock_seconds
        took_seconds = 0.0
        best: tuple[RankedPod, ...] = ()
        used: dict[str, PodUsage] = {}
        for start in range(0, len(pods), PODS_AT_ONCE):
            began = now_seconds()
            some = pods[start : start + PODS_AT_ONCE]
            used |= _usages(node, usages, some, signal)
            present = (pod for pod in some if pod.uid not in usages.vanished)
            # The best so far stand before the others, so that ties keep the pods' order.
            among = (*(place.pod for place in best), *present)
            best = _rank_now(node.settings.eviction, among, used, signal)[:places]
            used = {place.pod.uid: used[place.pod.uid] for place in best if place.pod.uid in used}
            took_seconds += now_seconds() - began
            await trio.lowlevel.checkpoint()
        at_seconds = now_seconds()
        return _Order(signal, best, len(pods), at_seconds, at_seconds + took_seconds / _SHARE)


def _rank_now(
    settings: EvictionSettings, pods: Iterable[Pod], usages: Mapping[str, PodUsage], signal: Signal
) -> tuple[RankedPod, ...]:
    return rank(pods, usages, signal, settings.layout, with_swap=settings.ranks_swap)


async def _in_turns(
    read: Callable[[Sequence[Pod]], Mapping[str, PodUsage]], pods: Sequence[Pod]
) -> Mapping[str, PodUsage]:
    """Return what is read of pods, by uid; the loop goes first between a few of them."""
    used: dict[str, PodUsage] = {}
    for start in range(0, len(pods), PODS_AT_ONCE):
        used |= read(pods[start : start + PODS_AT_ONCE])
        await trio.lowlevel.checkpoint()
    return used


def _usages(
    node: Reports, usages: PodObserver, pods: Sequence[Pod], signal: Signal
) -> Mapping[str, PodUsage]:
    """Return what these pods use of what the signal is about, by uid."""
    uids = [pod.uid for pod in pods]
    if RESOURCE[signal] in FREED_TOGETHER:
        return usages.of(uids)
    counted = usages.of(uids, with_processes=True) if RESOURCE[signal] is Resource.PIDS else {}
    return with_storage(counted, node.known.storage.usages(pods), pods)


async def memory_held(
    seen: Observation | None, pods: Sequence[Pod], usages: PodObserver
) -> dict[str, Any] | None:
    """Return how much of the working set the pods hold, and their cgroups; None where that is not known."""
    if seen is None or seen.absurdity is not None:
        return None
    used = await _in_turns(lambda some: usages.of([pod.uid for pod in some]), pods)
    outside_bytes = memory_outside_pods(seen, pods, used)
    if outside_bytes is None:
        return None
    return {
        **counted_as(seen),
        "used_bytes": seen.capacity - seen.available,
        "outside_bytes": outside_bytes,
        "never_evicted": _never_evicted(pods, used),
        "cgroups": [pod.cgroup for pod in pods if pod.cgroup is not None],
    }


def _never_evicted(pods: Sequence[Pod], used: Mapping[str, PodUsage]) -> dict[str, Any]:
    """Return how much the pods hold that are never evicted, and the largest of them."""
    held = [
        (used[pod.uid].memory_working_set_bytes or 0, pod.key)
        for pod in pods
        if pod.critical_because is not None and pod.uid in used
    ]
    held.sort(reverse=True)
    return {
        "bytes": sum(amount for amount, _ in held),
        "largest": [{"pod": pod, "bytes": amount} for amount, pod in held[:_LARGEST_HOLDERS]],
    }


def _amounts(seen: Observation | None) -> dict[str, Any]:
    return {**attributes(seen, "available", "capacity"), **counted_as(seen)}


def _source_of(signal: Signal, sources: Sequence[SourceState]) -> SourceState | None:
    """Return the source that would wake the loop for a signal: the first in its chain that is armed."""
    by_name = {source.name: source for source in sources}
    candidates = [by_name[one.name] for one in chain_of(signal) if one.name in by_name]
    armed = [source for source in candidates if source.health is SourceHealth.ARMED]
    return next(iter(armed or candidates), None)


def _source(source: SourceState) -> dict[str, Any]:
    return attributes(source, "name", "health", "detail", "wakes", "lost")


def _killed_alone(claim: Claim, now_seconds: float) -> dict[str, Any]:
    return {
        "pid": claim.pid,
        "uid": claim.uid,
        "killed_by": "reactor" if claim.kind is ClaimKind.PROCESS else "kernel",
        "victim_bytes": None if claim.kind is ClaimKind.STRUCK_POD else claim.amount,
        "credited_bytes": claim.left,
        "given_up_in_seconds": round(max(0.0, claim.deadline_seconds - now_seconds), 3),
    }
