"""Whether a pod may start on a node under pressure, or on one that shuts down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reactor.model.pods import Pod, QosClass, Toleration
from reactor.model.signals import NodeCondition

REASON = "Evicted"
SHUTDOWN_REASON = "NodeShutdown"
_SHUTDOWN_MESSAGE = "Pod was rejected as the node is shutting down."
_TAINT_KEY = "node.kubernetes.io/memory-pressure"
_TAINT_EFFECT = "NoSchedule"


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The answer; reason and message are None where the pod is admitted."""

    admitted: bool
    reason: str | None = None
    message: str | None = None


def admit(pod: Pod, conditions: Sequence[NodeCondition], *, is_shutting_down: bool = False) -> Admission:
    """Return whether the pod may start under these conditions.

    No pod may on a node that shuts down (nodeshutdown, managerImpl.Admit), whatever it is. Else critical pods
    always may. Memory pressure alone keeps out only BestEffort pods that don't tolerate its taint; any other
    condition keeps out every pod. The message ends with a blank, as upstream's do.
    Source: managerImpl.Admit.
    """
    if is_shutting_down:
        return Admission(admitted=False, reason=SHUTDOWN_REASON, message=_SHUTDOWN_MESSAGE)
    if not conditions or pod.critical_because is not None:
        return Admission(admitted=True)
    if tuple(conditions) == (NodeCondition.MEMORY_PRESSURE,) and (
        pod.qos_class is not QosClass.BEST_EFFORT or any(map(_tolerates, pod.tolerations))
    ):
        return Admission(admitted=True)
    return Admission(
        admitted=False, reason=REASON, message=f"The node had condition: [{' '.join(conditions)}]. "
    )


def _tolerates(toleration: Toleration) -> bool:
    """Return whether it tolerates the memory-pressure taint. Source: Toleration.ToleratesTaint."""
    if toleration.effect not in {"", _TAINT_EFFECT} or toleration.key not in {"", _TAINT_KEY}:
        return False
    if toleration.operator == "Exists":
        return True
    return toleration.operator in {"", "Equal"} and toleration.value == ""
