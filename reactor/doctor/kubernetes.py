"""`reactor doctor` on a Kubernetes node and on what keeps containers.

API server, node object, rules, the kubelet's own evictions; the container runtime and podman's images.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import trio

from reactor.config.decode import decode
from reactor.config.documents import load_document
from reactor.config.kubelet import KubeletConfiguration
from reactor.doctor.thresholds import RESERVABLE, hard_threshold_bytes, outside_pods_bytes, reserved_feature
from reactor.errors import ConfigError, PodmanError, ReactorError, extra_remedy, join
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.features import Feature
from reactor.kernel.procfs import PROC
from reactor.model.quantity import Quantity, format_bytes
from reactor.model.settings import EvictionSettings, KubernetesSettings, PodOrigin, Role, Settings
from reactor.model.signals import Layout, Signal
from reactor.podman.client import DEFAULT_SOCKET, PodmanClient, find_socket

SERVER: Final = "API server"
NODE: Final = "node object"
RULES: Final = "RBAC rules"
EVICTION: Final = "sole eviction"
_SECONDS: Final = 10.0
_LARGEST_BYTES: Final = 4 << 20
_GROUPS: Final = {"leases": "coordination.k8s.io", "daemonsets": "apps"}
_REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_OWN: Final = frozenset(
    {
        Signal.MEMORY_AVAILABLE,
        Signal.NODEFS_AVAILABLE,
        Signal.NODEFS_INODES_FREE,
        Signal.IMAGEFS_AVAILABLE,
        Signal.IMAGEFS_INODES_FREE,
        Signal.PID_AVAILABLE,
    }
)
# What makes `role: sole` true. An empty evictionHard would do as well, but not with
# mergeDefaultEvictionSettings. localStorageCapacityIsolation stays true: without it the node has no capacity
# of ephemeral-storage, and a pod that requests some stays Pending. That the kubelet then holds pods to their
# own limits, too, does no harm.
NO_EVICTION: Final[Mapping[str, Any]] = {
    "evictionHard": {signal.value: "0%" for signal in Signal if signal in _OWN},
    "evictionSoft": {},
}
_ISOLATION: Final = "localStorageCapacityIsolation"

RUNTIME: Final = "container runtime"
PODMAN: Final = "podman images"
_RUNTIME_SECONDS: Final = 5.0


def kubernetes_features(settings: Settings) -> tuple[Feature, ...]:
    """Return what the cluster and the kubelet offer; nothing on a plain Linux node."""
    kubernetes = settings.kubernetes
    if kubernetes is None:
        return ()
    kept = hard_threshold_bytes(settings)
    try:
        asked = trio.run(_asked, kubernetes, kept, outside_pods_bytes(settings))
    except ImportError:
        asked = (
            Feature(name=SERVER, available=False, detail="not asked", remedy=extra_remedy("kubernetes")),
        )
    return (*asked, kubelet_eviction(kubernetes, kept))


def node_reservation(settings: Settings, kept_bytes: Mapping[str, int] | None = None) -> Feature | None:
    """Return whether the Node keeps from the scheduler what hard thresholds keep free, in any role.

    `kept_bytes` is by resource, without it what the settings' own keep. None where no Node can be asked.
    """
    if settings.kubernetes is None:
        return None
    try:
        name, node = trio.run(_node_of, settings.kubernetes)
    except (ImportError, ReactorError, OSError, trio.TooSlowError):
        return None
    kept = hard_threshold_bytes(settings) if kept_bytes is None else kept_bytes
    found = reserved_feature(node, kept, outside_pods_bytes(settings))
    return replace(found, detail=f"node {name}: {found.detail}")


async def _node_of(settings: KubernetesSettings) -> tuple[str, Mapping[str, Any]]:
    """Return this machine's Node and its name. Raises ReactorError, TooSlowError."""
    from reactor.kube.client import ApiClient  # noqa: PLC0415 - as in `_asked`
    from reactor.kube.credentials import credentials_of  # noqa: PLC0415
    from reactor.kube.node import node_name  # noqa: PLC0415

    name = node_name(settings)
    with closing(ApiClient(credentials_of(settings.kubeconfig_path))) as client, trio.fail_after(_SECONDS):
        return name, await client.get(f"/api/v1/nodes/{name}")


