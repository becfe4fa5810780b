"""Evictions reported to the cluster, and what is done on the node until the kubelet has understood."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from reactor.cluster.announce import Announcer
from reactor.cluster.announcements import Announcement, AnnouncementFile
from reactor.cluster.node_runtime import NodeRuntime
from reactor.cluster.runtime_kills import stop_sandboxes
from reactor.guard.record import EvictionAttempt
from reactor.guard.standing_order import StandingOrder
from reactor.kernel.cgroup import CgroupTree
from reactor.kube.client import ApiClient
from reactor.kube.pods import PodStore
from reactor.model.pods import Pod
from reactor.model.settings import Settings
from reactor.supervisor import Nursery, Part
from reactor.workloads.unspecified import UNKNOWN_NAMESPACE

_ANNOUNCEMENTS: Final = "announcements.json"


class EvictionReports:
    """Reports evictions; what the announcer does on the node (OnNode). `present` lists the node's pods."""

    def __init__(
        self,
        settings: Settings,
        client: ApiClient,
        node_name: str,
        store: PodStore,
        tree: CgroupTree,
        runtime: NodeRuntime,
        *,
        present: Callable[[], Sequence[Pod]],
    ) -> None:
        self._tree = tree
        self._runtime = runtime
        self._present = present
        self._file = AnnouncementFile(Path(settings.state_path).with_name(_ANNOUNCEMENTS))
        self._announcer = Announcer(client, store, node_name, self._file, self)
        self._attempts: dict[str, EvictionAttempt] = {}
        self.announce = self._announcer.announce
        self.is_announced = self._announcer.is_announced

    @property
    def problems(self) -> Mapping[str, str]:
        """Return why something is not told yet."""
        return self._announcer.problems

    @property
    def services(self) -> Mapping[str, Part]:
        """Return what is to run for as long as the daemon does."""
        return {"announcements": self._announcer.run}

    @property
    def pending(self) -> int:
        """Return how many evictions the control plane has not heard of yet."""
        return len(self._announcer.pending)

    def evicted(self, attempt: EvictionAttempt, nursery: Nursery) -> None:
        """Have an eviction told; one with a grace period has an event at once, and a status at its end."""
        if attempt.outcome in {"failed", "dry-run", "gone"}:
            return
        announcement = _announcement_of(attempt)
        under_way = {uid: one for uid, one in self._attempts.items() if not one.ended.is_set()}
        self._attempts = {**under_way, announcement.uid: attempt}
        self.announce(announcement)
        if not announcement.is_over:
            nursery.start_soon(self._when_over, attempt, announcement.uid)

    async def hold_down(self, announcement: Announcement) -> None:
        """Kill again whatever of the pod comes to life; return when its cgroup is gone."""
        attempt = self._attempts.pop(announcement.uid, None)
        if attempt is not None:
            await attempt.ended.wait()  # until then the kill path sees to what is left
        announced = Pod(
            name=announcement.name,
            namespace=announcement.namespace,
            uid=announcement.uid,
            cgroup=announcement.cgroup,
            cgroup_inode=announcement.cgroup_inode,
            spared_cgroups=announcement.spared_cgroups,
        )

        def find() -> Pod:
            """Return the pod as it is now: its sandbox may be another one since."""
            present = (pod for pod in self._present() if api_uid(pod) == announcement.uid)
            return next(present, announced)

        await StandingOrder(self._tree, self._runtime.kills, find).run()

    async def take_down(self, announcement: Announcement) -> None:
        """Have the runtime stop the pod's sandbox."""
        await stop_sandboxes(self._runtime.client, announcement.uid)

    def close(self) -> None:
        """Save what is not told yet."""
        self._file.flush()

    async def _when_over(self, attempt: EvictionAttempt, uid: str) -> None:
        await attempt.ended.wait()
        if attempt.outcome == "called off":
            self._announcer.withdraw(uid)
        else:
            self._announcer.over(uid)


def api_uid(pod: Pod) -> str:
    """Return the uid by which the API server knows a pod."""
    return pod.uid.partition("#")[0]


def _announcement_of(attempt: EvictionAttempt) -> Announcement:
    eviction = attempt.eviction
    pod = eviction.pod
    is_named = pod.namespace != UNKNOWN_NAMESPACE  # else the server's list will tell
    return Announcement(
        uid=api_uid(pod),
        name=pod.name if is_named else "",
        namespace=pod.namespace if is_named else "",
        cgroup=pod.cgroup,
        cgroup_inode=pod.cgroup_inode,
        spared_cgroups=pod.spared_cgroups,
        message=eviction.message,
        annotations=eviction.annotations,
        at_unix_seconds=time.time(),
        grace_period_seconds=eviction.grace_period_seconds,
        is_over=eviction.grace_period_seconds == 0,
    )
