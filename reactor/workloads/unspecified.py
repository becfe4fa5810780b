"""A pod of which no spec is known: what its cgroups, its processes and its log directory tell of it.

That is so when the API server could not be reached since the reactor first started on this node, or while a
pod is newer than what the API server has told. Such a pod takes part in the ranking like any other:

    QoS class    from the path of its cgroup
    request      Guaranteed: its limit, which is the same. Burstable: memory.min where the kubelet sets it,
                 else what the oom_score_adj of each container's first process comes from. BestEffort: none
    name         from the runtime, else from the kubelet's directory of its logs
    priority     0, since nothing on the node tells it

but for what may be critical, which is never evicted. As critical counts, without its spec,

    a static pod          its uid is the hash of its manifest, a manifest in the static pods' directory has
                          its uid, or its uid is none of the API server's (no UUID) and the runtime has the
                          annotations that the kubelet gives a static pod; whether its mirror exists or not
    a pod of kube-system  where pods of the priority system-cluster-critical live
    a score of -997       a pod of the priority system-node-critical, or a Guaranteed one
    a Guaranteed pod      the same, where the runtime was not allowed to set that score

The first two are none that a tenant can make: uids are the API server's, files and cgroups the kubelet's,
kube-system the operator's. A Guaranteed pod is one that a tenant can make, by requests that equal limits. So
that counts only for as long as is not known: a pod that the API server still does not list though it tells of
all the others (`is_unlisted`) was deleted there, and is evicted like any other.

Every other pod can be evicted: a node on which none can be is lost with all its pods.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.procfs import PROC, read_oom_score_adj
from reactor.model.pods import NodeFiles, Pod, QosClass, RuntimePod
from reactor.model.signals import Resource
from reactor.policy.oom_score import GUARANTEED, requested_bytes
from reactor.workloads.kubepods import ContainerCgroup, PodCgroup, is_config_hash

UNKNOWN_NAMESPACE: Final = "kubepods"
_SYSTEM_NAMESPACE: Final = "kube-system"


# Returns the oom_score_adj that a process in a cgroup has of its own, whatever reactor has written for the
# sake of the OOM killer's order. Raises OSError, ReactorError.
OwnScore = Callable[[int, str], int]


def score_in(proc: Path) -> OwnScore:
    """Return what reads the score as it is."""
    return lambda pid, _cgroup: read_oom_score_adj(pid, proc)


def pod_without_spec(  # noqa: PLR0913 - all that there is to go by
    tree: CgroupTree,
    found: PodCgroup,
    containers: Sequence[ContainerCgroup],
    told: RuntimePod | None,
    files: NodeFiles,
    capacity_bytes: int,
    *,
    is_unlisted: bool = False,
    own_score: OwnScore | None = None,
) -> Pod:
    """Return the pod; `containers` are without its pause container. Raises OSError where it is gone."""
    read = own_score or score_in(PROC)
    scores = [score for one in containers if (score := _score(tree, one, read)) is not None]
    namespace, name = files.names.get(found.uid, (UNKNOWN_NAMESPACE, f"pod{found.uid}"))
    if told is not None:
        namespace, name = told.namespace, told.name
    request_bytes = _request_bytes(tree, found, scores, capacity_bytes)
    return Pod(
        name=name,
        namespace=namespace,
        uid=found.uid,
        qos_class=found.qos_class,
        critical_because=_static_because(found, told, files)
        or _perhaps_critical_because(found, namespace, scores, is_unlisted=is_unlisted),
        requests={Resource.MEMORY: request_bytes} if request_bytes else {},
        cgroup=found.cgroup,
    )


def _static_because(found: PodCgroup, told: RuntimePod | None, files: NodeFiles) -> str | None:
    if is_config_hash(found.uid) or found.uid in files.static_uids:
        return "static pod"
    return None if told is None else told.source.critical_because


def _perhaps_critical_because(
    found: PodCgroup, namespace: str, scores: Sequence[int], *, is_unlisted: bool
) -> str | None:
    if namespace == _SYSTEM_NAMESPACE:
        return f"in {_SYSTEM_NAMESPACE}, its spec unknown"
    is_guaranteed = found.qos_class is QosClass.GUARANTEED
    has_score = any(score <= GUARANTEED for score in scores)
    # Of a pod that is not Guaranteed the kubelet gives that score by its priority alone: no listing counts.
    if (has_score and not is_guaranteed) or (not is_unlisted and is_guaranteed):
        return "Guaranteed or node-critical, its spec unknown"
    return None


def _request_bytes(tree: CgroupTree, found: PodCgroup, scores: Sequence[int], capacity_bytes: int) -> int:
    if found.qos_class is QosClass.BEST_EFFORT:
        return 0
    try:
        if found.qos_class is QosClass.GUARANTEED:
            return tree.memory_limit_bytes(found.cgroup) or 0
        kept_bytes = tree.memory_request_bytes(found.cgroup)
    except ReactorError:
        kept_bytes = 0
    return kept_bytes or sum(requested_bytes(score, capacity_bytes) or 0 for score in scores)


def _score(tree: CgroupTree, container: ContainerCgroup, own_score: OwnScore) -> int | None:
    """Return the score of a container's first process, None where there is none or it can't be read."""
    try:
        pids = tree.processes(container.cgroup)
        return own_score(pids[0], container.cgroup) if pids else None
    except (OSError, ReactorError):
        return None
