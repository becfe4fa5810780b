"""The container runtime's part in an eviction: the grace period, and the end of the sandbox.

The guard kills without it. The runtime is asked to stop containers where a pod has a grace period, and told
afterwards that what is dead may be tidied up.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Final

import trio

from reactor.backoff import Backoff
from reactor.cri.client import RuntimeClient
from reactor.cri.messages import ContainerState, SandboxState
from reactor.errors import ReactorError

_LOG: Final = logging.getLogger("reactor.runtime")
_FIRST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 15.0
_GIVEN_UP_SECONDS: Final = 300.0

Client = Callable[[], RuntimeClient]  # raises RuntimeUnavailableError where there is none


async def stop_containers(client: Client, pod_uid: str, grace_period_seconds: float) -> None:
    """Have the runtime stop a pod's containers, all at once and each by its own stop signal.

    Return when they have ended. Raises the first error of any.
    """
    runtime = client()
    running = [
        one.id
        for one in await runtime.containers(pod_uid)
        if one.state in {ContainerState.RUNNING, ContainerState.UNKNOWN}
    ]
    errors: list[ReactorError] = []

    async def stop(container_id: str) -> None:
        try:
            await runtime.stop_container(container_id, math.ceil(grace_period_seconds))
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
