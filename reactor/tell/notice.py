"""Events on the terminals of those who are logged in, by wall(1): one a second, and few wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from reactor.model.settings import NotificationSettings
from reactor.programs import run_to_problem
from reactor.tell.events import Event
from reactor.tell.outbox import NotSentError

WALL: Final = "/usr/bin/wall"
MOST_WAITING: Final = 8
BETWEEN_SECONDS: Final = 1.0


class WallNotice:
    """Writes the event's line to every terminal."""

    name = "wall"
    problem: str | None = None

    def __init__(self, settings: Callable[[], NotificationSettings]) -> None:
        self._settings = settings

    def takes(self, event: Event) -> bool:
        """Return whether it is wanted."""
        del event
        return self._settings().wall

    async def send(self, event: Event) -> None:
        """Write a notice, and let a moment pass. Raises NotSentError."""
        problem = await run_to_problem(
            (WALL,), self._settings().timeout_seconds, given=f"{event.text}\n".encode(), leaves_nothing=True
        )
        if problem is not None:
            raise NotSentError(f"{WALL}: {problem}")
        await trio.sleep(BETWEEN_SECONDS)
