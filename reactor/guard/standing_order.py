"""An evicted pod stays down until the kubelet has let go of it.

Between the kill and the moment at which the kubelet learns of the pod's new status it sees nothing but dead
containers, and with restartPolicy Always it starts them again, at once the first time. Nothing can be told to
it faster than through the API server, which may be away for hours. So whatever comes to life in the pod's
cgroup meanwhile is killed again, milliseconds old. It ends with the cgroup, which the kubelet removes when it
takes down a pod whose phase is Failed (1.20: syncPod; since 1.22: podWorkers.UpdatePod).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Final, Protocol

import trio

from reactor.act.reap import KillReport, ReapReport
from reactor.act.target import Target
from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree
from reactor.model.pods import Pod

_LOG: Final = logging.getLogger("reactor.evict")
_LOOK_SECONDS: Final = 0.1
_LOOK_LATER_SECONDS: Final = 0.5
_LATER_SECONDS: Final = 30.0
_REAP_SECONDS: Final = 5.0


class Kills(Protocol):
    """Ends pods."""

    def kill_now(self, pod: Pod) -> KillReport:
        """Kill everything in the pod; raises RefusedError or OSError."""

    async def reap(self, pod: Pod, deadline_seconds: float = ...) -> ReapReport:
        """Wait until what was killed is gone."""


class StandingOrder:
    """Kills again what lives in a pod until its cgroup is gone; `find` returns the pod as it is now known.

    `kills_again` counts how often it had to.
    """

    def __init__(self, tree: CgroupTree, kills: Kills, find: Callable[[], Pod]) -> None:
        self._tree = tree
        self._kills = kills
        self._find = find
        self._told: str | None = None
        self._inode: int | None = None
        self.kills_again = 0

    async def run(self) -> None:
        """Return once the pod's cgroup is gone. Never raises; what is refused is logged once.

        A cgroup that is recreated under the same path is no longer the pod that was evicted.
        """
        began = trio.current_time()
        while await self._held_down():
            is_late = trio.current_time() - began > _LATER_SECONDS
            await trio.sleep(_LOOK_LATER_SECONDS if is_late else _LOOK_SECONDS)

    async def _held_down(self) -> bool:
        """Kill what lives in the pod; return whether its cgroup is still there."""
        pod = self._find()
        if pod.cgroup is None:
            return False
        try:
            known = replace(pod, cgroup_inode=self._inode or pod.cgroup_inode)
            with closing(Target.of(self._tree, known)) as found:
                if found.directory is None:
                    return False
                self._inode = found.directory.inode
                is_alive = not await found.is_empty()
            if is_alive:
                await self._kill_again(replace(pod, cgroup_inode=self._inode))
        except (ReactorError, OSError) as error:
            if str(error) != self._told:
                _LOG.warning("pod %s: not held down: %s", pod.key, error)
            self._told = str(error)
        return True

    async def _kill_again(self, pod: Pod) -> None:
        report = self._kills.kill_now(pod)
        if report.is_gone:
            return
        self.kills_again += 1
        if self.kills_again == 1:
            _LOG.warning(
                "pod %s: lived again after its eviction; %d processes killed", pod.key, report.processes
            )
        await self._kills.reap(pod, _REAP_SECONDS)
