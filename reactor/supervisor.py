"""One supervisor for everything but the memory and process-id path: what runs under it never ends the daemon.

    part    a task that runs for as long as the daemon or its generation does; one that fails, or ends where
            it should not, is restarted with growing pauses
    job     a task that does one thing and ends: what follows a kill, a reclaim. One that fails is not
            repeated; whatever asked for it asks again
    hook    a synchronous call out of a pass, or out of a source's task. What it raises stays there

Each of them has a name, under which its failures are counted, shown in `status` and logged: a cause once, and
again only after a time without failures. What is not under the supervisor is what guards: the sources of
memory and process ids, the loop, the kill path. What they raise ends the daemon, and the service manager
restarts it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Final, Protocol, TypeVarTuple

import trio

from reactor.backoff import Backoff, next_beat
from reactor.errors import ReactorError, failure_text, first_failure, split_failure
from reactor.text import printable

_LOG: Final = logging.getLogger("reactor.parts")
_FIRST_PAUSE_SECONDS: Final = 0.1
LONGEST_PAUSE_SECONDS: Final = 30.0
# A part that ran for so long has recovered: the next failure is news, and is answered by the shortest pause.
RECOVERED_SECONDS: Final = 60.0
_KEPT_CAUSES: Final = 16
_REPORT_SECONDS: Final = 10.0  # as often as what is reported is looked at

_Arguments = TypeVarTuple("_Arguments")
Part = Callable[[], Awaitable[None]]


class PartHealth(StrEnum):
    """How a part stands. A job or a hook has failed until the next one succeeds, and for a minute at most."""

    RUNNING = "running"
    RESTARTING = "restarting"
    FAILED = "failed"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartState:
    """How a part stands; `restarts` counts its failures, `last_error` is the latest of them.

    `problem` is what there is to say of it now, None where all is well.
    """

    name: str
    health: PartHealth
    restarts: int
    last_error: str | None
    problem: str | None

    def document(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return {
            "name": self.name,
            "state": self.health,
            "restarts": self.restarts,
            "last_error": None if self.last_error is None else printable(self.last_error),
        }


class Faults(Protocol):
    """What a test lets happen to the parts."""

    async def beside(self, name: str) -> None:
        """Run in a task beside that of a part or a job, which fails with what is raised here."""

    def within(self, name: str) -> None:
        """Run at the end of a hook, which fails with what is raised here."""


class StartedPart(Protocol):
    """A part that says when it has started."""

    async def __call__(self, *, task_status: trio.TaskStatus[None] = ...) -> None:
        """Run until cancelled."""


class Nursery(Protocol):
    """Starts tasks: a nursery, or the supervisor's jobs."""

    def start_soon(self, async_fn: Callable[[*_Arguments], Awaitable[Any]], /, *args: *_Arguments) -> object:
        """Start a task."""


class PartEndedError(ReactorError):
    """A part that is to run for good has returned."""


class _Record:
    """What is kept of a part."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.health = PartHealth.RUNNING
        self.restarts = 0
        self.last_error: str | None = None
        self._failed_at = float("-inf")
        self._causes: set[tuple[object, ...]] = set()

    def failed(self, error: Exception, health: PartHealth, what_next: str) -> None:
        """Note a failure, and log it if its cause is news."""
        now = trio.current_time()
        if now - self._failed_at >= RECOVERED_SECONDS or len(self._causes) >= _KEPT_CAUSES:
            self._causes.clear()
        self._failed_at = now
        self.health = health
        self.restarts += 1
        self.last_error = failure_text(error)
        cause = _cause(error)
        if cause not in self._causes:
            self._causes.add(cause)
            _LOG.error("part %s: %s; %s", self.name, self.last_error, what_next, exc_info=error)

    def state(self) -> PartState:
        problem = None
        lately = trio.current_time() - self._failed_at < RECOVERED_SECONDS
        health = PartHealth.RUNNING if self.health is PartHealth.FAILED and not lately else self.health
        if self.last_error is not None and (lately or health is PartHealth.RESTARTING):
            times = "1 failure" if self.restarts == 1 else f"{self.restarts} failures"
            problem = f"{health} after {times}: {self.last_error}; see the log"
        return PartState(
            name=self.name,
            health=health,
            restarts=self.restarts,
            last_error=self.last_error,
            problem=problem,
        )


class Hook:
    """A border for synchronous calls: `with hook:` lets no exception pass."""

    def __init__(self, record: _Record, faults: Faults | None) -> None:
        self._record = record
        self._faults = faults

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Let no failure inside the block pass; note it instead."""
        try:
            yield
            if self._faults is not None:
                self._faults.within(self._record.name)
        except Exception as error:  # noqa: BLE001 - a report that fails must not stop the defence of memory
            self.failed(error)
        else:
            if self._record.health is PartHealth.FAILED:
                self._record.health = PartHealth.RUNNING

    def failed(self, error: Exception) -> None:
        """Note a failure that was caught elsewhere."""
        self._record.failed(error, PartHealth.FAILED, "the daemon continues without it")


