"""Users' units: each user's service manager connects to the socket of systemd-oomd, and reports its own.

Any local user may connect: of each user few connections, small messages at a pace. A user without a slice is
not heard: by user namespaces one user can have 65,536 ids. What a user says counts for cgroups below that
user's slice alone, and as long as the connection lasts.
"""

from __future__ import annotations

import socket
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import trio

from reactor.backoff import Pace
from reactor.errors import ReactorError
from reactor.managed_oom.units import Changes, changes_in
from reactor.managed_oom.varlink import METHOD_NOT_FOUND, Messages

USER_SLICES: Final = Path("/sys/fs/cgroup/user.slice")
"""Where systemd has a slice for each user who is logged in, or lingers; on cgroup v2, without which no unit
counts."""

_METHOD: Final = "io.systemd.oom.ReportManagedOOMCGroups"
_MOST_CONNECTIONS: Final = 256
_MOST_OF_A_USER: Final = 4
_MOST_BYTES: Final = 64 << 10
_MESSAGE_SECONDS: Final = 10.0
_MESSAGES_AT_ONCE: Final = 32
_MESSAGES_PER_SECOND: Final = 4.0
_CREDENTIALS: Final = struct.Struct("=iII")


class Reports:
    """Serves until cancelled.

    `on_changes` is told by which connection and which user; `on_closed` of one that is closed. `refused`
    counts connections that were too many, of no user with a slice, or sent what is no report.
    """

    def __init__(
        self,
        on_changes: Callable[[object, int, Changes], object],
        on_closed: Callable[[object, int], object],
        *,
        user_slices: Path = USER_SLICES,
    ) -> None:
        self.refused = 0
        self._user_slices = user_slices
        self._on_changes = on_changes
        self._on_closed = on_closed
        self._by_user: Counter[int] = Counter()

    async def serve(self, listeners: Sequence[trio.SocketListener]) -> None:
        """Serve all that connect."""
        await trio.serve_listeners(self._attend, list(listeners))

    async def _attend(self, stream: trio.SocketStream) -> None:
        """Attend to one connection; nothing of it ends the others."""
        uid = _uid(stream.socket)
        if not self._has_room(uid) or not (self._user_slices / f"user-{uid}.slice").is_dir():
            self.refused += 1
            await stream.aclose()
            return
        connection = object()
        self._by_user[uid] += 1
        try:
            async with stream:
                await self._heed(stream, connection, uid)
        except (ReactorError, OSError):
            self.refused += 1
        finally:
            self._by_user[uid] -= 1
            if not self._by_user[uid]:
                del self._by_user[uid]
            self._on_closed(connection, uid)

    def _has_room(self, uid: int) -> bool:
        """Return whether one more connection of a user is not too many."""
        return self._by_user[uid] < _MOST_OF_A_USER and self._by_user.total() < _MOST_CONNECTIONS

    async def _heed(self, stream: trio.SocketStream, connection: object, uid: int) -> None:
        messages = Messages(stream, most_bytes=_MOST_BYTES, message_seconds=_MESSAGE_SECONDS)
        pace = Pace(burst=_MESSAGES_AT_ONCE, per_second=_MESSAGES_PER_SECOND)
        while (message := await messages.receive()) is not None:
            await pace.turn()
            answer: dict[str, Any] = {"parameters": {}}
            if message.get("method") == _METHOD:
                self._on_changes(connection, uid, changes_in(message.get("parameters"), uid))
            else:
                method = f"{message.get('method')!s:.200}"
                answer = {"error": METHOD_NOT_FOUND, "parameters": {"method": method}}
            if message.get("oneway") is not True:
                await messages.send(answer)


def _uid(connection: trio.socket.SocketType) -> int:
    """Return the user of the process at the other end."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    found: int = _CREDENTIALS.unpack(raw)[1]
    return found
