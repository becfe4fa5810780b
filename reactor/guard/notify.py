"""Word to the service manager: ready, reloading, stopping, alive, and a line for `systemctl status`.

cysystemd costs 1.3 MiB, so it is imported only where a service manager listens. Source: sd_notify(3).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Final

import trio

_LOG: Final = logging.getLogger("reactor.notify")

Send = Callable[[str], None]


class ServiceNotice:
    """Sends states to the service manager; without one, or where it refuses, each call does nothing.

    `watchdog_seconds` is how often it wants to hear WATCHDOG=1, None: never.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self.watchdog_seconds = _watchdog_seconds(environment)
        self._send: Send | None = None
        if environment.get("NOTIFY_SOCKET"):
            try:
                from cysystemd._daemon import sd_notify  # noqa: PLC0415 (only where it is needed)
            except (ImportError, OSError) as error:
                _LOG.warning("the service manager gets no notice: %s", error)
            else:
                self._send = sd_notify

    def ready(self, status: str) -> None:
        """Tell that the daemon guards its node, or does so again after a reload."""
        self._say(f"READY=1\nSTATUS={status}")

    def reloading(self) -> None:
        """Tell that the configuration is being read again; the next word is ready."""
        # Type=notify-reload wants the moment, to know that this answers its own request.
        self._say(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """Tell that the daemon ends."""
        self._say("STOPPING=1")

    async def watchdog(self, is_alive: Callable[[], bool]) -> None:
        """Tell at half the interval that the daemon lives, for as long as `is_alive` says so."""
        if self._send is None or self.watchdog_seconds is None:
            return
        while True:
            if is_alive():
                self._say("WATCHDOG=1")
            await trio.sleep(self.watchdog_seconds / 2)

    def _say(self, text: str) -> None:
        if self._send is None:
            return
        try:
            self._send(text)
        except Exception as error:  # noqa: BLE001 (whatever the C extension raises: only a notice is lost)
            _LOG.warning("the service manager gets no more notice: %s", error)
            self._send = None


def _watchdog_seconds(environment: Mapping[str, str]) -> float | None:
    """Return WATCHDOG_USEC if it is meant for this process."""
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    microseconds = environment.get("WATCHDOG_USEC", "")
    return (
        int(microseconds) / 1e6
        if microseconds.isascii() and microseconds.isdigit() and int(microseconds)
        else None
    )
