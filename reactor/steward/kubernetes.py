"""The steward's part in a cluster: everything that talks to the API server, the kubelet and the runtime.

    pods        a watch (or the kubelet's list) into a store that outlives its source
    runtime     which sandboxes and containers there are; images, and what is dead
    listings    both, and what files show, handed to the guard
    others      what the kubelet evicted, and how the node stood, as lines of the journal
    evictions   an evicted pod's status and event, as the guard reports it, until they are there
    node        conditions and taints, kept as the guard reports them; events about the node itself
    admission   pods that the node under pressure does not admit

None of it is on the way to a kill. The supervisor restarts a part that fails.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio

from reactor.cluster.announce import Announcement, AnnouncementFile, Announcer, soft_resources
from reactor.cluster.evicted_pods import Cleanup, EvictedOnNode, stop_containers
from reactor.cluster.leaving import successor
from reactor.cluster.node_events import NodeEvents
from reactor.cluster.node_status import NodeLease, NodeStatus, lease_namespace
from reactor.cluster.others import Others
from reactor.cluster.pod_specs import AdmissionGuard, NodeFilesWatch, PodSpecs, session_read
from reactor.cluster.runtime import Alarms, NodeRuntime, Observed, RuntimeWatch
from reactor.kernel.cgroup import CgroupTree
from reactor.kube.client import ApiClient
from reactor.kube.credentials import credentials_of
from reactor.kube.documents import ObjectReference
from reactor.kube.node import node_name
from reactor.kube.pods import EVICTED, TERMINATED
from reactor.kube.watch import Watch
from reactor.link.frames import Message
from reactor.link.listings import (
    FileNames,
    files_record,
    fitting,
    is_cut,
    pieces,
    runtime_record,
    spec_record,
)
from reactor.link.requests import Request, RequestKind, Section
from reactor.model.rules import Mark, Marks
from reactor.model.settings import KubernetesSettings, Role, Settings
from reactor.model.signals import NodeCondition, Reclaim, Resource
from reactor.reclaim.images import RemovedImages
from reactor.reclaim.reclaims import NodeReclaim
from reactor.steward.guard import Guard
from reactor.supervisor import Part, Supervisor, report
from reactor.workloads.kubelet_storage import NodePaths
from reactor.workloads.kubepods import may_be_api_uid

_BETWEEN_SECONDS: Final = 0.25
_HEARD_SECONDS: Final = 5.0

_ANNOUNCEMENTS: Final = "announcements.json"
_TO_BEGIN: Final = 0.6  # of the time for leaving: what is left is for writing
_RUNTIME_SECONDS: Final = 3.0  # less than the guard waits for an observation of the filesystems


# Hands the guard what is known of the node's pods: each time something differs, the listing that it is in.
#
# A listing goes as a whole; the guard keeps the one before it until then. Nothing is sent before all pods
# of the source have been listed: what the guard knows is better than a part of them.
class PodListings:
    """Sends the guard listings; `due` says that something may differ. `run` is a part of the steward."""

    def __init__(self, guard: Guard, specs: PodSpecs, runtime: RuntimeWatch, files: NodeFilesWatch) -> None:
        self._guard = guard
        self._specs = specs
        self._runtime = runtime
        self._files = files
        self._number = 0
        self._sent: dict[Section, tuple[int, Sequence[bytes]]] = {}  # the listing's number and its records
        self._due = trio.Event()
        self.problem: str | None = None

    def due(self) -> None:
        """Have the listings sent soon."""
        self._due.set()

    async def run(self) -> None:
        """Send until cancelled; report at intervals whether all pods are still heard of."""
        while True:
            self._due = trio.Event()
            if self._specs.store.is_complete:
                await self._send(Section.SPECS, list(self._spec_records()))
            await self._send(Section.RUNTIME, list(self._runtime_records()))
            await self._send(Section.FILES, list(self._file_records()))
            number, _ = self._sent.get(Section.SPECS, (0, ()))
            if number:
                is_heard = self._specs.is_heard
                await self._guard.say(Request(kind=RequestKind.PODS_COMPLETE, number=number, places=is_heard))
            await trio.sleep(_BETWEEN_SECONDS)
            with trio.move_on_after(_HEARD_SECONDS):
                await self._due.wait()

    async def _send(self, section: Section, records: Sequence[bytes]) -> None:
        fits = fitting(records)
        if section is Section.SPECS and len(fits) < len(records):
            self.problem = f"the guard is told of {len(fits)} of {len(records)} pods: more than it accepts"
        if section in self._sent and self._sent[section][1] == fits:
            return
        self._number += 1
        for piece in pieces(section, self._number, fits):
            await self._guard.say(piece)
        self._sent[section] = (self._number, fits)

    def _spec_records(self) -> Iterator[bytes]:
        """Yield the records of specs, small ones first: a tenant may make them large; of ended pods last."""
        self.problem = None
        found: list[tuple[bool, int, bytes]] = []
        for known in self._specs.store.known.values():
            if is_cut(known.pod):
                self.problem = f"pod {known.pod.key}: the guard is told of some containers and volumes alone"
            labels = self._specs.store.labels_of(known)
            record = spec_record(known.source, replace(known.pod, labels=labels) if labels else known.pod)
            if record is not None:
                found.append((known.is_terminal, len(record), record))
        yield from (record for *_, record in sorted(found))

    def _runtime_records(self) -> Iterator[bytes]:
        for uid, pod in self._runtime.inventory.items():
            record = runtime_record(uid, pod)
            if record is not None:
                yield record

    def _file_records(self) -> Iterator[bytes]:
        files = self._files.files
        # Static pods first: pods that have ended may leave more directories than a listing holds.
        uids = files.names.keys() | files.static_uids
        for uid in sorted(uids, key=lambda one: (one not in files.static_uids, one)):
            record = files_record(FileNames(uid, uid in files.static_uids, *files.names.get(uid, ())))
            if record is not None:
                yield record


class Kubernetes:
    """Made at the start, run once; a reload changes whether it is a dry run, and what the runtime reclaims.

    `observed` returns what is known of the filesystems; `on_filesystems` is called when the runtime's lie
    elsewhere than before. `write` takes lines for the journal.
    """

    def __init__(
        self,
        guard: Guard,
        supervisor: Supervisor,
        settings: Settings,
        observed: Observed,
        on_filesystems: Callable[[], None],
        *,
        write: Callable[[Mapping[str, Any]], None] = lambda _: None,
        tree: Callable[[], CgroupTree] = CgroupTree.discover,
    ) -> None:
        self._guard = guard
        self._supervisor = supervisor
        self._settings = settings
        self._kubernetes = settings.kubernetes or KubernetesSettings()
        self._conditions: tuple[NodeCondition, ...] = ()
        self._is_shutting_down = False
        self._is_reporting = trio.Event()
        self._safe: list[int] = []
        self._has_safe = trio.Event()
        self.node_name = node_name(self._kubernetes)
        self._credentials = credentials_of(self._kubernetes.kubeconfig_path, in_thread=session_read)
        client = self._client = ApiClient(self._credentials)
        self._specs = PodSpecs(settings, client, self.node_name, self._pods_changed)
        store = self._specs.store
        self._events = NodeEvents(client, self.node_name)
        self._node = NodeStatus(
            client,
            self.node_name,
            self._kubernetes.role,
            tainted_by=self._kubernetes.tainted_by,
            on_uid=store.node_is,
            on_status=self._events.condition_changed,
        )
        selector = {"fieldSelector": f"metadata.name={self.node_name}"}
        namespace = lease_namespace(self._kubernetes)
        self._lease = None
        if namespace is not None:
            self._lease = NodeLease(
                client,
                namespace,
                self.node_name,
                guard.is_alive,
                node_uid=lambda: self._node.uid,
                lease_seconds=self._kubernetes.lease_seconds,
            )
        self._cleanup = Cleanup(client, store, self._kubernetes.evicted_pod_ttl_seconds)
        self._runtime = NodeRuntime(
            settings,
            runs=self._runs,
            observed=observed,
            on_change=self._due,
            on_filesystems=on_filesystems,
            alarms=Alarms(
                not_enough=partial(self._events.report, "FreeDiskSpaceFailed"),
                failed=partial(self._events.report, "ImageGCFailed"),
                invalid_capacity=partial(self._events.report, "InvalidDiskCapacity"),
                containers_failed=partial(self._events.report, "ContainerGCFailed"),
            ),
        )
        self._file = AnnouncementFile(Path(settings.state_path).with_name(_ANNOUNCEMENTS))
        on_node = EvictedOnNode(tree, settings.pod_parents, self._runtime.client)
        self._announcer = Announcer(
            client, store, self.node_name, self._file, on_node, kubelets_soft=self._kubelets_soft
        )
        self._others = Others(
            write,
            self._node,
            name=self.node_name,
            role=self._kubernetes.role,
            is_own=self._announcer.is_announced,
        )
        self._node_watch = Watch(client, "/api/v1/nodes", selector, self._others)
        self._admission = AdmissionGuard(store, self._announcer.announce, time.time)
        self._files = NodeFilesWatch(
            settings.static_pods_path, NodePaths().logs, settings.housekeeping_interval_seconds, self._due
        )
        self._listings = PodListings(guard, self._specs, self._runtime.watch, self._files)
        self.placed, self.unplaced = self._runtime.placed, self._runtime.unplaced
        self.order(settings)

    def order(self, settings: Settings) -> None:
        """Go on by other settings; what the guard reports is published unless they are of a dry run."""
        self._settings = settings
        self._specs.store.label_keys = settings.pod_lists.label_keys
        self._listings.due()
        self._others.dry_run = self._cleanup.is_dry_run = settings.dry_run
        self._node.order(is_dry_run=settings.dry_run)
        if not settings.dry_run:
            self._is_reporting.set()

    def reclaims(self, settings: Settings) -> Mapping[Reclaim, NodeReclaim]:
        return self._runtime.reclaims(settings)

    @property
    def problems(self) -> dict[str, str]:
        """Return what is wrong at present, each in one line."""
        found = {
            "kubernetes credentials": self._credentials.problem,
            "kubernetes clock": self._client.clock_problem,
            **self._specs.problems,
            "kubernetes pods of the guard": self._listings.problem,
            "kubernetes node": self._node_watch.problem or self._node.missing or self._node.problem,
            "kubernetes events": self._events.problem,
            "kubernetes lease": None if self._lease is None else self._lease.problem,
            "kubernetes clean-up": self._cleanup.problem,
            **self._runtime.problems,
            **self._announcer.problems,
        }
        return {name: why for name, why in found.items() if why is not None}

    @property
    def description(self) -> str | None:
        """Return what the container runtime calls itself."""
        return self._runtime.watch.state.description

    @property
    def removed_images(self) -> RemovedImages:
        return self._runtime.removed_images

    @property
    def pending(self) -> int:
        """Return how many evictions the control plane has not heard of yet."""
        return len(self._announcer.pending)

    @property
    def watches(self) -> dict[str, bool]:
        """Return whether each of the watches is well."""
        well = {"pods": self._specs.is_heard}
        if self._is_reporting.is_set():
            well["node"] = self._node_watch.synced.is_set() and self._node_watch.problem is None
        return well

    def document(self) -> dict[str, Any]:
        """Return how it stands, as plain JSON values."""
        return {
            "node": self.node_name,
            "role": self._kubernetes.role,
            "watches": self.watches,
            "untold_evictions": self.pending,
            "out_of_service": self._node.is_out_of_service,
        }

    def take(self, message: Message) -> None:
        """Take a report of the guard's, and soon report to it that this is safe."""
        document = json.loads(message.content)
        match document["report"]:
            case "eviction":
                self._evicted(document)
            case "conditions":
                self._conditions = tuple(NodeCondition(one) for one in document["conditions"])
                self._node.want(
                    self._conditions, tuple(NodeCondition(one) for one in document.get("unknown", ()))
                )
            case "marks":
                shown, left = (tuple(Mark(*one) for one in document[key]) for key in ("shown", "left"))
                self._node.mark(Marks(shown, left))
            case "threshold met":
                self._events.threshold_met(Resource(document["resource"]))
            case "system OOM":
                self._events.system_oom(document["comm"], document["pid"])
            case "shutdown":
                self._shutdown(is_under_way=document["is_under_way"])
            case "no evictable pod":
                self._events.report("NoEvictablePod", document["message"])
            case "process killed":
                about = ObjectReference(
                    kind="Pod",
                    name=document["name"],
                    uid=self._api_uid(document["uid"]),
                    namespace=document["namespace"],
                )
                self._events.report("ProcessKilled", document["message"], about=about)
            case "evictions slowed down":
                self._events.report("EvictionsSlowedDown", document["message"])
        self._safe.append(message.number)
        self._has_safe.set()

    async def wait_placed(self) -> None:
        """Wait until the runtime was asked where its filesystems lie, for a few seconds at the most."""
        with trio.move_on_after(_RUNTIME_SECONDS):
            await self._runtime.watch.was_asked.wait()

    async def stop(self, pod_uid: str, grace_seconds: float) -> None:
        """Have the runtime stop a pod's containers. Raises ReactorError."""
        await stop_containers(self._runtime.client, pod_uid, grace_seconds)

    async def leave(self, *, stands_by: bool, seconds: float) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Remove what was set on the node where no successor is expected; return what was done, and problems.

        It takes `seconds` at most: the guard waits no longer. Taints and conditions are two requests, which
        no server takes as one. So the first is made only where time is left for both.
        """
        if not self._is_reporting.is_set():
            return (), ()
        began, writing = trio.current_time(), trio.Event()
        with trio.CancelScope(deadline=began + seconds * _TO_BEGIN) as scope:

            def begun() -> None:
                scope.deadline = began + seconds
                writing.set()

            expected = await successor(self._client, self.node_name, stands_by=stands_by)
            if expected is not None:
                return (f"node {self.node_name}: conditions and taints stay: {expected} is expected",), ()
            cleaned = await self._node.withdraw(begun)
            if cleaned.problem is None:
                return (f"node {cleaned}: no successor is expected",), ()
            return (), (f"no successor is expected, but something stays: node {cleaned}",)
        late = f"no answer within {trio.current_time() - began:.1f} s"
        if not writing.is_set():
            return (), (f"node {self.node_name}: conditions and taints stay: {late}",)
        remedy = f"reactor cluster clean --node {self.node_name}"
        return (), (f"node {self.node_name}: conditions or taints may stay ({remedy}): {late}",)

    def close(self) -> None:
        """Save what is not reported yet."""
        self._file.flush()

    async def run(self) -> None:
        """Take part until cancelled."""
        parts: dict[str, Part] = {
            **self._specs.services,
            **self._runtime.services,
            "node files": self._files.run,
            "listings": self._listings.run,
            "node watch": self._node_watch.run,  # a dry run is compared with what others do
            "report": lambda: report(lambda: self.problems),
        }
        reporting: dict[str, Part] = {
            "node status": self._node.run,
            "node events": self._events.run,
            "announcements": self._announcer.run,
            "reports": self._say_safe,
        }
        if self._lease is not None:
            reporting["lease"] = self._lease.run
        if self._kubernetes.evicted_pod_ttl_seconds > 0:
            reporting["clean-up"] = self._cleanup.run
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep, parts)
                await self._is_reporting.wait()
                nursery.start_soon(self._keep, reporting)
        finally:
            with self._supervisor.hook("kubernetes close").guard():
                self._client.close()
                self._specs.close()

    async def _keep(self, parts: Mapping[str, Part]) -> None:
        await self._supervisor.keep_all({f"kubernetes {name}": part for name, part in parts.items()})

    async def _say_safe(self) -> None:
        """Report to the guard which reports outlive the steward, until cancelled."""
        while True:
            await self._has_safe.wait()
            self._has_safe = trio.Event()
            safe, self._safe = self._safe, []
            await self._announcer.wait_saved()
            for number in safe:
                await self._guard.say(Request(kind=RequestKind.REPORTED, number=number))

    def _evicted(self, document: Mapping[str, Any]) -> None:
        uid = document["uid"]
        if document["state"] == "called off":
            self._announcer.withdraw(uid)
            return
        self._announcer.announce(
            Announcement(
                uid=uid,
                name=document["name"],
                namespace=document["namespace"],
                message=document["message"],
                annotations=document["annotations"],
                disrupted=document["disrupted"],
                at_unix_seconds=document["at_unix_seconds"],
                grace_period_seconds=document["grace_period_seconds"],
                is_over=document["state"] == "over",
                reason=TERMINATED if document.get("for_shutdown") else EVICTED,
                event_written=bool(document.get("for_shutdown")),
            )
        )

    def _shutdown(self, *, is_under_way: bool) -> None:
        if is_under_way != self._is_shutting_down:
            self._is_shutting_down = is_under_way
            self._events.shutdown(is_under_way=is_under_way)
            self._node.shut_down(is_under_way=is_under_way)

    def _api_uid(self, uid: str) -> str:
        """Return the uid of the API server's object, by that of the cgroup."""
        known = self._specs.known(uid)
        return uid if known is None else known.api_uid

    def _runs(self, uid: str) -> bool:
        """Return whether a pod is still to run; a pod that is not known is."""
        known = self._specs.known(uid)
        if self._announcer.is_announced(self._api_uid(uid)):
            return False
        if known is None:
            # A static pod whose mirror is missing, or contested, is none of the API server's.
            return not (self._specs.store.is_complete and may_be_api_uid(uid))
        return not known.is_terminal

    def _kubelets_soft(self) -> frozenset[Resource]:
        """Return the resources for which the kubelet evicts softly, beside reactor. Blocks on the disk."""
        if self._kubernetes.role is Role.SOLE:
            return frozenset()
        return soft_resources(self._kubernetes.kubelet_config_path)

    def _due(self) -> None:
        self._listings.due()

    def _pods_changed(self) -> None:
        self._runtime.watch.due()
        if self._specs.store.is_complete:
            self._others.pods_changed(self._specs.store.known)
        if not self._settings.dry_run:
            self._admission.check(self._conditions, is_shutting_down=self._is_shutting_down)
        self._due()
