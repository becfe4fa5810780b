"""The node and its pods as if both were read at one instant, which the kernel has no way for.

The node is read first, then its pods. What a dying pod gave back while it was read would count neither as
available nor as its own, and another would be chosen for it. So where something is being given back the node
is read again: then it counts as both, until the next look. The same holds if the reader was held up between
the two: what pods have grown by since would be missing from the node, and look as if it had come outside the
pods by the next pass, like a kill that did not help.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Final, TypeVar

from reactor.model.pods import PodUsage

_Node = TypeVar("_Node")
_LATE_NS: Final = 2_000_000


def consistent(
    read_node: Callable[[], _Node],
    read_pods: Callable[[], Mapping[str, PodUsage]],
    is_moving: Callable[[], bool],
    hard_met: Callable[[_Node], Collection[object]],
) -> tuple[_Node, Mapping[str, PodUsage]]:
    """Return the node and what its pods use.

    `is_moving` returns whether something is being given back, and is asked after both were read. `hard_met`
    returns the crossings that a node shows: whom to evict is chosen by what pods hold at the crossing.
    """
    began_ns = time.monotonic_ns()
    node, pods = read_node(), read_pods()
    is_late = time.monotonic_ns() - began_ns > _LATE_NS
    if (is_moving() or is_late) and pods:
        before, node = node, read_node()
        if not set(hard_met(node)) <= set(hard_met(before)):
            pods = read_pods()
            node = read_node()
    return node, pods
