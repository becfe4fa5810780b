"""Events as structured entries of systemd's journal: `journalctl -x` explains them by deploy/reactor.catalog.

The native protocol: one datagram an entry, a field a line, a value with a newline by its length.
Source: systemd.io/JOURNAL_NATIVE_PROTOCOL. The packages that speak it are bindings of libsystemd, which sends
the same bytes but waits where journald does not take them.
"""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import trio

from reactor.model.kills import OomScope
from reactor.model.settings import EventKind, NotificationSettings
from reactor.tell.events import Event
from reactor.tell.outbox import NotSentError

SOCKET: Final = "/run/systemd/journal/socket"
# By which entries are found and explained; they never change.
MESSAGE_IDS: Final = {
    EventKind.EVICTION: "b326dd0e56ff49e9b0b4d828c712045c",
    EventKind.OOM_KILL: "eae3c872a556498eae4b2b033d955158",
    EventKind.SOURCE_LOST: "99587737fada4675ba5ea201d447147e",
    EventKind.NO_VICTIM: "5d1d36ad0f6a4b3cae1c2a86c2f5b7e1",
}
_WARNING, _ERROR = 4, 3  # syslog's
_FIELD: Final = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
_SECONDS: Final = 10.0


class Journald:
    """Sends entries to journald, where there is one. `socket_path` is another in tests."""

    name = "journald"
    problem: str | None = None

    def __init__(self, settings: Callable[[], NotificationSettings], *, socket_path: str = SOCKET) -> None:
        self._settings = settings
        self._socket_path = socket_path

    def takes(self, event: Event) -> bool:
        """Return whether there is a journal, and it is wanted."""
        del event
        return self._settings().journald and Path(self._socket_path).is_socket()

    async def send(self, event: Event) -> None:
        """Send an entry; wait for a moment where journald is busy. Raises NotSentError."""
        entry = b"".join(map(_encoded, *zip(*_fields(event), strict=True)))
        flags = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        try:
            with trio.fail_after(_SECONDS), socket.socket(socket.AF_UNIX, flags) as journal:
                journal.connect(self._socket_path)
                await trio.lowlevel.wait_writable(journal)
                journal.send(entry)
        except trio.TooSlowError as error:
            raise NotSentError(f"journald has taken nothing for {_SECONDS:g} s") from error
        except OSError as error:
            raise NotSentError(f"{self._socket_path}: {error.strerror}") from error


def _fields(event: Event) -> Iterator[tuple[str, str]]:
    document = event.document
    yield "MESSAGE", event.text
    if event.kind in MESSAGE_IDS:  # a test is explained by its text
        yield "MESSAGE_ID", MESSAGE_IDS[event.kind]
    yield "PRIORITY", str(_ERROR if _is_grave(document) else _WARNING)
    yield "SYSLOG_IDENTIFIER", "reactor"
    for key, value in document.items():
        name = f"REACTOR_{key.upper()}"
        text = value.get(key) if isinstance(value, Mapping) else value  # of a threshold its text
        if key != "text" and _FIELD.fullmatch(name) and isinstance(text, (str, int)):
            yield name, str(text)


def _is_grave(document: Mapping[str, Any]) -> bool:
    is_unserved = document.get("event") == EventKind.NO_VICTIM
    return is_unserved or document.get("outcome") == "failed" or document.get("scope") == OomScope.NODE


def _encoded(name: str, value: str) -> bytes:
    content = value.encode()
    if b"\n" not in content:
        return b"%s=%s\n" % (name.encode(), content)
    return b"%s\n%s%s\n" % (name.encode(), struct.pack("<Q", len(content)), content)
