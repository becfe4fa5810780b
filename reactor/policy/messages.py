"""What is written into an evicted pod's status and event, in upstream's words; and why none is evicted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from reactor.model.decisions import Eviction, Inputs, RankedPod
from reactor.model.pods import ContainerUsage, Pod, PodUsage
from reactor.model.quantity import Quantity, amount_text, format_bytes, format_count
from reactor.model.signals import IN_BYTES, MEMORY_SIGNALS, RESOURCE, Resource, Signal
from reactor.model.thresholds import Observation, Threshold, ThresholdValue
from reactor.policy.rank import is_guess, memory_outside_pods
from reactor.text import printable

_NAMED: Final = 3


def format_amount(amount: int, resource: Resource) -> str:
    """Return an amount as upstream prints it: binary suffixes for bytes, decimal ones for counts."""
    return format_bytes(amount) if resource in IN_BYTES else format_count(amount)


def eviction_message(eviction: Eviction) -> tuple[str, Mapping[str, str]]:
    """Return the message and the event's annotations for an eviction: asked for once it is recorded."""
    if eviction.threshold is None or eviction.shortage is None:
        return eviction.message, eviction.annotations
    return node_message(eviction.threshold, *eviction.shortage)


def node_message(
    threshold: Threshold, observation: Observation, place: RankedPod, used: PodUsage | None
) -> tuple[str, dict[str, str]]:
    """Return the message and the event's annotations for an eviction on the node's behalf.

    Upstream's text to the letter, each of its sentences with the blank that ends it: the threshold, the pod
    where it has a request of its own, the containers above their requests. Where it says nothing of the pod
    a sentence of ours follows, of what was used and what was asked for. Source: evictionMessage.
    """
    resource = RESOURCE[threshold.signal]
    pod_name = printable(place.pod.name)
    wanted = _threshold_amount(threshold.value, observation.capacity)
    available = format_amount(observation.available, resource)
    message = (
        f"The node was low on resource: {resource}. Threshold quantity: {wanted}, available: {available}. "
    )
    annotations = {}
    own = _own_usage(place.pod, used, resource)
    if own is not None:
        usage, request = own
        message += (
            f"Pod {pod_name} was using {usage}, request is {request}, has larger consumption of {resource}. "
        )
        annotations = {"offending_pod": place.pod.name, "offending_pod_usage": usage}
    for name, usage, request in _offending_containers(place, used, resource):
        message += (
            f"Container {printable(name)} was using {usage}, request is {request}, "
            f"has larger consumption of {resource}. "
        )
    if own is None:
        usage = "an unknown amount" if place.usage is None else format_amount(place.usage, resource)
        request = format_amount(place.request, resource)
        message += f"Pod {pod_name} was using {usage}, request is {request}."
    return message, annotations | offending_annotations(place, used, resource)


def offending_annotations(
    place: RankedPod, used: PodUsage | None, resource: Resource, *, of_each: bool = False
) -> dict[str, str]:
    """Return the annotations by which others learn, such as VPA. Source: evictionMessage.

    VPA reads three lists and learns nothing if their lengths differ; upstream names the resource once,
    however many containers there are. `of_each` names it for each container.
    Source: vertical-pod-autoscaler, pkg/recommender/input/oom, parseEvictionEvent.
    """
    offending = _offending_containers(place, used, resource)
    times = max(1, len(offending)) if of_each else 1
    return {
        "offending_containers": ",".join(name for name, _, _ in offending),
        "offending_containers_usage": ",".join(usage for _, usage, _ in offending),
        "starved_resource": ",".join([resource] * times),
    }


def _threshold_amount(value: ThresholdValue, capacity: int) -> str:
    """Return a threshold as upstream prints it: an amount as written, a share with binary suffixes."""
    if value.amount is None:
        return format_bytes(int(value.of(capacity)))
    return str(Quantity(value.amount, value.text))


def _own_usage(pod: Pod, used: PodUsage | None, resource: Resource) -> tuple[str, str] | None:
    """Return usage and request of a pod that requests memory as a whole; None for any other."""
    request = pod.own_memory_request
    if resource is not Resource.MEMORY or request is None or used is None:
        return None
    if used.memory_working_set_bytes is None:
        return None
    return format_bytes(used.memory_working_set_bytes), str(request)


def _offending_containers(
    place: RankedPod, used: PodUsage | None, resource: Resource
) -> list[tuple[str, str, str]]:
    """Return name, usage and request of each container above its request, in the statistics' order."""
    asked = {container.name: container.requests.get(resource) for container in place.pod.containers}
    offending = []
    for container in used.containers if used is not None else ():
        usage = _container_usage(container, resource)
        if container.name not in asked or usage is None:
            continue
        requested = asked[container.name]
        if usage > (requested.amount if requested is not None else 0):
            offending.append((container.name, format_bytes(usage), str(requested or 0)))
    return offending


