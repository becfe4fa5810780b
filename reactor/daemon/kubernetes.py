"""The daemon's part in a cluster: everything that talks to the API server, in tasks of its own.

    pods        a watch (or the kubelet's list) into a store that outlives whoever told it
    node        conditions and taints, kept as the last pass wants them
    announcer   an evicted pod's status and event, until they are there
    arrivals    pods that the node under pressure does not admit

Nothing here is on the way to a kill: the loop only leaves notes. A part that fails says so and is begun anew.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import trio

from reactor.act.announce import Announcer
from reactor.act.announcements import Announcement, AnnouncementFile
from reactor.act.arrivals import Arrivals
from reactor.act.cleanup import Cleanup
from reactor.act.kill import KillPath
from reactor.act.node_events import NodeEvents
from reactor.act.node_status import NodeStatus
from reactor.act.runtime import stop_sandboxes
from reactor.act.standing_order import StandingOrder
from reactor.daemon.image_watch import Observed, Told
from reactor.daemon.node_runtime import NodeRuntime
from reactor.daemon.parts import PodList
from reactor.daemon.record import Ending, PassRecord
from reactor.daemon.services import Service, Services, report
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.scheduling import following
from reactor.kube.client import ApiClient
from reactor.kube.credentials import Credentials, Session, credentials_of
from reactor.kube.kubelet import KubeletPods, kubelet_access
from reactor.kube.pods import PodStore
from reactor.kube.watch import Watch
from reactor.model.oom import OomKill, OomScope
from reactor.model.pods import Pod
from reactor.model.settings import KubernetesSettings, PodOrigin, Settings
from reactor.model.signals import RESOURCE, NodeCondition
from reactor.workloads.kubernetes import KubernetesPods
from reactor.workloads.remembered import RememberedSpecs
from reactor.workloads.unspecified import UNKNOWN_NAMESPACE

_LOG: Final = logging.getLogger("reactor.kubernetes")
_ANNOUNCEMENTS: Final = "announcements.json"
_SPECS: Final = "pods.json"
_KUBELET_SECONDS: Final = 5.0
_NODE_NAME: Final = "NODE_NAME"


class Cluster:
    """What the loop leaves notes with. Made at the start, run once; a reload leaves it as it is."""

    def __init__(self, settings: Settings, tree: CgroupTree, kills: KillPath) -> None:
        self._settings = settings
        self._kubernetes = settings.kubernetes or KubernetesSettings()
        self._tree = tree
        self._on_pods: Callable[[], None] = lambda: None
        self._present: Callable[[], Sequence[Pod]] = tuple
        self._conditions: tuple[NodeCondition, ...] = ()
        self.node_name = node_name(self._kubernetes)
        self._credentials = credentials_of(self._kubernetes.kubeconfig_path, in_thread=_in_thread)
        self._client = ApiClient(self._credentials)
        self._clients = [self._client]
        self._store = PodStore(self._pods_changed)
        self._remembered = RememberedSpecs(Path(settings.state_path).with_name(_SPECS))
        self._remembered.load()
        self._pods = self._pod_source()
        self._node = NodeStatus(self._client, self.node_name, self._kubernetes.role)
        selector = {"fieldSelector": f"metadata.name={self.node_name}"}
        self._node_watch = Watch(self._client, "/api/v1/nodes", selector, self._node)
        self._file = AnnouncementFile(Path(settings.state_path).with_name(_ANNOUNCEMENTS))
        self._announcer = Announcer(self._client, self._store, self.node_name, self._file, self)
        self._arrivals = Arrivals(self._store, self._announcer.announce, time.time)
        self._events = NodeEvents(self._client, self.node_name)
        self._cleanup = Cleanup(self._client, self._store, self._kubernetes.evicted_pod_ttl_seconds)
        self._observed: Observed = dict
        self.runtime = NodeRuntime(
            settings,
            tree,
            kills,
            runs=self._runs,
            observed=lambda: self._observed(),  # noqa: PLW0108 - attend puts in another one
            on_change=lambda: self._on_pods(),  # noqa: PLW0108
            told=Told(not_enough=self._events.free_disk_space_failed, failed=self._events.image_gc_failed),
        )
        self._endings: dict[str, Ending] = {}
        self._services = Services("kubernetes")

    @property
    def problems(self) -> dict[str, str]:
        """Return what is wrong at present, each in one line."""
        found = {
            "kubernetes credentials": self._credentials.problem,
            "kubernetes clock": self._client.clock_problem,
            "kubernetes pods": self._pods.problem,
            "kubernetes node": self._node_watch.problem or self._node.missing or self._node.problem,
            "kubernetes events": self._events.problem,
            "kubernetes clean-up": self._cleanup.problem,
            **self.runtime.problems,
            "remembered pods": self._remembered.problem,
        }
        told = {name: why for name, why in found.items() if why is not None}
        return {**told, **self._store.problems, **self._announcer.problems, **self._services.defects}

    @property
    def pending(self) -> int:
        """Return how many evictions the control plane has not heard of yet."""
        return len(self._announcer.pending)

    @property
    def watches(self) -> dict[str, bool]:
        """Return whether each of the watches is well."""
        followed: dict[str, Watch | KubeletPods] = {"pods": self._pods}
        if not self._settings.dry_run:
            followed["node"] = self._node_watch
        return {name: one.synced.is_set() and one.problem is None for name, one in followed.items()}

    def document(self) -> dict[str, Any]:
        """Return how it stands, as plain JSON values."""
        return {
            "node": self.node_name,
            "role": self._kubernetes.role,
            "watches": self.watches,
            "untold_evictions": self.pending,
        }

    def pod_list(self, settings: Settings) -> PodList:
        """Return what lists the node's pods: the kubelet's cgroups, with what is known of each."""
        return KubernetesPods(
            self._tree,
            settings,
            specs=self._specs,
            runtime=lambda: self.runtime.watch.inventory,
        )

    def attend(
        self,
        on_pods: Callable[[], None],
        present: Callable[[], Sequence[Pod]],
        observed: Observed,
        on_filesystems: Callable[[], None],
    ) -> None:
        """Call `on_pods` when pods have changed; `present` and `observed` tell how the node has them.

        `on_filesystems` is called when the runtime's filesystems lie elsewhere than before.
        """
        self.runtime.watch.on_filesystems = on_filesystems
        self._on_pods = on_pods
        self._present = present
        self._observed = observed

    def passed(self, record: PassRecord, nursery: trio.Nursery) -> None:
        """Take note of a pass: whom it ended, what it tried to get back, which conditions are in force."""
        if record.dry_run:
            return
        for ending in record.endings:
            self.evicted(ending, nursery)
        acted_on = record.decision.acted_on
        if acted_on is not None and (record.endings or record.decision.reclaim):
            self._events.threshold_met(RESOURCE[acted_on.signal])
        self._conditions = record.decision.conditions
        self._node.want(self._conditions)

    def evicted(self, ending: Ending, nursery: trio.Nursery) -> None:
        """Have an eviction told; one with a grace period has an event at once, and a status at its end."""
        if ending.outcome in {"failed", "dry-run"}:
            return
        eviction = ending.eviction
        uid = api_uid(eviction.pod)
        grace_period_seconds = eviction.grace_period_seconds
        under_way = {other: one for other, one in self._endings.items() if not one.ended.is_set()}
        self._endings = {**under_way, uid: ending}
        is_named = eviction.pod.namespace != UNKNOWN_NAMESPACE  # else the server's list will tell
        self._announcer.announce(
            Announcement(
                uid=uid,
                name=eviction.pod.name if is_named else "",
                namespace=eviction.pod.namespace if is_named else "",
                cgroup=eviction.pod.cgroup,
                spared_cgroups=eviction.pod.spared_cgroups,
                message=eviction.message,
                annotations=eviction.annotations,
                at_unix_seconds=time.time(),
                grace_period_seconds=grace_period_seconds,
                is_over=grace_period_seconds == 0,
            )
        )
        if grace_period_seconds > 0:
            nursery.start_soon(self._when_over, ending, uid)

    def oom_killed(self, kill: OomKill) -> None:
        """Tell of a kill by the kernel that was the whole node's, as the kubelet does."""
        if kill.scope is OomScope.NODE and kill.pid is not None:
            self._events.system_oom(kill.comm or "", kill.pid)

    def close(self) -> None:
        """Save what is not told yet."""
        self._file.flush()
        self._remembered.flush()

    async def run(self) -> None:
        """Take part until cancelled."""
        services: dict[str, Service] = {
            "pods": self._pods.run,
            **self.runtime.services,
            "remembered pods": self._remembered.run,
            "report": lambda: report(lambda: self.problems),
        }
        if not self._settings.dry_run:
            services |= {
                "node watch": self._node_watch.run,
                "node status": self._node.run,
                "announcements": self._announcer.run,
                "node events": self._events.run,
                "clean-up": self._cleanup.run,
            }
        try:
            await self._services.run(services)
        finally:
            with trio.move_on_after(1, shield=True):
                for client in self._clients:
                    await client.aclose()

    async def wait_pods(self, timeout_seconds: float) -> None:
        """Wait for the first list of pods, but not for long: memory is guarded without it."""
        with trio.move_on_after(timeout_seconds):
            await self._pods.synced.wait()

    async def _when_over(self, ending: Ending, uid: str) -> None:
        await ending.ended.wait()
        self._announcer.over(uid)

    async def hold_down(self, announcement: Announcement) -> None:
        """Kill again whatever of the pod comes to life; return when its cgroup is gone."""
        ending = self._endings.pop(announcement.uid, None)
        if ending is not None:
            await ending.ended.wait()  # until then whoever kills it sees to what is left
        announced = Pod(
            name=announcement.name,
            namespace=announcement.namespace,
            uid=announcement.uid,
            cgroup=announcement.cgroup,
            spared_cgroups=announcement.spared_cgroups,
        )

        def find() -> Pod:
            """Return the pod as it is now: its sandbox may be another one since."""
            present = (pod for pod in self._present() if api_uid(pod) == announcement.uid)
            return next(present, announced)

        await StandingOrder(self._tree, self.runtime.kills, find).run()

    async def take_down(self, announcement: Announcement) -> None:
        """Have the runtime stop the pod's sandbox."""
        await stop_sandboxes(self.runtime.client, announcement.uid)

    def _runs(self, uid: str) -> bool:
        """Return whether a pod is still to run, as far as anybody knows: of what is not known, it is."""
        known = self._store.known.get(uid)
        if self._announcer.is_announced(uid if known is None else known.api_uid):
            return False
        if known is None:
            return not self._store.is_complete
        return not known.is_terminal

    def _specs(self) -> Mapping[str, Pod]:
        """Return the specs as they are told; until all have been told, with those remembered."""
        if self._store.is_complete:
            return self._store.specs
        return {**self._remembered.specs, **self._store.specs}

    def _pods_changed(self) -> None:
        if self._store.is_complete:
            self._remembered.show(self._store.specs)
        self.runtime.watch.due()
        if not self._settings.dry_run:
            self._arrivals.look(self._conditions)
        self._on_pods()

    def _pod_source(self) -> Watch | KubeletPods:
        if self._kubernetes.pods_from is PodOrigin.API:
            selector = {"fieldSelector": f"spec.nodeName={self.node_name}"}
            return Watch(self._client, "/api/v1/pods", selector, self._store)
        settings = self._kubernetes
        credentials = Credentials(
            lambda: kubelet_access(settings), watched=settings.kubeconfig_path, in_thread=_in_thread
        )
        self._clients.append(ApiClient(credentials))
        return KubeletPods(self._clients[-1], self._store, interval_seconds=_KUBELET_SECONDS)


def node_name(settings: KubernetesSettings) -> str:
    """Return this node's name at the API server: as configured, as the pod was told, or the host's."""
    return settings.node_name or os.environ.get(_NODE_NAME) or socket.gethostname().lower()


def api_uid(pod: Pod) -> str:
    """Return the uid by which the API server knows a pod."""
    return pod.uid.partition("#")[0]


async def _in_thread(read: Callable[[], Session]) -> Session:
    return await trio.to_thread.run_sync(following(read), abandon_on_cancel=True)
