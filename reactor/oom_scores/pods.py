"""The processes of a pod; and the scores of pods in manifests: by QoS class, as a kubelet sets them.

On a plain node nothing else sets those. What a process starts inherits its score, so a pod is gone through
when it is first seen, and once a minute. What was set on purpose stays: a score below 0, which
takes a privilege, and a higher one, by which a process offers itself. A process can't escape its score by a
lower one of its own above 0.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Final, NamedTuple

import trio

from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import walk
from reactor.kernel.files import PAGE_BYTES, close_descriptor
from reactor.kernel.oom import Birth, open_process, read_birth, read_score
from reactor.kernel.procfs import PROC, read_process_memory
from reactor.model.pods import Pod
from reactor.model.signals import Resource
from reactor.oom_scores.written import AT_ONCE, ScoreWriter
from reactor.policy.admission import oom_score_adj

_LOG: Final = logging.getLogger("reactor.daemon")
_MOST_CGROUPS: Final = 1_024  # of a pod
_NODE_CRITICAL: Final = 2_000_001_000  # system-node-critical; source: IsNodeCriticalPod
_MOST_PROCESSES: Final = 1_024  # of one pod in a manifest
_AGAIN_SECONDS: Final = 60.0


class Found(NamedTuple):
    """A process as it was found, with what the kernel's OOM killer counts but for swap and page tables."""

    pid: int
    born: Birth
    score: int
    resident_bytes: int


async def find_processes(
    tree: CgroupTree, pod: Pod, most: int, proc: Path = PROC
) -> tuple[Sequence[Found], bool]:
    """Return the processes of a pod, but for what a kill spares, and whether there are more than so many.

    They are read a few at a time. Each cgroup is listed once more in the end: what is not in it then may have
    the id of a process that was. There are none if the pod is gone, or its cgroup is another pod's by now.
    """
    found: list[Found] = []
    if pod.cgroup is None:
        return found, False
    with (
        suppress(OSError, ReactorError),
        tree.open(pod.cgroup, inode=pod.cgroup_inode) as top,
        closing(walk(top, lambda _cgroup, _error: None, spared=pod.spared_cgroups)) as below,
    ):
        for number, cgroup in enumerate(below):
            listed = cgroup.processes()
            pids = listed[: most - len(found)]
            here: list[Found] = []
            for start in range(0, len(pids), AT_ONCE):
                here += _found(pids[start : start + AT_ONCE], proc)
                await trio.lowlevel.checkpoint()
            still = set(cgroup.processes()) if here else set()
            found += [one for one in here if one.pid in still]
            if len(pids) < len(listed) or number >= _MOST_CGROUPS:
                return found, True
    return found, False


def _found(pids: Sequence[int], proc: Path) -> Iterator[Found]:
    for pid in pids:
        if pid == os.getpid():
            continue
        process = -1
        try:
            process = open_process(pid, proc)
            born = read_birth(process)
            resident_bytes = born.resident_pages * PAGE_BYTES or _held_by_threads_bytes(pid, proc)
            yield Found(pid, born, read_score(process), resident_bytes)
        except (OSError, ReactorError, ValueError):
            continue  # gone
        finally:
            if process >= 0:
                close_descriptor(process)


def _held_by_threads_bytes(pid: int, proc: Path) -> int:
    """Return what a process holds whose main thread may have exited before others; 0: unknown."""
    try:
        memory = read_process_memory(pid, proc)
    except (OSError, ReactorError):
        return 0
    return 0 if memory is None else memory.resident_bytes


@dataclass(eq=False)
class ManifestScores:
    """Sets the scores of the pods that `specified` returns; `problem` is why some can't be set.

    `capacity_bytes` returns the node's memory, None while that is not observed. A pod of which `is_ordered`
    returns by its uid that it has a score for the sake of the OOM killer's order keeps that.
    """

    tree: CgroupTree
    specified: Callable[[], Sequence[Pod]]
    capacity_bytes: Callable[[], int | None]
    _: KW_ONLY
    interval_seconds: float
    is_ordered: Callable[[str], bool] = lambda _: False
    proc: Path = PROC

    def __post_init__(self) -> None:
        self.problem: str | None = None
        self._scores: dict[str, int] = {}
        self._writer = ScoreWriter(str(self.proc))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Set scores until cancelled."""
        task_status.started()
        all_due_at = trio.current_time()
        while True:
            is_due = trio.current_time() >= all_due_at
            if is_due:
                all_due_at = trio.current_time() + _AGAIN_SECONDS
            await self.set_scores(of_all=is_due)
            await trio.sleep(self.interval_seconds)

    async def set_scores(self, *, of_all: bool = True) -> None:
        """Go through pods that are new or ask for another score, or through all of them."""
        capacity_bytes = self.capacity_bytes()
        if not capacity_bytes:
            return
        if of_all:
            self._writer.refused = None
        before, self._scores = self._scores, {}
        for pod in self.specified():
            if self.is_ordered(pod.uid):
                continue
            score = self._scores[pod.uid] = wanted_score(pod, capacity_bytes)
            if of_all or before.get(pod.uid) != score:
                await self._set(pod, score, before.get(pod.uid))
        if of_all or self._writer.refused is not None:
            if self._writer.refused is not None and self.problem is None:
                _LOG.warning("oom_score_adj of pods: %s", self._writer.refused)
            self.problem = self._writer.refused

    async def _set(self, pod: Pod, score: int, before: int | None) -> None:
        """Set the score of a pod's processes, a few at a time; `before` is what was set last."""
        found, _ = await find_processes(self.tree, pod, _MOST_PROCESSES, self.proc)
        for number, one in enumerate(found):
            if is_to_be_set(one.score, score, before):
                self._writer.write(one.pid, one.born.start_ticks, score, {one.score})
            if number % AT_ONCE == AT_ONCE - 1:
                await trio.lowlevel.checkpoint()


def wanted_score(pod: Pod, capacity_bytes: int) -> int:
    """Return the score of a pod's processes. Its cgroup counts as one container, which requests all of it.

    So no sidecar has a higher score than a regular container, and what the pod requests as a whole counts.
    """
    return oom_score_adj(
        pod.qos_class,
        pod.requests.get(Resource.MEMORY, 0),
        capacity_bytes,
        node_critical=pod.priority >= _NODE_CRITICAL,
    )


def is_to_be_set(present: int, score: int, before: int | None) -> bool:
    """Return whether a process that has a score is to have another; `before` is what was set last."""
    if present == score:
        return False
    return present in {0, before} or 0 < present < score
