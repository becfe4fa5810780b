"""The kernel OOM killer's bias, for the case that it is faster than the reactor."""

from __future__ import annotations

from reactor.model.pods import QosClass

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
