"""Has what pods take of the filesystems counted for the guard: by the walker, with a share of a CPU.

The guard says which places there are and asks for a round at each of its turns; after one that took long the
next waits for a while, a minute at the most. A filesystem that fills, and an eviction whose files are to go,
are urgent: the round under way gets a larger share, and the next one follows at once. A directory that hangs,
or at which the walker ends again and again, is left alone for a while; the others are counted without it.

A place that is to be forgotten waits for no round: the walker may have its directory open, which keeps a
volume from being unmounted, and would go on counting it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import trio

from reactor.backoff import Backoff
from reactor.disks.usage import DiskUsage
from reactor.disks.walk_messages import (
    REPORT_BYTES,
    Hurry,
    Kind,
    Report,
    Request,
    Round,
    read_report,
    write_request,
)
from reactor.errors import ReactorError
from reactor.forms import FormError
from reactor.link.orders import Places
from reactor.link.requests import Usages
from reactor.processes import child_environment, ended_text
from reactor.supervisor import Supervisor, report
from reactor.threads import in_thread

COMMAND: Final = (sys.executable, "-P", "-m", "reactor.disks.walker")
_HEARTBEAT_SECONDS: Final = 1.0
_AT_ONCE: Final = 64  # messages, after which others have their turn
_PAUSE_SECONDS: Final = 0.01
_REAP_SECONDS: Final = 5.0
# Walkers that may be there at a time: one that hangs in the kernel ends only when that lets go of it.
_MOST_WALKERS: Final = 4
_limiter: Final = trio.lowlevel.RunVar[trio.CapacityLimiter]("walkers")

_WALKER: Final = "storage walker"
_HANGING_SECONDS: Final = 30.0
_BETWEEN_URGENT_SECONDS: Final = 0.25
_REST_PER_WORK: Final = 200  # half a percent of a CPU, whatever the pods have
_LONGEST_REST_SECONDS: Final = 60.0
_LEFT_ALONE_SECONDS: Final = (60.0, 600.0)  # at first, and at the most
_BETWEEN_NEWS_SECONDS: Final = 0.1


class WalkerError(ReactorError):
    """The walker ended, hangs, or says what it can't have to say."""


class HangingError(WalkerError):
    """A directory gives no answer. `place` is its number, None where the walker does not say."""

    def __init__(self, place: int | None, seconds: float) -> None:
        self.place = place
        super().__init__(f"no answer for {seconds:g} s")


