"""Attempts of a source, made again and again: how long to wait between them, what the board says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from reactor.backoff import Backoff
from reactor.errors import BpfError, failure_text, first_failure, split_failure
from reactor.model.wakes import SourceHealth
from reactor.sources.wakes import SourceBoard

FIRST_DELAY_SECONDS: Final = 0.1
LAST_DELAY_SECONDS: Final = 30.0
# What a node refuses for want of a package, a capability or a kernel option it refuses the next time too, and
# each attempt with eBPF costs 0.1 s of a CPU (3 s where it has to be compiled).
LAST_DELAY_REFUSED_SECONDS: Final = 600.0


class AttemptBackoff:
    """Pauses between a source's attempts: from 0.1 s up to 30 s, or 10 min where a node refuses.

    After an attempt that stood armed for 30 s the shortest comes next; how long it took to fail says nothing.
    """

    def __init__(self) -> None:
        self._backoff = Backoff(FIRST_DELAY_SECONDS, LAST_DELAY_SECONDS, jitter=None)
        self._armed_at: float | None = None

    def begin(self) -> None:
        """Note that an attempt begins."""
        self._armed_at = None

    def armed(self) -> None:
        """Note that the attempt stands."""
        if self._armed_at is None:
            self._armed_at = trio.current_time()

    async def pause(self, error: BaseException | None = None) -> None:
        """Wait before the next attempt. `error` is what ended this one."""
        if self._armed_at is not None and trio.current_time() - self._armed_at >= LAST_DELAY_SECONDS:
            self._backoff.reset()
        longest = LAST_DELAY_REFUSED_SECONDS if _is_refusal(error) else LAST_DELAY_SECONDS
        await self._backoff.pause(last_seconds=longest)


def _is_refusal(error: BaseException | None) -> bool:
    return error is not None and isinstance(first_failure(error), BpfError)


async def keep_trying(
    name: str,
    board: SourceBoard,
    attempt: Callable[[Callable[[str], None]], Awaitable[None]],
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

    def armed(detail: str) -> None:
        backoff.armed()
        report(SourceHealth.ARMED, detail)

    while True:
        backoff.begin()
        ended: Exception | None = None
        try:
            await attempt(armed)
        except BaseException as raised:  # noqa: BLE001 - what is no failure is raised again
            # A failure during a cancellation comes with it in one group; it never takes the daemon down.
            ended, rest = split_failure(raised)
            if rest is not None:
                raise rest from None
        report(SourceHealth.FAILED, "ended unexpectedly" if ended is None else failure_text(ended))
        await backoff.pause(ended)
