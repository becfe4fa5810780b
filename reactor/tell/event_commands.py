"""Commands that the operator has run for events: each gets the event as JSON on its standard input.

They cost the daemon nothing that it needs: four events at a time, each command with a deadline, at ordinary
priority, in a session of its own that is killed at the end with what it has left running.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from reactor.model.settings import NotificationSettings
from reactor.programs import RunProgram, run_to_problem
from reactor.tell.events import Event
from reactor.tell.outbox import NotSentError

COMMANDS_AT_ONCE: Final = 4


class EventCommands:
    """Runs the commands of an event's kind, one after the other, as the settings have them by then."""

    name = "command"
    problem: str | None = None

    def __init__(
        self, settings: Callable[[], NotificationSettings], run: RunProgram = run_to_problem
    ) -> None:
        self._settings = settings
        self._run = run

    def takes(self, event: Event) -> bool:
        """Return whether there are commands for such an event."""
        return bool(self._settings().commands.get(event.kind))

    async def send(self, event: Event) -> None:
        """Run them. One that fails does not keep the next from running. Raises NotSentError at the end."""
        settings = self._settings()
        problems = []
        for command in settings.commands.get(event.kind, ()):
            problem = await self._run(
                command, settings.timeout_seconds, given=event.content, leaves_nothing=True
            )
            problems += [] if problem is None else [f"{command[0]}: {problem}"]
        if problems:
            raise NotSentError("; ".join(problems))
