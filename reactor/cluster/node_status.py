"""Keeps the node's conditions and taints as the last pass wants them, against other writers.

The kubelet sends its own conditions every ten seconds where they differ, and the cluster's node controller
takes away pressure taints (NoSchedule) that no condition of the kubelet's stands for: what was overwritten is
written again, at first at once, then with growing pauses, so that a quarrel stays cheap. Taints have pauses
of their own, up to five minutes, and no condition waits for them. What is not overwritten is written again
every five minutes, by the nodes of a cluster that come up together at different times.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import trio

from reactor.backoff import Backoff
from reactor.cluster.leaving import Cleaned, clean_node
from reactor.errors import ConfigError
from reactor.kube.client import MERGE_PATCH, ApiClient
from reactor.kube.credentials import SERVICE_ACCOUNT_DIRECTORY
from reactor.kube.documents import node_path
from reactor.kube.errors import ApiError, BusyError, ConflictError, NotFoundError, UnreachableError
from reactor.kube.node import (
    NodeObject,
    conditions_patch,
    contested_taints,
    read_node,
    status_event,
    taints_patch,
)
from reactor.model.rules import Marks
from reactor.model.settings import KubernetesSettings, Role, TaintedBy
from reactor.model.signals import NodeCondition

_LOG: Final = logging.getLogger("reactor.node")
_HEARTBEAT_SECONDS: Final = 300.0  # as often as a kubelet reports a status that has not changed
_REWRITE_SECONDS: Final = (0.1, 5.0)
_QUIET_SECONDS: Final = 20.0
_TAINT_SECONDS: Final = (0.5, 300.0)  # the node controller removes in milliseconds what it does not want
_REFUSED_SECONDS: Final = 30.0
_CONTROLLER_SECONDS: Final = 5.0  # far longer than a node controller takes that is there


class _Pace:
    """When taints are set again that another writer removes, or has refused: with ever longer pauses.

    What stays for a while is accepted, so the next removal is answered at once. `patience_seconds` is for how
    long another writer is waited for.
    """

    def __init__(self, patience_seconds: float) -> None:
        self._patience_seconds = patience_seconds
        self._backoff = Backoff(*_TAINT_SECONDS)
        self._set_at = self._again_at = -math.inf
        self._is_contested = False

    @property
    def is_due(self) -> bool:
        """Return whether the pause is over."""
        return trio.current_time() >= self._again_at

    @property
    def left_seconds(self) -> float:
        """Return how long until the pause of a contest is over; infinite if it is, and without one."""
        left_seconds = self._again_at - trio.current_time()
        return left_seconds if self._is_contested and left_seconds > 0 else math.inf

    def observe(self, *, is_contested: bool) -> None:
        """Record whether taints are missing."""
        now = trio.current_time()
        if is_contested and not self._is_contested:
            if now - self._set_at > _QUIET_SECONDS:
                self._backoff.reset()
                self._again_at = now
            self._again_at = max(self._again_at, now + self._patience_seconds)
        self._is_contested = is_contested

    def was_set(self) -> None:
        """Record that taints were set."""
        self._set_at = trio.current_time()
        self._again_at = self._set_at + self._backoff.next_seconds()

    def was_refused(self) -> None:
        """Record that taints may not be written: try again later."""
        self._is_contested = True
        self._again_at = trio.current_time() + self._backoff.next_seconds(last_seconds=_REFUSED_SECONDS)

    def is_over(self) -> None:
        """Record that no taint is wanted: the next one begins afresh."""
        self._backoff.reset()
        self._set_at = self._again_at = -math.inf
        self._is_contested = False


class NodeStatus:
    """Writes to the node object; a Sink of the watch on it. `want` may be called at any time.

    `on_uid` is called with the object's uid, or with nothing where there is no such object; `on_status` with
    the reason of upstream's event when one of the node's own conditions has changed (role: sole).
    """

    def __init__(  # noqa: PLR0913 - the last two are for tests
        self,
        client: ApiClient,
        node_name: str,
        role: Role,
        *,
        tainted_by: TaintedBy = TaintedBy.REACTOR,
        on_uid: Callable[[str], None] = lambda _: None,
        on_status: Callable[[str], None] = lambda _: None,
        clock_unix_seconds: Callable[[], float] = time.time,
        heartbeat_seconds: float = _HEARTBEAT_SECONDS,
    ) -> None:
        self._client = client
        self._path = node_path(node_name)
        self._node_name = node_name
        self._role = role
        self._tainted_by = tainted_by
        self._pace = _Pace(_CONTROLLER_SECONDS if tainted_by is TaintedBy.NODE_CONTROLLER else 0.0)
        self._on_uid = on_uid
        self._on_status = on_status
        self._shown: dict[NodeCondition, bool] = {}
        self._clock_unix_seconds = clock_unix_seconds
        self._heartbeat_seconds = heartbeat_seconds
        self._wanted: frozenset[NodeCondition] | None = None
        self._unknown: frozenset[NodeCondition] = frozenset()
        self._is_shutting_down = False
        self._marks: Marks | None = None
        self._node: NodeObject | None = None
        self._taken = False
        self._changed = trio.Event()
        self._beat_at = -math.inf
        self._writing = trio.Lock()
        self._is_withdrawn = False
        self._is_dry_run = False
        self._problem: str | None = None
        self._taints_problem: str | None = None
        self.missing: str | None = None

    @property
    def problem(self) -> str | None:
        """Return why something is not written yet, None where all is."""
        return "; ".join(filter(None, (self._taints_problem, self._problem))) or None

    def want(self, conditions: Collection[NodeCondition], unknown: Collection[NodeCondition] = ()) -> None:
        """Have the node show these conditions, and no others of the reactor's but as unknown."""
        wanted = frozenset(conditions), frozenset(unknown)
        if wanted != (self._wanted, self._unknown):
            self._wanted, self._unknown = wanted
            self._changed.set()

    async def withdraw(self, begun: Callable[[], None] = lambda: None) -> Cleaned:
        """Remove from the node what is the reactor's, and write no more: there is no successor.

        `begun` is called before anything is removed.
        """
        self._is_withdrawn = True
        async with self._writing:
            return await clean_node(self._client, self._node_name, begun)

    def mark(self, marks: Marks) -> None:
        """Have the node show by rules these marks, and no others that rules have put there."""
        if marks != self._marks:
            self._marks = marks
            self._changed.set()

    def shut_down(self, *, is_under_way: bool) -> None:
        """Have the node show that it shuts down, or not any more."""
        if is_under_way != self._is_shutting_down:
            self._is_shutting_down = is_under_way
            self._changed.set()

    def order(self, *, is_dry_run: bool) -> None:
        """Have the node show nothing in a dry run, whatever is wanted; it writes but that."""
        if is_dry_run != self._is_dry_run:
            self._is_dry_run = is_dry_run
            self._changed.set()

    @property
    def uid(self) -> str:
        """Return the object's uid, "" while it is not known."""
        return "" if self._node is None else self._node.uid

    @property
    def is_out_of_service(self) -> bool:
        """Return whether the object has the taint by which an operator says that the node is down."""
        return self._node is not None and self._node.is_out_of_service

    def listing(self) -> None:
        """Note that a list begins."""
        self._taken = False

    def take(self, document: Any) -> None:
        """Note the node as it is now."""
        try:
            self._node = read_node(document)
        except ConfigError as error:
            self.missing = f"the node object can't be read: {error}"
            return
        self._taken = True
        self.missing = None
        self._on_uid(self._node.uid)
        self._changed.set()

    def drop(self, document: Any) -> None:  # noqa: ARG002 - a Sink gets the object; there is only one
        """Note that the node object was deleted."""
        self._lose()

    def listed(self) -> None:
        """Note that the list has ended: without an object there is no such node."""
        if not self._taken:
            self._lose()

    def _lose(self) -> None:
        self._node = None
        self.missing = self._not_there()
        self._on_uid("")

    async def run(self) -> None:
        """Write until cancelled."""
        backoff = Backoff(*_REWRITE_SECONDS)
        quiet_since = trio.current_time()
        while True:
            with trio.move_on_after(min(self._beat_in_seconds(), self._pace.left_seconds)):
                await self._changed.wait()
            self._changed = trio.Event()
            if trio.current_time() - quiet_since > _QUIET_SECONDS:
                backoff.reset()
            try:
                async with self._writing:
                    has_written = await self._write()
            except ApiError as error:
                await self._failed(error, backoff)
                self._changed.set()
            else:
                self._problem = None  # also where nothing is left to write
                if not has_written:
                    continue
                await backoff.pause()
            quiet_since = trio.current_time()

    def _beat_in_seconds(self) -> float:
        """Return how long nothing need be written: a while, also where it is overdue and could not be."""
        left_seconds = self._beat_at + self._heartbeat_seconds - trio.current_time()
        return left_seconds if left_seconds > 0 else self._heartbeat_seconds

    async def _write(self) -> bool:
        """Write what differs; return whether anything did. Raises ApiError.

        The answers are not read: the watch reports the same, in the order in which it happened, while an
        answer may be older than what the watch has reported meanwhile.
        """
        # As of now: while something is being written another call of `want` may change both.
        wanted, unknown, node = self._wanted, self._unknown, self._node
        if node is None or wanted is None or self._is_withdrawn:
            return False
        shuts_down, marks, failure, has_tainted = self._is_shutting_down, self._marks, None, False
        if self._is_dry_run:
            wanted, unknown, shuts_down, marks = frozenset(), frozenset(), False, Marks()
        try:
            has_tainted = await self._write_taints(node, wanted, marks, is_shutting_down=shuts_down)
        except (BusyError, ConflictError, UnreachableError) as error:
            failure = error
        is_beat = trio.current_time() - self._beat_at >= self._heartbeat_seconds
        is_due = is_beat and not self._is_dry_run
        status = conditions_patch(
            node,
            wanted,
            self._role,
            self._clock_unix_seconds(),
            heartbeat=is_due,
            unknown=unknown,
            is_shutting_down=shuts_down,
            marks=marks,
        )
        if status is not None:
            await self._client.patch(f"{self._path}/status", status)
            if is_due:
                is_first = self._beat_at == -math.inf
                early_seconds = self._heartbeat_seconds * random.random() if is_first else 0.0  # noqa: S311
                self._beat_at = trio.current_time() - early_seconds
        if self._role is Role.SOLE:
            self._report_changes(node, wanted, unknown)
        if failure is not None:
            if status is None or isinstance(failure, ConflictError):
                raise failure
            self._refused(failure)  # the server answers: this is no outage
        return has_tainted or status is not None

    async def _write_taints(
        self,
        node: NodeObject,
        wanted: frozenset[NodeCondition],
        marks: Marks | None,
        *,
        is_shutting_down: bool,
    ) -> bool:
        """Write the taints unless they are left to others for now; return whether anything was written.

        A refusal is a problem of the taints alone. Raises ApiError for what another attempt may mend.
        """
        contested = contested_taints(node, wanted, self._role, self._tainted_by, marks)
        if not wanted and not (marks and marks.shown) and not is_shutting_down and not node.own_taints:
            self._pace.is_over()
            self._taints_problem = None
        elif self._taints_problem is None:
            self._pace.observe(is_contested=bool(contested))
        elif not self._pace.is_due:
            return False
        patch = taints_patch(
            node,
            wanted,
            self._role,
            self._clock_unix_seconds(),
            left=() if self._pace.is_due else contested,
            is_shutting_down=is_shutting_down,
            marks=marks,
        )
        if patch is None:
            self._taints_problem = None
            self._pace.observe(is_contested=bool(contested))
            return False
        try:
            await self._client.patch(self._path, patch, MERGE_PATCH)
        except (BusyError, ConflictError, UnreachableError):
            raise
        except ApiError as error:
            self._refused(error)
            return False
        self._taints_problem = None
        if self._pace.is_due:
            self._pace.was_set()
        return True

    def _refused(self, error: ApiError) -> None:
        """Leave the taints for a while; conditions are written meanwhile."""
        if self._taints_problem is None:
            _LOG.warning("node %s: taints not written: %s", self._node_name, error)
        self._taints_problem = str(error)
        self._pace.was_refused()

    def _report_changes(
        self, before: NodeObject, wanted: frozenset[NodeCondition], unknown: frozenset[NodeCondition]
    ) -> None:
        """Report each condition that has changed: at first against the node, then against what was written.

        What a kubelet writes over it, and is written again, is no change.
        """
        for condition in NodeCondition:
            if condition in unknown:
                continue
            is_in_force = condition in wanted
            was = self._shown.get(condition, before.is_in_force(condition))
            self._shown[condition] = is_in_force
            if was != is_in_force:
                self._on_status(status_event(condition, is_in_force=is_in_force))

    async def _failed(self, error: ApiError, backoff: Backoff) -> None:
        if isinstance(error, ConflictError):
            # Another client wrote in between: what the node is now decides what is to be changed.
            try:
                self._take_newer(await self._client.get(self._path))
            except ApiError as again:
                error = again
            else:
                await backoff.pause()
                return
        if self._problem is None:
            _LOG.warning("node %s: conditions and taints not written yet: %s", self._node_name, error)
        self._problem = str(error)
        await self._client.recovery.pause(backoff, error)

    def _take_newer(self, document: Any) -> None:
        """Take a node that was asked for, unless the watch has reported a later one since."""
        before = self._node
        self.take(document)
        if before is not None and self._node is not None and _age(before) > _age(self._node):
            self._node = before

    def _not_there(self) -> str:
        return (
            f"the API server has no node {self._node_name!r}; accepted: reactor.kubernetes.nodeName or "
            "NODE_NAME as in `kubectl get nodes`"
        )


