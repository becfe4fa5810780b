"""Slow observations, which may hang: the list of pods and the filesystems, refreshed beside the loop."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Final

import trio

from reactor.errors import failure_text
from reactor.guard.filesystem_facts import FilesystemFacts
from reactor.guard.pass_ import Passes
from reactor.guard.usage_facts import StorageCounts
from reactor.model.wakes import Wake, WakeKind
from reactor.observe.node import NodeObserver
from reactor.sources.wakes import Wakes
from reactor.supervisor import report_changes
from reactor.workloads.pods import PodList

_LOG: Final = logging.getLogger("reactor.housekeeping")
HOUSEKEEPING: Final = "housekeeping"


class Housekeeping:
    """Refreshes both when they are `due`, and wakes the loop for a pass."""

    def __init__(
        self,
        observer: NodeObserver,
        pods: PodList,
        passes: Passes,
        filesystems: FilesystemFacts,
        storage: StorageCounts,
        wakes: Wakes,
    ) -> None:
        self._observer = observer
        self._pods = pods
        self._passes = passes
        self._wakes = wakes
        self._due = trio.Event()
        self._is_unfinished = False
        self._pods_problem: str | None = None
        self._filesystems = filesystems
        self._storage = storage
        self._reported: Mapping[str, str] = {}

    @property
    def problems(self) -> dict[str, str]:
        """Return what can't be read or is refused at present, and why."""
        found = {**self._observer.problems, **self._pods.problems}
        found |= self._filesystems.problems
        found |= self._passes.observations.absurd_thresholds()
        if self._pods_problem is not None:
            found["pods"] = self._pods_problem
        return found

    @property
    def is_unfinished(self) -> bool:
        """Whether a turn is under way, or has failed: its pass may be long in coming."""
        return self._is_unfinished

    def due(self) -> None:
        self._due.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Refresh whenever it is due, until cancelled; a turn that failed is due again."""
        task_status.started()
        if self._is_unfinished:
            self.due()
        while True:
            await self._due.wait()
            self._due = trio.Event()
            self._is_unfinished = True
            self._storage.due()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.list_pods)
                nursery.start_soon(self._filesystems.refresh)
            self._reported = report_changes(_LOG, self._reported, self.problems)
            self._is_unfinished = False
            self._wakes.notify(
                Wake(source=HOUSEKEEPING, kind=WakeKind.HOUSEKEEPING, at_ns=time.monotonic_ns())
            )

    async def list_pods(self) -> None:
        """List the pods again; those known stay if that fails."""
        try:
            pods = await self._pods.listed()
        except Exception as error:  # noqa: BLE001 - the filesystems are refreshed all the same
            if self._pods_problem != failure_text(error):
                _LOG.exception("the pods could not be listed")
            self._pods_problem = failure_text(error)
            return
        self._pods_problem = None
        if pods is not None:
            self._passes.observations.set_pods(pods)
