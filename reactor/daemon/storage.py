"""Has what pods take of the filesystems looked at: in a thread, by a share of a CPU, and never waited for.

Housekeeping asks for a look at each of its turns; after one that took long the next waits for a while, a
minute at the most. A filesystem that fills, and an eviction whose files are
to go, are urgent: the look under way gets a larger share, and the next one follows at once. A directory that
hangs is left alone until it answers again; the others are looked at without it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import trio

from reactor.daemon.passes import Known
from reactor.kernel.scheduling import following
from reactor.model.pods import Pod
from reactor.observe.disk_usage import DiskUsage, GivenUpError, Pace
from reactor.threads import in_thread

_HANGING_SECONDS: Final = 30.0
_BETWEEN_URGENT_SECONDS: Final = 0.25
_REST_PER_WORK: Final = 200  # half a percent of a CPU, whatever the pods have
_LONGEST_REST_SECONDS: Final = 60.0


class StorageWatch:
    """Looks at the known pods' storage. What it finds is in `known.storage`."""

    def __init__(self, known: Known, *, hanging_seconds: float = _HANGING_SECONDS) -> None:
        self._known = known
        self._hanging_seconds = hanging_seconds
        self._due = trio.Event()
        self._hurry = trio.Event()
        self._looked = trio.Event()
        self._pace = Pace()
        self._hanging: dict[str, str] = {}

    @property
    def problems(self) -> dict[str, str]:
        """Return what could not be looked at, and why."""
        return {**self._known.storage.problems, **self._hanging}

    def due(self, *, urgent: bool = False) -> None:
        """Have everything looked at soon; an urgent look takes a larger share of its thread's time."""
        if urgent:
            self._pace.hurry()
            self._hurry.set()
        self._due.set()

    async def look(self, most_seconds: float) -> None:
        """Look at everything, urgently, and return when that is done, or `most_seconds` are over."""
        if not any(pod.storage for pod in self._pods()):
            return
        with trio.move_on_after(most_seconds):
            for _ in range(2):  # the look under way, if there is one, may have passed by what matters
                looked = self._looked
                self.due(urgent=True)
                await looked.wait()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look whenever it is due, until cancelled."""
        task_status.started()
        while True:
            await self._due.wait()
            urgent, self._due, self._hurry = self._hurry.is_set(), trio.Event(), trio.Event()
            await self._look(urgent=urgent)
            self._looked.set()
            self._looked = trio.Event()
            await trio.sleep(_BETWEEN_URGENT_SECONDS)
            with trio.move_on_after(min(self._pace.worked_seconds * _REST_PER_WORK, _LONGEST_REST_SECONDS)):
                await self._hurry.wait()

    async def _look(self, *, urgent: bool) -> None:
        pods = tuple(self._without_hanging(pod) for pod in self._pods() if pod.storage)
        usage, pace = self._known.storage, Pace()
        if not pods and not usage.places:
            return
        self._pace = pace
        if urgent:
            pace.hurry()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._give_up_where_it_hangs, usage, pace, nursery.cancel_scope)
            try:
                call = following(self._look_in_thread)
                await in_thread(call, usage, pods, pace, abandon_on_cancel=True)
            finally:
                pace.stopped = True
            nursery.cancel_scope.cancel()

    def _look_in_thread(self, usage: DiskUsage, pods: tuple[Pod, ...], pace: Pace) -> None:
        try:
            usage.look(pods, pace, self._known.lingering.emptying)
        except GivenUpError:
            pass
        finally:
            # One that hung has come back: it may be looked at again.
            if usage.looking_at is not None:
                self._hanging.pop(_named(usage.looking_at), None)

    async def _give_up_where_it_hangs(self, usage: DiskUsage, pace: Pace, scope: trio.CancelScope) -> None:
        while True:
            await trio.sleep(self._hanging_seconds / 5)
            path = usage.looking_at
            if path is not None and time.monotonic() - pace.progress_at_seconds > self._hanging_seconds:
                self._hanging[_named(path)] = f"no answer within {self._hanging_seconds:g} s: left alone"
                # The thread holds the old one for as long as it hangs; what was published stays.
                self._known.storage = usage.renewed()
                scope.cancel()

    def _pods(self) -> Sequence[Pod]:
        return self._known.lingering.beside(self._known.pods)

    def _without_hanging(self, pod: Pod) -> Pod:
        if not self._hanging:
            return pod
        places = tuple(place for place in pod.storage if _named(place.path) not in self._hanging)
        return replace(pod, storage=places)


def _named(path: str) -> str:
    return f"storage {path}"
