"""What keeps operators from being notified, as far as this machine shows it."""

from __future__ import annotations

import os
import ssl
import stat

from jeepney.bus import find_system_bus

from reactor.config.settings import KEY_OF_EVENT
from reactor.errors import ReactorError
from reactor.model.settings import Settings, WebhookSettings
from reactor.programs import unrunnable_because
from reactor.tell.notice import WALL
from reactor.tell.webhook import read_secret


def notification_problems(settings: Settings) -> dict[str, str]:
    """Return by key of the configuration why a notification can't be given by it on this machine."""
    found: dict[str, str] = {}
    for kind, commands in settings.notifications.commands.items():
        problems = [why for why in map(unrunnable_because, commands) if why is not None]
        if problems:
            found[f"reactor.{KEY_OF_EVENT[kind]}"] = "; ".join(problems)
    wall_problem = unrunnable_because((WALL,)) if settings.notifications.wall else None
    if wall_problem is not None:
        found["reactor.wall"] = wall_problem
    no_bus = system_bus_problem() if settings.notifications.desktop else None
    if no_bus is not None:
        found["reactor.desktop"] = no_bus
    if settings.notifications.webhook is not None:
        found |= _of_webhook(settings.notifications.webhook)
    return found


def system_bus_problem() -> str | None:
    """Return why there is no system bus on this machine, None where there is one."""
    try:
        bus = find_system_bus()
    except (RuntimeError, ValueError):
        bus = "DBUS_SYSTEM_BUS_ADDRESS"
    return None if os.path.exists(bus) else f"no system bus at {bus}"


def _of_webhook(webhook: WebhookSettings) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, path in (("urlFile", webhook.url_path), ("tokenFile", webhook.token_path)):
        problem = None if path is None else _secret_problem(path)
        if problem is not None:
            found[f"reactor.webhook.{key}"] = problem
    if webhook.ca_path is not None:
        try:
            ssl.create_default_context(cafile=webhook.ca_path)
        except OSError as error:  # also what OpenSSL says of what it can't read
            found["reactor.webhook.caFile"] = f"{webhook.ca_path}: {error.strerror or error}"
    return found


def _secret_problem(path: str) -> str | None:
    try:
        mode = os.stat(path).st_mode
        read_secret(path)
    except OSError as error:
        return f"{path}: {error.strerror}"
    except ReactorError as error:
        return str(error)
    if mode & stat.S_IROTH:
        return f"{path} has mode {stat.S_IMODE(mode):04o}: every user may read it"
    return None
