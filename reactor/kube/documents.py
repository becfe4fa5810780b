"""What is written to the API server, as plain documents: pod statuses and events, as upstream has them.

Sources: pkg/kubelet/eviction (evictPod), pkg/kubelet/status (mergePodStatus), client-go's tools/record.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from reactor.kube.pods import DISRUPTION_TARGET, EVICTED, FAILED

COMPONENT: Final = "reactor"
WARNING: Final = "Warning"
NORMAL: Final = "Normal"
_NAME_LENGTH: Final = 253


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectReference:
    """What an event is about. Upstream gives a node its name for a uid, and no namespace."""

    kind: str
    name: str
    uid: str
    namespace: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """What an event reports. `name` is the event's own: the same one is never created twice."""

    name: str
    about: ObjectReference
    reason: str
    message: str
    type: str = WARNING
    annotations: Mapping[str, str] = field(default_factory=dict)


def pod_path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def node_path(name: str) -> str:
    return f"/api/v1/nodes/{name}"


def events_path(namespace: str) -> str:
    """Return where events about objects of a namespace are; those about nodes are in `default`."""
    return f"/api/v1/namespaces/{namespace or 'default'}/events"


def failed_status(
    api_uid: str,
    message: str,
    at_unix_seconds: float,
    *,
    disrupted: bool,
    reason: str = EVICTED,
    generation: int = 0,
) -> dict[str, Any]:
    """Return the patch of a pod's status that makes it a failed one, evicted or for another reason.

    The uid makes the server refuse it (409) where another pod has the name by now. `disrupted`: the pod
    was killed on the node's behalf, which upstream reports by a condition; a pod that was never admitted was
    not, nor one that broke its own limit. `generation` is the pod's (0: none, as before Kubernetes 1.33).
    How its containers ended is left to the kubelet, which asks the runtime.
    """
    patch = ordered_status(
        api_uid, message, at_unix_seconds, disrupted=disrupted, reason=reason, generation=generation
    )
    status = patch["status"]
    unready: list[dict[str, Any]] = [
        {
            "type": kind,
            "status": "False",
            "reason": "PodFailed",
            "lastTransitionTime": instant(at_unix_seconds),
        }
        for kind in ("Ready", "ContainersReady")
    ]
    conditions = [*_of_generation(unready, generation), *status["conditions"]]
    return {**patch, "status": {"phase": FAILED, **status, "conditions": conditions}}


def ordered_status(
    api_uid: str,
    message: str,
    at_unix_seconds: float,
    *,
    disrupted: bool,
    reason: str = EVICTED,
    generation: int = 0,
) -> dict[str, Any]:
    """Return the patch of a pod's status that says why the pod is asked to end; the phase stays.

    A phase of Failed would have controllers replace the pod, and the scheduler give its room to others, while
    its containers still use it. So upstream writes nothing before they have ended, and then phase, reason,
    message and condition at once (mergePodStatus; since 1.24). For another writer than the kubelet that is
    too late: by then the kubelet may have reported Failed, without a reason. It keeps conditions that are not
    its own, and one of the reason TerminationByKubelet never counts as stale.
    """
    condition = {
        "type": DISRUPTION_TARGET,
        "status": "True",
        "reason": "TerminationByKubelet",
        "message": message,
        "lastTransitionTime": instant(at_unix_seconds),
    }
    conditions = _of_generation([condition] if disrupted else [], generation)
    return {
        "metadata": {"uid": api_uid},
        "status": {"reason": reason, "message": message, "conditions": conditions},
    }


def withdrawn_status(api_uid: str) -> dict[str, Any]:
    """Return the strategic merge patch that removes from a pod's status what `ordered_status` writes."""
    return {
        "metadata": {"uid": api_uid},
        "status": {
            "reason": None,
            "message": None,
            "conditions": [{"type": DISRUPTION_TARGET, "$patch": "delete"}],
        },
    }


def _of_generation(conditions: list[dict[str, Any]], generation: int) -> list[dict[str, Any]]:
    if generation <= 0:
        return conditions
    return [{**condition, "observedGeneration": generation} for condition in conditions]


def event(occurrence: Occurrence, node_name: str, at_unix_seconds: float) -> dict[str, Any]:
    """Return a v1.Event that has happened once."""
    at = instant(at_unix_seconds)
    about = occurrence.about
    reference = {"kind": about.kind, "name": about.name, "uid": about.uid}
    if about.kind == "Pod":
        reference |= {"apiVersion": "v1", "namespace": about.namespace}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": occurrence.name,
            "namespace": about.namespace or "default",
            "annotations": dict(occurrence.annotations),
        },
        "involvedObject": reference,
        "reason": occurrence.reason,
        "message": occurrence.message[:1024],  # upstream's validation of messages
        "type": occurrence.type,
        "source": {"component": COMPONENT, "host": node_name},
        "reportingComponent": COMPONENT,
        "reportingInstance": node_name,
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }


def repeated(count: int, message: str, at_unix_seconds: float) -> dict[str, Any]:
    """Return the patch of an event that has happened again."""
    return {"count": count, "message": message[:1024], "lastTimestamp": instant(at_unix_seconds)}


def event_name(subject: str, *what: str) -> str:
    """Return a name that is the same for the same event, at every call."""
    digest = hashlib.sha256("\0".join(what).encode()).hexdigest()[:16]
    return f"{subject[: _NAME_LENGTH - len(digest) - 1].rstrip('-.')}.{digest}"


def instant(unix_seconds: float) -> str:
    """Return an instant as metav1.Time has it: whole seconds, UTC."""
    return datetime.fromtimestamp(int(unix_seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
