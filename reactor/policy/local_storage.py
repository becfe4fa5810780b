"""Pods that use more local storage than they are allowed to, whether or not the node is short of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from reactor.model.decisions import Eviction
from reactor.model.pods import ContainerUsage, FilesystemUsage, Pod, PodUsage
from reactor.model.signals import Layout, LimitSignal, Resource
from reactor.policy.messages import container_limit_message, empty_dir_message, pod_limit_message


def storage_limit_evictions(
    pods: Iterable[Pod], used: Mapping[str, PodUsage], layout: Layout
) -> tuple[Eviction, ...]:
    """Return an eviction for each pod above a limit of its own, in the pods' order, at once (grace 0).

    Critical pods and pods without statistics stay. `used` is by uid.
    Source: localStorageEviction: emptyDir limits, then the pod's, then its containers'.
    """
    return tuple(
        eviction
        for pod in pods
        if _has_limits(pod) and pod.critical_because is None and pod.uid in used
        for eviction in _first_broken_limit(pod, used[pod.uid], layout)
    )


def _has_limits(pod: Pod) -> bool:
    """Return whether the pod has a limit to check: most have none, and every pass asks for all pods."""
    if pod.ephemeral_storage_limit is not None:
        return True
    for volume in pod.volumes:  # plain loops: a tenth of the time that any() takes for so few
        if volume.size_limit is not None:
            return True
    for container in pod.containers:  # noqa: SIM110 - see above
        if container.ephemeral_storage_limit is not None:
            return True
    return False


def _first_broken_limit(pod: Pod, used: PodUsage, layout: Layout) -> Iterator[Eviction]:
    broken = (
        *_empty_dirs(pod, used),
        *_pod_limit(pod, used),
        *_container_limits(pod, used, layout),
    )
    for signal, message in broken[:1]:
        yield Eviction(
            pod=pod,
            signal=signal,
            resource=Resource.EPHEMERAL_STORAGE,
            grace_period_seconds=0,
            message=message,
        )


def _empty_dirs(pod: Pod, used: PodUsage) -> Iterator[tuple[LimitSignal, str]]:
    for volume in pod.volumes:
        limit = volume.size_limit
        used_bytes = used.volumes.get(volume.name, FilesystemUsage()).used_bytes
        if limit is not None and used_bytes is not None and used_bytes > limit.amount > 0:
            yield LimitSignal.EMPTY_DIR, empty_dir_message(volume.name, limit)


def _pod_limit(pod: Pod, used: PodUsage) -> Iterator[tuple[LimitSignal, str]]:
    limit, used_bytes = pod.ephemeral_storage_limit, used.ephemeral_storage_bytes
    if limit is not None and used_bytes is not None and used_bytes > limit.amount:
        yield LimitSignal.POD, pod_limit_message(limit)


def _container_limits(pod: Pod, used: PodUsage, layout: Layout) -> Iterator[tuple[LimitSignal, str]]:
    """Yield containers above their limit. Where images have their own filesystem only logs are charged."""
    limits = {container.name: container.ephemeral_storage_limit for container in pod.containers}
    for container in used.containers:
        limit = limits.get(container.name)
        used_bytes = _container_bytes(container, with_writable_layer=layout is Layout.SINGLE)
        if limit is not None and limit.amount and used_bytes > limit.amount:
            yield LimitSignal.CONTAINER, container_limit_message(container.name, limit)


def _container_bytes(container: ContainerUsage, *, with_writable_layer: bool) -> int:
    counted = (container.logs, container.rootfs) if with_writable_layer else (container.logs,)
    return sum(
        filesystem.used_bytes
        for filesystem in counted
        if filesystem is not None and filesystem.used_bytes is not None
    )
