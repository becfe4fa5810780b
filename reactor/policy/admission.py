"""What a pod gets as it starts: whether it may, under pressure or in a shutdown, and its oom_score_adj.

That is the bias of the kernel's OOM killer, for the case that it is faster than the reactor.
"""

from __future__ import annotations

from collections.abc import Sequence

from reactor.model.pods import Pod, QosClass, Toleration
from reactor.model.signals import NodeCondition

REASON = "Evicted"
SHUTDOWN_REASON = "NodeShutdown"
_TAINT_KEY = "node.kubernetes.io/memory-pressure"
_TAINT_EFFECT = "NoSchedule"


def refusal(
    pod: Pod, conditions: Sequence[NodeCondition], *, is_shutting_down: bool = False
) -> tuple[str, str] | None:
    """Return the reason and message by which the pod may not start under these conditions, None if it may.

    No pod may on a node that shuts down (nodeshutdown, managerImpl.Admit), whatever it is. Else critical pods
    always may. Memory pressure alone keeps out only BestEffort pods that don't tolerate its taint; any other
    condition keeps out every pod. The message ends with a blank, as upstream's. Source: managerImpl.Admit.
    """
    if is_shutting_down:
        return SHUTDOWN_REASON, "Pod was rejected as the node is shutting down."
    if not conditions or pod.critical_because is not None:
        return None
    if tuple(conditions) == (NodeCondition.MEMORY_PRESSURE,) and (
        pod.qos_class is not QosClass.BEST_EFFORT or any(map(_tolerates, pod.tolerations))
    ):
        return None
    return REASON, f"The node had condition: [{' '.join(conditions)}]. "


def _tolerates(toleration: Toleration) -> bool:
    """Return whether it tolerates the memory-pressure taint. Source: Toleration.ToleratesTaint."""
    if toleration.effect not in {"", _TAINT_EFFECT} or toleration.key not in {"", _TAINT_KEY}:
        return False
    if toleration.operator == "Exists":
        return True
    return toleration.operator in {"", "Equal"} and toleration.value == ""


GUARANTEED = -997
BEST_EFFORT = 1000
SANDBOX = -998  # what the runtime gives to a pod's pause container


def oom_score_adj(
    qos_class: QosClass, memory_request_bytes: int, capacity_bytes: int, *, node_critical: bool = False
) -> int:
    """Return the oom_score_adj of a container, -997 to 1000.

    A Burstable container's falls with the share of the node that it requested and stays between the other
    two classes'. Raises ValueError for a node without capacity. Source: GetContainerOOMScoreAdjust.
    """
    if capacity_bytes <= 0:
        raise ValueError(f"capacity_bytes is {capacity_bytes}; accepted: more than 0")
    if node_critical or qos_class is QosClass.GUARANTEED:
        return GUARANTEED
    if qos_class is QosClass.BEST_EFFORT:
        return BEST_EFFORT
    score = 1000 - 1000 * memory_request_bytes // capacity_bytes
    return min(max(score, 1000 + GUARANTEED), BEST_EFFORT - 1)


def requested_bytes(oom_score_adj: int, capacity_bytes: int) -> int | None:
    """Return what a container has asked for, by its score; None if the score does not show it.

    The score counts in thousandths of the node, so the answer is the middle of what would have given it,
    half a thousandth off at the most; at the class's ends it may be more.
    """
    if oom_score_adj == BEST_EFFORT:
        return 0
    if not 1000 + GUARANTEED <= oom_score_adj < BEST_EFFORT:
        return None
    thousandths = 1000 - oom_score_adj
    if thousandths == 1:  # less than one is counted as one
        return capacity_bytes // 1000
    return (2 * thousandths + 1) * capacity_bytes // 2000
