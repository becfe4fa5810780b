"""Growing pauses between attempts, a pace that lets no more than so many turns pass, and a common beat."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Final

import trio

_SOON_SHARE: Final = 0.01


async def next_beat(interval_seconds: float) -> None:
    """Sleep until the next beat of the interval: 1.01 intervals at the most."""
    await trio.sleep_until(beat_seconds(interval_seconds))


def beat_seconds(interval_seconds: float) -> float:
    """Return the next multiple of the interval on Trio's clock.

    All tasks of one run that pause for as long wake together, where `trio.sleep` would wake each by itself.
    """
    now_seconds = trio.current_time()
    due_seconds = (math.floor(now_seconds / interval_seconds) + 1) * interval_seconds
    if due_seconds - now_seconds < _SOON_SHARE * interval_seconds:  # rounding, too: not twice at one beat
        due_seconds += interval_seconds
    return due_seconds


class Backoff:
    """Pauses from `first_seconds`, doubled each time up to `last_seconds`.

    `jitter`, a number from 0 to 1, says how much of a pause's second half is taken, so that the nodes of a
    cluster don't come back to its API server together; None takes it whole.
    """

    def __init__(
        self,
        first_seconds: float = 0.25,
        last_seconds: float = 30.0,
        *,
        jitter: Callable[[], float] | None = random.random,
    ) -> None:
        self._first_seconds = first_seconds
        self._last_seconds = last_seconds
        self._jitter = jitter
        self._next_seconds = first_seconds

    @property
    def is_first(self) -> bool:
        """Return whether the next pause is the shortest."""
        return self._next_seconds == self._first_seconds

    def reset(self) -> None:
        """Go back to the shortest pause: something went well."""
        self._next_seconds = self._first_seconds

    def next_seconds(
        self, at_least_seconds: float | None = None, *, last_seconds: float | None = None
    ) -> float:
        """Return the next pause.

        `at_least_seconds`, what a server asked for (Retry-After), is kept to, and spread as well.
        `last_seconds` is the longest pause for what failed this time.
        """
        longest_seconds = self._last_seconds if last_seconds is None else last_seconds
        pause_seconds = min(self._next_seconds, longest_seconds)
        self._next_seconds = min(2 * pause_seconds, longest_seconds)
        if self._jitter is not None:
            pause_seconds *= (1 + self._jitter()) / 2
        if at_least_seconds is None:
            return pause_seconds
        return at_least_seconds + min(pause_seconds, at_least_seconds)

    async def pause(
        self, at_least_seconds: float | None = None, *, last_seconds: float | None = None
    ) -> None:
        """Wait for the next pause; see `next_seconds`."""
        await trio.sleep(self.next_seconds(at_least_seconds, last_seconds=last_seconds))


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
