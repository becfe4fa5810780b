"""The daemon's part in a cluster: everything that talks to the API server, in tasks of its own.

    pods        a watch (or the kubelet's list) into a store that outlives its source
    evictions   an evicted pod's status and event, until they are there; the pod held down meanwhile
    node        conditions and taints, kept as the last pass wants them; events about the node itself
    admission   pods that the node under pressure does not admit

Nothing here is on the way to a kill: the loop only leaves notes. The supervisor restarts a part that fails.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import trio

from reactor.act.kill import KillPath
from reactor.cluster.admission_guard import AdmissionGuard
from reactor.cluster.cleanup import Cleanup
from reactor.cluster.image_watch import Observed, Told
from reactor.cluster.node_events import NodeEvents
from reactor.cluster.node_files import NodeFilesWatch
from reactor.cluster.node_runtime import NodeRuntime
from reactor.cluster.node_status import NodeStatus
from reactor.cluster.pod_specs import PodSpecs, session_read
from reactor.guard.eviction_reports import EvictionReports
from reactor.guard.parts import PodList
from reactor.guard.record import EvictionAttempt, PassRecord
from reactor.kernel.cgroup import CgroupTree
from reactor.kube.client import ApiClient
from reactor.kube.credentials import credentials_of
from reactor.kube.watch import Watch
from reactor.model.decisions import Slowdown
from reactor.model.oom import OomKill, OomScope
from reactor.model.pods import Pod
from reactor.model.settings import KubernetesSettings, Settings
from reactor.model.signals import RESOURCE, NodeCondition
from reactor.supervisor import Nursery, Part, Supervisor, report
from reactor.workloads.kubelet_storage import NodePaths
from reactor.workloads.kubepods import may_be_api_uid
from reactor.workloads.kubernetes_pods import KubernetesPods

_NODE_NAME: Final = "NODE_NAME"


class Cluster:
    """What the loop leaves notes with. Made at the start, run once; a reload leaves it as it is."""

    def __init__(self, settings: Settings, tree: CgroupTree, kills: KillPath, supervisor: Supervisor) -> None:
        self._settings = settings
        self._kubernetes = settings.kubernetes or KubernetesSettings()
        self._tree = tree
        self._on_pods: Callable[[], None] = lambda: None
        self._present: Callable[[], Sequence[Pod]] = tuple
        self._observed: Observed = dict
        self._conditions: tuple[NodeCondition, ...] = ()
        self.node_name = node_name(self._kubernetes)
        self._credentials = credentials_of(self._kubernetes.kubeconfig_path, in_thread=session_read)
        client = self._client = ApiClient(self._credentials)
        self._pods = PodSpecs(settings, client, self.node_name, self._pods_changed)
        self._node = NodeStatus(
            client, self.node_name, self._kubernetes.role, on_uid=self._pods.store.node_is
        )
        selector = {"fieldSelector": f"metadata.name={self.node_name}"}
        self._node_watch = Watch(client, "/api/v1/nodes", selector, self._node)
        self._events = NodeEvents(client, self.node_name)
        self._cleanup = Cleanup(client, self._pods.store, self._kubernetes.evicted_pod_ttl_seconds)
        self.runtime = NodeRuntime(
            settings,
            tree,
            kills,
            runs=self._runs,
            observed=lambda: self._observed(),  # noqa: PLW0108 - attend puts in another one
            on_change=lambda: self._on_pods(),  # noqa: PLW0108
            told=Told(not_enough=self._events.free_disk_space_failed, failed=self._events.image_gc_failed),
        )
        self._evictions = EvictionReports(
            settings,
            client,
            self.node_name,
            self._pods.store,
            tree,
            self.runtime,
            present=lambda: self._present(),  # noqa: PLW0108
        )
        self._files = NodeFilesWatch(
            settings.static_pods_path, NodePaths().logs, settings.housekeeping_interval_seconds
        )
        self._admission = AdmissionGuard(self._pods.store, self._evictions.announce, time.time)
        self._supervisor = supervisor

    @property
    def problems(self) -> dict[str, str]:
        """Return what is wrong at present, each in one line."""
        found = {
            "kubernetes credentials": self._credentials.problem,
            "kubernetes clock": self._client.clock_problem,
            **self._pods.problems,
            "kubernetes node": self._node_watch.problem or self._node.missing or self._node.problem,
            "kubernetes events": self._events.problem,
            "kubernetes clean-up": self._cleanup.problem,
            **self.runtime.problems,
            **self._evictions.problems,
        }
        return {name: why for name, why in found.items() if why is not None}

    @property
    def pending(self) -> int:
        """Return how many evictions the control plane has not heard of yet."""
        return self._evictions.pending

    @property
    def watches(self) -> dict[str, bool]:
        """Return whether each of the watches is well."""
        told = {"pods": self._pods.is_heard}
        if not self._settings.dry_run:
            told["node"] = self._node_watch.synced.is_set() and self._node_watch.problem is None
        return told

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
            specs=self._pods.specs,
            all_told=lambda: self._pods.is_heard,
            runtime=lambda: self.runtime.watch.inventory,
            files=lambda: self._files.files,
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

    def passed(self, record: PassRecord, nursery: Nursery) -> None:
        """Take note of a pass: whom it ended, what it tried to get back, which conditions are in force."""
        if record.dry_run:
            return
        for attempt in record.attempts:
            self.evicted(attempt, nursery)
        acted_on = record.decision.acted_on
        if acted_on is not None and (record.attempts or record.decision.reclaim):
            self._events.threshold_met(RESOURCE[acted_on.signal])
        self._conditions = record.decision.conditions
        self._node.want(self._conditions)

    def evicted(self, attempt: EvictionAttempt, nursery: Nursery) -> None:
        """Have an eviction told."""
        self._evictions.evicted(attempt, nursery)

    def oom_killed(self, kill: OomKill) -> None:
        """Tell of a kill by the kernel that was the whole node's, as the kubelet does."""
        if kill.scope is OomScope.NODE and kill.pid is not None:
            self._events.system_oom(kill.comm or "", kill.pid)

    def slowed_down(self, slowdown: Slowdown) -> None:
        """Tell that evictions don't help, or are too many."""
        if not self._settings.dry_run:
            self._events.evictions_slowed_down(slowdown.message)

    def close(self) -> None:
        """Save what is not told yet."""
        self._evictions.close()
        self._pods.close()

    async def run(self) -> None:
        """Take part until cancelled."""
        parts: dict[str, Part] = {
            **self._pods.services,
            **self.runtime.services,
            "node files": self._files.run,
            "report": lambda: report(lambda: self.problems),
        }
        if not self._settings.dry_run:
            parts |= {
                "node watch": self._node_watch.run,
                "node status": self._node.run,
                "node events": self._events.run,
                **self._evictions.services,
            }
            if self._kubernetes.evicted_pod_ttl_seconds > 0:
                parts["clean-up"] = self._cleanup.run
        try:
            await self._supervisor.keep_all({f"kubernetes {name}": part for name, part in parts.items()})
        finally:
            with trio.move_on_after(1, shield=True), self._supervisor.hook("kubernetes close").guard():
                await self._client.aclose()
                await self._pods.aclose()

    async def wait_pods(self, timeout_seconds: float) -> None:
        """Wait for the first list of pods, but not for long: memory is guarded without it."""
        with trio.move_on_after(timeout_seconds):
            await self._pods.wait()

    def _runs(self, uid: str) -> bool:
        """Return whether a pod is still to run; a pod that is not known is."""
        known = self._pods.known(uid)
        if self._evictions.is_announced(uid if known is None else known.api_uid):
            return False
        if known is None:
            # A static pod whose mirror is missing, or contested, is none of the API server's.
            return not (self._pods.store.is_complete and may_be_api_uid(uid))
        return not known.is_terminal

    def _pods_changed(self) -> None:
        self.runtime.watch.due()
        if not self._settings.dry_run:
            self._admission.look(self._conditions)
        self._on_pods()


def node_name(settings: KubernetesSettings) -> str:
    """Return this node's name at the API server: as configured, as the pod was told, or the host's."""
    return settings.node_name or os.environ.get(_NODE_NAME) or socket.gethostname().lower()
