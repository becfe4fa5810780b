"""Events about the node itself, and about pods that live on. What happens again within a while is counted.

Many that are alike become one, and all together are written at most 25 times in a row and then once in five
minutes, as client-go's EventCorrelator does. It drops what is beyond that; here it is counted and waits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import trio

from reactor.backoff import Backoff
from reactor.kube.client import ApiClient
from reactor.kube.documents import (
    NORMAL,
    WARNING,
    ObjectReference,
    Occurrence,
    event,
    event_name,
    events_path,
    repeated,
)
from reactor.kube.errors import ApiError, ConflictError, NotFoundError
from reactor.model.signals import Resource

_LOG: Final = logging.getLogger("reactor.announce")
_SERIES_SECONDS: Final = 600.0  # upstream's correlator
_AT_MOST_EVERY_SECONDS: Final = 1.0
_LIMIT: Final = 64
# The defaults of client-go's aggregator and spam filter. Source: tools/record/events_cache.go.
_ALIKE: Final = 10
_COMBINED: Final = "(combined from similar events): "
_BURST: Final = 25
_REFILL_SECONDS: Final = 300.0


@dataclass(slots=True, kw_only=True)
class _Series:
    """One thing that happened once or more; `written` is the count that the API server knows."""

    name: str
    about: ObjectReference
    type: str
    reason: str
    message: str
    count: int
    last_unix_seconds: float
    written: int = 0


class NodeEvents:
    """Takes what happened at once, and writes it when it can. Never more than 64 things at a time."""

    def __init__(
        self, client: ApiClient, node_name: str, *, clock_unix_seconds: Callable[[], float] = time.time
    ) -> None:
        self._client = client
        self._node_name = node_name
        self._clock_unix_seconds = clock_unix_seconds
        self._node = ObjectReference(kind="Node", name=node_name, uid=node_name)
        self._series: dict[tuple[ObjectReference, str, str], _Series] = {}
        # When the last of the same reason was, and their messages.
        self._alike: dict[tuple[ObjectReference, str], tuple[float, set[str]]] = {}
        self._writes = float(_BURST)
        self._refilled_seconds = 0.0
        self._changed = trio.Event()
        self.problem: str | None = None

    def threshold_met(self, resource: Resource) -> None:
        """Report that the node tries to reclaim what is starved. Source: managerImpl.synchronize."""
        self.report("EvictionThresholdMet", f"Attempting to reclaim {resource}")

    def system_oom(self, process_name: str, process_id: int) -> None:
        """Report that the kernel's OOM killer ended a process. Source: realWatcher.Start."""
        message = f"System OOM encountered, victim process: {process_name}, pid: {process_id}"
        self.report("SystemOOM", message)

    def shutdown(self, *, is_under_way: bool) -> None:
        """Report that the node shuts down, or not after all. Source: nodeshutdown, managerImpl.start."""
        what = "event" if is_under_way else "cancellation"
        self.report("Shutdown", f"Shutdown manager detected shutdown {what}", NORMAL)

    def condition_changed(self, reason: str) -> None:
        """Report a condition that the node has from now on. Source: Kubelet.recordNodeStatusEvent."""
        self.report(reason, f"Node {self._node_name} status is now: {reason}", NORMAL)

    async def run(self) -> None:
        """Write until cancelled."""
        backoff = Backoff()
        self._refilled_seconds = trio.current_time()
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            try:
                pause_seconds = await self._write_all()
            except ApiError as error:
                if self.problem is None:
                    _LOG.warning("events of the node: not written yet: %s", error)
                self.problem = str(error)
                self._changed.set()
                await self._client.recovery.pause(backoff, error)
            else:
                self.problem = None
                backoff.reset()
                await trio.sleep(pause_seconds)

    async def _write_all(self) -> float:
        """Write what the limit allows, what is new first; return how long to wait. Raises ApiError."""
        for series in sorted(self._series.values(), key=lambda one: one.written > 0):
            if series.count == series.written:
                continue
            since_seconds, self._refilled_seconds = self._refilled_seconds, trio.current_time()
            refilled = (self._refilled_seconds - since_seconds) / _REFILL_SECONDS
            self._writes = min(float(_BURST), self._writes + refilled)
            if self._writes < 1.0:
                self._changed.set()
                return (1.0 - self._writes) * _REFILL_SECONDS
            await self._write(series)
            self._writes -= 1.0
        return _AT_MOST_EVERY_SECONDS

    def report(
        self, reason: str, message: str, kind: str = WARNING, *, about: ObjectReference | None = None
    ) -> None:
        """Report anything else, by upstream's reasons where it has an event for it (None: about the node)."""
        about = about or self._node
        now = self._clock_unix_seconds()
        last, alike = self._alike.pop((about, reason), (now, set()))
        alike = {message} | (alike if now - last < _SERIES_SECONDS else set())
        what = message
        if len(alike) >= _ALIKE:
            alike.discard(message)
            what, message = _COMBINED, _COMBINED + message
        self._alike[about, reason] = now, alike
        while len(self._alike) > _LIMIT:
            del self._alike[next(iter(self._alike))]
        series = self._series.get((about, reason, what))
        if series is not None and now - series.last_unix_seconds < _SERIES_SECONDS:
            series.count += 1
            series.last_unix_seconds, series.message = now, message
        else:
            self._series.pop((about, reason, what), None)
            while len(self._series) >= _LIMIT:
                del self._series[next(iter(self._series))]
            name = event_name(about.name, about.uid, reason, message, str(now))
            self._series[about, reason, what] = _Series(
                name=name,
                about=about,
                type=kind,
                reason=reason,
                message=message,
                count=1,
                last_unix_seconds=now,
            )
        self._changed.set()

    async def _write(self, series: _Series) -> None:
        count = series.count
        if count == series.written:
            return
        path = events_path(series.about.namespace or "default")
        if series.written:
            patch = repeated(count, series.message, series.last_unix_seconds)
            try:
                await self._client.patch(f"{path}/{series.name}", patch)
            except NotFoundError:  # events live for an hour
                series.written = 0
        if not series.written:
            occurrence = Occurrence(
                name=series.name,
                about=series.about,
                reason=series.reason,
                message=series.message,
                type=series.type,
            )
            document = event(occurrence, self._node_name, series.last_unix_seconds) | {"count": count}
            with suppress(ConflictError):  # an earlier attempt got through, its answer did not
                await self._client.create(path, document)
        series.written = count