class Jobs:
    """Starts jobs of one name in a nursery; what one of them raises stays there."""

    def __init__(self, nursery: trio.Nursery, record: _Record, faults: Faults | None) -> None:
        self._nursery = nursery
        self._record = record
        self._faults = faults

    def start_soon(self, async_fn: Callable[[*_Arguments], Awaitable[Any]], /, *args: *_Arguments) -> None:
        self._nursery.start_soon(self._run, partial(async_fn, *args))

    async def _run(self, job: Callable[[], Awaitable[Any]]) -> None:
        try:
            await _with_faults(self._record.name, job, self._faults)
        except BaseException as raised:  # noqa: BLE001 - what is no failure is raised again
            failure, others = split_failure(raised)
            if failure is not None:
                self._record.failed(failure, PartHealth.FAILED, "it is not repeated")
            if others is not None:
                raise others from None
        else:
            self._record.health = PartHealth.RUNNING


class Supervisor:
    """Runs parts, jobs and hooks, and knows how each of them stands, by its name."""

    def __init__(self, faults: Faults | None = None) -> None:
        self._faults = faults
        self._records: dict[str, _Record] = {}

    @property
    def states(self) -> tuple[PartState, ...]:
        """Return how every part stands, in the order of their first starts."""
        return tuple(record.state() for record in self._records.values())

    @property
    def problems(self) -> dict[str, str]:
        """Return what has failed lately and not recovered yet, each in one line."""
        return {f"part {state.name}": state.problem for state in self.states if state.problem is not None}

    async def keep(
        self,
        name: str,
        part: Part,
        *,
        ends: bool = False,
        longest_pause_seconds: float = LONGEST_PAUSE_SECONDS,
    ) -> None:
        """Run a part and restart it where it fails, until cancelled; one that `ends` may return, once."""
        record = self._record(name)
        backoff = Backoff(_FIRST_PAUSE_SECONDS, max(_FIRST_PAUSE_SECONDS, longest_pause_seconds))
        try:
            while True:
                record.health = PartHealth.RUNNING
                started_at = trio.current_time()
                if await self._run_once(record, part, ends=ends):
                    return
                if trio.current_time() - started_at >= RECOVERED_SECONDS:
                    backoff.reset()
                await backoff.pause()
        finally:
            record.health = PartHealth.ENDED

    async def keep_all(self, parts: Mapping[str, Part]) -> None:
        """Run parts side by side, until cancelled."""
        async with trio.open_nursery() as nursery:
            for name, part in parts.items():
                nursery.start_soon(self.keep, name, part)

    async def start(
        self,
        nursery: trio.Nursery,
        name: str,
        part: StartedPart,
        *,
        longest_pause_seconds: float = LONGEST_PAUSE_SECONDS,
    ) -> None:
        """Start a part in `nursery`; return once it has started, or has failed for the first time."""
        started = trio.Event()

        async def run() -> None:
            try:
                async with trio.open_nursery() as inner:
                    await inner.start(part)
                    started.set()
            finally:
                started.set()

        nursery.start_soon(partial(self.keep, name, run, longest_pause_seconds=longest_pause_seconds))
        await started.wait()

    def expect(self, *names: str) -> None:
        """Count the failures of jobs of these names from now on, though none of them has run."""
        for name in names:
            self._record(name)

    def jobs(self, nursery: trio.Nursery, name: str) -> Jobs:
        return Jobs(nursery, self._record(name), self._faults)

    def hook(self, name: str) -> Hook:
        """Return the border for the calls of this name."""
        return Hook(self._record(name), self._faults)

    async def _run_once(self, record: _Record, part: Part, *, ends: bool) -> bool:
        """Return whether the part has ended as it may."""
        try:
            await _with_faults(record.name, part, self._faults)
        except BaseException as raised:  # noqa: BLE001 - what is no failure is raised again
            failure, others = split_failure(raised)
            if failure is not None:
                record.failed(failure, PartHealth.RESTARTING, "restarting")
            if others is not None:
                raise others from None
            return False
        if not ends:
            record.failed(PartEndedError("ended unexpectedly"), PartHealth.RESTARTING, "restarting")
        return ends

    def _record(self, name: str) -> _Record:
        return self._records.setdefault(name, _Record(name))


async def report(problems: Callable[[], Mapping[str, str]]) -> None:
    """Log what has become wrong or right, each thing once, until cancelled."""
    reported: Mapping[str, str] = {}
    while True:
        reported = report_changes(_LOG, reported, problems())
        await next_beat(_REPORT_SECONDS)


def report_changes(
    log: logging.Logger, reported: Mapping[str, str], present: Mapping[str, str]
) -> Mapping[str, str]:
    """Log which problems are new and which are over; return those that are reported by now."""
    for what, why in present.items():
        if what not in reported:
            log.warning("%s: %s", what, why)
    for what in reported.keys() - present.keys():
        log.info("%s: recovered", what)
    return present


async def _with_faults(name: str, run: Callable[[], Awaitable[Any]], faults: Faults | None) -> None:
    if faults is None:
        await run()
        return
    async with trio.open_nursery() as nursery:
        nursery.start_soon(faults.beside, name)
        await run()
        nursery.cancel_scope.cancel()


def _cause(error: Exception) -> tuple[object, ...]:
    """Return what makes a failure the same as another: its type and where it was raised, not its words."""
    first = first_failure(error)
    trace = first.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = None if trace is None else (trace.tb_frame.f_code.co_filename, trace.tb_lineno)
    return (type(first), place)
