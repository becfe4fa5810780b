"""What keeps operators from being notified, as far as this machine shows it."""

from __future__ import annotations

from reactor.config.settings import KEY_OF_EVENT
from reactor.model.settings import Settings
from reactor.programs import unrunnable_because


def notification_problems(settings: Settings) -> dict[str, str]:
    """Return by key of the configuration why a notification can't be given by it on this machine."""
    found: dict[str, str] = {}
    for kind, commands in settings.notifications.commands.items():
        problems = [why for why in map(unrunnable_because, commands) if why is not None]
        if problems:
            found[f"reactor.{KEY_OF_EVENT[kind]}"] = "; ".join(problems)
    return found
