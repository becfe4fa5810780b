"""The kernel's OOM killer is given the order of the policy: oom_score_adj by QoS class, as a kubelet sets it.

On a plain node nothing else does so for pods of manifests. What a process starts inherits its score, so a pod
is gone through when it is first seen, and once a minute.

A process is written to through a descriptor of its directory below /proc, and only if its id is still in the
pod's cgroup once that is open: the id of one that has died is no other process's there (ESRCH). What was said
of a process on purpose stays: a score below 0, which takes a privilege, and a higher one, by which a process
offers itself. A process can't escape its score by a lower one of its own above 0.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import Final

import trio

from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupDirectory, walk
from reactor.kernel.files import GONE, close_descriptor
from reactor.kernel.oom import open_process, read_score, write_score
from reactor.kernel.procfs import PROC
from reactor.model.pods import Pod
from reactor.model.signals import Resource
from reactor.policy import oom_score_adj

_LOG: Final = logging.getLogger("reactor.daemon")
_NODE_CRITICAL: Final = 2_000_001_000  # system-node-critical; source: IsNodeCriticalPod
_AT_ONCE: Final = 8  # processes, between two turns of the loop: 0.2 ms
_MOST_PROCESSES: Final = 1_024  # of one pod
_MOST_CGROUPS: Final = 256
_AGAIN_SECONDS: Final = 60.0


class OomScores:
    """Sets the scores of the pods that `specified` returns; `problem` is why some can't be set.

    `capacity_bytes` returns the node's memory, None while that is not observed. `is_ordered` tells whether a
    pod, by its uid, has a score for the sake of the OOM killer's order at present: that one stays.
    """

    def __init__(
        self,
        tree: CgroupTree,
        specified: Callable[[], Sequence[Pod]],
        capacity_bytes: Callable[[], int | None],
        *,
        interval_seconds: float,
        is_ordered: Callable[[str], bool] = lambda _: False,
        proc: Path = PROC,
    ) -> None:
        self._is_ordered = is_ordered
        self.problem: str | None = None
        self._tree = tree
        self._specified = specified
        self._capacity_bytes = capacity_bytes
        self._interval_seconds = interval_seconds
        self._proc = proc
        self._scores: dict[str, int] = {}
        self._refused: str | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Set scores until cancelled."""
        task_status.started()
        all_due_at = trio.current_time()
        while True:
            is_due = trio.current_time() >= all_due_at
            if is_due:
                all_due_at = trio.current_time() + _AGAIN_SECONDS
            await self.look(is_all=is_due)
            await trio.sleep(self._interval_seconds)

    async def look(self, *, is_all: bool = True) -> None:
        """Go through pods that are new or ask for another score, or through all of them."""
        capacity_bytes = self._capacity_bytes()
        if not capacity_bytes:
            return
        if is_all:
            self._refused = None
        before, self._scores = self._scores, {}
        for pod in self._specified():
            if self._is_ordered(pod.uid):
                continue
            score = self._scores[pod.uid] = wanted_score(pod, capacity_bytes)
            if is_all or before.get(pod.uid) != score:
                await self._set(pod, score, before.get(pod.uid))
        if is_all or self._refused is not None:
            if self._refused is not None and self.problem is None:
                _LOG.warning("oom_score_adj of pods: %s", self._refused)
            self.problem = self._refused

    async def _set(self, pod: Pod, score: int, before: int | None) -> None:
        """Set the score of a pod's processes, a few at a time; `before` is what was set last."""
        if pod.cgroup is None:
            return
        try:
            directory = self._tree.open(pod.cgroup)
        except (OSError, ReactorError):  # gone; or refused, as a kill would be, which says so
            return
        left = _MOST_PROCESSES
        with directory:
            if pod.cgroup_inode is not None and directory.inode != pod.cgroup_inode:
                return  # another pod's by now
            with closing(walk(directory, lambda _cgroup, _error: None)) as found:
                for one in islice(found, _MOST_CGROUPS):
                    pids = one.processes()[:left]
                    left -= len(pids)
                    for start in range(0, len(pids), _AT_ONCE):
                        self._set_some(one, pids[start : start + _AT_ONCE], score, before)
                        await trio.lowlevel.checkpoint()

    def _set_some(
        self, directory: CgroupDirectory, pids: Sequence[int], score: int, before: int | None
    ) -> None:
        held: dict[int, int] = {}
        try:
            for pid in pids:
                if pid != os.getpid():
                    with suppress(OSError):  # gone
                        held[pid] = open_process(pid, self._proc)
            still_there = set(directory.processes())
            for pid, fd in held.items():
                if pid in still_there:
                    self._set_one(fd, score, before)
        finally:
            for fd in held.values():
                close_descriptor(fd)

    def _set_one(self, process: int, score: int, before: int | None) -> None:
        try:
            if is_to_be_set(read_score(process), score, before):
                write_score(process, score)
        except OSError as error:
            if error.errno not in {*GONE, errno.ESRCH}:
                self._refused = f"refused: {error.strerror}; grant CAP_SYS_RESOURCE"


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
