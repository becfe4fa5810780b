"""The order in which pods are evicted for a signal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from reactor.model.decisions import RankedPod
from reactor.model.pods import Pod, PodUsage
from reactor.model.signals import RESOURCE, Layout, Resource, Signal
from reactor.policy.usage import request, usage

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
    places = [_place(pod, used.get(pod.uid), signal, layout) for pod in pods]
    return tuple(sorted(places, key=_order))


def _place(pod: Pod, used: PodUsage | None, signal: Signal, layout: Layout) -> RankedPod:
    amount = usage(pod, used, signal, layout)
    asked = request(pod, signal)
    comparable = amount is not None and RESOURCE[signal] in _WITH_REQUESTS
    return RankedPod(
        pod=pod,
        usage=amount,
        request=asked,
        exceeds_request=amount > asked if comparable and amount is not None else None,
    )


def _order(place: RankedPod) -> tuple[bool, bool, bool, int, int]:
    """Return the sort key: least first."""
    above_request = 0 if place.usage is None else place.usage - place.request
    return (
        not place.evictable,
        place.usage is not None,
        place.exceeds_request is False,
        place.pod.priority,
        -above_request,
    )
