"""Watches logind for the guard: a delay lock, what logind says, and what is wrong, one thing at a time.

The lock is a descriptor, which outlives the connection to the bus: a bus that goes away does not let a
shutdown go on before the guard is done, and another lock is there before the old one is closed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Final

import trio
from jeepney import DBusAddress, HeaderFields, Message
from jeepney.fds import FileDescriptor

from reactor.backoff import Backoff
from reactor.errors import failure_text, split_failure
from reactor.kernel import small_file
from reactor.link.shutdown import (
    GO_ON,
    LONGEST_BYTES,
    MOST_SECONDS,
    ShutdownNews,
    ShutdownNewsKind,
    write_news,
)
from reactor.system_bus import Bus, BusError, open_bus

LOGIND: Final = "org.freedesktop.login1"
_BUS: Final = "org.freedesktop.DBus"
_MANAGER: Final = DBusAddress(
    "/org/freedesktop/login1", bus_name=LOGIND, interface="org.freedesktop.login1.Manager"
)
_SYSTEMD_MANAGER: Final = DBusAddress(
    "/org/freedesktop/systemd1",
    bus_name="org.freedesktop.systemd1",
    interface="org.freedesktop.systemd1.Manager",
)
_SIGNAL: Final = "PrepareForShutdown"
_PREPARE_RULE: Final = (
    f"type='signal',sender='{LOGIND}',path='{_MANAGER.object_path}',"
    f"interface='{_MANAGER.interface}',member='{_SIGNAL}'"
)
_OWNER_RULE: Final = (
    f"type='signal',sender='{_BUS}',interface='{_BUS}',member='NameOwnerChanged',arg0='{LOGIND}'"
)
_WHO: Final = "reactor"
_WHY: Final = "Pods are ended by their priority"
_SIGHUP: Final = 1
_MICROSECONDS: Final = 1_000_000
_NO_MAXIMUM: Final = 2**64 - 1

_LOG: Final = logging.getLogger("reactor.shutdown")
# The drop-in by which logind waits for long enough, see logind.conf(5). Drop-ins are ordered by file name,
# whatever directory they lie in, and the last one wins: hence the name. Of unattended-upgrades one says 30 s.
_DIRECTORY: Final = Path("/etc/systemd/logind.conf.d")
_NAME: Final = "zz-reactor.conf"
_DROP_IN: Final = """\
# Written by reactor: the sum of the kubelet's shutdownGracePeriod keys in its configuration, and 5 s.
[Login]
InhibitDelayMaxSec={seconds}
"""
_PAUSE_SECONDS: Final = (1.0, 30.0)
# After the last SIGKILL: pods are waited for, their statuses and the state file are written.
_MARGIN_SECONDS: Final = 5
_READ_SECONDS: Final = (0.05, 0.8)
_READ_TIMES: Final = 8


async def _max_delay_seconds(bus: Bus) -> int:
    """Return for how long logind waits at the most. Raises BusError."""
    found: int = await bus.property(_MANAGER, "InhibitDelayMaxUSec", int)
    return _NO_MAXIMUM if found == _NO_MAXIMUM else found // _MICROSECONDS


def _is(message: Message, interface: str | None, member: str) -> bool:
    fields = message.header.fields
    return bool(fields.get(HeaderFields.interface) == interface and fields.get(HeaderFields.member) == member)


@dataclass(eq=False)
class Watch:
    """Watches until cancelled, or until the guard closes its end.

    `wanted_seconds` is how long a shutdown may have to be held up. `directory` is that of logind's drop-ins,
    `address` the bus's; `pause_seconds` the shortest and longest pause before it is asked again.
    """

    guard: trio.socket.SocketType
    wanted_seconds: int
    _: KW_ONLY
    directory: Path = _DIRECTORY
    address: str = "SYSTEM"
    pause_seconds: tuple[float, float] = _PAUSE_SECONDS

    def __post_init__(self) -> None:
        self._backoff = Backoff(*self.pause_seconds)
        self._lock: int | None = None
        self._is_preparing = False
        self._problem = ""

    async def run(self) -> None:
        """Watch, and begin again with a growing pause where the bus or logind is lost."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._obey, nursery.cancel_scope.cancel)
                while True:
                    await self._attempt()
                    await self._backoff.pause()
        finally:
            self._replace_lock(None)

    def _replace_lock(self, fd: int | None) -> None:
        before, self._lock = self._lock, fd
        if before is not None:
            os.close(before)

    async def _obey(self, end: Callable[[], None]) -> None:
        """Let a shutdown go on when the guard says so; end where it has ended."""
        with suppress(OSError):
            while raw := await self.guard.recv(LONGEST_BYTES):
                if raw == GO_ON:
                    self._replace_lock(None)
        end()

    async def _attempt(self) -> None:
        """Watch over one connection until that is lost; say why."""
        try:
            async with open_bus(self.address) as bus:
                await self._watch(bus)
        except BaseException as raised:  # what is no failure is raised again
            failure, others = split_failure(raised)
            if others is not None:
                raise
            await self._say_problem(failure_text(failure) if failure is not None else "")
            if self._lock is None:
                await self._say(ShutdownNewsKind.NOT_INHIBITED)

    async def _watch(self, bus: Bus) -> None:
        """Watch until logind has ended or was restarted: what it knew of us is to be said again then.

        Raises BusError.
        """
        await bus.subscribe(_PREPARE_RULE, _OWNER_RULE)
        await _max_delay_seconds(bus)  # starts it, where the bus does so when it is asked
        owner = await bus.listen(LOGIND)
        problem = await self._raised(bus)
        await self._inhibit(bus)
        await self._say_problem(problem)
        self._backoff.reset()
        is_preparing = await bus.property(_MANAGER, "PreparingForShutdown", bool)
        await self._on_preparing(bus, is_preparing=is_preparing)
        async for message in bus.signals:
            if _is(message, _BUS, "NameOwnerChanged") and message.body[0] == LOGIND:
                if message.body[2] != owner:
                    raise BusError(f"{LOGIND}: was restarted")
            elif _is(message, _MANAGER.interface, _SIGNAL) and len(message.body) == 1:
                await self._on_preparing(bus, is_preparing=bool(message.body[0]))
        raise BusError("system bus: has closed the connection")

    async def _on_preparing(self, bus: Bus, *, is_preparing: bool) -> None:
        """Report to the guard a shutdown that begins, once, and of its cancellation; take a new lock then."""
        if is_preparing == self._is_preparing:
            return
        self._is_preparing = is_preparing
        if is_preparing:
            _LOG.warning("logind: the node shuts down")
            await self._say(ShutdownNewsKind.PREPARING)
        else:
            _LOG.warning("logind: the shutdown was cancelled")
            await self._say(ShutdownNewsKind.CANCELLED)
            await self._inhibit(bus)

    async def _inhibit(self, bus: Bus) -> None:
        """Take a lock in the old one's place: it delays a shutdown until it is closed. Raises BusError."""
        # While a shutdown is being prepared it waits for those that held a lock at its beginning.
        if self._is_preparing and self._lock is not None:
            return
        seconds = await _max_delay_seconds(bus)
        answer = await bus.call(_MANAGER, "Inhibit", "ssss", "shutdown", _WHO, _WHY, "delay")
        if len(answer) != 1 or not isinstance(answer[0], FileDescriptor):
            raise BusError(f"{LOGIND}: Inhibit: got {answer!r:.80}; accepted: a descriptor")
        self._replace_lock(answer[0].to_raw_fd())
        await self._say(ShutdownNewsKind.INHIBITED, seconds=min(seconds, MOST_SECONDS))

    async def _raised(self, bus: Bus) -> str:
        """Have logind wait for as long as is wanted, if need be by a drop-in; return what is wrong then.

        What it waits for at the most is its operator's to say: a value that is enough is left alone.
        """
        seconds = await _max_delay_seconds(bus)
        if seconds >= self.wanted_seconds:
            return ""
        wanted_seconds = self.wanted_seconds + _MARGIN_SECONDS
        try:
            await trio.to_thread.run_sync(  # noqa: TID251 - this process may wait for a thread, and end
                self._write_drop_in, wanted_seconds, abandon_on_cancel=True
            )
        except OSError as error:
            return self._short(seconds, f"{error.filename or self.directory}: {error.strerror}")
        # It has not read it yet when this returns.
        await bus.call(_SYSTEMD_MANAGER, "KillUnit", "ssi", "systemd-logind.service", "all", _SIGHUP)
        again = Backoff(*_READ_SECONDS, jitter=None)
        for _ in range(_READ_TIMES):
            await again.pause()
            seconds = await _max_delay_seconds(bus)
            if seconds >= self.wanted_seconds:
                _LOG.info("logind: waits for %d s at the most, by %s", seconds, self.directory / _NAME)
                return ""
        return self._short(
            seconds,
            f"{self.directory / _NAME} says {wanted_seconds}, and another drop-in or logind.conf less: "
            "systemd-analyze cat-config systemd/logind.conf",
        )

    def _write_drop_in(self, seconds: int) -> None:
        """Have logind wait for so long once it has read its configuration again. Raises OSError."""
        path, text = self.directory / _NAME, _DROP_IN.format(seconds=seconds)
        # For all to read: logind may not run as root.
        small_file.write(path, text, mode=0o644, directory_mode=0o755)

    def _short(self, seconds: int, why: str) -> str:
        return (
            f"logind waits for {seconds} s at the most (InhibitDelayMaxSec), where the shutdown of all pods "
            f"may take {self.wanted_seconds} s: {why}"
        )

    async def _say_problem(self, problem: str) -> None:
        """Say what is wrong, once; an empty text says that nothing is any more."""
        if problem == self._problem:
            return
        self._problem = problem
        if problem:
            _LOG.warning("%s", problem)
        else:
            _LOG.info("recovered")
        await self._say(ShutdownNewsKind.PROBLEM, text=problem)

    async def _say(self, kind: ShutdownNewsKind, *, seconds: int = 0, text: str = "") -> None:
        with suppress(OSError):  # the guard has ended, which is found out by reading
            await self.guard.send(write_news(ShutdownNews(kind=kind, seconds=seconds, text=text)))
