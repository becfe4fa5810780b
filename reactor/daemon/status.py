"""What `reactor status` and `reactor explain` are told: JSON documents made from what the loop knows."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import reactor
from reactor.brake.braking import BrakeReading
from reactor.daemon.oom import OomKills
from reactor.daemon.order import EvictionOrder, ranked_signal
from reactor.daemon.parts import Node, PodUsages
from reactor.daemon.passes import Known
from reactor.daemon.recorder import Recorder
from reactor.daemon.slowdowns import slowdown_document
from reactor.daemon.supervisor import PartState
from reactor.daemon.wording import instant, standing
from reactor.disks.usage import with_storage
from reactor.errors import ReactorError
from reactor.model.decisions import InFlight, OomVictim
from reactor.model.settings import Settings
from reactor.model.signals import MEMORY_SIGNALS, RESOURCE, UNIT, NodeCondition, Signal
from reactor.model.thresholds import Observation, Threshold
from reactor.model.wakes import SourceHealth, SourceState
from reactor.policy import rank
from reactor.policy.oom_victims import credit_bytes
from reactor.sources.catalogue import chain_of
from reactor.text import printable

_DECISIONS: Final = 10
_SHORT_EVICTION: Final = (
    *("pod", "uid", "signal", "outcome", "killed_ns", "freed_ns"),
    *("credited_bytes", "returned_bytes"),
)


class StatusError(ReactorError):
    """A question that can't be answered as it is put."""


class FilesystemsView(Protocol):
    """Tells how the filesystems lie and fill."""

    def document(self) -> dict[str, Any]:
        """Return it as plain JSON values."""

    def seconds_to(self, threshold: Threshold) -> float | None:
        """Return when a threshold is reached at the present rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What there is to be told of; `problems` is what is not as it should be, and why.

    `parts` are those that the supervisor restarts. `runtime` is what the container runtime calls itself,
    `cluster` how the daemon takes part in one; None without.
    """

    settings: Settings
    known: Known
    node: Node
    usages: PodUsages
    sources: tuple[SourceState, ...]
    recorder: Recorder
    oom: OomKills
    brake: BrakeReading
    started_unix_seconds: float
    problems: Mapping[str, str]
    filesystems: FilesystemsView
    runtime: str | None = None
    cluster: Mapping[str, Any] | None = None
    parts: tuple[PartState, ...] = ()
    clock_seconds: Callable[[], float] = time.monotonic


def status(view: View) -> dict[str, Any]:
    """Return how the node stands, its signals as the last pass that looked at them saw them."""
    now_seconds = view.clock_seconds()
    return _status(view, view.known.observed.at(now_seconds), now_seconds)


async def top(view: View, order: EvictionOrder, places: object) -> dict[str, Any]:
    """Return how the node stands this moment, and the head of the present order of eviction.

    Memory is read afresh, which no pass is told of: at rest the last one may have looked ten seconds ago.
    """
    if not isinstance(places, int) or isinstance(places, bool) or places < 0:
        raise StatusError(f"pods: got {places!r}; accepted: a number of pods, 0 or more")
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
        "runtime": view.runtime,
        "kubernetes": None if view.cluster is None else dict(view.cluster),
        "node_cgroup": view.settings.node_cgroup,
        "pods": len(view.known.pods),
        "passes": view.known.passes,
        "signals": [
            _signal(view, signal, observations.get(signal), now_seconds)
            for signal in Signal
            if signal in observations or _thresholds(view, signal)
        ],
        **view.filesystems.document(),
        "reclaimed": [one.document() for one in view.known.reclaimed],
        "conditions": [_condition(view, condition, now_seconds) for condition in NodeCondition],
        "in_flight": [_in_flight(view, flight, now_seconds) for flight in state.in_flight],
        "oom_victims": [_oom_victim(victim, now_seconds) for victim in state.oom_victims],
        "slowdowns": [slowdown_document(one, now_seconds) for one in state.slowdowns],
        "sources": [_source(source) for source in view.sources],
        "brake": _brake(view),
        "decisions": [_short(document) for document in view.recorder.recent()[-_DECISIONS:]],
        "oom_kills": {"counted": dict(view.oom.counted), "recent": view.oom.recent()[-_DECISIONS:]},
        "problems": {printable(what): printable(why) for what, why in view.problems.items()},
        "parts": [_part(part) for part in view.parts],
    }


