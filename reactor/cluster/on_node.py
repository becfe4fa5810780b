"""What is left of an evicted pod on the node: its cgroup, until the kubelet has let go of it; its sandbox."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import trio

from reactor.cluster.announcements import Announcement
from reactor.cluster.runtime_kills import Client, stop_sandboxes
from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree
from reactor.workloads.kubepods import pod_cgroups

_LOOK_SECONDS: Final = 0.5
_LOOK_LATER_SECONDS: Final = 5.0
_LATER_SECONDS: Final = 30.0


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
        """Have the runtime stop the pod's sandbox."""
        await stop_sandboxes(self._client, announcement.uid)

    def _is_there(self, uid: str) -> bool:
        """Return whether a pod has a cgroup; one that can't be looked for has."""
        for parent in self._parents:
            try:
                if any(found.uid == uid for found in pod_cgroups(self._tree(), parent)):
                    return True
            except FileNotFoundError:
                continue
            except (OSError, ReactorError):
                return True
        return False
