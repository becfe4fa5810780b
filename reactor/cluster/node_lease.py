"""A Lease of the reactor's own for each node: the cluster sees which nodes are guarded.

Leases in kube-node-lease are the kubelet's; this one lies in the reactor's namespace, under the node's name.
It is renewed as upstream renews its own, while the guard answers that its passes go on. It lapses where the
guard hangs or has no steward. Source: component-helpers/apimachinery/lease, controller.go.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import trio

from reactor.backoff import Backoff
from reactor.kube.client import MERGE_PATCH, ApiClient
from reactor.kube.credentials import SERVICE_ACCOUNT_DIRECTORY
from reactor.kube.errors import ApiError, NotFoundError
from reactor.model.settings import KubernetesSettings

_LOG: Final = logging.getLogger("reactor.node")
_OFF: Final = "off"
_DURATION_SECONDS: Final = 40  # nodeLeaseDurationSeconds of a kubelet
_RENEW_SECONDS: Final = 10.0  # a quarter of it
_JITTER: Final = 0.04
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
        node_uid: Callable[[], str] = lambda: "",
        clock_unix_seconds: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._node_name = node_name
        self._is_alive = is_alive
        self._node_uid = node_uid
        self._clock_unix_seconds = clock_unix_seconds
        self.problem: str | None = None

    async def run(self) -> None:
        """Renew until cancelled."""
        backoff = Backoff(*_RETRY_SECONDS)
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
            await trio.sleep(_RENEW_SECONDS * (1 + _JITTER * random.random()))  # noqa: S311 - no secret

    async def _renew(self) -> None:
        spec = {
            "holderIdentity": self._node_name,
            "leaseDurationSeconds": _DURATION_SECONDS,
            "renewTime": _micro_time(self._clock_unix_seconds()),
        }
        document: dict[str, Any] = {"metadata": self._metadata(), "spec": spec}
        try:
            await self._client.patch(f"{self._leases}/{self._node_name}", document, MERGE_PATCH)
        except NotFoundError:
            kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
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
