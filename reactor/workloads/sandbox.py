"""Which of a pod's cgroups hold no process of the pod's own: its pause container and the runtime's monitors.

They are spared when the pod is killed: a sandbox that dies behind the runtime's back leaves its shim. But a
sandbox may be more than a pause container: with gVisor or Kata all of the pod runs in it, and sparing it
would spare the pod. So whatever else is known of it, what is spared holds one process and hardly any memory;
and it is looked at again at each listing, since what is small may grow.

    the runtime tells the sandbox   it alone decides: no other container is spared, for no reason
    it does not (yet, or any more)  the oldest container whose process has the score that the runtime gives to
                                    sandboxes, and that no process without CAP_SYS_RESOURCE can give to itself
    nor has any that score          the oldest of several containers, where its process is called `pause`: a
    (the runtime lacks the right    sandbox is there before all others, and stays spared when left alone. A
    itself)                         tenant chooses what a process is called, but not to be older; where a
                                    runtime makes no sandboxes, one that poses as a sandbox is spared until it
                                    is listed the next time, grown

At most one container of a pod is spared, and what can't be read at present is as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
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
    """Return what is to be spared of a pod's cgroups, given the oldest first; `before` is what was so far.

    `sandbox_ids` are those that the runtime tells. Of two that are up the younger one is the pod's: the
    kubelet stops the other.
    """
    monitors = [
        one.cgroup for one in containers if one.is_monitor and _is_small(tree, one, one.cgroup in before)
    ]
    own = [one for one in containers if not one.is_monitor]
    if sandbox_ids:
        told = [one for one in reversed(own) if one.id in sandbox_ids]
        candidates = [(one, _told) for one in told]
    else:
        candidates = [(one, partial(_has_sandbox_score, proc)) for one in own]
        # Alone it may be what an eviction has left: that is no pod that lives again.
        oldest = [one for one in own[:1] if len(own) > 1 or one.cgroup in before]
        candidates += [(one, partial(_is_named_pause, proc)) for one in oldest]
    sandbox = next(
        (one.cgroup for one, evidence in candidates if _is_pause(tree, one, evidence, one.cgroup in before)),
        None,
    )
    spared = {*monitors, sandbox}
    return tuple(one.cgroup for one in containers if one.cgroup in spared)


def _is_pause(
    tree: CgroupTree,
    container: ContainerCgroup,
    evidence: Callable[[int], bool],
    was: bool,  # noqa: FBT001
) -> bool:
    """Return whether a container is one small process, for which the evidence speaks."""
    try:
        pids = tree.processes(container.cgroup)
        if len(pids) != 1 or not evidence(pids[0]):
            return False
    except (OSError, ReactorError):
        return was
    return _is_small(tree, container, was)


def _told(_: int) -> bool:
    return True


def _has_sandbox_score(proc: Path, pid: int) -> bool:
    return read_oom_score_adj(pid, proc) == SANDBOX


def _is_named_pause(proc: Path, pid: int) -> bool:
    return read_name(pid, proc) == _NAME


def _is_small(tree: CgroupTree, container: ContainerCgroup, was: bool) -> bool:  # noqa: FBT001
    try:
        counters = MemoryCounters(tree, container.cgroup)
        try:
            return counters.usage_bytes() <= _MOST_BYTES
        finally:
            counters.close()
    except (OSError, ReactorError):
        return was
