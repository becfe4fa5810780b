"""Events about the node itself. What happens again within a while is counted in one event."""

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


@dataclass(slots=True, kw_only=True)
class _Series:
    """One thing that happened once or more; `written` is the count that the API server knows."""

    name: str
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
        self._series: dict[tuple[str, str], _Series] = {}
        self._changed = trio.Event()
        self.problem: str | None = None

    def threshold_met(self, resource: Resource) -> None:
        """Report that the node tries to reclaim what is starved. Source: managerImpl.synchronize."""
        self._report("EvictionThresholdMet", f"Attempting to reclaim {resource}")

    def system_oom(self, process_name: str, process_id: int) -> None:
        """Report that the kernel's OOM killer ended a process. Source: realWatcher.Start."""
        message = f"System OOM encountered, victim process: {process_name}, pid: {process_id}"
        self._report("SystemOOM", message)

    def evictions_slowed_down(self, message: str) -> None:
        """Report that evicting does not end a shortage of memory; a reason that upstream has no event for."""
        self._report("EvictionsSlowedDown", message)

    def no_evictable_pod(self, message: str) -> None:
        """Report a threshold that is met while no pod can be evicted; upstream has no such event."""
        self._report("NoEvictablePod", message)

    def free_disk_space_failed(self, message: str) -> None:
        """Report that image garbage collection found too little. Source: image_gc_manager.go."""
        self._report("FreeDiskSpaceFailed", message)

    def shutdown(self, *, is_under_way: bool) -> None:
        """Report that the node shuts down, or not after all. Source: nodeshutdown, managerImpl.start."""
        what = "event" if is_under_way else "cancellation"
        self._report("Shutdown", f"Shutdown manager detected shutdown {what}", NORMAL)

    def condition_changed(self, reason: str) -> None:
        """Report a condition that the node has from now on. Source: Kubelet.recordNodeStatusEvent."""
        self._report(reason, f"Node {self._node_name} status is now: {reason}", NORMAL)

    def invalid_disk_capacity(self, message: str) -> None:
        """Report an image filesystem that can't be. Source: image_gc_manager.go."""
        self._report("InvalidDiskCapacity", message)

    def container_gc_failed(self, message: str) -> None:
        """Report that dead containers could not be removed. Source: Kubelet.StartGarbageCollection."""
        self._report("ContainerGCFailed", message)

    def image_gc_failed(self, message: str) -> None:
        """Report that image garbage collection failed again. Source: Kubelet.StartGarbageCollection."""
        self._report("ImageGCFailed", message)

    async def run(self) -> None:
        """Write until cancelled."""
        backoff = Backoff()
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            for series in tuple(self._series.values()):
                try:
                    await self._write(series)
                except ApiError as error:
                    if self.problem is None:
                        _LOG.warning("events of the node: not written yet: %s", error)
                    self.problem = str(error)
                    self._changed.set()
                    await self._client.recovery.pause(backoff, error)
                    break
            else:
                self.problem = None
                backoff.reset()
                await trio.sleep(_AT_MOST_EVERY_SECONDS)

    def _report(self, reason: str, message: str, kind: str = WARNING) -> None:
        now = self._clock_unix_seconds()
        series = self._series.get((reason, message))
        if series is not None and now - series.last_unix_seconds < _SERIES_SECONDS:
            series.count += 1
            series.last_unix_seconds = now
        else:
            self._series.pop((reason, message), None)
            while len(self._series) >= _LIMIT:
                del self._series[next(iter(self._series))]
            name = event_name(self._node_name, reason, message, str(now))
            self._series[reason, message] = _Series(
                name=name, type=kind, reason=reason, message=message, count=1, last_unix_seconds=now
            )
        self._changed.set()

    async def _write(self, series: _Series) -> None:
        count = series.count
        if count == series.written:
            return
        path = events_path("default")
        if series.written:
            patch = repeated(count, series.message, series.last_unix_seconds)
            try:
                await self._client.patch(f"{path}/{series.name}", patch)
            except NotFoundError:  # events live for an hour
                series.written = 0
        if not series.written:
            about = ObjectReference(kind="Node", name=self._node_name, uid=self._node_name)
            occurrence = Occurrence(
                name=series.name,
                about=about,
                reason=series.reason,
                message=series.message,
                type=series.type,
            )
            document = event(occurrence, self._node_name, series.last_unix_seconds) | {"count": count}
            with suppress(ConflictError):  # an earlier attempt got through, its answer did not
                await self._client.create(path, document)
        series.written = count
