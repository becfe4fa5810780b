"""Kills on a Kubernetes node: at once by the pods' cgroups, with a grace period through the runtime.

A hard eviction does without the runtime: a call takes milliseconds, and the runtime itself starves with the
node. With a grace period the steward asks it to stop the containers, each by its own stop signal; without a
steward, or without an answer, the processes are asked themselves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import trio

from reactor.act.kill import KillPath
from reactor.act.reap import REAP_DEADLINE_SECONDS, KillReport, ReapReport
from reactor.act.target import populated
from reactor.errors import ReactorError
from reactor.guard.steward_link import StewardError
from reactor.kernel.cgroup import CgroupTree
from reactor.link.requests import ReclaimOver
from reactor.model.pods import Pod

_LOG: Final = logging.getLogger("reactor.runtime")


class Steward(Protocol):
    """Asks the container runtime."""

    async def stop(self, pod_uid: str, grace_seconds: float) -> ReclaimOver:
        """Have the runtime stop a pod's containers. Raises StewardError where the steward ends meanwhile."""


class RuntimeKills:
    """Ends pods of a Kubernetes node."""

    def __init__(self, kills: KillPath, tree: CgroupTree, steward: Steward) -> None:
        self._kills = kills
        self._tree = tree
        self._steward = steward

    def prepare(self, pods: Sequence[Pod]) -> None:
        """Hold what a kill of these pods needs, see KillPath.prepare."""
        self._kills.prepare(pods)

    def holds(self, pod: Pod) -> bool:
        """Return whether this pod is prepared, see KillPath.holds."""
        return self._kills.holds(pod)

    def kill_now(self, pod: Pod) -> KillReport:
        """Kill the pod's containers by their cgroups, see KillPath.kill_now."""
        return self._kills.kill_now(pod)

    async def reap(self, pod: Pod, deadline_seconds: float = REAP_DEADLINE_SECONDS) -> ReapReport:
        """Wait until what was killed is gone, see KillPath.reap."""
        return await self._kills.reap(pod, deadline_seconds)

    async def terminate(
        self,
        pod: Pod,
        grace_period_seconds: float,
        still_wanted: Callable[[], bool] = lambda: True,
    ) -> KillReport | None:
        """Have the runtime stop the pod's containers, each by its own stop signal; then kill what is left.

        Where the runtime can't be had, the processes are asked themselves. preStop hooks are the kubelet's
        to run. A runtime that was asked kills at the end of the grace period by itself. Returns and raises
        as KillPath.terminate.
        """
        began = trio.current_time()
        stopped = False
        with trio.move_on_after(grace_period_seconds):
            try:
                await self._stop(pod, grace_period_seconds)
                stopped = True
            except ReactorError as error:
                _LOG.warning("pod %s: sending SIGTERM to its processes instead: %s", pod.key, error)
        left_seconds = grace_period_seconds - (trio.current_time() - began)
        if not stopped and left_seconds > 0:
            return await self._kills.terminate(pod, left_seconds, still_wanted) if still_wanted() else None
        return self._kills.kill_now(pod) if self._may_live(pod) and still_wanted() else None

    async def _stop(self, pod: Pod, grace_period_seconds: float) -> None:
        """Return when the containers have ended. Raises StewardError where that can't be had."""
        over = await self._steward.stop(pod.uid, grace_period_seconds)
        if over.problems:
            raise StewardError("; ".join(over.problems))

    def _may_live(self, pod: Pod) -> bool:
        """Return whether a process is left in the pod, as far as can be told."""
        try:
            return populated(self._tree, pod)
        except (ReactorError, OSError):
            return True