# The walker's other end: starts the process that counts tenants' files, asks it, and believes little of it.
#
# It may be killed, hang in a filesystem that does not answer, run out of its memory, or say anything.
# Whatever it does costs nothing but time: what it last reported stands while it is fresh.
class Walker:
    """One walker process, from `run` to its end; `take` is called with each report about a place.

    `quotas_fd` is where it asks for project quotas, if anywhere; it gets a copy.
    `at` is the number of the place at which it last said to be, None where it has not.
    """

    def __init__(
        self,
        take: Callable[[Report], None],
        *,
        hanging_seconds: float,
        command: Sequence[str] = COMMAND,
        quotas_fd: int | None = None,
    ) -> None:
        self.at: int | None = None
        self.worked_seconds = 0.0
        self._take = take
        self._hanging_seconds = hanging_seconds
        self._command = command
        self._quotas = () if quotas_fd is None else (quotas_fd,)
        self._socket: trio.socket.SocketType | None = None
        self._rounds = 0
        self._round_over = trio.Event()
        self._asking = trio.Lock()
        self._is_busy = False
        self._heard_seconds = 0.0

    async def run(self) -> None:
        """Start the process and take what it says, until it ends or this is cancelled.

        Raises WalkerError, and OSError where it can't be started.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        ours.setblocking(False)  # noqa: FBT003 - its one argument
        with trio.socket.from_stdlib_socket(ours) as connection:
            self._socket = connection
            self._heard_seconds = trio.current_time()
            own = (str(os.getpid()), f"{self._heartbeat_seconds:g}", *map(str, self._quotas))
            process = _Process((*self._command, *own), theirs, self._quotas)
            listen = partial(self._listen, connection, process)
            await run_until_lost(process.run, listen, self._notice_silence)

    async def count(self, requests: Iterable[Request], hurry: trio.Event) -> None:
        """Have it count all places, after these requests; return when it has. Raises WalkerError.

        Once `hurry` is set it takes a larger share of a CPU.
        """
        self._rounds += 1
        self._round_over = trio.Event()
        await self.ask(*requests, Round(self._rounds))
        with trio.CancelScope() as hurrying:
            await run_until_lost(partial(self._pass_on, hurry), partial(self._wait_round_over, hurrying))

    async def ask(self, *requests: Request) -> None:
        """Send requests, in the order of the calls: a place is never dropped before it was added.

        Raises WalkerError.
        """
        async with self._asking:
            for request in requests:
                await self._send(request)

    async def _wait_round_over(self, hurrying: trio.CancelScope) -> None:
        await self._round_over.wait()
        hurrying.cancel()

    async def _pass_on(self, hurry: trio.Event) -> None:
        await hurry.wait()
        await self.ask(Hurry())

    async def _send(self, request: Request) -> None:
        if self._socket is None:
            raise WalkerError("walker: not started")
        if not self._is_busy:
            self._is_busy, self._heard_seconds = True, trio.current_time()
        try:
            await self._socket.send(write_request(request))
        except OSError as error:
            raise WalkerError(f"walker: {error.strerror}") from error

    async def _listen(self, connection: trio.socket.SocketType, process: _Process) -> None:
        received = 0
        while True:
            try:
                raw = await connection.recv(REPORT_BYTES + 1)
            except ConnectionResetError:  # it ended with requests unread; what it said before comes now
                continue
            except OSError as error:
                raise WalkerError(f"walker: {error.strerror}") from error
            if not raw:
                raise WalkerError(f"walker: {await process.how_it_ended()}")
            self._heard_seconds = trio.current_time()
            try:
                self._hear(read_report(raw))
            except FormError as error:
                raise WalkerError(f"walker: {error}") from error
            received += 1
            if received % _AT_ONCE == 0:
                await trio.sleep(_PAUSE_SECONDS)

    def _hear(self, report: Report) -> None:
        match report.kind:
            case Kind.ALIVE:
                self.at = report.place or None
                if report.nanoseconds >= self._hanging_seconds * 1e9:
                    raise HangingError(self.at, self._hanging_seconds)
            case Kind.ROUND_OVER:
                if report.place > self._rounds:
                    raise FormError(f"got look {report.place}; accepted: 1 to {self._rounds}")
                if report.place == self._rounds:
                    self.worked_seconds = report.nanoseconds / 1e9
                    self._round_over.set()
            case Kind.IDLE:
                self._is_busy, self.at = False, None
            case _:
                self._take(report)

    async def _notice_silence(self) -> None:
        """Raise WalkerError where nothing is heard although something is under way."""
        patience_seconds = self._hanging_seconds + 2 * self._heartbeat_seconds
        while True:
            await trio.sleep(patience_seconds / 5)
            if self._is_busy and trio.current_time() - self._heard_seconds > patience_seconds:
                raise HangingError(self.at, self._hanging_seconds)

    @property
    def _heartbeat_seconds(self) -> float:
        return min(_HEARTBEAT_SECONDS, self._hanging_seconds / 4)


class _Process:
    """A walker's process, kept by a thread that lives as long: the kernel ends the one with the other.

    The socket `theirs` is closed here.
    """

    def __init__(self, command: Sequence[str], theirs: socket.socket, fds: Sequence[int] = ()) -> None:
        self.status: int | None = None
        self.ended = trio.Event()
        self._command = command
        self._theirs = theirs
        self._fds = fds
        self._process: subprocess.Popen[bytes] | None = None
        self._is_unwanted = False
        self._reaping = threading.Lock()
        self._token = trio.lowlevel.current_trio_token()

    async def run(self) -> None:
        """Start the process, which is killed when this is cancelled. Raises OSError."""
        try:
            await in_thread(self._keep, abandon_on_cancel=True, limiter=_present_limiter())
        finally:
            self._end()

    async def how_it_ended(self) -> str:
        """Return that in words, for which it is waited a while."""
        with trio.move_on_after(_REAP_SECONDS):
            await self.ended.wait()
        if self.status is None:
            return "it closed its socket"
        return ended_text(self.status)

    def _keep(self) -> None:
        with self._reaping:
            if self._is_unwanted:
                return
            process = subprocess.Popen(
                self._command,
                stdin=self._theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=child_environment(),
                pass_fds=self._fds,
            )
            self._process = process
            self._theirs.close()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with self._reaping:  # from here on its number may be another's
            self.status = process.wait()
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self.ended.set)

    def _end(self) -> None:
        """Kill the process, or see to it that it is not started any more."""
        with self._reaping:
            self._is_unwanted = True
            self._theirs.close()
            if self._process is not None and self.status is None:
                self._process.kill()


async def run_until_lost(*calls: Callable[[], Awaitable[None]]) -> None:
    """Run these side by side until one raises WalkerError or OSError, which is raised, alone.

    A group would be raised with a cancellation in it where both come at one time, and is then no Exception.
    """
    lost: list[WalkerError | OSError] = []
    async with trio.open_nursery() as nursery:

        async def attempt(call: Callable[[], Awaitable[None]]) -> None:
            try:
                await call()
            except (WalkerError, OSError) as error:
                lost.append(error)
                nursery.cancel_scope.cancel()

        for call in calls:
            nursery.start_soon(attempt, call)
    if lost:
        raise lost[0]


def _present_limiter() -> trio.CapacityLimiter:
    try:
        return _limiter.get()
    except LookupError:
        _limiter.set(trio.CapacityLimiter(_MOST_WALKERS))
        return _limiter.get()


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
    """Has the places counted that the guard names, and passes the results to `report_usages`."""

    def __init__(
        self,
        report_usages: Callable[[Usages], Awaitable[None]],
        *,
        hanging_seconds: float = _HANGING_SECONDS,
        left_alone_seconds: tuple[float, float] = _LEFT_ALONE_SECONDS,
        command: Sequence[str] = COMMAND,
        quotas_fd: int | None = None,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._report_usages = report_usages
        self._usage = DiskUsage()
        self._hanging_seconds = hanging_seconds
        self._left_alone_seconds = left_alone_seconds
        self._command = command
        self._quotas_fd = quotas_fd
        self._supervisor = supervisor or Supervisor()
        self._due = trio.Event()
        self._hurry = trio.Event()
        self._round_over = trio.Event()
        self._forgot = trio.Event()
        self._has_news = trio.Event()
        self._reporting = trio.Lock()
        self._left_alone: dict[str, _LeftAlone] = {}
        self._ended_at: str | None = None

    @property
    def problems(self) -> dict[str, str]:
        """Return what could not be counted, and why."""
        alone = {f"storage {path}": f"{one.why}: left alone" for path, one in self._left_alone.items()}
        return {**self._usage.problems, **alone}

    @property
    def overdue(self) -> int:
        return self._usage.overdue

    def know(self, places: Places) -> None:
        """Count these places too from now on, soon, and forget those that are to be forgotten."""
        self._usage.forget(places.forget)
        self._usage.know(places.count)
        self._forgot.set()
        self.due()

    def due(self, *, urgent: bool = False) -> None:
        """Have everything counted soon; an urgent round takes a larger share of a CPU."""
        if urgent:
            self._hurry.set()
        self._due.set()

    async def refresh(self) -> None:
        """Count everything, urgently; return when the guard has received what was found."""
        for _ in range(2 if self._usage else 0):  # the round under way may have passed by what matters
            round_over = self._round_over
            self.due(urgent=True)
            await round_over.wait()
        await self._report_news()

    async def run(self) -> None:
        """Count whenever it is due, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_reporting)
            nursery.start_soon(report, lambda: self.problems)
            await self._supervisor.keep(_WALKER, self._run_walker)

    async def _keep_reporting(self) -> None:
        while True:
            await self._has_news.wait()
            self._has_news = trio.Event()
            await self._report_news()
            await trio.sleep(_BETWEEN_NEWS_SECONDS)

    async def _report_news(self) -> None:
        async with self._reporting:
            for usages in self._usage.news():
                await self._report_usages(usages)

    async def _run_walker(self) -> None:
        """Count whenever it is due, by one walker. Raises WalkerError if that one is lost."""
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
                walker.run, partial(self._count_when_due, walker), partial(self._drop_forgotten, walker)
            )
        except WalkerError as error:
            self._blame(walker, error)
            raise
        finally:
            self._usage.forget_walker()
            self._on_news()

    async def _count_when_due(self, walker: Walker) -> None:
        while True:
            await self._due.wait()
            self._due = trio.Event()
            await self._count(walker)
            self._round_over.set()
            self._round_over = trio.Event()
            await trio.sleep(_BETWEEN_URGENT_SECONDS)
            with trio.move_on_after(min(walker.worked_seconds * _REST_PER_WORK, _LONGEST_REST_SECONDS)):
                await self._hurry.wait()

    async def _drop_forgotten(self, walker: Walker) -> None:
        while True:
            await self._forgot.wait()
            self._forgot = trio.Event()
            await walker.ask(*self._usage.drops())

    async def _count(self, walker: Walker) -> None:
        now_seconds = trio.current_time()
        alone = {path for path, one in self._left_alone.items() if now_seconds < one.until_seconds}
        requests = self._usage.assign(alone)
        if not self._usage and not requests:
            return
        self._usage.round_begins()
        await walker.count(requests, self._hurry)
        if not self._due.is_set():  # else the round may have passed by what became urgent meanwhile
            self._hurry = trio.Event()
        self._usage.round_ended()
        self._on_news()

    def _take(self, report: Report) -> None:
        path = self._usage.path_of(report.place)
        if path is not None and self._left_alone:
            self._left_alone.pop(path, None)  # it answers again
        self._usage.take(report)
        self._on_news()

    def _on_news(self) -> None:
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
