"""Varlink on a Unix socket: JSON objects, each followed by a NUL.

There is a library for it, without Trio, without a bound on size or time, and without a release for years.
Source: varlink.org, "Method Call".
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final

import trio

from reactor.bounded_json import JsonError, loads
from reactor.errors import ReactorError

PERMISSION_DENIED: Final = "org.varlink.service.PermissionDenied"
METHOD_NOT_FOUND: Final = "org.varlink.service.MethodNotFound"
_READ_BYTES: Final = 64 << 10
_END: Final = b"\0"


class VarlinkError(ReactorError):
    """A peer can't be reached, refuses a call, or sends what is no Varlink."""


class Messages:
    """A connection. A message may have `most_bytes`, and takes `message_seconds` at most once it begins."""

    def __init__(self, stream: trio.SocketStream, *, most_bytes: int, message_seconds: float) -> None:
        self._stream = stream
        self._most_bytes = most_bytes
        self._message_seconds = message_seconds
        self._held = bytearray()

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message, None where the peer has closed the connection. Raises VarlinkError."""
        searched, deadline = 0, self._deadline()
        while (end := self._held.find(_END, searched)) < 0:
            searched = len(self._held)
            if searched > self._most_bytes:
                raise VarlinkError(f"got a message of more than {self._most_bytes} bytes")
            with trio.CancelScope(deadline=deadline) as scope:
                try:
                    read = await self._stream.receive_some(_READ_BYTES)
                except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                    raise VarlinkError(f"the connection is lost: {error.__cause__ or error}") from error
            if scope.cancelled_caught:
                raise VarlinkError(
                    f"got the beginning of a message, and no end in {self._message_seconds:g} s"
                )
            if not read:
                if self._held:
                    raise VarlinkError("got the beginning of a message; the connection is closed")
                return None
            self._held += read
            deadline = min(deadline, self._deadline())
        raw = bytes(self._held[:end])
        del self._held[: end + 1]
        if len(raw) > self._most_bytes:
            raise VarlinkError(f"got a message of more than {self._most_bytes} bytes")
        try:
            message = loads(raw)
        except JsonError as error:
            raise VarlinkError(str(error)) from error
        if not isinstance(message, dict):
            raise VarlinkError(f"got {raw[:80]!r}; accepted: a JSON object")
        return message

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send a message. Raises VarlinkError, also where the peer does not take it in time."""
        try:
            with trio.fail_after(self._message_seconds):
                await self._stream.send_all(json.dumps(message).encode() + _END)
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError) as error:
            raise VarlinkError(f"the peer takes no message: {error or 'too slow'}") from error

    def _deadline(self) -> float:
        """Return until when a message has to be complete: without limit where none has begun."""
        return trio.current_time() + self._message_seconds if self._held else math.inf
