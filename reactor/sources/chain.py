"""A chain of sources, each of which stands in for the one before.

One step watches at a time. When it fails, or takes more than a moment to arm, the next takes over while the
first is tried again with backoff; when the first is armed, the next is cancelled.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Final, Generic, TypeVar

import trio

from reactor.backoff import Backoff
from reactor.errors import BpfError, failure_text, first_failure, split_failure
from reactor.model.wakes import SourceHealth, Wake, WakeKind
from reactor.sources.catalogue import SourceBoard
from reactor.sources.wakes import Wakes

_Levels = TypeVar("_Levels")

NOT_ARMED_YET: Final = "not armed yet"
FIRST_DELAY_SECONDS: Final = 0.1
LAST_DELAY_SECONDS: Final = 30.0
# What a node refuses for want of a package, a capability or a kernel option it refuses the next time too, and
# each attempt with eBPF costs 0.1 s of a CPU (3 s where it has to be compiled).
LAST_DELAY_REFUSED_SECONDS: Final = 600.0

# How long the next step waits for the first attempt of the one before: loading programs takes 0.1 s,
# compiling them many seconds.
PATIENCE_SECONDS: Final = 1.0


# Attempts of a source, made again and again: how long to wait between them, what the board says.


Attempt = Callable[[Callable[[str], None]], Awaitable[None]]


class AttemptBackoff:
    """Pauses between a source's attempts: from 0.1 s up to 30 s, or 10 min where a node refuses.

    After an attempt that stood armed for 30 s the shortest comes next; how long it took to fail says nothing.
    """

    def __init__(self) -> None:
        self._backoff = Backoff(FIRST_DELAY_SECONDS, LAST_DELAY_SECONDS, jitter=None)
        self._armed_at: float | None = None

    async def attempt(self, attempt: Attempt, armed: Callable[[str], None]) -> Exception | None:
        """Return what ends an attempt, None if it just ends. A failure never takes the daemon down."""
        self._armed_at = None

        def stands(detail: str) -> None:
            if self._armed_at is None:
                self._armed_at = trio.current_time()
            armed(detail)

        try:
            await attempt(stands)
        except BaseException as raised:  # noqa: BLE001 - what is no failure is raised again
            failure, others = split_failure(raised)  # one during a cancellation comes with it in one group
            if others is not None:
                raise others from None
            return failure
        return None

    async def pause(self, error: BaseException | None = None) -> None:
        """Wait before the next attempt. `error` is what ended this one."""
        if self._armed_at is not None and trio.current_time() - self._armed_at >= LAST_DELAY_SECONDS:
            self._backoff.reset()
        is_refusal = error is not None and isinstance(first_failure(error), BpfError)
        longest_seconds = LAST_DELAY_REFUSED_SECONDS if is_refusal else LAST_DELAY_SECONDS
        await self._backoff.pause(last_seconds=longest_seconds)


async def keep_trying(
    name: str,
    board: SourceBoard,
    attempt: Attempt,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Repeat the attempt, with backoff, and report its state on the board. Never returns, never raises.

    `attempt` runs until it fails; once it is armed it calls its argument, with a detail for the board.
    The task is started once the first attempt is armed or has failed.
    """
    backoff = AttemptBackoff()
    is_started = False

    def report(health: SourceHealth, detail: str) -> None:
        nonlocal is_started
        board.set(name, health, detail)
        if not is_started:
            is_started = True
            task_status.started()

    while True:
        failure = await backoff.attempt(attempt, partial(report, SourceHealth.ARMED))
        report(SourceHealth.FAILED, _why(failure))
        await backoff.pause(failure)


def _why(failure: Exception | None) -> str:
    return "ended unexpectedly" if failure is None else failure_text(failure)


class Step(ABC, Generic[_Levels]):
    """One source in a chain. Those that report what has happened are armed at no levels."""

    name: ClassVar[str]  # on the board and in wakes

    def unavailable_because(self) -> str | None:
        """Return why this node can't have it, None where it can be tried."""
        return None

    def arm(self, levels: _Levels) -> None:
        """Watch these and no others from now on. Never blocks; at any time, also before `watch`."""

    @abstractmethod
    async def watch(self, armed: Callable[[str], None]) -> None:
        """Watch until it fails, then raise. Call `armed` with a detail for the board whenever it is armed.

        Cancelled when an earlier step is armed again: leaves nothing open and nothing set.
        """


@dataclass(eq=False, slots=True)
class _Link:
    """A step's place in the chain: armed with `detail`, or failed because of `error`, or neither yet.

    Until `awaited_until` the steps after it wait for its first attempt.
    """

    step: Step[Any]
    off_because: str | None
    detail: str | None = None
    error: str | None = None
    awaited_until: float = float("inf")
    calls_off: trio.CancelScope = field(default_factory=trio.CancelScope)