def kubelet_eviction(settings: KubernetesSettings, kept_bytes: Mapping[str, int] | None = None) -> Feature:
    """Return whether the kubelet's configuration fits the role: alone, its own eviction has to be off.

    `kept_bytes` is what the reactor's hard thresholds keep free, by resource. A kubelet that evicts keeps its
    thresholds from the scheduler (Node Allocatable); one that does not has to reserve as much.
    """
    path = settings.kubelet_config_path
    try:
        configuration = _configuration(path)
    except (OSError, UnicodeDecodeError, ConfigError) as error:
        why = " ".join(str(error).split())
        if settings.role is Role.ALONGSIDE:
            return Feature(
                name=EVICTION, available=False, detail=f"unknown, and not needed with role alongside: {why}"
            )
        remedy = "name the kubelet's configuration in reactor.kubernetes.kubelet.config"
        return Feature(name=EVICTION, available=False, detail=f"unknown: {why}", remedy=remedy)
    active = [str(threshold) for threshold in _eviction(configuration).thresholds if threshold.signal in _OWN]
    found = (
        f"{path}: the kubelet evicts for {', '.join(active)}"
        if active
        else f"{path}: the kubelet's own eviction is off"
    )
    if settings.role is Role.ALONGSIDE:
        return Feature(name=EVICTION, available=not active, detail=f"{found}; role alongside allows it")
    missing = [] if active else _not_reserved(configuration, kept_bytes or {})
    if missing:
        found = f"{found}; less is reserved than reactor keeps free, and pods are scheduled into it: "
        found += ", ".join(f"{name} by {format_bytes(kept)}" for name, kept in missing)
    wanted = dict(NO_EVICTION) if active else {}
    grown = (kept_bytes or {}).items() if active else missing
    if grown:
        wanted["systemReserved"] = _grown(configuration.system_reserved, dict(grown))
    if not configuration.local_storage_capacity_isolation:
        found = f"{found}; {_ISOLATION} is false: pods that request ephemeral-storage stay Pending"
        wanted[_ISOLATION] = True
    remedy = f"put into {path} and restart the kubelet: {json.dumps(wanted)}" if wanted else ""
    return Feature(name=EVICTION, available=not wanted, detail=found, remedy=remedy)


def reserved_too_little(
    settings: Settings, tree: CgroupTree | None = None, *, proc: Path = PROC
) -> Iterator[tuple[str, str]]:
    """Yield the hard thresholds that keep more free than the kubelet keeps from the scheduler."""
    if settings.kubernetes is None:
        return
    path = settings.kubernetes.kubelet_config_path
    try:
        configuration = _configuration(path)
    except (OSError, UnicodeDecodeError, ConfigError):
        return  # on a machine that is no node
    kubelets = hard_threshold_bytes(replace(settings, eviction=_eviction(configuration)), tree, proc=proc)
    for name, kept in hard_threshold_bytes(settings, tree, proc=proc).items():
        own = (configuration.kube_reserved, configuration.system_reserved)
        reserved = kubelets.get(name, 0) + int(sum(each[name].value for each in own if name in each))
        if reserved < kept:
            signal = next(signal for signal, resource in RESERVABLE.items() if resource == name)
            why = (
                f"keeps {format_bytes(kept)} free, and {path} keeps {format_bytes(reserved)} from the "
                "scheduler: pods within their requests can be evicted; add "
                f"{format_bytes(kept - reserved)} of {name} to systemReserved there, or lower the threshold"
            )
            yield join("evictionHard", signal), why


def _configuration(path: str) -> KubeletConfiguration:
    """Raises OSError, UnicodeDecodeError or ConfigError."""
    with Path(path).open("rb") as file:
        text = file.read(_LARGEST_BYTES).decode()
    return decode(load_document(text, path) or {}, KubeletConfiguration)


def _eviction(configuration: KubeletConfiguration) -> EvictionSettings:
    return configuration.eviction_settings(
        Layout.SINGLE, evictions_per_minute=None, in_flight_deadline_seconds=0.0
    )


