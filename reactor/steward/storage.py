"""Has what pods take of the filesystems counted for the guard: by the walker, with a share of a CPU.

The guard says which places there are and asks for a look at each of its turns; after one that took long the
next waits for a while, a minute at the most. A filesystem that fills, and an eviction whose files are to go,
are urgent: the look under way gets a larger share, and the next one follows at once. A directory that hangs,
or at which the walker ends again and again, is left alone for a while; the others are looked at without it.

A place that is to be forgotten waits for no look: the walker may have its directory open, which keeps a
volume from being unmounted, and would go on counting it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

import trio

from reactor.backoff import Backoff
from reactor.disks.usage import DiskUsage
from reactor.disks.walk_messages import Report
from reactor.link.orders import Places
from reactor.link.requests import Usages
from reactor.steward.walker import COMMAND, HangingError, Walker, WalkerError, run_until_lost
from reactor.supervisor import Supervisor, report

_WALKER: Final = "storage walker"
_HANGING_SECONDS: Final = 30.0
_BETWEEN_URGENT_SECONDS: Final = 0.25
_REST_PER_WORK: Final = 200  # half a percent of a CPU, whatever the pods have
_LONGEST_REST_SECONDS: Final = 60.0
_LEFT_ALONE_SECONDS: Final = (60.0, 600.0)  # at first, and at the most
_BETWEEN_NEWS_SECONDS: Final = 0.1


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
    """Looks at the places that the guard names. What it finds is `tell`'s to pass on."""

    def __init__(
        self,
        tell: Callable[[Usages], Awaitable[None]],
        *,
        hanging_seconds: float = _HANGING_SECONDS,
        left_alone_seconds: tuple[float, float] = _LEFT_ALONE_SECONDS,
        command: Sequence[str] = COMMAND,
        quotas_fd: int | None = None,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._tell = tell
        self._usage = DiskUsage()
        self._hanging_seconds = hanging_seconds
        self._left_alone_seconds = left_alone_seconds
        self._command = command
        self._quotas_fd = quotas_fd
        self._supervisor = supervisor or Supervisor()
        self._due = trio.Event()
        self._hurry = trio.Event()
        self._looked = trio.Event()
        self._forgot = trio.Event()
        self._has_news = trio.Event()
        self._telling = trio.Lock()
        self._left_alone: dict[str, _LeftAlone] = {}
        self._ended_at: str | None = None

    @property
    def problems(self) -> dict[str, str]:
        """Return what could not be looked at, and why."""
        alone = {f"storage {path}": f"{one.why}: left alone" for path, one in self._left_alone.items()}
        return {**self._usage.problems, **alone}

    @property
    def overdue(self) -> int:
        """Return of how many pods a count takes too long."""
        return self._usage.overdue

    def know(self, places: Places) -> None:
        """Look at these places too from now on, soon, and at those that are to be forgotten no longer."""
        self._usage.forget(places.forget)
        self._usage.know(places.count)
        self._forgot.set()
        self.due()

    def due(self, *, urgent: bool = False) -> None:
        """Have everything looked at soon; an urgent look takes a larger share of a CPU."""
        if urgent:
            self._hurry.set()
        self._due.set()

    async def look(self) -> None:
        """Look at everything, urgently; return when the guard has been told what was found."""
        for _ in range(2 if self._usage else 0):  # the look under way may have passed by what matters
            looked = self._looked
            self.due(urgent=True)
            await looked.wait()
        await self._tell_news()

    async def run(self) -> None:
        """Look whenever it is due, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_telling)
            nursery.start_soon(report, lambda: self.problems)
            await self._supervisor.keep(_WALKER, self._run_walker)

    async def _keep_telling(self) -> None:
        while True:
            await self._has_news.wait()
            self._has_news = trio.Event()
            await self._tell_news()
            await trio.sleep(_BETWEEN_NEWS_SECONDS)

    async def _tell_news(self) -> None:
        async with self._telling:
            for usages in self._usage.news():
                await self._tell(usages)

    async def _run_walker(self) -> None:
        """Look whenever it is due, by one walker. Raises WalkerError where that one is lost."""
        while not self._usage:
            await self._due.wait()
            self._due = trio.Event()
        self._due.set()
        walker = Walker(
            self._take,
            hanging_seconds=self._hanging_seconds,
            command=self._command,
            quotas_fd=self._quotas_fd,
        )
        try:
            await run_until_lost(
                walker.run, partial(self._look_when_due, walker), partial(self._drop_forgotten, walker)
            )
        except WalkerError as error:
            self._blame(walker, error)
            raise
        finally:
            self._usage.forget_walker()
            self._heed_news()

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

    async def _drop_forgotten(self, walker: Walker) -> None:
        while True:
            await self._forgot.wait()
            self._forgot = trio.Event()
            await walker.ask(*self._usage.drops())

    async def _look(self, walker: Walker) -> None:
        now_seconds = trio.current_time()
        alone = {path for path, one in self._left_alone.items() if now_seconds < one.until_seconds}
        requests = self._usage.assign(alone)
        if not self._usage and not requests:
            return
        self._usage.look_begins()
        await walker.look(requests, self._hurry)
        if not self._due.is_set():  # else the look may have passed by what became urgent meanwhile
            self._hurry = trio.Event()
        self._usage.look_ended()
        self._heed_news()

    def _take(self, report: Report) -> None:
        path = self._usage.path_of(report.place)
        if path is not None and self._left_alone:
            self._left_alone.pop(path, None)  # it answers again
        self._usage.take(report)
        self._heed_news()

    def _heed_news(self) -> None:
        if self._usage.has_news:
            self._has_news.set()

    def _blame(self, walker: Walker, error: WalkerError) -> None:
        """Leave a place alone at which the walker hung, or ended twice in a row."""
        at = self._usage.path_of(walker.at or 0)
        is_to_blame = isinstance(error, HangingError) or at == self._ended_at
        self._ended_at = at
        if at is None or not is_to_blame:
            return
        why = str(error) if isinstance(error, HangingError) else "the walker ended there again"
        self._left_alone.setdefault(at, _LeftAlone(*self._left_alone_seconds)).again(why)
