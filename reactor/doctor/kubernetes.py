"""`reactor doctor` on a Kubernetes node: API server, node object, rules, and the kubelet's own eviction."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import trio

from reactor.config.decode import decode
from reactor.config.documents import load_document
from reactor.config.kubelet import KubeletConfiguration
from reactor.errors import ConfigError, ReactorError, extra_remedy
from reactor.kernel.features import Feature
from reactor.model.settings import KubernetesSettings, PodOrigin, Role, Settings
from reactor.model.signals import Layout, Signal

SERVER: Final = "API server"
NODE: Final = "node object"
RULES: Final = "RBAC rules"
EVICTION: Final = "sole eviction"
_SECONDS: Final = 10.0
_LARGEST_BYTES: Final = 4 << 20
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
# mergeDefaultEvictionSettings; the kubelet enforces the limits of single pods only if it is configured to.
NO_EVICTION: Final[Mapping[str, Any]] = {
    "evictionHard": {signal.value: "0%" for signal in Signal if signal in _OWN},
    "evictionSoft": {},
    "localStorageCapacityIsolation": False,
}


def kubernetes_features(settings: Settings) -> tuple[Feature, ...]:
    """Return what the cluster and the kubelet offer; nothing on a plain Linux node."""
    kubernetes = settings.kubernetes
    if kubernetes is None:
        return ()
    try:
        asked = trio.run(_asked, kubernetes)
    except ImportError:
        asked = (
            Feature(name=SERVER, available=False, detail="not asked", remedy=extra_remedy("kubernetes")),
        )
    return (*asked, kubelet_eviction(kubernetes))


def kubelet_eviction(settings: KubernetesSettings) -> Feature:
    """Return whether the kubelet's configuration fits the role: alone, its own eviction has to be off."""
    path = settings.kubelet_config_path
    try:
        with Path(path).open("rb") as file:
            text = file.read(_LARGEST_BYTES).decode()
        document = load_document(text, path)
        configuration = decode(document or {}, KubeletConfiguration)
    except (OSError, UnicodeDecodeError, ConfigError) as error:
        why = " ".join(str(error).split())
        if settings.role is Role.ALONGSIDE:
            return Feature(
                name=EVICTION, available=False, detail=f"unknown, and not needed with role alongside: {why}"
            )
        remedy = "name the kubelet's configuration in reactor.kubernetes.kubelet.config"
        return Feature(name=EVICTION, available=False, detail=f"unknown: {why}", remedy=remedy)
    active = [
        str(threshold)
        for threshold in configuration.eviction_settings(
            Layout.SINGLE, evictions_per_minute=None, in_flight_deadline_seconds=0.0
        ).thresholds
        if threshold.signal in _OWN
    ]
    told = (
        f"{path}: the kubelet evicts for {', '.join(active)}"
        if active
        else f"{path}: the kubelet's own eviction is off"
    )
    if settings.role is Role.ALONGSIDE:
        return Feature(name=EVICTION, available=not active, detail=f"{told}; role alongside allows it")
    remedy = f"put into {path} and restart the kubelet: {json.dumps(NO_EVICTION)}" if active else ""
    return Feature(name=EVICTION, available=not active, detail=told, remedy=remedy)


async def _asked(settings: KubernetesSettings) -> tuple[Feature, ...]:
    """Return what the API server says; three features, of which the first that fails is the last."""
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
            missing = await _missing_rules(client, settings)
            found.append(
                Feature(
                    name=RULES,
                    available=not missing,
                    detail=f"missing: {'; '.join(missing)}" if missing else "all that is needed",
                    remedy=remedy if missing else "",
                )
            )
            step, remedy = NODE, "set reactor.kubernetes.nodeName or NODE_NAME as in `kubectl get nodes`"
            await client.get(f"/api/v1/nodes/{name}")
            found.append(Feature(name=NODE, available=True, detail=name))
    except NotFoundError:
        found.append(Feature(name=step, available=False, detail=f"there is no {name!r}", remedy=remedy))
    except (ReactorError, trio.TooSlowError) as error:
        why = str(error) or f"no answer within {_SECONDS:g} s"
        found.append(Feature(name=step, available=False, detail=why, remedy=remedy))
    finally:
        client.close()
    return tuple(found)


async def _missing_rules(client: Any, settings: KubernetesSettings) -> list[str]:
    """Return the rules that we lack, as the server's own authorizer says. Raises ApiError."""
    needed = [
        ("nodes", "", "get list watch patch"),
        ("nodes", "status", "patch"),
        ("pods", "status", "patch"),
        ("pods", "", "list watch" + (" delete" if settings.evicted_pod_ttl_seconds else "")),
        ("events", "", "create patch"),
    ]
    if settings.pods_from is PodOrigin.KUBELET:
        needed.append(("nodes", "proxy", "get"))
    missing = []
    for resource, subresource, verbs in needed:
        for verb in verbs.split():
            attributes = {"resource": resource, "subresource": subresource, "verb": verb}
            review = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": attributes},
            }
            answer = await client.create(_REVIEWS, review)
            status = answer.get("status") if isinstance(answer, Mapping) else None
            if not (isinstance(status, Mapping) and status.get("allowed") is True):
                missing.append(f"{verb} on {resource}{f'/{subresource}' if subresource else ''}")
    return missing