def _not_reserved(
    configuration: KubeletConfiguration, kept_bytes: Mapping[str, int]
) -> list[tuple[str, int]]:
    """Return the resources of which less is reserved than is kept free, each with what is to be added."""
    reserved = (configuration.kube_reserved, configuration.system_reserved)
    return [
        (name, kept)
        for name, kept in kept_bytes.items()
        if sum(one[name].value for one in reserved if name in one) < kept
    ]


def _grown(reserved: Mapping[str, Quantity], kept_bytes: Mapping[str, int]) -> dict[str, str]:
    """Return systemReserved with what is to be added to it."""
    found = {name: str(amount) for name, amount in reserved.items()}
    for name, kept in kept_bytes.items():
        found[name] = format_bytes(kept + (reserved[name].value if name in reserved else 0))
    return found


async def _asked(
    settings: KubernetesSettings, kept_bytes: Mapping[str, int], outside_bytes: int | None
) -> tuple[Feature, ...]:
    """Return what the API server says; four features, of which the first that it refuses is the last."""
    # Only here: a plain node may lack what the client stands on.
    from reactor.kube.client import ApiClient  # noqa: PLC0415
    from reactor.kube.credentials import credentials_of  # noqa: PLC0415
    from reactor.kube.errors import NotFoundError  # noqa: PLC0415
    from reactor.kube.node import node_name  # noqa: PLC0415

    name = node_name(settings)
    client = ApiClient(credentials_of(settings.kubeconfig_path))
    found: list[Feature] = []
    step, remedy = SERVER, "see reactor.kubernetes.kubeconfig"
    try:
        with trio.fail_after(_SECONDS):
            version = await client.get("/version")
            detail = f"{version.get('gitVersion')}" + (
                f"; {client.clock_problem}" if client.clock_problem else ""
            )
            found.append(Feature(name=SERVER, available=True, detail=detail))
            step, remedy = RULES, "grant what is missing: deploy/kustomize/base/rbac.yaml has all of it"
            missing = await _missing_rules(client, settings, _version(version))
            found.append(
                Feature(
                    name=RULES,
                    available=not missing,
                    detail=f"missing: {'; '.join(missing)}" if missing else "all that is needed",
                    remedy=remedy if missing else "",
                )
            )
            step, remedy = NODE, "set reactor.kubernetes.nodeName or NODE_NAME as in `kubectl get nodes`"
            node = await client.get(f"/api/v1/nodes/{name}")
            found.append(Feature(name=NODE, available=True, detail=name))
            found.append(reserved_feature(node, kept_bytes, outside_bytes))
    except NotFoundError:
        found.append(Feature(name=step, available=False, detail=f"there is no {name!r}", remedy=remedy))
    except (ReactorError, trio.TooSlowError) as error:
        why = str(error) or f"no answer within {_SECONDS:g} s"
        found.append(Feature(name=step, available=False, detail=why, remedy=remedy))
    finally:
        client.close()
    return tuple(found)


def _version(document: Mapping[str, Any]) -> tuple[int, int]:
    """Return major and minor of a server's /version, (0, 0) if it says neither."""
    found = re.match(r"v(\d{1,4})\.(\d{1,4})", str(document.get("gitVersion")))
    return (int(found[1]), int(found[2])) if found else (0, 0)