class Chain(Generic[_Levels]):
    """Keeps the first step going that works on this node, in the order of preference.

    `allowed` says by name which steps the configuration allows; `left` is what remains without any. When a
    step has failed, the loop is woken with `kind`: it has to find what was crossed while no step watched.
    `hints` run beside it: each sees some crossings, not all.
    """

    def __init__(
        self,
        steps: Sequence[Step[_Levels]],
        allowed: Mapping[str, bool],
        wakes: Wakes,
        *,
        kind: WakeKind,
        hints: Sequence[Step[_Levels]] = (),
        left: str = "the ticker is left",
    ) -> None:
        self._wakes = wakes
        self._board = wakes.board
        self._kind = kind
        self._left = left
        self._links = [_Link(step, _off_because(step, allowed)) for step in steps]
        self._hints = [_Link(hint, _off_because(hint, allowed)) for hint in hints]
        self._changed = trio.Event()

    def arm(self, levels: _Levels) -> None:
        """Ask to be woken at these levels and no others. Returns at once; arming goes on behind it."""
        for link in (*self._links, *self._hints):
            if link.off_because is None:
                link.step.arm(levels)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep one step and all the hints going until cancelled; each run begins with the first step."""
        self._links = [_Link(link.step, link.off_because) for link in self._links]
        self._report()
        async with trio.open_nursery() as nursery:
            for link in self._links:
                if link.off_because is None:
                    nursery.start_soon(self._keep, link)
            for hint in self._hints:
                if hint.off_because is None:
                    nursery.start_soon(keep_trying, hint.step.name, self._board, hint.step.watch)
                else:
                    self._board.set(hint.step.name, SourceHealth.OFF, hint.off_because)
            task_status.started()

    @property
    def is_armed(self) -> bool:
        return self._standing() is not None

    async def wait_armed(self) -> str:
        """Return the name of the step that is watching; wait while there is none."""
        while (standing := self._standing()) is None:
            await self._changed.wait()
        return standing.step.name

    async def _keep(self, link: _Link) -> None:
        backoff = AttemptBackoff()
        while True:
            while (until := self._spared_until(link)) > trio.current_time():
                with trio.move_on_at(until):
                    await self._changed.wait()
            failure: Exception | None = None
            with trio.CancelScope() as link.calls_off:
                failure = await self._try(link, backoff)
            if link.calls_off.cancelled_caught:
                self._set(link, detail=None, error=None)
            else:
                self._wakes.notify(Wake(source=link.step.name, kind=self._kind, at_ns=time.monotonic_ns()))
                await backoff.pause(failure)

    async def _try(self, link: _Link, backoff: AttemptBackoff) -> Exception | None:
        if link.awaited_until == float("inf"):
            link.awaited_until = trio.current_time() + PATIENCE_SECONDS
            self._changed_now()
        failure = await backoff.attempt(
            link.step.watch, lambda detail: self._set(link, detail=detail, error=None)
        )
        self._set(link, detail=None, error=_why(failure))
        return failure

    def _set(self, link: _Link, *, detail: str | None, error: str | None) -> None:
        link.detail, link.error = detail, error
        if detail is not None:
            for later in self._links[self._links.index(link) + 1 :]:
                later.calls_off.cancel()
        self._report()
        self._changed_now()

    def _changed_now(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _standing(self) -> _Link | None:
        return next((link for link in self._links if link.detail is not None), None)

    def _spared_until(self, link: _Link) -> float:
        """Return for how long a step is not needed: while an earlier one stands, and while its turn comes."""
        until = float("-inf")
        for before in self._links[: self._links.index(link)]:
            if before.off_because is None and before.error is None:
                until = max(until, float("inf") if before.detail is not None else before.awaited_until)
        return until

    def _report(self) -> None:
        standing = self._standing()
        before_standing = True
        for link in self._links:
            before_standing = before_standing and link is not standing
            self._board.set(link.step.name, *_health(link, standing, self._left, is_first=before_standing))


def _off_because(step: Step[Any], allowed: Mapping[str, bool]) -> str | None:
    if not allowed.get(step.name, True):
        return "switched off in the configuration"
    return step.unavailable_because()


def _health(link: _Link, standing: _Link | None, left: str, *, is_first: bool) -> tuple[SourceHealth, str]:
    """Return a step's state; `is_first` where it comes before the one that stands."""
    if link.off_because is not None:
        return SourceHealth.OFF, link.off_because
    if link is standing:
        return SourceHealth.ARMED, link.detail or ""
    if standing is not None and not is_first:
        return SourceHealth.OFF, f"{standing.step.name} is armed"  # also of what has failed: nobody needs it
    if link.error is None:
        return SourceHealth.OFF, NOT_ARMED_YET if standing is None else _stood_in(NOT_ARMED_YET, standing)
    if standing is None:
        return SourceHealth.FAILED, f"{link.error}; {left}"
    return SourceHealth.DEGRADED, _stood_in(link.error, standing)


def _stood_in(why: str, standing: _Link) -> str:
    return f"{why}; {standing.step.name} stands in"
