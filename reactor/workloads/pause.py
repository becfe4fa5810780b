"""Which of a pod's cgroups hold no process of the pod's own: its pause container and the runtime's monitors.

They are spared when the pod is killed: a sandbox that dies behind the runtime's back leaves its shim.
But a sandbox may be more than a pause container. With gVisor or Kata all of the pod runs in it, and sparing
it would spare the pod. So only what looks like a pause container is spared: one process, hardly any memory.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree, MemoryCounters
from reactor.kernel.procfs import PROC, read_name, read_oom_score_adj
from reactor.policy.oom_score import SANDBOX
from reactor.workloads.kubepods import ContainerCgroup

_NAME: Final = "pause"
_MOST_BYTES: Final = 16 << 20


def spared_cgroups(
    tree: CgroupTree,
    containers: Sequence[ContainerCgroup],
    sandbox_ids: Collection[str],
    before: Collection[str],
    *,
    proc: Path = PROC,
) -> tuple[str, ...]:
    """Return what is to be spared of a pod's cgroups; what was so `before` and is still there, is so still.

    A sandbox is known by its id, which the runtime tells; where it doesn't, by the name of its process or by
    the score that the kubelet gives to none but it.
    """
    pauses = {one.cgroup for one in containers if one.cgroup in before and not one.is_monitor} or {
        one.cgroup
        for one in containers
        if (one.id in sandbox_ids or not sandbox_ids)
        and _is_pause(tree, one, known=one.id in sandbox_ids, proc=proc)
    }
    return tuple(one.cgroup for one in containers if one.is_monitor or one.cgroup in pauses)


def _is_pause(tree: CgroupTree, container: ContainerCgroup, *, known: bool, proc: Path) -> bool:
    try:
        pids = tree.processes(container.cgroup)
        if len(pids) != 1:
            return False
        if not known and read_name(pids[0], proc) != _NAME and read_oom_score_adj(pids[0], proc) != SANDBOX:
            return False
        return _usage_bytes(tree, container.cgroup) <= _MOST_BYTES
    except (OSError, ReactorError):
        return False


def _usage_bytes(tree: CgroupTree, cgroup: str) -> int:
    counters = MemoryCounters(tree, cgroup)
    try:
        return counters.usage_bytes()
    finally:
        counters.close()
