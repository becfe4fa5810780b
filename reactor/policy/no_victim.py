"""A threshold is met and no pod can be evicted: the state in which the kernel alone is left to act."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from reactor.model.decisions import NoVictim, RankedPod
from reactor.model.pods import Pod, PodUsage
from reactor.model.quantity import amount_text
from reactor.model.signals import MEMORY_SIGNALS, RESOURCE, Resource
from reactor.model.thresholds import Observation, Threshold
from reactor.policy.outside import memory_outside_pods
from reactor.text import printable

_NAMED = 3


def can_be_evicted(pods: Iterable[Pod]) -> bool:
    """Return whether one of these pods at least may be evicted."""
    return any(pod.critical_because is None for pod in pods)


def no_victim(
    threshold: Threshold,
    seen: Observation,
    ranking: Sequence[RankedPod],
    pods: Sequence[Pod],
    used: Mapping[str, PodUsage],
) -> NoVictim:
    """Return that a threshold is met and evicts no pod of the ranking, with the pods that hold most."""
    resource = RESOURCE[threshold.signal]
    available, capacity = amount_text(seen.available, resource), amount_text(seen.capacity, resource)
    parts = [f"{threshold} is met ({available} of {capacity} available), and no pod can be evicted"]
    if not ranking:
        parts.append("there is no pod")
    held = sorted((place for place in ranking if place.usage), key=lambda place: -(place.usage or 0))
    if held:
        named = [
            f"{amount_text(place.usage, resource)} by {place.pod.key} ({_because(place.pod)})"
            for place in held[:_NAMED]
        ]
        more = f" and {len(held) - _NAMED} more" if len(held) > _NAMED else ""
        parts.append(f"held: {', '.join(named)}{more}")
    elif ranking:
        parts.append(f"{ranking[0].pod.key}: {_because(ranking[0].pod)}")
    if threshold.signal in MEMORY_SIGNALS:
        outside_bytes = memory_outside_pods(seen, pods, used)
        if outside_bytes:
            parts.append(f"{amount_text(outside_bytes, Resource.MEMORY)} are used outside the pods")
    return NoVictim(threshold=threshold, message="; ".join(parts))


def _because(pod: Pod) -> str:
    return printable(pod.critical_because or "holds nothing that an eviction frees")
