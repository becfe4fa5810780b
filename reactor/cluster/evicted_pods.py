"""What is left of evicted pods: containers to stop, a sandbox and a cgroup on the node, the API object."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Final

import trio

from reactor.backoff import Backoff
from reactor.cluster.announce import Announcement
from reactor.cri.client import RuntimeClient
from reactor.cri.messages import ContainerState, SandboxState
from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree
from reactor.kube.client import ApiClient
from reactor.kube.documents import pod_path
from reactor.kube.errors import ApiError, ConflictError, NotFoundError
from reactor.kube.pods import KnownPod, PodStore
from reactor.workloads.kubepods import pod_cgroups

_LOG: Final = logging.getLogger("reactor.runtime")
_FIRST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 15.0
_GIVEN_UP_SECONDS: Final = 300.0

Client = Callable[[], RuntimeClient]  # raises RuntimeUnavailableError where there is none

_LOOK_SECONDS: Final = 0.5
_LOOK_LATER_SECONDS: Final = 5.0
_LATER_SECONDS: Final = 30.0

_CLEANUP_LOG: Final = logging.getLogger("reactor.announce")
_CLEANUP_SECONDS: Final = 10.0


# The container runtime's part in an eviction: the grace period, and the end of the sandbox.
#
# The guard kills without it. The runtime is asked to stop containers where a pod has a grace period, and
# asked afterwards to tidy up what is dead.


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


# What is left of an evicted pod on the node: its cgroup, until the kubelet has let go of it; its sandbox.


class EvictedOnNode:
    """Finds pods' cgroups below `parents`; `client` calls the runtime, which takes down their sandboxes."""

    def __init__(self, tree: Callable[[], CgroupTree], parents: Sequence[str], client: Client) -> None:
        self._tree = tree
        self._parents = parents
        self._client = client

    async def wait_gone(self, announcement: Announcement) -> None:
        """Return when the pod has no cgroup any more: the kubelet removes it where the pod's phase is Failed.

        (1.20: syncPod; since 1.22: podWorkers.UpdatePod.) The guard keeps down what comes to life in it.
        """
        began = trio.current_time()
        while self._is_there(announcement.uid):
            is_late = trio.current_time() - began > _LATER_SECONDS
            await trio.sleep(_LOOK_LATER_SECONDS if is_late else _LOOK_SECONDS)

    async def take_down(self, announcement: Announcement) -> None:
        await stop_sandboxes(self._client, announcement.uid)

    def _is_there(self, uid: str) -> bool:
        """Return whether a pod has a cgroup; one that can't be searched for has."""
        for parent in self._parents:
            try:
                if any(found.uid == uid for found in pod_cgroups(self._tree(), parent)):
                    return True
            except FileNotFoundError:
                continue
            except (OSError, ReactorError):
                return True
        return False


# Evicted pods are deleted a while after their end, where that is configured; else they pile up.
#
# (kubernetes/kubernetes#55051: the control plane removes them only when there are 12,500.)


class Cleanup:
    """Deletes pods of this node whose status says Evicted, `ttl_seconds` after they were."""

    def __init__(
        self,
        client: ApiClient,
        pods: PodStore,
        ttl_seconds: float,
        *,
        clock_unix_seconds: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._pods = pods
        self._ttl_seconds = ttl_seconds
        self._clock_unix_seconds = clock_unix_seconds
        self._first_seen: dict[str, float] = {}
        self.problem: str | None = None
        self.is_dry_run = False

    async def run(self) -> None:
        """List and delete until cancelled; returns at once if nothing is ever to be deleted."""
        while self._ttl_seconds > 0:
            await self._delete_due()
            await trio.sleep(min(_CLEANUP_SECONDS, self._ttl_seconds))

    async def _delete_due(self) -> None:
        now = self._clock_unix_seconds()
        evicted = {uid: known for uid, known in self._pods.known.items() if known.is_evicted}
        self._first_seen = {uid: self._first_seen.get(uid, now) for uid in evicted}
        self.problem = None
        for uid, known in ({} if self.is_dry_run else evicted).items():
            since = known.evicted_at or self._first_seen[uid]
            if now - since >= self._ttl_seconds and not known.is_being_deleted:
                await self._delete(known)

    async def _delete(self, known: KnownPod) -> None:
        path = pod_path(known.pod.namespace, known.pod.name)
        try:
            # Nothing of it runs any more, so there is nothing to wait for; podgc does the same.
            await self._client.delete(path, known.api_uid, grace_period_seconds=0)
        except (NotFoundError, ConflictError):
            pass  # gone, or another by that name
        except ApiError as error:
            self.problem = str(error)
        else:
            _CLEANUP_LOG.info("pod %s: evicted, and deleted after %g s", known.pod.key, self._ttl_seconds)
