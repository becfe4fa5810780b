"""v1.Pod to what the policy needs of it. Sources are named at each rule; upstream's defaulting is applied."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from reactor.config.decode import CONVERTER, decode
from reactor.config.lenient import decode_leniently, register_preparation, register_reduction
from reactor.config.scalars import GracePeriod, Priority
from reactor.model.pods import (
    DEFAULT_TERMINATION_GRACE_PERIOD_SECONDS,
    SYSTEM_CRITICAL_PRIORITY,
    Container,
    Pod,
    QosClass,
    Toleration,
    Volume,
)
from reactor.model.quantity import Quantity
from reactor.model.signals import Resource

SOURCE_ANNOTATION = "kubernetes.io/config.source"
MIRROR_ANNOTATION = "kubernetes.io/config.mirror"
HASH_ANNOTATION = "kubernetes.io/config.hash"

_QOS_RESOURCES = ("cpu", "memory")
_CHARGED = (Resource.MEMORY, Resource.EPHEMERAL_STORAGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Metadata:
    name: str
    namespace: str = "default"
    uid: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Resources:
    requests: Mapping[str, Quantity] = field(default_factory=dict)
    limits: Mapping[str, Quantity] = field(default_factory=dict)

    @property
    def defaulted_requests(self) -> Mapping[str, Quantity]:
        """Return the requests; a limit without one is its own request. Source: SetDefaults_Pod."""
        return {**self.limits, **self.requests}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Container:
    name: str
    resources: _Resources = field(default_factory=_Resources)
    restart_policy: str = ""

    @property
    def is_sidecar(self) -> bool:
        return self.restart_policy == "Always"


@dataclass(frozen=True, slots=True, kw_only=True)
class _EmptyDir:
    medium: str = ""
    size_limit: Quantity | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Present:
    """A volume source of which only its being there counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Volume:
    name: str
    empty_dir: _EmptyDir | None = None
    host_path: _Present | None = None
    config_map: _Present | None = None
    git_repo: _Present | None = None

    @property
    def is_local(self) -> bool:
        """Return whether its usage is charged on the node's disk. Source: localVolumeNames."""
        on_disk = self.empty_dir is not None and self.empty_dir.medium == ""
        return on_disk or any(
            source is not None for source in (self.host_path, self.config_map, self.git_repo)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spec:
    priority: Priority = Priority(0)  # noqa: RUF009 - an int
    termination_grace_period_seconds: GracePeriod = GracePeriod(DEFAULT_TERMINATION_GRACE_PERIOD_SECONDS)  # noqa: RUF009
    containers: tuple[_Container, ...] = ()
    init_containers: tuple[_Container, ...] = ()
    volumes: tuple[_Volume, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    resources: _Resources = field(default_factory=_Resources)
    overhead: Mapping[str, Quantity] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ContainerStatus:
    name: str = ""
    allocated_resources: Mapping[str, Quantity] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mapped:
    name: str = ""
    quantity: Quantity | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _DeviceOverhead:
    name: str = ""
    per_pod: Quantity | None = None
    per_container: Quantity | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _ClaimStatus:
    """A v1.NodeAllocatableResourceClaimStatus: `resources` in 1.36, `mapping` and `overhead` since 1.37."""

    containers: tuple[str, ...] = ()
    resources: Mapping[str, Quantity] = field(default_factory=dict)
    mapping: tuple[_Mapped, ...] = ()
    overhead: tuple[_DeviceOverhead, ...] = ()

    def amounts(self) -> Iterator[Mapping[str, Quantity]]:
        """Yield what the claim adds to the pod's requests."""
        yield self.resources
        for mapped in self.mapping:
            if mapped.quantity is not None:
                yield {mapped.name: mapped.quantity}
        for one in self.overhead:
            if one.per_pod is not None:
                yield {one.name: one.per_pod}
            if one.per_container is not None and self.containers:
                amount = one.per_container.amount * len(self.containers)
                yield {one.name: replace(one.per_container, amount=amount)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Status:
    qos_class: QosClass | None = None
    container_statuses: tuple[_ContainerStatus, ...] = ()
    init_container_statuses: tuple[_ContainerStatus, ...] = ()
    allocated_resources: Mapping[str, Quantity] = field(default_factory=dict)
    node_allocatable_resource_claim_statuses: tuple[_ClaimStatus, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodDocument:
    """A v1.Pod as written; other keys are accepted and ignored."""

    metadata: _Metadata
    spec: _Spec = field(default_factory=_Spec)
    status: _Status = field(default_factory=_Status)


def pod_from_document(raw: object, *, root: str = "", cgroup: str | None = None) -> Pod:
    """Return the pod that a v1.Pod document describes. Raises ConfigError, with paths below `root`."""
    return pod(decode(raw, PodDocument, root=root), cgroup=cgroup)


def pod_as_far_as_readable(name: str, namespace: str, uid: str, spec: object, status: object) -> Pod:
    """Return the pod that a v1.Pod's spec and status describe; what can't be read of them is not given."""
    return pod(
        PodDocument(
            metadata=_Metadata(name=name, namespace=namespace, uid=uid),
            spec=decode_leniently(spec, _Spec),
            status=decode_leniently(status, _Status),
        )
    )


def annotations_of(raw: object, *, root: str = "") -> Mapping[str, str]:
    """Return a v1.Pod document's annotations. Raises ConfigError."""
    return decode(raw, PodDocument, root=root).metadata.annotations


def pod(document: PodDocument, *, cgroup: str | None = None) -> Pod:
    """Return the pod; one without a uid is known by its namespace and name."""
    metadata, spec = document.metadata, _allocated(document.spec, document.status)
    asked = _sum((_totals(spec, _requests), _claimed(document.status)))
    requests, limits = {**asked, **_own_requests(spec)}, _totals(spec, _limits)
    return Pod(
        name=metadata.name,
        namespace=metadata.namespace,
        uid=metadata.uid or f"{metadata.namespace}/{metadata.name}",
        priority=spec.priority,
        qos_class=document.status.qos_class or _qos_class(document.spec),
        critical_because=critical_because(metadata.annotations, spec.priority),
        termination_grace_period_seconds=spec.termination_grace_period_seconds,
        requests={
            # Whole numbers are used: more than half a byte is used where more than none is.
            resource: math.floor(request.amount)
            for resource in _CHARGED
            if (request := _with_overhead(spec, resource, requests.get(resource))) is not None
        },
        own_memory_request=_own_requests(spec).get(Resource.MEMORY),
        ephemeral_storage_limit=_with_overhead(
            spec, Resource.EPHEMERAL_STORAGE, limits.get(Resource.EPHEMERAL_STORAGE)
        ),
        containers=(
            *(_container(container, is_init=False) for container in spec.containers),
            *(_container(container, is_init=True) for container in spec.init_containers),
        ),
        volumes=tuple(
            Volume(
                name=volume.name,
                is_local=volume.is_local,
                is_empty_dir=volume.empty_dir is not None,
                size_limit=volume.empty_dir.size_limit if volume.empty_dir else None,
            )
            for volume in spec.volumes
        ),
        tolerations=spec.tolerations,
        cgroup=cgroup,
    )


def _claimed(status: _Status) -> dict[str, Quantity]:
    """Return what the pod's resource claims take of the node (DRA), which its spec does not request.

    The scheduler writes it when it binds the pod. It adds to what the containers request, also for claims of
    init containers alone; requests of the pod as a whole cover it. Source: KEP-5517, component-helpers,
    addDRANodeAllocatableClaimResources.
    """
    claims = status.node_allocatable_resource_claim_statuses
    return _sum(amounts for claim in claims for amounts in claim.amounts())


def _allocated(spec: _Spec, status: _Status) -> _Spec:
    """Return the spec with the requests that the kubelet has allocated, if the status has them.

    A wish for more that was not granted counts for nothing: otherwise a tenant who may resize a pod could
    exempt it. The pod's own requests can be resized as well; without any, what the status has of the pod as
    a whole is the containers' sum. Source: allocation.Manager, UpdatePodFromAllocation.
    """
    own = spec.resources
    if status.allocated_resources and (own.requests or own.limits):
        requests = {**own.requests, **status.allocated_resources}
        spec = replace(spec, resources=replace(own, requests=requests))
    statuses = (*status.container_statuses, *status.init_container_statuses)
    allocated = {one.name: one.allocated_resources for one in statuses if one.allocated_resources}
    if not allocated:
        return spec

    def with_allocated(container: _Container) -> _Container:
        resources = container.resources
        requests = {**resources.requests, **allocated.get(container.name, {})}
        return replace(container, resources=replace(resources, requests=requests))

    return replace(
        spec,
        containers=tuple(map(with_allocated, spec.containers)),
        init_containers=tuple(map(with_allocated, spec.init_containers)),
    )


def _container(container: _Container, *, is_init: bool) -> Container:
    asked = container.resources.defaulted_requests
    return Container(
        name=container.name,
        requests={resource: asked[resource] for resource in _CHARGED if resource in asked},
        # An init container that ends is held to no limit; a sidecar, which runs on, is.
        ephemeral_storage_limit=None
        if is_init and not container.is_sidecar
        else container.resources.limits.get(Resource.EPHEMERAL_STORAGE),
    )


def critical_because(annotations: Mapping[str, str], priority: int) -> str | None:
    """Return why a pod is never evicted, None where it may be. Source: kubelet/types, IsCriticalPod.

    For documents whose author is the operator: a tenant may annotate a pod of the API server's as it likes
    (see reactor/kube/pods.py).
    """
    source = annotations.get(SOURCE_ANNOTATION)
    if source is not None and source != "api":
        return f"static pod (source {source})"
    if MIRROR_ANNOTATION in annotations:
        return "mirror pod"
    if priority >= SYSTEM_CRITICAL_PRIORITY:
        return f"priority {priority}"
    return None


def _requests(container: _Container) -> Mapping[str, Quantity]:
    return container.resources.defaulted_requests


def _limits(container: _Container) -> Mapping[str, Quantity]:
    return container.resources.limits


def _own_requests(spec: _Spec) -> dict[str, Quantity]:
    """Return the requests of the pod as a whole, which stand for its containers'; empty where it has none.

    One that is not given is what the containers ask for together, and else the pod's own limit.
    Source: pkg/apis/core/v1, defaultPodRequests.
    """
    own = spec.resources
    if not own.requests and not own.limits:
        return {}
    return {
        **{name: own.limits[name] for name in _QOS_RESOURCES if name in own.limits},
        **{name: asked for name, asked in _totals(spec, _requests).items() if name in _QOS_RESOURCES},
        **own.requests,
    }


def _totals(spec: _Spec, of: Callable[[_Container], Mapping[str, Quantity]]) -> dict[str, Quantity]:
    """Return a pod's totals of its containers' requests or limits.

    Containers and sidecars run together and add up; an init container runs beside the sidecars that were
    started before it, and the pod needs the larger of the two.
    Source: component-helpers/resource, AggregateContainerRequests.
    """
    running = _sum(of(container) for container in spec.containers)
    sidecars: dict[str, Quantity] = {}
    starting: dict[str, Quantity] = {}
    for container in spec.init_containers:
        together = _sum((sidecars, of(container)))
        if container.is_sidecar:
            sidecars = together
        starting = _maximum(starting, together)
    return _maximum(_sum((running, sidecars)), starting)


def _sum(lists: Iterable[Mapping[str, Quantity]]) -> dict[str, Quantity]:
    total: dict[str, Quantity] = {}
    for amounts in lists:
        for resource, amount in amounts.items():
            total[resource] = total[resource] + amount if resource in total else amount
    return total


def _maximum(one: Mapping[str, Quantity], other: Mapping[str, Quantity]) -> dict[str, Quantity]:
    return {
        resource: max(amount for amount in (one.get(resource), other.get(resource)) if amount is not None)
        for resource in {**one, **other}
    }


def _with_overhead(spec: _Spec, resource: Resource, amount: Quantity | None) -> Quantity | None:
    """Return an amount with what the pod's sandbox takes; nothing is added to zero, as upstream has it."""
    if amount is None or not amount.amount or resource not in spec.overhead:
        return amount
    return amount + spec.overhead[resource]


def _qos_class(spec: _Spec) -> QosClass:
    """Return the class by requests and limits of cpu and memory. Source: qos.ComputePodQOS."""
    own = _own_requests(spec)
    parts = (
        [_Resources(requests=own, limits=spec.resources.limits)]
        if own
        else [container.resources for container in (*spec.containers, *spec.init_containers)]
    )
    requests = _sum(_positive(part.defaulted_requests) for part in parts)
    limits = _sum(_positive(part.limits) for part in parts)
    if not requests and not limits:
        return QosClass.BEST_EFFORT
    limited = all(set(_QOS_RESOURCES) == set(_positive(part.limits)) for part in parts)
    return QosClass.GUARANTEED if limited and requests == limits else QosClass.BURSTABLE


def _positive(amounts: Mapping[str, Quantity]) -> dict[str, Quantity]:
    return {
        resource: amounts[resource]
        for resource in _QOS_RESOURCES
        if resource in amounts and amounts[resource].amount > 0
    }


_read_volume_fields: Callable[[Any, Any], _Volume] = CONVERTER.get_structure_hook(_Volume)


def _with_source(raw: Any) -> Any:
    """Return a volume as written; one without any source is an emptyDir. Source: SetDefaults_Volume."""
    if isinstance(raw, Mapping) and all(key == "name" or raw[key] is None for key in raw):
        return {**raw, "emptyDir": {}}
    return raw


def _read_volume(raw: Any, cls: Any) -> _Volume:
    return _read_volume_fields(_with_source(raw), cls)


CONVERTER.register_structure_hook(_Volume, _read_volume)
register_preparation(_Volume, _with_source)


def _with_critical_annotations(_: Mapping[str, Any], kept: dict[str, Any]) -> dict[str, Any]:
    """Return metadata with the annotations that make a pod critical, and no others."""
    annotations = kept.pop("annotations", {})
    critical = {key: annotations[key] for key in (SOURCE_ANNOTATION, MIRROR_ANNOTATION) if key in annotations}
    return {**kept, "annotations": critical} if critical else kept


def _with_kinds(raw: Mapping[str, Any], kept: dict[str, Any]) -> dict[str, Any]:
    """Return a volume with its source, whatever that is: without one it would be an emptyDir."""
    sources: dict[str, Any] = {
        key: {} for key, source in raw.items() if source is not None and key not in kept
    }
    return {**kept, **sources}


register_reduction(_Metadata, _with_critical_annotations)
register_reduction(_Volume, _with_kinds)


def _read(raw: Any, _: Any) -> Pod:
    return pod(CONVERTER.structure(raw, PodDocument))


CONVERTER.register_structure_hook(Pod, _read)
