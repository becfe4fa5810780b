"""Memory of the node that no pod holds: what evicting pods can't bring back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from reactor.model.pods import Pod, PodUsage
from reactor.model.thresholds import Observation


def memory_outside_pods(
    seen: Observation, pods: Iterable[Pod], used: Mapping[str, PodUsage], *, gone: Iterable[str] = ()
) -> int | None:
    """Return how many bytes of the working set belong to none of these pods, 0 at the least.

    `seen` is one of the memory signals: the node's, or that of all pods together (then it is what lies in
    the pods' parents beside them). `used` is by uid. A pod that is dying counts with what it still holds,
    and one in `gone` (by uid) may be unobserved because its cgroup is not there any more. None where the
    memory of any other pod was not observed: then what is outside is not known.

    The node and its pods are read one after the other. Where the node is read first, a pod that grows
    meanwhile only makes the answer too small; one that shrinks makes it too big.
    """
    absent = frozenset(gone)
    held_bytes = 0
    for pod in pods:
        usage = used.get(pod.uid)
        pod_bytes = None if usage is None else usage.memory_working_set_bytes
        if pod_bytes is not None:
            held_bytes += pod_bytes
        elif pod.uid not in absent:
            return None
    return max(0, seen.capacity - seen.available - held_bytes)
