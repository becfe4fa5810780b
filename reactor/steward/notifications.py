"""Operators are notified: of every eviction, every OOM kill of the kernel's, every source that is lost.

Lines of the journal become events, each event goes into the outbox of each channel. What waits in one is lost
where the steward ends.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from reactor.link.documents import attributes
from reactor.model.settings import EventKind, NotificationSettings, Settings
from reactor.programs import RunProgram, run_to_problem
from reactor.supervisor import Supervisor, report
from reactor.tell.channels import (
    COMMANDS_AT_ONCE,
    MOST_WAITING,
    Channel,
    DesktopNotice,
    EventCommands,
    Journald,
    NotSentError,
    Outbox,
    WallNotice,
    Webhook,
)
from reactor.tell.events import Events
from reactor.text import printable

Document = Mapping[str, Any]


class Notifications:
    """`settings` are those in force; another order replaces them."""

    def __init__(
        self, settings: Settings, supervisor: Supervisor, *, run: RunProgram = run_to_problem
    ) -> None:
        self.settings = settings
        self._supervisor = supervisor
        self._events = Events(_node(settings))
        self._webhook = Webhook(self._in_force)
        self._outboxes = (
            Outbox(EventCommands(self._in_force, run), at_once=COMMANDS_AT_ONCE),
            Outbox(self._webhook),
            Outbox(Journald(self._in_force)),
            Outbox(WallNotice(self._in_force), most_waiting=MOST_WAITING),
            Outbox(DesktopNotice(self._in_force), most_waiting=MOST_WAITING),
        )

    @property
    def problems(self) -> dict[str, str]:
        """Return what is wrong at present, each in one line."""
        found = {f"notifications by {one.channel.name}": one.problem for one in self._outboxes}
        return {name: printable(why) for name, why in found.items() if why is not None}

    def document(self) -> list[dict[str, Any]]:
        """Return what has become of the events so far, as plain JSON values."""
        counts = ("sent", "failed", "dropped", "skipped", "waiting")
        return [{"channel": one.channel.name, **attributes(one, *counts)} for one in self._outboxes]

    def remember(self, documents: Iterable[Document]) -> None:
        """Take over what an earlier steward has notified of, oldest first."""
        self._events.remember(documents)

    def take(self, line: Document) -> None:
        """Notify of what a line of the journal reports, if that is news."""
        for event in self._events.take(line):
            for outbox in self._outboxes:
                outbox.put(event)

    async def run(self) -> None:
        """Send, until cancelled."""
        sending = {f"notifications by {one.channel.name}": one.run for one in self._outboxes}
        reporting = {"notifications report": partial(report, lambda: self.problems)}
        try:
            await self._supervisor.keep_all({**sending, **reporting})
        finally:
            self._webhook.close()

    def _in_force(self) -> NotificationSettings:
        return self.settings.notifications


async def send_trial(settings: Settings, at: str) -> list[tuple[str, str | None]]:
    """Send a test by each way that is configured; return each with what went wrong (None: it was taken).

    Each command is run once, for whatever kinds of events it is.
    """
    ours = settings.notifications
    event = Events(_node(settings)).trial(at)
    webhook = Webhook(lambda: ours, give_up_seconds=0.0)
    commands = dict.fromkeys(command for some in ours.commands.values() for command in some)
    ways: list[tuple[str, Channel]] = [
        (
            f"command {' '.join(command)}",
            EventCommands(partial(replace, ours, commands={EventKind.TEST: (command,)})),
        )
        for command in commands
    ]
    others = (webhook, Journald(lambda: ours), WallNotice(lambda: ours), DesktopNotice(lambda: ours))
    ways += [(channel.name, channel) for channel in others]
    results: list[tuple[str, str | None]] = []
    try:
        for name, channel in ways:
            if channel.takes(event):
                try:
                    await channel.send(event)
                except NotSentError as error:
                    results.append((name, str(error)))
                else:
                    results.append((name, None))
    finally:
        webhook.close()
    return results


def _node(settings: Settings) -> str:
    if settings.kubernetes is None:
        return socket.gethostname()
    from reactor.kube.node import node_name  # noqa: PLC0415 - imported where there is a cluster

    return node_name(settings.kubernetes)
