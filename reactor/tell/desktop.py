"""Events on desktops of those who are logged in: a signal on the system bus, for systembus-notify to show.

Notifications of a desktop belong to the bus of its session, to which only its user may connect. So the event
is a signal that everybody on the system bus may receive, as earlyoom sends it, and a program of the session
shows it. Nothing is started, no user is changed to, and nothing but the bus is waited for.

Source: github.com/rfjakob/systembus-notify; `Notify` has a summary and a body.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from reactor.errors import ReactorError, first_failure
from reactor.model.settings import NotificationSettings
from reactor.tell.events import Event
from reactor.tell.notice import BETWEEN_SECONDS
from reactor.tell.outbox import NotSentError

PATH: Final = "/"
INTERFACE: Final = "net.nuetzlich.SystemNotifications"
MEMBER: Final = "Notify"
_SUMMARY: Final = "reactor"
# A desktop may take the body for markup, and tenants choose names in it.
_PLAIN: Final = str.maketrans({"<": "\u2039", ">": "\u203a", "&": "\uff06"})


class DesktopNotice:
    """Sends the event's line to every desktop that listens. `bus` is another address in tests."""

    name = "desktop"
    problem: str | None = None

    def __init__(self, settings: Callable[[], NotificationSettings], *, bus: str = "SYSTEM") -> None:
        self._settings = settings
        self._bus = bus

    def takes(self, event: Event) -> bool:
        """Return whether it is wanted."""
        del event
        return self._settings().desktop

    async def send(self, event: Event) -> None:
        """Send a notice, and let a moment pass. Raises NotSentError."""
        from reactor.system_bus import open_bus  # noqa: PLC0415 - imported where a desktop is notified

        body = event.text.translate(_PLAIN)
        try:
            async with open_bus(self._bus) as bus:
                await bus.emit(PATH, INTERFACE, MEMBER, "ss", _SUMMARY, body)
        except (ReactorError, ExceptionGroup) as error:
            cause = first_failure(error)
            if not isinstance(cause, ReactorError):
                raise
            raise NotSentError(str(cause)) from error
        await trio.sleep(BETWEEN_SECONDS)