def _age(node: NodeObject) -> int:
    """Return how late a version is; they are numbers that rise, though none that a client may make up."""
    version = node.resource_version
    return int(version) if version.isdigit() else 0


# The Lease: a Lease of reactor's own for each node, by which the cluster sees which nodes are guarded.
#
# Leases in kube-node-lease are the kubelet's; this one lies in reactor's namespace, under the node's
# name. It is renewed as upstream renews its own, while the guard answers that its passes go on. It lapses
# where the guard hangs or has no steward. Nobody fails a node over by it, so it is renewed less often than a
# kubelet's, whose writes are the largest part of an idle node's load. The nodes of a cluster that come up
# together renew at different times. Source: component-helpers/apimachinery/lease, controller.go.

_OFF: Final = "off"
_RENEWALS: Final = 4  # in the time that a Lease lasts, as upstream
_JITTER: Final = 0.04
_FIRST_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = (0.25, 10.0)


class NodeLease:
    """Renews the Lease; `node_uid` returns that of the node's object, "" while it is not known."""

    def __init__(
        self,
        client: ApiClient,
        namespace: str,
        node_name: str,
        is_alive: Callable[[], Awaitable[bool]],
        *,
        lease_seconds: float,
        node_uid: Callable[[], str] = lambda: "",
        clock_unix_seconds: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._node_name = node_name
        self._is_alive = is_alive
        self._node_uid = node_uid
        self._lease_seconds = lease_seconds
        self._clock_unix_seconds = clock_unix_seconds
        self.problem: str | None = None

    async def run(self) -> None:
        """Renew until cancelled."""
        backoff = Backoff(*_RETRY_SECONDS)
        spread = random.random()  # noqa: S311 - no secret
        await trio.sleep(_FIRST_SECONDS * random.random())  # noqa: S311 - a start has more urgent requests
        while True:
            if await self._is_alive():
                try:
                    await self._renew()
                except ApiError as error:
                    if self.problem is None:
                        _LOG.warning("lease of node %s: not renewed: %s", self._node_name, error)
                    self.problem = str(error)
                    await self._client.recovery.pause(backoff, error)
                    continue
            self.problem = None
            backoff.reset()
            await trio.sleep(self._lease_seconds / _RENEWALS * spread)
            spread = 1 + _JITTER * random.random()  # noqa: S311 - no secret

    async def _renew(self) -> None:
        spec = {
            "holderIdentity": self._node_name,
            "leaseDurationSeconds": round(self._lease_seconds),
            "renewTime": _micro_time(self._clock_unix_seconds()),
        }
        document: dict[str, Any] = {"metadata": self._metadata(), "spec": spec}
        try:
            await self._client.patch(f"{self._leases}/{self._node_name}", document, MERGE_PATCH)
        except NotFoundError:
            kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
            with suppress(ConflictError):  # an earlier attempt got through, its answer did not
                await self._client.create(self._leases, {**kind, **document})

    def _metadata(self) -> dict[str, Any]:
        """Return name and owner: the Lease goes with its node, once that is known."""
        uid = self._node_uid()
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._node_name, "uid": uid}
        return {"name": self._node_name, **({"ownerReferences": [owner]} if uid else {})}


def lease_namespace(settings: KubernetesSettings, directory: Path = SERVICE_ACCOUNT_DIRECTORY) -> str | None:
    """Return the namespace of the Lease: as configured, or the pod's own; None where there is to be none."""
    if settings.lease_namespace is not None:
        return None if settings.lease_namespace == _OFF else settings.lease_namespace
    if settings.kubeconfig_path is not None:
        return None
    try:
        return (directory / "namespace").read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _micro_time(unix_seconds: float) -> str:
    return datetime.fromtimestamp(unix_seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
