"""Evictions whose resource is still being freed: no other pod is evicted for it meanwhile.

The kubelet picks a second victim while the first is still freeing its memory (kubernetes/kubernetes#43166).
Here a dying pod's usage is credited to the node, until the pod is gone or its deadline has passed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from reactor.model.decisions import Eviction, InFlight, OomVictim, PolicyState, Snapshot
from reactor.model.pods import Pod, PodUsage
from reactor.model.quantity import amount_text
from reactor.model.settings import EvictionSettings
from reactor.model.signals import FREED_TOGETHER, MEMORY_SIGNALS, ON_DISK, RESOURCE, Resource
from reactor.model.thresholds import Observation, Threshold
from reactor.policy.disk_evictions import with_disk_eviction
from reactor.policy.oom_victims import credit_bytes
from reactor.policy.storm import slowed, with_kill
from reactor.policy.thresholds import is_met
from reactor.policy.usage import usage

_RATE_WINDOW_SECONDS = 60.0
# Files in memory are freed when they are removed, which may be never. They keep other pods from being evicted
# only while at least the threshold divided by this is available.
_LEFT_SHARE = 2


def record_eviction(
    settings: EvictionSettings,
    state: PolicyState,
    eviction: Eviction,
    now_seconds: float,
    *,
    snapshot: Snapshot | None = None,
    pods: Sequence[Pod] = (),
    held_bytes: int | None = None,
) -> PolicyState:
    """Return the state after an eviction was ordered: in flight, and counted against the rate.

    `snapshot` and `pods` are what it was decided on, by which it is judged afterwards, and `held_bytes` what
    the pod held when it was killed (None: not observed).
    """
    seen = snapshot or Snapshot()
    state = with_kill(settings, state, eviction, seen, pods, now_seconds, held_bytes)
    state = with_disk_eviction(settings, state, eviction, seen, pods, now_seconds)
    kill_at = now_seconds + eviction.grace_period_seconds
    ordered = InFlight(
        uid=eviction.pod.uid,
        resource=eviction.resource,
        kill_at_seconds=kill_at,
        deadline_seconds=kill_at + settings.in_flight_deadline_seconds,
        pod=eviction.pod if eviction.resource in ON_DISK else None,
        threshold=eviction.threshold,
    )
    others = tuple(flight for flight in state.in_flight if flight.uid != ordered.uid)
    recent = tuple(at for at in state.evicted_at if now_seconds - at < _RATE_WINDOW_SECONDS)
    return replace(state, in_flight=(*others, ordered), evicted_at=(*recent, now_seconds))


def still_in_flight(
    in_flight: Sequence[InFlight], pods: Iterable[Pod], now_seconds: float
) -> tuple[InFlight, ...]:
    """Return the evictions that still free something: their pod exists, or files that it has left."""
    if not in_flight:
        return ()
    present = {pod.uid for pod in pods}
    return tuple(
        flight
        for flight in in_flight
        if (flight.uid in present or flight.left_bytes is not None) and now_seconds < flight.deadline_seconds
    )


def is_dying(state: PolicyState) -> bool:
    """Return whether a pod that was evicted for memory has not ended yet."""
    return any(flight.resource is Resource.MEMORY and flight.left_bytes is None for flight in state.in_flight)


def candidates(
    pods: Iterable[Pod], state: PolicyState, threshold: Threshold | None, now_seconds: float
) -> tuple[Pod, ...]:
    """Return the pods that may be chosen: those that are not being evicted already.

    A hard threshold may also choose a pod in the grace period of a soft one: it is killed at once.
    """
    if not state.in_flight:
        return tuple(pods)
    may_be_hurried = threshold is not None and threshold.is_hard
    taken = {
        flight.uid
        for flight in state.in_flight
        if not (may_be_hurried and now_seconds < flight.kill_at_seconds)
    }
    return tuple(pod for pod in pods if pod.uid not in taken)


def deferral(
    settings: EvictionSettings,
    state: PolicyState,
    threshold: Threshold,
    observation: Observation,
    evicting: Mapping[str, tuple[Pod, PodUsage | None]],
    now_seconds: float,
    given_up: Collection[str] = (),
) -> str | None:
    """Return why no pod is to be evicted for this threshold now, None where one is.

    `evicting` holds the pods in flight, by uid, with their present usage; those in `given_up` are waited for
    no longer.
    """
    return (
        _awaited(settings, state, threshold, observation, evicting, now_seconds, given_up)
        or _swap_awaited(state, threshold)
        or slowed(state, threshold, now_seconds)
        or _rate(settings, state, threshold, now_seconds)
    )


def _awaited(
    settings: EvictionSettings,
    state: PolicyState,
    threshold: Threshold,
    observation: Observation,
    evicting: Mapping[str, tuple[Pod, PodUsage | None]],
    now_seconds: float,
    given_up: Collection[str],
) -> str | None:
    victims = state.oom_victims if RESOURCE[threshold.signal] is Resource.MEMORY else ()
    if not victims and not state.in_flight:
        return None
    if any(credit_bytes(victim) is None for victim in victims):
        return "in flight: the kernel's OOM killer has killed a process whose memory is still being freed"
    credited_by = _credits(victims)
    names = [_whose(victim) for victim in victims]
    left = 0
    for flight in _waited_for(state, threshold, now_seconds):
        if flight.left_bytes is not None:
            left += max(0, flight.left_bytes - credited_by.get(flight.uid, 0))
            names.append(f"{flight.uid} (its files in memory are not removed yet)")
            continue
        if flight.uid in given_up:
            continue
        pod, used = evicting[flight.uid]
        is_whole = flight.process_bytes is None
        held = usage(pod, used, threshold.signal, settings.layout) if is_whole else flight.process_bytes
        # Of the same pod: what its processes give back that were killed before is a part of what it holds.
        credited_by[flight.uid] = max(credited_by.get(flight.uid, 0), held or 0)
        names.append(pod.key)
    if not names:
        return None
    credit = sum(credited_by.values())
    if left and observation.available + credit >= threshold.value.of(observation.capacity) / _LEFT_SHARE:
        credit += left
    credited = replace(observation, available=min(observation.available + credit, observation.capacity))
    if not credit and RESOURCE[threshold.signal] in ON_DISK:
        # Files go some time after their pod, when they are removed: how much that frees is not known yet.
        return f"in flight: how much the eviction of {', '.join(names)} frees is not known yet"
    # A threshold that has been met lasts until its minimum reclaim is there too; so does the wait.
    if is_met(threshold, credited, with_minimum_reclaim=True):
        return None
    amount = amount_text(credit, RESOURCE[threshold.signal])
    return f"in flight: {amount} still to be freed by {', '.join(names)}"


def _credits(victims: Iterable[OomVictim]) -> dict[str, int]:
    """Return how much each owner still gives back: by its uid a pod, or a process of which no pod is known.

    Each process is an owner of its own; a pod in which the kernel names no victim is the owner of them all.
    """
    credited_by: dict[str, int] = {}
    for victim in victims:
        owner = victim.uid or f"process {victim.pid}"
        gives, so_far = credit_bytes(victim) or 0, credited_by.get(owner, 0)
        credited_by[owner] = so_far + gives if victim.left_bytes is None else max(so_far, gives)
    return credited_by


def _swap_awaited(state: PolicyState, threshold: Threshold) -> str | None:
    """Return whose swap is waited for: that of processes which were killed here alone of their pod."""
    if RESOURCE[threshold.signal] is not Resource.SWAP:
        return None
    victims = [victim for victim in state.oom_victims if victim.pod_key is not None]
    if not victims:
        return None
    names = ", ".join(map(_whose, victims))
    return f"in flight: how much swap the end of {names} frees is not known yet"


def _whose(victim: OomVictim) -> str:
    """Return what is waited for, in words."""
    if victim.pod_key is not None:
        return f"process {victim.pid} of {victim.pod_key}"
    whose = f"pod {victim.uid}" if victim.pid is None else f"process {victim.pid}"
    return f"{whose} (killed by the kernel's OOM killer)"


def _waited_for(state: PolicyState, threshold: Threshold, now_seconds: float) -> Iterable[InFlight]:
    """Return the evictions that free a threshold's resource; a hard one waits for no grace period."""
    for flight in state.in_flight:
        is_in_grace = now_seconds < flight.kill_at_seconds
        if _frees(flight.resource, RESOURCE[threshold.signal]) and not (threshold.is_hard and is_in_grace):
            yield flight


def _frees(evicted_for: Resource, resource: Resource) -> bool:
    """Return whether an eviction for one resource frees the other: a pod that ends has memory and swap."""
    return evicted_for is resource or {evicted_for, resource} <= FREED_TOGETHER


def _rate(
    settings: EvictionSettings, state: PolicyState, threshold: Threshold, now_seconds: float
) -> str | None:
    if threshold.is_hard and threshold.signal in MEMORY_SIGNALS:
        return None
    left = evictions_left(settings, state, now_seconds)
    if left is None or left > 0:
        return None
    return f"rate: {settings.evictions_per_minute} evictions in the last minute, as many as are allowed"


def evictions_left(settings: EvictionSettings, state: PolicyState, now_seconds: float) -> int | None:
    """Return how many evictions the configured rate still allows in this minute, None for any number."""
    if settings.evictions_per_minute is None:
        return None
    recent = sum(1 for at in state.evicted_at if now_seconds - at < _RATE_WINDOW_SECONDS)
    return max(0, settings.evictions_per_minute - recent)