def _container_usage(container: ContainerUsage, resource: Resource) -> int | None:
    """Return a container's usage in bytes; None where unobserved, or not counted by container."""
    if resource is Resource.MEMORY:
        return container.memory_working_set_bytes
    if resource is not Resource.EPHEMERAL_STORAGE or container.rootfs is None or container.logs is None:
        return None
    if container.rootfs.used_bytes is None or container.logs.used_bytes is None:
        return None
    return container.rootfs.used_bytes + container.logs.used_bytes


def no_victim(inputs: Inputs, threshold: Threshold, ranking: Sequence[RankedPod]) -> str:
    """Return that a threshold is met and evicts no pod of the ranking, with the pods that hold most."""
    resource, seen = RESOURCE[threshold.signal], inputs.seen(threshold)
    available, capacity = amount_text(seen.available, resource), amount_text(seen.capacity, resource)
    parts = [f"{threshold} is met ({available} of {capacity} available), and no pod can be evicted"]
    if not ranking:
        parts.append("there is no pod")
    elif is_guess(ranking):
        parts.append("the usage of the candidates could not be read: to choose one would be a guess")
    held = sorted((place for place in ranking if place.usage), key=lambda place: -(place.usage or 0))
    if held:
        named = [
            f"{amount_text(place.usage, resource)} by {place.pod.key} ({_because(place.pod)})"
            for place in held[:_NAMED]
        ]
        more = f" and {len(held) - _NAMED} more" if len(held) > _NAMED else ""
        parts.append(f"held: {', '.join(named)}{more}")
    elif ranking and not ranking[0].evictable:
        parts.append(f"{ranking[0].pod.key}: {_because(ranking[0].pod)}")
    if threshold.signal in MEMORY_SIGNALS and not is_guess(ranking):
        outside_bytes = memory_outside_pods(seen, inputs.pods, inputs.snapshot.pods)
        if outside_bytes:
            parts.append(f"{amount_text(outside_bytes, Resource.MEMORY)} are used outside the pods")
    return "; ".join(parts)


def _because(pod: Pod) -> str:
    return printable(pod.critical_because or "holds nothing that an eviction frees")


_OF_WHAT: Final = {
    Signal.MEMORY_AVAILABLE: "the node has",
    Signal.ALLOCATABLE_MEMORY_AVAILABLE: "the pods' cgroups may use",
    Signal.PID_AVAILABLE: "the node may run",
    Signal.SWAP_AVAILABLE: "the node may swap",
}


def absurd_thresholds(
    thresholds: Iterable[Threshold], observations: Mapping[Signal, Observation]
) -> dict[str, str]:
    """Return what is wrong with each threshold at the capacity observed, by its name.

    - a threshold at or above the capacity would always be met: it is ignored;
    - a soft one that is not above the hard one of its signal is never the first to be met;
    - a minimum reclaim up to the capacity is never reached, so that a threshold once met stays met.

    A threshold whose signal was not observed, or is absurd itself, is not judged.
    """
    known = [
        (threshold, seen)
        for threshold in thresholds
        if (seen := observations.get(threshold.signal)) is not None and seen.absurdity is None
    ]
    hard: dict[Signal, Threshold] = {}
    for threshold, seen in known:
        if threshold.is_hard and not threshold.is_absurd_at(seen.capacity):
            hard[threshold.signal] = threshold
    return {
        f"{'' if threshold.is_hard else 'soft '}threshold {threshold}": "; ".join(found)
        for threshold, seen in known
        if (found := list(_absurdities_of(threshold, seen, hard.get(threshold.signal))))
    }


def _absurdities_of(threshold: Threshold, seen: Observation, hard: Threshold | None) -> Iterator[str]:
    if threshold.is_absurd_at(seen.capacity):
        capacity = format_amount(seen.capacity, RESOURCE[threshold.signal])
        of_what = _OF_WHAT.get(threshold.signal, "the filesystem has")
        yield (
            f"ignored: it is not below the {capacity} that {of_what}, so it would be met at all times "
            "and evict every pod"
        )
        return
    wanted = threshold.value.of(seen.capacity)
    if not threshold.is_hard and hard is not None and wanted <= hard.value.of(seen.capacity):
        yield f"has no effect: it is not above the hard threshold {hard}, which is met first"
    reclaim = threshold.minimum_reclaim
    if reclaim is not None and threshold.target(seen.capacity) >= seen.capacity:
        yield (
            f"its minimum reclaim of {reclaim.text} can't be reached: once met it stays met, "
            "and evicts pod after pod"
        )
