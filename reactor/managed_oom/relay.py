"""What is known of all units, kept in a file that the guard reads.

PID 1 answers one unit alone, systemd-oomd.service, with all units that are set to `kill`, and then with each
change. What it reported last stays while it does not answer, at a `systemctl daemon-reexec` for example; then
it reports all of it again.

Each user's service manager connects to the socket of systemd-oomd, and reports the user's own units. Any
local user may connect: of each user few connections, small messages at a pace. A user without a slice is
refused: by user namespaces one user can have 65,536 ids. What a user reports counts for cgroups below that
user's slice alone, and as long as the connection lasts.
"""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import trio

from reactor.backoff import Backoff, Pace
from reactor.errors import ReactorError
from reactor.link.managed_oom import (
    LONGEST_BYTES,
    PATH,
    ManagedOomKind,
    ManagedOomReport,
    ManagedOomUnit,
    read_report_at_once,
    sorted_units,
    unit_problem,
    write_report,
)
from reactor.text import JsonError, loads

Key = tuple[ManagedOomKind, str]
Units = dict[Key, ManagedOomUnit]

_KINDS: Final = {
    "ManagedOOMSwap": ManagedOomKind.SWAP,
    "ManagedOOMMemoryPressure": ManagedOomKind.MEMORY_PRESSURE,
    "OOMRules": ManagedOomKind.RULES,  # since systemd 261
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


@dataclass(eq=False)
class Messages:
    """A connection. A message may have `most_bytes`, and takes `message_seconds` at most once it begins."""

    stream: trio.SocketStream
    _: KW_ONLY
    most_bytes: int
    message_seconds: float

    def __post_init__(self) -> None:
        self._held = bytearray()

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message, None where the peer has closed the connection. Raises VarlinkError."""
        searched, deadline = 0, self._deadline()
        while (end := self._held.find(_END, searched)) < 0:
            searched = len(self._held)
            if searched > self.most_bytes:
                raise VarlinkError(f"got a message of more than {self.most_bytes} bytes")
            with trio.CancelScope(deadline=deadline) as scope:
                try:
                    read = await self.stream.receive_some(_READ_BYTES)
                except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                    raise VarlinkError(f"the connection is lost: {error.__cause__ or error}") from error
            if scope.cancelled_caught:
                raise VarlinkError(
                    f"got the beginning of a message, and no end in {self.message_seconds:g} s"
                )
            if not read:
                if self._held:
                    raise VarlinkError("got the beginning of a message; the connection is closed")
                return None
            self._held += read
            deadline = min(deadline, self._deadline())
        raw = bytes(self._held[:end])
        del self._held[: end + 1]
        if len(raw) > self.most_bytes:
            raise VarlinkError(f"got a message of more than {self.most_bytes} bytes")
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
            with trio.fail_after(self.message_seconds):
                await self.stream.send_all(json.dumps(message).encode() + _END)
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError) as error:
            raise VarlinkError(f"the peer takes no message: {error or 'too slow'}") from error

    def _deadline(self) -> float:
        return trio.current_time() + self.message_seconds if self._held else math.inf


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
        kind = one.get("property") if isinstance(one, Mapping) else None
        if isinstance(kind, str) and kind not in _KINDS:
            continue  # only a later systemd knows it
        path = None if kind is None else one.get("path")
        if not isinstance(kind, str) or not isinstance(path, str) or one.get("mode") not in _MODES:
            refused += 1
            continue
        key = _KINDS[kind], path or "/"
        unit = _unit(one, key, uid) if one["mode"] == _KILL else None
        if unit is not None and unit_problem(unit) is not None:
            refused += 1
            unit = None
        found[key] = unit
    return Changes(found, refused)


def _unit(one: Mapping[str, Any], key: Key, uid: int | None) -> ManagedOomUnit:
    kind, cgroup = key
    is_of_pressure = kind is ManagedOomKind.MEMORY_PRESSURE
    return ManagedOomUnit(
        kind=kind,
        cgroup=cgroup,
        uid=uid,
        limit_percent=_percent(one.get("limit")) if is_of_pressure else None,
        duration_seconds=_seconds(one.get("duration")) if is_of_pressure else None,
        rules=_names(one.get("rules")) if kind is ManagedOomKind.RULES else (),
    )


def _names(rules: Any) -> tuple[str, ...]:
    """Return the names of rule files, each once; none where it is no list of texts: no unit has that."""
    if not isinstance(rules, list) or not all(isinstance(name, str) for name in rules):
        return ()
    return tuple(dict.fromkeys(rules))


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


_LOG: Final = logging.getLogger("reactor.managed_oom")
_PAUSE_SECONDS: Final = (0.5, 30.0)
_BETWEEN_SECONDS: Final = 1.0
_TOUCH_SECONDS: Final = 15.0
_MOST_OF_SYSTEM: Final = 8_192
_MOST_OF_A_USER: Final = 128
_MOST_RELOADS: Final = 2**32 - 1
_NOT_YET: Final = "systemd has not answered yet"
# PID 1's socket: that of today, and that of systemd 252.
ADDRESSES: Final = ("/run/systemd/io.systemd.ManagedOOM", "/run/systemd/io.system.ManagedOOM")
_SUBSCRIBE: Final = "io.systemd.ManagedOOM.SubscribeManagedOOMCGroups"
_TAKEN: Final = "io.systemd.ManagedOOM.SubscriptionTaken"
_MOST_SYSTEM_BYTES: Final = 8 << 20
_ANSWER_SECONDS: Final = 10.0
_WHY: Final = {
    _TAKEN: (
        "another process of systemd-oomd.service listens to systemd: is systemd-oomd itself still running? "
        "systemctl restart systemd-oomd.service"
    ),
    PERMISSION_DENIED: (
        "systemd answers systemd-oomd.service alone: this process has to be run as that unit, see "
        '"Instead of systemd-oomd" in pressure.md'
    ),
}
# systemd has a slice there for each user who is logged in, or lingers; on v2, without which no unit counts.
USER_SLICES: Final = Path("/sys/fs/cgroup/user.slice")
_REPORT: Final = "io.systemd.oom.ReportManagedOOMCGroups"
_MOST_CONNECTIONS: Final = 256
_MOST_CONNECTIONS_OF_A_USER: Final = 4
_MOST_USER_BYTES: Final = 64 << 10
_MESSAGE_SECONDS: Final = 10.0
_MESSAGES_AT_ONCE: Final = 32
_MESSAGES_PER_SECOND: Final = 4.0
_CREDENTIALS: Final = struct.Struct("=iII")


@dataclass(eq=False, kw_only=True)
class Relay:
    """Relays until cancelled.

    `addresses` are of PID 1's socket; `pause_seconds` the shortest and longest pause before it is asked
    again, `between_seconds` the shortest time between two changes of the file. `ready` is where systemd takes
    notices.
    """

    path: Path = Path(PATH)
    addresses: Sequence[str] = ADDRESSES
    pause_seconds: tuple[float, float] = _PAUSE_SECONDS
    between_seconds: float = _BETWEEN_SECONDS
    user_slices: Path = USER_SLICES
    ready: str | None = os.environ.get("NOTIFY_SOCKET")

    def __post_init__(self) -> None:
        self._backoff = Backoff(*self.pause_seconds)
        self._of_system = _kept(self.path)
        self._of_users: dict[int, list[Units]] = {}  # of each connection
        self._left_out = 0
        # A restart has oomd.conf read again, too.
        self._reloads = time.time_ns() & _MOST_RELOADS
        self._problem = _NOT_YET
        self._changed = trio.Event()
        self._changed.set()

    async def run(self, listeners: Sequence[trio.SocketListener] = ()) -> None:
        """Relay; users' service managers connect to `listeners`."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write)
            nursery.start_soon(self._reload)
            if listeners:
                nursery.start_soon(trio.serve_listeners, self._serve_user, list(listeners))
            while True:
                try:
                    await self._subscribe()
                except VarlinkError as error:
                    self._show_problem(str(error))
                await self._backoff.pause()

    async def _reload(self) -> None:
        """Have oomd.conf read again at SIGHUP: `systemctl reload systemd-oomd.service`."""
        with trio.open_signal_receiver(signal.SIGHUP) as received:
            async for _ in received:
                self._reloads = (self._reloads + 1) & _MOST_RELOADS
                self._changed.set()

    async def _subscribe(self) -> None:
        """Take over all units first, then changes, until the connection is lost. Raises VarlinkError.

        The first of the addresses at which there is a socket is PID 1's.
        """
        address = next(filter(os.path.exists, self.addresses), self.addresses[0])
        try:
            stream = await trio.open_unix_socket(address)
        except OSError as error:
            raise VarlinkError(f"{address}: {error.strerror or error}") from error
        async with stream:
            messages = Messages(stream, most_bytes=_MOST_SYSTEM_BYTES, message_seconds=_ANSWER_SECONDS)
            await messages.send({"method": _SUBSCRIBE, "parameters": {}, "more": True})
            try:
                with trio.fail_after(_ANSWER_SECONDS):
                    changes = _changes(await messages.receive())
                self._of_system, self._left_out = {}, 0
                self._take(changes)
                self._backoff.reset()
                self._show_problem("")
                _LOG.info("systemd: %d settings of units say kill", len(self._of_system))
                while True:
                    self._take(_changes(await messages.receive()))
            except trio.TooSlowError as error:
                raise VarlinkError(f"{address}: no answer in {_ANSWER_SECONDS:g} s") from error
            except VarlinkError as error:
                raise VarlinkError(f"{address}: {error}") from error

    def _take(self, changes: Changes) -> None:
        self._left_out += _take(self._of_system, changes, _MOST_OF_SYSTEM)
        self._changed.set()

    async def _serve_user(self, stream: trio.SocketStream) -> None:
        """Serve one connection of a user's service manager; nothing of it ends the others."""
        peer = stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        uid: int = _CREDENTIALS.unpack(peer)[1]
        own = self._of_users.get(uid, [])
        is_full = sum(map(len, self._of_users.values())) >= _MOST_CONNECTIONS
        has_slice = (self.user_slices / f"user-{uid}.slice").is_dir()
        if is_full or len(own) >= _MOST_CONNECTIONS_OF_A_USER or not has_slice:
            await stream.aclose()
            return
        units: Units = {}
        self._of_users[uid] = [*own, units]
        try:
            with suppress(ReactorError, OSError):
                async with stream:
                    await self._receive(stream, uid, units)
        finally:
            self._of_users[uid] = [one for one in self._of_users[uid] if one is not units]
            if not self._of_users[uid]:
                del self._of_users[uid]
            if units:
                self._changed.set()

    async def _receive(self, stream: trio.SocketStream, uid: int, units: Units) -> None:
        """Take over what a user's service manager reports, until it closes. Raises ReactorError, OSError."""
        messages = Messages(stream, most_bytes=_MOST_USER_BYTES, message_seconds=_MESSAGE_SECONDS)
        pace = Pace(burst=_MESSAGES_AT_ONCE, per_second=_MESSAGES_PER_SECOND)
        while (message := await messages.receive()) is not None:
            await pace.turn()
            answer: dict[str, Any] = {"parameters": {}}
            if message.get("method") == _REPORT:
                changes = changes_in(message.get("parameters"), uid)
                of_others = sum(map(len, self._of_users[uid])) - len(units)
                _take(units, changes, _MOST_OF_A_USER - of_others)
                self._changed.set()
            else:
                method = f"{message.get('method')!s:.200}"
                answer = {"error": METHOD_NOT_FOUND, "parameters": {"method": method}}
            if message.get("oneway") is not True:
                await messages.send(answer)

    def _show_problem(self, problem: str) -> None:
        if problem == self._problem:
            return
        self._problem = problem
        if problem:
            _LOG.warning("%s", problem)
        self._changed.set()

    async def _write(self) -> None:
        """Keep the file true, and touch it, by which the guard knows that it is kept."""
        while True:
            with trio.move_on_after(_TOUCH_SECONDS):
                await self._changed.wait()
            try:
                if self._changed.is_set():
                    self._changed = trio.Event()
                    self._write_now()
                    self._say_ready()
                else:
                    os.utime(self.path)
            except OSError as error:
                _LOG.error("%s: %s", self.path, error.strerror)
                self._changed.set()
                await trio.sleep(_TOUCH_SECONDS)
            await trio.sleep(self.between_seconds)

    def _say_ready(self) -> None:
        """Have systemd know once the file has what it answered, or why not: see sd_notify(3)."""
        if self.ready is not None and self._problem != _NOT_YET:
            address = f"\0{self.ready[1:]}" if self.ready.startswith("@") else self.ready
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notices:
                notices.sendto(b"READY=1", address)
            self.ready = None

    def _write_now(self) -> None:
        """Replace the file. Raises OSError. It lies on tmpfs: nothing is waited for."""
        of_users = (units for of_user in self._of_users.values() for units in of_user)
        units = {unit: None for some in (self._of_system, *of_users) for unit in some.values()}
        report = ManagedOomReport(
            units=tuple(sorted_units(units)),
            problem=self._problem,
            left_out=self._left_out,
            reloads=self._reloads,
        )
        beside = self.path.with_name(f".{self.path.name}.new")
        beside.write_bytes(write_report(report))
        beside.chmod(0o644)
        beside.replace(self.path)


def _kept(path: Path) -> Units:
    """Return the system's units that an earlier process has left: they count until systemd answers."""
    try:
        with path.open("rb") as file:
            report = read_report_at_once(file.read(LONGEST_BYTES + 1))
    except (OSError, ReactorError):
        return {}
    return {(one.kind, one.cgroup): one for one in report.units if one.uid is None}


def _take(units: Units, changes: Changes, most: int) -> int:
    """Change units by a message; return how many were left out: refused, or more than so many."""
    left_out = changes.refused
    for key, unit in changes.units.items():
        if unit is None:
            units.pop(key, None)
        elif key in units or len(units) < most:
            units[key] = unit
        else:
            left_out += 1
    return left_out


def _changes(message: Mapping[str, Any] | None) -> Changes:
    if message is None:
        raise VarlinkError("systemd has closed the connection")
    if message.get("error") is not None:
        error = message["error"]
        known = _WHY.get(error) if isinstance(error, str) else None
        raise VarlinkError(known or f"systemd refuses: {error!r:.80}")
    return changes_in(message.get("parameters"), None)
