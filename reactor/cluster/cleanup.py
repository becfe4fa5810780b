"""Evicted pods are deleted a while after their end, where that is configured; else they pile up.

(kubernetes/kubernetes#55051: the control plane removes them only when there are 12,500.)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

import trio

from reactor.kube.client import ApiClient
from reactor.kube.documents import pod_path
from reactor.kube.errors import ApiError, ConflictError, NotFoundError
from reactor.kube.pods import KnownPod, PodStore

_LOG: Final = logging.getLogger("reactor.announce")
_LOOK_SECONDS: Final = 10.0


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

    async def run(self) -> None:
        """Look and delete until cancelled; returns at once where nothing is ever to be deleted."""
        while self._ttl_seconds > 0:
            await self._look()
            await trio.sleep(min(_LOOK_SECONDS, self._ttl_seconds))

    async def _look(self) -> None:
        now = self._clock_unix_seconds()
        evicted = {uid: known for uid, known in self._pods.known.items() if known.is_evicted}
        self._first_seen = {uid: self._first_seen.get(uid, now) for uid in evicted}
        self.problem = None
        for uid, known in evicted.items():
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
            _LOG.info("pod %s: evicted, and deleted after %g s", known.pod.key, self._ttl_seconds)
