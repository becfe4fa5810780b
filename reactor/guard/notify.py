"""sd_notify: ready, reloading, stopping, alive, and a line for `systemctl status`.

The protocol is one datagram a message. Source: sd_notify(3).
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Final

import trio

_LOG: Final = logging.getLogger("reactor.notify")


class ServiceNotice:
    """Sends states to the service manager; without one, or where it refuses, each call does nothing.

    `watchdog_seconds` is how often it wants to hear WATCHDOG=1, None: never.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self.watchdog_seconds = _watchdog_seconds(environment)
        address = environment.get("NOTIFY_SOCKET", "")
        # "@" stands for the zero byte of a name in the abstract namespace.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        # Held open: a daemon that has no descriptor left must not lose its watchdog for that.
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) if address else None
        self._logged: str | None = None

    def ready(self, status: str) -> None:
        self._say(f"READY=1\nSTATUS={status}")

    def status(self, text: str) -> None:
        self._say(f"STATUS={text}")

    def reloading(self) -> None:
        """Report that the configuration is being read again; ready follows."""
        # Type=notify-reload wants the moment, to know that this answers its own request.
        self._say(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        self._say("STOPPING=1")

    def extend(self, seconds: float) -> bool:
        """Ask for so much time from now on for what is under way; return whether there is a manager to ask.

        It never shortens what the unit grants (TimeoutStopSec while the daemon ends).
        """
        self._say(f"EXTEND_TIMEOUT_USEC={round(seconds * 1e6)}")
        return self._socket is not None

    def close(self) -> None:
        """Say no more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    async def watchdog(self, is_alive: Callable[[], bool]) -> None:
        """Report at half the interval that the daemon lives, for as long as `is_alive` says so."""
        if self._socket is None or self.watchdog_seconds is None:
            return
        while True:
            if is_alive():
                self._say("WATCHDOG=1")
            await trio.sleep(self.watchdog_seconds / 2)

    def _say(self, text: str) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendto(text.encode(errors="replace"), socket.MSG_DONTWAIT, self._address)
        except BlockingIOError:
            self._warn(f"sd_notify failed: the service manager is too busy: {text!r}")
        except OSError as error:
            self._warn(f"sd_notify failed: {error}")
        else:
            self._logged = None

    def _warn(self, problem: str) -> None:
        """Log a problem once while it lasts."""
        if problem != self._logged:
            _LOG.warning("%s", problem)
        self._logged = problem


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
