"""What service managers report of their units, over Varlink: JSON objects, each followed by a NUL.

There is a library for Varlink, without Trio, without a bound on size or time, and without a release for
years. Source: varlink.org, "Method Call".
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import trio

from reactor.errors import ReactorError
from reactor.link.managed_oom import unit_problem
from reactor.model.managed_oom import ManagedOomKind, ManagedOomUnit
from reactor.text import JsonError, loads

Key = tuple[ManagedOomKind, str]
Units = dict[Key, ManagedOomUnit]

_KINDS: Final = {
    "ManagedOOMSwap": ManagedOomKind.SWAP,
    "ManagedOOMMemoryPressure": ManagedOomKind.MEMORY_PRESSURE,
}
_KILL: Final = "kill"
_MODES: Final = (_KILL, "auto")
_WHOLE: Final = 2**32 - 1
_PERMYRIAD: Final = 10_000
_LEAST_PERCENT: Final = 1.0
_SHORTEST_SECONDS: Final = 1.0
_INFINITY: Final = 2**64 - 1
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
        return trio.current_time() + self._message_seconds if self._held else math.inf


class Changes(NamedTuple):
    """What a message reports: `units` by kind and cgroup, None of one that is not set to `kill` any more.

    `refused` counts what can't be; what is of another version of systemd, and known to be none of ours, is no
    part of it.
    """

    units: Mapping[Key, ManagedOomUnit | None]
    refused: int


def changes_in(parameters: Any, uid: int | None) -> Changes:
    """Return what the parameters of a message report. `uid` as in ManagedOomUnit. Raises VarlinkError."""
    cgroups = parameters.get("cgroups") if isinstance(parameters, Mapping) else None
    if not isinstance(cgroups, Sequence) or isinstance(cgroups, str):
        raise VarlinkError(f"got {parameters!r:.80}; accepted: an object with a list of cgroups")
    found: dict[Key, ManagedOomUnit | None] = {}
    refused = 0
    for one in cgroups:
        key = _key(one)
        if key is None:
            refused += not _is_another_property(one)
            continue
        unit = _unit(one, key, uid) if one["mode"] == _KILL else None
        if unit is not None and unit_problem(unit) is not None:
            refused += 1
            unit = None
        found[key] = unit
    return Changes(found, refused)


def _key(one: Any) -> Key | None:
    """Return of which property of which unit an element speaks, None where that can't be had."""
    if not isinstance(one, Mapping) or one.get("mode") not in _MODES:
        return None
    kind, path = one.get("property"), one.get("path")
    if not isinstance(kind, str) or kind not in _KINDS or not isinstance(path, str):
        return None
    return _KINDS[kind], path or "/"


def _is_another_property(one: Any) -> bool:
    """Return whether an element is well formed, and of a property that is not ours, such as OOMRules."""
    kind = one.get("property") if isinstance(one, Mapping) else None
    return isinstance(kind, str) and kind not in _KINDS


def _unit(one: Mapping[str, Any], key: Key, uid: int | None) -> ManagedOomUnit:
    kind, cgroup = key
    if kind is ManagedOomKind.SWAP:
        return ManagedOomUnit(kind=kind, cgroup=cgroup, uid=uid)
    return ManagedOomUnit(
        kind=kind,
        cgroup=cgroup,
        uid=uid,
        limit_percent=_percent(one.get("limit")),
        duration_seconds=_seconds(one.get("duration")),
    )


def _percent(limit: Any) -> float | None:
    """Return a share of 2^32 - 1 in percent with two decimals, 1 at least; None for 0 and what is none."""
    if not isinstance(limit, int) or isinstance(limit, bool) or not 0 < limit <= _WHOLE:
        return None
    permyriad = (limit * _PERMYRIAD + _WHOLE // 2) // _WHOLE
    return max(_LEAST_PERCENT, permyriad / 100)


def _seconds(microseconds: Any) -> float | None:
    """Return a time, one second at least; None for 0, for infinity, and what is none."""
    if not isinstance(microseconds, int) or isinstance(microseconds, bool):
        return None
    if not 0 < microseconds < _INFINITY:
        return None
    return max(_SHORTEST_SECONDS, microseconds / 1_000_000)
