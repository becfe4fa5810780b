"""Keeps the node's conditions and taints as the last pass wants them, against other writers.

The kubelet sends its own conditions every ten seconds where they differ, and the cluster's node controller
takes away pressure taints (NoSchedule) that no condition of the kubelet's stands for: what was overwritten is
written again, at first at once, then with growing pauses, so that a quarrel stays cheap.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection
from typing import Any, Final

import trio

from reactor.backoff import Backoff
from reactor.cluster.cleaning import Cleaned, clean_node
from reactor.errors import ConfigError
from reactor.kube.client import MERGE_PATCH, ApiClient
from reactor.kube.documents import node_path
from reactor.kube.errors import ApiError, ConflictError
from reactor.kube.node import NodeObject, conditions_patch, read_node, status_event, taints_patch
from reactor.model.settings import Role
from reactor.model.signals import NodeCondition

_LOG: Final = logging.getLogger("reactor.node")
_HEARTBEAT_SECONDS: Final = 300.0  # as often as a kubelet reports a status that has not changed
_REWRITE_SECONDS: Final = (0.1, 5.0)
_QUIET_SECONDS: Final = 20.0


class NodeStatus:
    """Writes to the node object; a Sink of the watch on it. `want` may be called at any time.

    `on_uid` is called with the object's uid, or with nothing where there is no such object; `on_status` with
    the reason of upstream's event when one of the node's own conditions has changed (role: sole).
    """

    def __init__(
        self,
        client: ApiClient,
        node_name: str,
        role: Role,
        *,
        on_uid: Callable[[str], None] = lambda _: None,
        on_status: Callable[[str], None] = lambda _: None,
        clock_unix_seconds: Callable[[], float] = time.time,
        heartbeat_seconds: float = _HEARTBEAT_SECONDS,
    ) -> None:
        self._client = client
        self._path = node_path(node_name)
        self._node_name = node_name
        self._role = role
        self._on_uid = on_uid
        self._on_status = on_status
        self._shown: dict[NodeCondition, bool] = {}
        self._clock_unix_seconds = clock_unix_seconds
        self._heartbeat_seconds = heartbeat_seconds
        self._wanted: frozenset[NodeCondition] | None = None
        self._unknown: frozenset[NodeCondition] = frozenset()
        self._is_shutting_down = False
        self._node: NodeObject | None = None
        self._taken = False
        self._changed = trio.Event()
        self._beat_at = -math.inf
        self._writing = trio.Lock()
        self._is_withdrawn = False
        self.problem: str | None = None
        self.missing: str | None = None

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

    def shut_down(self, *, is_under_way: bool) -> None:
        """Have the node show that it shuts down, or not any more."""
        if is_under_way != self._is_shutting_down:
            self._is_shutting_down = is_under_way
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

    def drop(self, document: Any) -> None:  # noqa: ARG002 - a Sink is told which; there is only one
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
            with trio.move_on_after(self._heartbeat_seconds):
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
                self.problem = None  # also where nothing is left to write
                if not has_written:
                    continue
                await backoff.pause()
            quiet_since = trio.current_time()

    async def _write(self) -> bool:
        """Write what differs; return whether anything did. Raises ApiError.

        The answers are not looked at: the watch tells the same, in the order in which it happened, while an
        answer may be older than what the watch has told meanwhile.
        """
        # As of now: while something is being written another call of `want` may change both.
        wanted, unknown, node = self._wanted, self._unknown, self._node
        if node is None or wanted is None or self._is_withdrawn:
            return False
        shuts_down = self._is_shutting_down
        now = self._clock_unix_seconds()
        patch = taints_patch(node, wanted, self._role, now, is_shutting_down=shuts_down)
        if patch is not None:
            await self._client.patch(self._path, patch, MERGE_PATCH)
        is_due = trio.current_time() - self._beat_at >= self._heartbeat_seconds
        status = conditions_patch(
            node,
            wanted,
            self._role,
            now,
            heartbeat=is_due,
            unknown=unknown,
            is_shutting_down=shuts_down,
        )
        if status is not None:
            await self._client.patch(f"{self._path}/status", status)
            if is_due:
                self._beat_at = trio.current_time()
        if self._role is Role.SOLE:
            self._report_changes(node, wanted, unknown)
        return patch is not None or status is not None

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
        if self.problem is None:
            _LOG.warning("node %s: conditions and taints not written yet: %s", self._node_name, error)
        self.problem = str(error)
        await self._client.recovery.pause(backoff, error)

    def _take_newer(self, document: Any) -> None:
        """Take a node that was asked for, unless the watch has told of a later one since."""
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
