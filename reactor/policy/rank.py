"""The order in which pods are evicted for a signal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from reactor.model.decisions import RankedPod
from reactor.model.pods import Pod, PodUsage
from reactor.model.signals import RESOURCE, Layout, Resource, Signal
from reactor.policy.usage import usage

_WITH_REQUESTS = frozenset({Resource.MEMORY, Resource.EPHEMERAL_STORAGE})


def rank(
    pods: Iterable[Pod], used: Mapping[str, PodUsage], signal: Signal, layout: Layout
) -> tuple[RankedPod, ...]:
    """Return the pods in the order in which they would be evicted; those that never are, last.

    A pod without statistics comes first. Memory and disk: pods above their request, then lower priority,
    then more usage above the request. Inodes and processes, which nobody requests: lower priority, then
    more usage. Ties keep the order given. `used` is by uid.
    Source: rankMemoryPressure, rankDiskPressureFunc, rankPIDPressure.
    """
    resource = RESOURCE[signal]
    has_requests = resource in _WITH_REQUESTS
    places = []
    for pod in pods:
        amount = usage(pod, used.get(pod.uid), signal, layout)
        asked = pod.requests.get(resource, 0)
        exceeds = amount > asked if has_requests and amount is not None else None
        places.append(RankedPod(pod=pod, usage=amount, request=asked, exceeds_request=exceeds))
    return tuple(sorted(places, key=_order))


def _order(place: RankedPod) -> tuple[bool, bool, bool, int, int]:
    """Return the sort key: least first."""
    pod, amount = place.pod, place.usage
    return (
        pod.critical_because is not None,
        amount is not None,
        place.exceeds_request is False,
        pod.priority,
        0 if amount is None else place.request - amount,
    )
