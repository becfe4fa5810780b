"""A bus of one's own (a real dbus-daemon), and a double of logind and systemd on it: what a shutdown asks."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest
import trio
from jeepney import (
    DBusAddress,
    HeaderFields,
    Message,
    MessageType,
    new_error,
    new_method_return,
    new_signal,
)
from jeepney.bus_messages import message_bus
from jeepney.io.trio import DBusConnection, open_dbus_connection

from tests.support.waiting import eventually, until

LOGIND, SYSTEMD = "org.freedesktop.login1", "org.freedesktop.systemd1"
_PATH, _INTERFACE = "/org/freedesktop/login1", "org.freedesktop.login1.Manager"
_CONFIG: Final = """\
<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type>
  <listen>unix:path={socket}</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/>
    <allow own="*"/>
    <allow send_type="method_call"/>
    <allow send_type="signal"/>
    <allow send_requested_reply="true" send_type="method_return"/>
    <allow send_requested_reply="true" send_type="error"/>
    <allow receive_type="method_call"/>
    <allow receive_type="method_return"/>
    <allow receive_type="error"/>
    <allow receive_type="signal"/>
  </policy>
</busconfig>
"""


class PrivateBus:
    """A dbus-daemon in a directory; it may be stopped and started again under the same address."""

    def __init__(self, directory: Path) -> None:
        self._socket = directory / "bus"
        self._config = directory / "bus.conf"
        self._config.write_text(_CONFIG.format(socket=self._socket))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"unix:path={self._socket}"

    def start(self) -> None:
        command = ["dbus-daemon", f"--config-file={self._config}", "--nofork", "--nopidfile"]
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        eventually(self._listens, "the bus listens")

    def _listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self._socket)) == 0

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            self._socket.unlink(missing_ok=True)


@contextmanager
def private_bus(directory: Path) -> Iterator[PrivateBus]:
    """Run a bus for the length of the block."""
    if shutil.which("dbus-daemon") is None:
        pytest.skip("no dbus-daemon here: apt-get install dbus")
    bus = PrivateBus(directory)
    bus.start()
    try:
        yield bus
    finally:
        bus.stop()


class LogindDouble:
    """Answers as logind and systemd do; reads `drop_ins` when it is sent SIGHUP, as logind does."""

    def __init__(self, connection: DBusConnection, drop_ins: Path) -> None:
        self._connection = connection
        self._drop_ins = drop_ins
        self.max_delay_seconds = 5
        self.heeds_drop_ins = True
        self.refuses_locks = False
        self.is_preparing = False
        self.asked: list[tuple[str, tuple[Any, ...]]] = []
        self._locks: list[int] = []

    @property
    def locks(self) -> int:
        """Return how many delay locks are held now."""
        held = []
        for fd in self._locks:
            try:
                is_held = os.read(fd, 1) != b""
            except BlockingIOError:
                is_held = True
            if is_held:
                held.append(fd)
            else:
                os.close(fd)
        self._locks = held
        return len(held)

    async def begin_shutdown(self) -> None:
        """Say that a shutdown is being prepared."""
        self.is_preparing = True
        await self._say()

    async def cancel_shutdown(self) -> None:
        """Say that it is not any more."""
        self.is_preparing = False
        await self._say()

    async def _say(self) -> None:
        emitter = DBusAddress(_PATH, interface=_INTERFACE)
        await self._connection.send(new_signal(emitter, "PrepareForShutdown", "b", (self.is_preparing,)))

    async def run(self) -> None:
        with suppress(trio.EndOfChannel, trio.BrokenResourceError, trio.ClosedResourceError):
            while True:
                message = await self._connection.receive()
                if message.header.message_type is MessageType.method_call:
                    await self._answer(message)

    def close(self) -> None:
        for fd in self._locks:
            os.close(fd)

    async def _answer(self, call: Message) -> None:
        member = call.header.fields[HeaderFields.member]
        self.asked.append((member, call.body))
        if member == "Get":
            await self._send(call, "v", (self._property(call.body[1]),))
        elif member == "Inhibit" and self.refuses_locks:
            error = new_error(call, "org.freedesktop.DBus.Error.AccessDenied", "s", ("Permission denied",))
            await self._connection.send(error)
        elif member == "Inhibit":
            ours, theirs = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            self._locks.append(ours)
            try:
                await self._send(call, "h", (theirs,))
            finally:
                os.close(theirs)
        elif member == "KillUnit":
            self._read_drop_ins()
            await self._send(call, None, ())

    async def _send(self, call: Message, signature: str | None, body: tuple[Any, ...]) -> None:
        await self._connection.send(new_method_return(call, signature, body))

    def _property(self, name: str) -> tuple[str, Any]:
        if name == "InhibitDelayMaxUSec":
            return ("t", self.max_delay_seconds * 1_000_000)
        return ("b", self.is_preparing)

    def _read_drop_ins(self) -> None:
        for path in sorted(self._drop_ins.glob("*.conf")) if self.heeds_drop_ins else ():
            for line in path.read_text().splitlines():
                if line.startswith("InhibitDelayMaxSec="):
                    self.max_delay_seconds = int(line.partition("=")[2])


@asynccontextmanager
async def logind_double(bus: PrivateBus, drop_ins: Path) -> AsyncIterator[LogindDouble]:
    """Run the double for the length of the block."""
    connection = await open_dbus_connection(bus.address, enable_fds=True)
    async with connection, trio.open_nursery() as nursery:
        async with connection.router() as router:
            for name in (LOGIND, SYSTEMD):
                await router.send_and_get_reply(message_bus.RequestName(name))
        double = LogindDouble(connection, drop_ins)
        nursery.start_soon(double.run)
        try:
            yield double
        finally:
            double.close()
            nursery.cancel_scope.cancel()


class LogindInThread:
    """The double, for tests that are not asynchronous."""

    def __init__(self, double: LogindDouble, token: trio.lowlevel.TrioToken) -> None:
        self._double = double
        self._token = token

    def begin_shutdown(self) -> None:
        trio.from_thread.run(self._double.begin_shutdown, trio_token=self._token)

    def cancel_shutdown(self) -> None:
        trio.from_thread.run(self._double.cancel_shutdown, trio_token=self._token)

    def locks(self) -> int:
        return trio.from_thread.run_sync(lambda: self._double.locks, trio_token=self._token)


@contextmanager
def logind_in_thread(bus: PrivateBus, drop_ins: Path, max_delay_seconds: int) -> Iterator[LogindInThread]:
    """Run the double beside the block."""
    made: list[LogindInThread] = []
    over: list[trio.Event] = []

    async def run() -> None:
        async with logind_double(bus, drop_ins) as double:
            double.max_delay_seconds = max_delay_seconds
            over.append(trio.Event())
            made.append(LogindInThread(double, trio.lowlevel.current_trio_token()))
            await over[0].wait()

    thread = threading.Thread(target=trio.run, args=(run,))
    thread.start()
    try:
        eventually(lambda: made, "the double has its names")
        yield made[0]
    finally:
        if made:
            trio.from_thread.run_sync(over[0].set, trio_token=made[0]._token)
        thread.join()


async def until_locked(double: LogindDouble, count: int = 1) -> None:
    """Wait until so many locks are held."""
    await until(lambda: double.locks == count, f"{count} locks are held")