def explain(view: View, name: object) -> dict[str, Any]:
    """Return why a pod was evicted and where it stands in the ranking now; without a name, for all pods.

    `name` is the pod's name, namespace/name, or uid. The ranking is for the threshold met now, else for
    the memory signal: who would have to go if memory ran out this moment.
    """
    if name is not None and not isinstance(name, str):
        raise StatusError(f"pod: got a {type(name).__name__}; accepted: a pod's name, namespace/name or uid")
    now_seconds = view.clock_seconds()
    observations = view.known.observed.at(now_seconds)
    signal = ranked_signal(view.known.state)
    usages = view.usages.memory() if signal in MEMORY_SIGNALS else view.usages.full()
    usages = with_storage(usages, view.known.storage.usages(view.known.pods), view.known.pods)
    places = rank(view.known.pods, usages, signal, view.settings.eviction.layout)
    resource = RESOURCE[signal]
    ranking = [
        {
            "place": number,
            "pod": place.pod.key,
            "uid": place.pod.uid,
            "qos_class": place.pod.qos_class,
            "priority": place.pod.priority,
            "usage": place.usage,
            "request": place.request,
            "because": standing(place, resource),
        }
        for number, place in enumerate(places, 1)
    ]
    evictions = [one for document in reversed(view.recorder.recent()) for one in _eviction(document)]
    return {
        "pod": name,
        "signal": signal,
        "observation": _amounts(observations.get(signal)),
        "ranking": [one for one in ranking if _is_called(one, name)],
        "pods": len(places),
        "evictions": [one for one in evictions if _is_called(one, name)],
        "slowdowns": [slowdown_document(one, now_seconds) for one in view.known.state.slowdowns],
        "oom_kills": view.oom.recent(name),
    }


def _brake(view: View) -> dict[str, Any]:
    brake = view.brake
    return {
        "mode": view.settings.brake,
        "on": [{"cgroup": one.cgroup, "high_bytes": one.high_bytes} for one in brake.on],
        "times": brake.times,
        "seconds": round(brake.seconds, 3),
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


def _amounts(seen: Observation | None) -> dict[str, int | None]:
    if seen is None:
        return {"available": None, "capacity": None}
    return {"available": seen.available, "capacity": seen.capacity}


def _thresholds(view: View, signal: Signal) -> list[Threshold]:
    return [one for one in view.settings.eviction.thresholds if one.signal == signal]


def _threshold(
    view: View, threshold: Threshold, seen: Observation | None, now_seconds: float
) -> dict[str, Any]:
    amount = None if seen is None else int(threshold.value.of(seen.capacity))
    since = view.known.state.first_observed.get(threshold)
    left_seconds = view.filesystems.seconds_to(threshold)
    return {
        "threshold": str(threshold),
        "kind": "hard" if threshold.is_hard else "soft",
        "amount": amount,
        "margin": None if seen is None or amount is None else seen.available - amount,
        "reached_in_seconds": None if left_seconds is None else round(left_seconds, 3),
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


def _part(part: PartState) -> dict[str, Any]:
    return {
        "name": part.name,
        "state": part.health,
        "restarts": part.restarts,
        "last_error": None if part.last_error is None else printable(part.last_error),
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
        "killed_in_seconds": round(max(0.0, flight.kill_at_seconds - now_seconds), 3),
        "given_up_in_seconds": round(max(0.0, flight.deadline_seconds - now_seconds), 3),
    }


def _oom_victim(victim: OomVictim, now_seconds: float) -> dict[str, Any]:
    return {
        "pid": victim.pid,
        "uid": victim.uid,
        "victim_bytes": victim.victim_bytes,
        "credited_bytes": credit_bytes(victim),
        "given_up_in_seconds": round(max(0.0, victim.deadline_seconds - now_seconds), 3),
    }


def _short(document: Mapping[str, Any]) -> dict[str, Any]:
    wanted = (
        "id",
        "time",
        "dry_run",
        "conditions",
        "thresholds_met",
        "deferred_because",
        "reclaim",
        "timing",
        "brake",
    )
    threshold = document.get("threshold")
    return {
        **{key: document.get(key) for key in wanted},
        "threshold": threshold["threshold"] if isinstance(threshold, Mapping) else None,
        "evictions": [{key: one.get(key) for key in _SHORT_EVICTION} for one in _evictions(document)],
    }


def _evictions(document: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    found = document.get("evictions")
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


def _eviction(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the evictions of a decision, each with what it was decided on."""
    context = {
        key: document.get(key) for key in ("id", "time", "dry_run", "threshold", "wakes", "ranking", "timing")
    }
    return [{**one, **context} for one in _evictions(document)]


def _is_called(one: Mapping[str, Any], name: str | None) -> bool:
    """Return whether a pod goes by that name, as it is or as it is printed."""
    pod = str(one.get("pod"))
    return name is None or name in {
        shown
        for text in (pod, pod.rpartition("/")[2], str(one.get("uid")))
        for shown in (text, printable(text))
    }
