"""The container runtime's part in an eviction: the grace period, and the end of the sandbox.

A hard eviction kills without it: a call takes milliseconds, and the runtime itself starves with the node.
What it is told afterwards is only that what is dead may be tidied up.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Final

import trio

from reactor.act.kill import KillPath, KillReport
from reactor.act.reap import REAP_DEADLINE_SECONDS, ReapReport
from reactor.act.target import populated
from reactor.backoff import Backoff
from reactor.cri.client import RuntimeClient
from reactor.cri.messages import ContainerState, SandboxState
from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree
from reactor.model.pods import Pod

_LOG: Final = logging.getLogger("reactor.runtime")
_FIRST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 15.0
_GIVEN_UP_SECONDS: Final = 300.0

Client = Callable[[], RuntimeClient]  # raises RuntimeUnavailableError where there is none


class RuntimeKills:
    """Ends pods of a Kubernetes node: at once by their cgroups, with a grace period through the runtime."""

    def __init__(self, kills: KillPath, tree: CgroupTree, client: Client) -> None:
        self._kills = kills
        self._tree = tree
        self._client = client

    def get_ready(self, pods: Sequence[Pod]) -> None:
        """Hold what a kill of these pods needs, see KillPath.get_ready."""
        self._kills.get_ready(pods)

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
        still_wanted: Callable[[], bool] = lambda: True,  # noqa: ARG002 - see below
    ) -> KillReport | None:
        """Have the runtime stop the pod's containers, each by its own stop signal; then kill what is left.

        Where the runtime can't be had, the processes are asked themselves. preStop hooks are the kubelet's
        to run. `still_wanted` is not asked: the API server has been told that the pod is evicted, its owner
        starts another in its place, and the kubelet kills it at the end of the grace period in any case.
        Returns and raises as KillPath.terminate.
        """
        began = trio.current_time()
        stopped = False
        with trio.move_on_after(grace_period_seconds):
            try:
                await self._stop_containers(pod, grace_period_seconds)
                stopped = True
            except ReactorError as error:
                _LOG.warning("pod %s: sending SIGTERM to its processes instead: %s", pod.key, error)
        left_seconds = grace_period_seconds - (trio.current_time() - began)
        if not stopped and left_seconds > 0:
            return await self._kills.terminate(pod, left_seconds)
        return self._kills.kill_now(pod) if self._may_live(pod) else None

    def _may_live(self, pod: Pod) -> bool:
        """Return whether a process is left in the pod, as far as can be told."""
        try:
            return populated(self._tree, pod)
        except (ReactorError, OSError):
            return True

    async def _stop_containers(self, pod: Pod, grace_period_seconds: float) -> None:
        """Stop all containers at once and return when they have ended. Raises the first error of any."""
        client = self._client()
        running = [
            one.id
            for one in await client.containers(pod.uid)
            if one.state in {ContainerState.RUNNING, ContainerState.UNKNOWN}
        ]
        errors: list[ReactorError] = []

        async def stop(container_id: str) -> None:
            try:
                await client.stop_container(container_id, math.ceil(grace_period_seconds))
            except ReactorError as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            for container_id in running:
                nursery.start_soon(stop, container_id)
        if errors:
            raise errors[0]


async def stop_sandboxes(client: Client, pod_uid: str) -> None:
    """Have the runtime take down a dead pod's sandboxes, as often as it takes; see StopPodSandbox.

    To be called when the pod's status says that it is over: the kubelet would make another sandbox for one
    that is not. Never raises; given up after some minutes, since the kubelet takes it down as well.
    """
    backoff = Backoff(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
    with trio.move_on_after(_GIVEN_UP_SECONDS) as scope:
        while True:
            try:
                for sandbox in await client().sandboxes(pod_uid):
                    if sandbox.state is SandboxState.READY:
                        await client().stop_sandbox(sandbox.id)
            except ReactorError as error:
                if backoff.is_first:
                    _LOG.warning("pod %s: its sandbox is not stopped yet: %s", pod_uid, error)
                await backoff.pause()
            else:
                return
    if scope.cancelled_caught:
        _LOG.warning("pod %s: stopping its sandbox is left to the kubelet", pod_uid)
