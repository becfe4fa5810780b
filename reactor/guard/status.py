"""What the guard tells for `reactor status`, `top` and `explain`: documents made from what the loop knows.

The steward adds what it knows itself (reactor/steward/answers.py).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import trio

import reactor
from reactor.guard.node import Node
from reactor.guard.oom import OomKills
from reactor.guard.order import PODS_AT_ONCE, EvictionOrder, rank_now, ranked_signal, usages_in_turns
from reactor.guard.parts import NodeReader, PodUsages
from reactor.guard.record import counted_as, reclaimed_document
from reactor.guard.slowdowns import slowdown_document
from reactor.guard.wording import standing
from reactor.link.documents import instant
from reactor.model.decisions import InFlight, OomVictim
from reactor.model.pods import Pod, PodUsage
from reactor.model.settings import Settings
from reactor.model.signals import RESOURCE, UNIT, NodeCondition, Signal
from reactor.model.thresholds import Observation, Threshold
from reactor.model.wakes import SourceHealth, SourceState
from reactor.policy.oom_victims import credit_bytes
from reactor.policy.outside import memory_outside_pods
from reactor.policy.process_victims import takes_one_process
from reactor.sources.catalogue import chain_of
from reactor.supervisor import PartState
from reactor.text import printable

_LARGEST_HOLDERS: Final = 3


class FilesystemsView(Protocol):
    """Tells how the filesystems lie; the steward knows more of them."""

    def document(self) -> dict[str, Any]:
        """Return it as plain JSON values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What there is to be told of; `problems` is what is not as it should be, and why.

    `parts` are those that the supervisor restarts. `cluster` is how the guard takes part in one; None
    without. `processes` are the guard and the steward, `shutdown` how the node's graceful shutdown stands,
    `oom_order` which pod the kernel's OOM killer takes first, `warrants` those that the kernel kills under,
    `rules` how the operator's rules stand, `systemd_oomd` what is known of systemd's units, `health` what
    probes are answered.
    """

    settings: Settings
    known: Node
    node: NodeReader
    usages: PodUsages
    sources: tuple[SourceState, ...]
    oom: OomKills
    started_unix_seconds: float
    problems: Mapping[str, str]
    filesystems: FilesystemsView
    cluster: Mapping[str, Any] | None = None
    parts: tuple[PartState, ...] = ()
    processes: Mapping[str, Any] = field(default_factory=dict)
    shutdown: Mapping[str, Any] = field(default_factory=dict)
    oom_order: Mapping[str, Any] = field(default_factory=dict)
    warrants: Mapping[str, Any] = field(default_factory=dict)
    rules: Sequence[Mapping[str, Any]] = ()
    systemd_oomd: Mapping[str, Any] = field(default_factory=dict)
    health: Mapping[str, Any] = field(default_factory=dict)
    clock_seconds: Callable[[], float] = time.monotonic


def status(view: View) -> dict[str, Any]:
    """Return how the node stands, its signals as the last pass that looked at them saw them."""
    now_seconds = view.clock_seconds()
    return _status(view, view.known.observed.at(now_seconds), now_seconds)


async def top(view: View, order: EvictionOrder, places: int) -> dict[str, Any]:
    """Return how the node stands this moment, and the head of the present order of eviction.

    Memory is read afresh, which no pass is told of: at rest the last one may have looked ten seconds ago.
    """
    now_seconds = view.clock_seconds()
    fresh = {
        signal: replace(seen, taken_at_seconds=now_seconds) for signal, seen in view.node.memory().items()
    }
    document = _status(view, {**view.known.observed.at(now_seconds), **fresh}, now_seconds)
    return {**document, "order": await order.first(view, places)}


def _status(view: View, observations: Mapping[Signal, Observation], now_seconds: float) -> dict[str, Any]:
    state = view.known.state
    return {
        "version": reactor.__version__,
        "pid": os.getpid(),
        "started": instant(view.started_unix_seconds),
        "dry_run": view.settings.dry_run,
        "runtime": None,  # the steward's to know
        "kubernetes": None if view.cluster is None else dict(view.cluster),
        "node_cgroup": view.settings.node_cgroup,
        "memory_available": view.settings.memory_available,
        "pods": len(view.known.pods),
        "process_victims": {
            "pods": sum(1 for pod in view.known.pods if pod.process_victim is not None),
        },
        "passes": view.known.passes,
        "signals": [
            _signal(view, signal, observations.get(signal), now_seconds)
            for signal in Signal
            if signal in observations or _thresholds(view, signal)
        ],
        **view.filesystems.document(),
        "reclaimed": [reclaimed_document(one) for one in view.known.reclaimed],
        "conditions": [_condition(view, condition, now_seconds) for condition in NodeCondition],
        "in_flight": [_in_flight(view, flight, now_seconds) for flight in state.in_flight],
        "oom_victims": [_oom_victim(victim, now_seconds) for victim in state.oom_victims],
        "slowdowns": [slowdown_document(one, now_seconds) for one in state.slowdowns],
        "sources": [_source(source) for source in view.sources],
        "brake": {"mode": "off", "on": [], "times": 0, "seconds": 0.0},  # removed, but a key
        "oom_order": {"mode": view.settings.oom_order, **view.oom_order},
        "kernel_kill": {"mode": view.settings.kernel_kill, **view.warrants},
        "rules": [dict(rule) for rule in view.rules],
        "systemd_oomd": {"mode": view.settings.systemd_oomd, **view.systemd_oomd},
        "oom_kills": {"counted": dict(view.oom.counted)},
        "problems": {printable(what): printable(why) for what, why in view.problems.items()},
        "parts": [part.document() for part in view.parts],
        "processes": dict(view.processes),
        "shutdown": dict(view.shutdown),
        "health": dict(view.health),
    }


async def explain(view: View) -> dict[str, Any]:
    """Return where every pod stands in the ranking now.

    The ranking is for the threshold met now, else for the memory signal: which pods would have to go if
    memory ran out this moment. Pods that are being evicted, or were and have no process since, are not in it.
    Pods are read a few at a time, and the loop goes first between them.
    """
    now_seconds = view.clock_seconds()
    observations = view.known.observed.at(now_seconds)
    signal = ranked_signal(view.known.state)
    gone = {pod.uid for pod in view.known.emptied_among(view.known.pods)}
    gone |= {flight.uid for flight in view.known.state.in_flight}
    pods = tuple(pod for pod in view.known.pods if pod.uid not in gone)
    usages = await usages_in_turns(view, pods, signal)
    resource = RESOURCE[signal]
    ranking: list[dict[str, Any]] = []
    places = rank_now(view.settings.eviction, pods, usages, signal)
    for number, place in enumerate(places, 1):
        if number % PODS_AT_ONCE == 0:
            await trio.lowlevel.checkpoint()
        ranking.append(
            {
                "place": number,
                "pod": place.pod.key,
                "uid": place.pod.uid,
                "qos_class": place.pod.qos_class,
                "priority": place.pod.priority,
                "preference": place.pod.preference.name.lower(),
                "usage": place.usage,
                "request": place.request,
                "swap_bytes": place.swap_bytes,
                "victim": "process" if takes_one_process(place.pod, resource) else "pod",
                "because": standing(place, resource),
            }
        )
    return {
        "signal": signal,
        "observation": _amounts(observations.get(signal)),
        "ranking": ranking,
        "pods": len(places),
        "slowdowns": [slowdown_document(one, now_seconds) for one in view.known.state.slowdowns],
        "rules": [dict(rule) for rule in view.rules],
    }


def memory_held(
    seen: Observation | None, pods: Sequence[Pod], used: Mapping[str, PodUsage]
) -> dict[str, Any] | None:
    """Return how much of the working set the pods hold, and their cgroups; None where that is not known."""
    if seen is None or seen.absurdity is not None:
        return None
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


def _signal(view: View, signal: Signal, seen: Observation | None, now_seconds: float) -> dict[str, Any]:
    source = _source_of(signal, view.sources)
    taken = None if seen is None else seen.taken_at_seconds
    return {
        "signal": signal,
        "unit": UNIT[RESOURCE[signal]],
        **_amounts(seen),
        "absurd": None if seen is None else seen.absurdity,
        "age_seconds": None if taken is None else round(now_seconds - taken, 3),
        "source": None if source is None else _source(source),
        "thresholds": [_threshold(view, one, seen, now_seconds) for one in _thresholds(view, signal)],
    }


def _amounts(seen: Observation | None) -> dict[str, Any]:
    if seen is None:
        return {"available": None, "capacity": None}
    return {"available": seen.available, "capacity": seen.capacity, **counted_as(seen)}


def _thresholds(view: View, signal: Signal) -> list[Threshold]:
    return [one for one in view.settings.eviction.thresholds if one.signal == signal]


def _threshold(
    view: View, threshold: Threshold, seen: Observation | None, now_seconds: float
) -> dict[str, Any]:
    amount = None if seen is None else int(threshold.value.of(seen.capacity))
    since = view.known.state.first_observed.get(threshold)
    return {
        "threshold": str(threshold),
        "kind": "hard" if threshold.is_hard else "soft",
        "amount": amount,
        "margin": None if seen is None or amount is None else seen.available - amount,
        "reached_in_seconds": None,  # of disks, which the steward knows
        "grace_period_seconds": threshold.grace_period_seconds,
        "met": threshold in view.known.state.thresholds_met,
        "absurd": seen is not None and seen.absurdity is None and threshold.is_absurd_at(seen.capacity),
        "below_for_seconds": None if since is None else round(now_seconds - since, 3),
    }


def _source_of(signal: Signal, sources: Sequence[SourceState]) -> SourceState | None:
    """Return the source that would wake the loop for a signal: the first in its chain that is armed."""
    by_name = {source.name: source for source in sources}
    candidates = [by_name[one.name] for one in chain_of(signal) if one.name in by_name]
    armed = [source for source in candidates if source.health is SourceHealth.ARMED]
    return next(iter(armed or candidates), None)


def _source(source: SourceState) -> dict[str, Any]:
    return {
        "name": source.name,
        "health": source.health,
        "detail": source.detail,
        "wakes": source.wakes,
        "lost": source.lost,
    }


def _condition(view: View, condition: NodeCondition, now_seconds: float) -> dict[str, Any]:
    state = view.known.state
    since = state.condition_since.get(condition) if condition in state.conditions else None
    return {
        "condition": condition,
        "in_force": condition in state.conditions,
        "since": None if since is None else instant(time.time() - (now_seconds - since)),
        "for_seconds": None if since is None else round(now_seconds - since, 3),
    }


def _in_flight(view: View, flight: InFlight, now_seconds: float) -> dict[str, Any]:
    pod = next((pod for pod in view.known.pods if pod.uid == flight.uid), flight.pod)
    return {
        "pod": flight.uid if pod is None else pod.key,
        "uid": flight.uid,
        "resource": flight.resource,
        "left_bytes": flight.left_bytes,
        "pod_lives": flight.process_bytes is not None,
        "killed_in_seconds": round(max(0.0, flight.kill_at_seconds - now_seconds), 3),
        "given_up_in_seconds": round(max(0.0, flight.deadline_seconds - now_seconds), 3),
    }


def _oom_victim(victim: OomVictim, now_seconds: float) -> dict[str, Any]:
    return {
        "pid": victim.pid,
        "uid": victim.uid,
        "killed_by": "kernel" if victim.pod_key is None else "reactor",
        "victim_bytes": victim.victim_bytes,
        "credited_bytes": credit_bytes(victim),
        "given_up_in_seconds": round(max(0.0, victim.deadline_seconds - now_seconds), 3),
    }
