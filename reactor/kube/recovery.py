"""An outage of the API server ends for all parts at once: a request that is answered ends the others' pauses.

Each part retries with pauses of its own, which an outage makes long. They are for the server's sake while it
is away; once it answers, nothing is to wait for the rest of such a pause.
"""

from __future__ import annotations

import trio

from reactor.backoff import Backoff
from reactor.kube.errors import ApiError, BusyError, UnreachableError


class Recovery:
    """What the parts that ask one server know of each other."""

    def __init__(self) -> None:
        self._is_lost = False
        self._is_back = trio.Event()

    def lost(self) -> None:
        """Note that the server did not answer, or failed."""
        self._is_lost = True

    def reached(self) -> None:
        """Note that the server has answered."""
        if self._is_lost:
            self._is_lost = False
            back, self._is_back = self._is_back, trio.Event()
            back.set()

    async def pause(self, backoff: Backoff, error: ApiError, *, last_seconds: float | None = None) -> None:
        """Wait for the next pause after this error; for the shortest alone once the server is back.

        What the server asked for (Retry-After) is kept to, and so is the pause after a refusal.
        """
        retry_after_seconds = error.retry_after_seconds if isinstance(error, BusyError) else None
        if retry_after_seconds is not None or not isinstance(error, BusyError | UnreachableError):
            await backoff.pause(retry_after_seconds)
            return
        with trio.move_on_after(backoff.next_seconds(last_seconds=last_seconds)):
            await self._is_back.wait()
            backoff.reset()
            await backoff.pause()
