"""Growing pauses with jitter, so that the nodes of a cluster don't come back to its API server together."""

from __future__ import annotations

import random
from collections.abc import Callable

import trio


class Backoff:
    """Pauses from `first_seconds`, doubled each time up to `last_seconds`, each half of it at the least."""

    def __init__(
        self,
        first_seconds: float = 0.25,
        last_seconds: float = 30.0,
        *,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._first_seconds = first_seconds
        self._last_seconds = last_seconds
        self._jitter = jitter
        self._next_seconds = first_seconds

    def reset(self) -> None:
        """Begin with the shortest again: something went well."""
        self._next_seconds = self._first_seconds

    def next_seconds(self, at_least_seconds: float | None = None) -> float:
        """Return the next pause; what the server asked for (Retry-After) is kept to, and spread as well."""
        pause_seconds = self._next_seconds * (1 + self._jitter()) / 2
        self._next_seconds = min(2 * self._next_seconds, self._last_seconds)
        if at_least_seconds is None:
            return pause_seconds
        return at_least_seconds + min(pause_seconds, at_least_seconds)

    async def pause(self, at_least_seconds: float | None = None) -> None:
        """Wait for the next pause."""
        await trio.sleep(self.next_seconds(at_least_seconds))