async def _missing_rules(
    client: Any, settings: KubernetesSettings, version: tuple[int, int] = (0, 0)
) -> list[str]:
    """Return the rules that we lack, as the server's own authorizer says. Raises ApiError."""
    needed = [
        ("nodes", "", "get list watch patch"),
        ("nodes", "status", "patch"),
        ("pods", "status", "patch"),
        ("pods", "", "list watch" + (" delete" if settings.evicted_pod_ttl_seconds else "")),
        ("events", "", "create patch"),
    ]
    from reactor.kube.client import BEFORE_NODES_PODS  # noqa: PLC0415 - as in `_asked`

    if settings.pods_from is PodOrigin.KUBELET:
        needed.append(("nodes", "proxy" if version < BEFORE_NODES_PODS else "pods", "get"))
    from reactor.cluster.leaving import POD_NAMESPACE  # noqa: PLC0415 - as in `_asked`
    from reactor.cluster.node_status import lease_namespace  # noqa: PLC0415

    namespace, missing = lease_namespace(settings), []
    if namespace is not None:
        needed.append(("leases", "", "create patch"))
    namespaces = {"leases": namespace, "daemonsets": os.environ.get(POD_NAMESPACE)}
    if namespaces["daemonsets"]:
        needed.append(("daemonsets", "", "get"))

    async def is_allowed(verb: str, resource: str, subresource: str) -> bool:
        attributes = {"resource": resource, "subresource": subresource, "verb": verb}
        if resource in namespaces:
            attributes |= {"group": _GROUPS[resource], "namespace": namespaces[resource] or ""}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        answer = await client.create(_REVIEWS, review)
        status = answer.get("status") if isinstance(answer, Mapping) else None
        return isinstance(status, Mapping) and status.get("allowed") is True

    for resource, subresource, verbs in needed:
        for verb in verbs.split():
            if await is_allowed(verb, resource, subresource):
                continue
            # A kubelet that asks for nodes/pods is content with the wider right.
            if subresource == "pods" and await is_allowed(verb, resource, "proxy"):
                continue
            missing.append(f"{verb} on {resource}{f'/{subresource}' if subresource else ''}")
    return missing


def runtime_feature(settings: Settings) -> Feature:
    """Return whether there is a container runtime that answers; asked for its version, for some seconds."""
    # Only here: a plain node may lack what the client stands on.
    from reactor.cri.client import KNOWN_ENDPOINTS, find_endpoint  # noqa: PLC0415

    endpoint = settings.runtime_endpoint or find_endpoint()
    if endpoint is None:
        needed = settings.kubernetes is not None
        return Feature(
            name=RUNTIME,
            available=False,
            detail="no socket at the known paths" + ("" if needed else "; a plain Linux node needs none"),
            remedy=f"set reactor.runtime.endpoint; looked for: {', '.join(KNOWN_ENDPOINTS)}"
            if needed
            else "",
        )
    try:
        return Feature(name=RUNTIME, available=True, detail=trio.run(_runtime, endpoint))
    except ImportError:
        return Feature(
            name=RUNTIME, available=False, detail=f"not asked: {endpoint}", remedy=extra_remedy("kubernetes")
        )
    except (ReactorError, trio.TooSlowError) as error:
        remedy = "start it, or name its socket in reactor.runtime.endpoint; root is needed to ask it"
        why = str(error) or f"no answer within {_RUNTIME_SECONDS:g} s: {endpoint}"
        return Feature(name=RUNTIME, available=False, detail=why, remedy=remedy)


async def _runtime(endpoint: str) -> str:
    from reactor.cri.client import RuntimeClient, described  # noqa: PLC0415

    client = RuntimeClient(endpoint)
    with trio.fail_after(_RUNTIME_SECONDS):
        return described(await client.version(), client)


def podman_features(settings: Settings) -> tuple[Feature, ...]:
    """Return whether podman answers, which is asked for some seconds; nothing on a Kubernetes node."""
    if settings.kubernetes is not None:
        return ()
    if not settings.podman:
        return (Feature(name=PODMAN, available=False, detail="switched off in the configuration"),)
    endpoint = find_socket(settings.podman_socket)
    if endpoint is None:
        remedy = "if podman is used here: systemctl enable --now podman.socket, or reactor.podman.socket"
        return (
            Feature(name=PODMAN, available=False, detail=f"no socket at {DEFAULT_SOCKET}", remedy=remedy),
        )
    try:
        detail = trio.run(_podman, PodmanClient(endpoint))
    except (PodmanError, trio.TooSlowError) as error:
        why = str(error) or f"no answer within {_RUNTIME_SECONDS:g} s: {endpoint}"
        remedy = "start it, or name its socket in reactor.podman.socket; root is needed to ask it"
        return (Feature(name=PODMAN, available=False, detail=why, remedy=remedy),)
    return (Feature(name=PODMAN, available=True, detail=detail),)


async def _podman(client: PodmanClient) -> str:
    with trio.fail_after(_RUNTIME_SECONDS):
        info = await client.info()
        return f"podman {info.version} at {client.endpoint}, {len(await client.images())} images"
