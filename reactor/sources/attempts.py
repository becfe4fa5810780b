"""Trying again: how long to wait, how often to act, what to say of a failure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import trio

from reactor.errors import ReactorError
from reactor.model.wakes import SourceHealth
from reactor.sources.wakes import SourceBoard

FIRST_DELAY_SECONDS: Final = 0.1
LAST_DELAY_SECONDS: Final = 30.0


class Backoff:
    """Growing pauses between attempts: 0.1 s, doubled each time up to 30 s.

    An attempt that stood for as long as the longest pause begins anew with the shortest.
    """

    def __init__(self) -> None:
        self._delay_seconds = FIRST_DELAY_SECONDS
        self._began = trio.current_time()

    def begin(self) -> None:
        """Note that an attempt begins."""
        self._began = trio.current_time()

    async def pause(self) -> None:
        """Wait before the next attempt."""
        if trio.current_time() - self._began >= LAST_DELAY_SECONDS:
            self._delay_seconds = FIRST_DELAY_SECONDS
        delay_seconds = self._delay_seconds
        self._delay_seconds = min(2 * delay_seconds, LAST_DELAY_SECONDS)
        await trio.sleep(delay_seconds)


class Pace:
    """Lets `burst` turns pass at once and `per_second` of them in the long run."""

    def __init__(self, *, burst: int, per_second: float) -> None:
        self._burst_seconds = burst / per_second
        self._turn_seconds = 1 / per_second
        self._paid_until = float("-inf")

    async def turn(self) -> None:
        """Take one turn; wait where too many were taken lately."""
        now = trio.current_time()
        self._paid_until = max(self._paid_until, now - self._burst_seconds) + self._turn_seconds
        if self._paid_until > now:
            await trio.sleep_until(self._paid_until)


def failure_text(error: BaseException) -> str:
    """Return an error as one line; of a group, its first member's."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = " ".join(str(error).split())
    return text if isinstance(error, (OSError, ReactorError)) and text else f"{type(error).__name__}: {text}"


async def keep_trying(
    name: str,
    board: SourceBoard,
    attempt: Callable[[Callable[[str], None]], Awaitable[None]],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Make the attempt again and again, with backoff, and keep the board true. Never returns, never raises.

    `attempt` runs until it fails; it calls what it is given, with a detail for the board, once it is armed.
    The task is started once the first attempt is armed or has failed.
    """
    backoff = Backoff()
    told = False

    def report(health: SourceHealth, detail: str) -> None:
        nonlocal told
        board.set(name, health, detail)
        if not told:
            told = True
            task_status.started()

    while True:
        backoff.begin()
        try:
            await attempt(partial(report, SourceHealth.ARMED))
        except Exception as error:  # noqa: BLE001 - a source never takes the daemon down, whatever it met
            report(SourceHealth.FAILED, failure_text(error))
        else:
            report(SourceHealth.FAILED, "ended by itself")
        await backoff.pause()
