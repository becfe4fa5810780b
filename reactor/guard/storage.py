"""Has what pods take of the filesystems looked at: by the walker, with a share of a CPU, never waited for.

Housekeeping asks for a look at each of its turns; after one that took long the next waits for a while, a
minute at the most. A filesystem that fills, and an eviction whose files are to go, are urgent: the look under
way gets a larger share, and the next one follows at once. A directory that hangs, or at which the walker ends
again and again, is left alone for a while; the others are looked at without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import trio

from reactor.backoff import Backoff
from reactor.disks.walk_messages import Report
from reactor.guard.passes import NodeView
from reactor.guard.walker import COMMAND, HangingError, Walker, WalkerError, run_until_lost
from reactor.model.pods import Pod
from reactor.supervisor import Supervisor

_WALKER: Final = "storage walker"
_HANGING_SECONDS: Final = 30.0
_BETWEEN_URGENT_SECONDS: Final = 0.25
_REST_PER_WORK: Final = 200  # half a percent of a CPU, whatever the pods have
_LONGEST_REST_SECONDS: Final = 60.0
_LEFT_ALONE_SECONDS: Final = (60.0, 600.0)  # at first, and at the most


class _LeftAlone:
    """Until when a path is left alone, and why."""

    __slots__ = ("_backoff", "until_seconds", "why")

    def __init__(self, first_seconds: float, longest_seconds: float) -> None:
        self._backoff = Backoff(first_seconds, longest_seconds, jitter=None)
        self.until_seconds = float("-inf")
        self.why = ""

    def again(self, why: str) -> None:
        """Leave it alone from now on, longer than the last time."""
        self.why = why
        self.until_seconds = trio.current_time() + self._backoff.next_seconds()


class StorageWatch:
    """Looks at the known pods' storage. What it finds is in `known.storage`."""

    def __init__(
        self,
        known: NodeView,
        *,
        hanging_seconds: float = _HANGING_SECONDS,
        left_alone_seconds: tuple[float, float] = _LEFT_ALONE_SECONDS,
        command: Sequence[str] = COMMAND,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._known = known
        self._hanging_seconds = hanging_seconds
        self._left_alone_seconds = left_alone_seconds
        self._command = command
        self._supervisor = supervisor or Supervisor()
        self._due = trio.Event()
        self._hurry = trio.Event()
        self._looked = trio.Event()
        self._left_alone: dict[str, _LeftAlone] = {}
        self._ended_at: str | None = None

    @property
    def problems(self) -> dict[str, str]:
        """Return what could not be looked at, and why."""
        alone = {f"storage {path}": f"{one.why}: left alone" for path, one in self._left_alone.items()}
        walker = {name: why for name, why in self._supervisor.problems.items() if name == f"part {_WALKER}"}
        return {**self._known.storage.problems, **alone, **walker}

    def due(self, *, urgent: bool = False) -> None:
        """Have everything looked at soon; an urgent look takes a larger share of a CPU."""
        if urgent:
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
        await self._supervisor.keep(_WALKER, self._run_walker)

    async def _run_walker(self) -> None:
        """Look whenever it is due, by one walker. Raises WalkerError where that one is lost."""
        while not any(pod.storage for pod in self._pods()):
            await self._due.wait()
            self._due = trio.Event()
        self._due.set()
        walker = Walker(self._take, hanging_seconds=self._hanging_seconds, command=self._command)
        try:
            await run_until_lost(walker.run, partial(self._look_when_due, walker))
        except WalkerError as error:
            self._blame(walker, error)
            raise
        finally:
            self._known.storage.forget_walker()

    async def _look_when_due(self, walker: Walker) -> None:
        while True:
            await self._due.wait()
            self._due = trio.Event()
            await self._look(walker)
            self._looked.set()
            self._looked = trio.Event()
            await trio.sleep(_BETWEEN_URGENT_SECONDS)
            with trio.move_on_after(min(walker.worked_seconds * _REST_PER_WORK, _LONGEST_REST_SECONDS)):
                await self._hurry.wait()

    async def _look(self, walker: Walker) -> None:
        now_seconds = trio.current_time()
        alone = {path for path, one in self._left_alone.items() if now_seconds < one.until_seconds}
        pods = [pod for pod in self._pods() if pod.storage]
        storage = self._known.storage
        requests = storage.assign(pods, alone | self._known.lingering.emptying)
        if not pods and not requests:
            return
        storage.look_begins()
        await walker.look(requests, self._hurry)
        if not self._due.is_set():  # else the look may have passed by what became urgent meanwhile
            self._hurry = trio.Event()
        storage.look_ended()

    def _take(self, report: Report) -> None:
        path = self._known.storage.path_of(report.place)
        if path is not None and self._left_alone:
            self._left_alone.pop(path, None)  # it answers again
        self._known.storage.take(report, self._known.lingering.emptying)

    def _blame(self, walker: Walker, error: WalkerError) -> None:
        """Leave a place alone at which the walker hung, or ended twice in a row."""
        at = self._known.storage.path_of(walker.at or 0)
        is_to_blame = isinstance(error, HangingError) or at == self._ended_at
        self._ended_at = at
        if at is None or not is_to_blame:
            return
        why = str(error) if isinstance(error, HangingError) else "the walker ended there again"
        self._left_alone.setdefault(at, _LeftAlone(*self._left_alone_seconds)).again(why)

    def _pods(self) -> Sequence[Pod]:
        return self._known.lingering.beside(self._known.pods)
