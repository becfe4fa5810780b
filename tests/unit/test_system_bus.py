"""The connection to a bus, before it stands."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

import pytest
import trio
from jeepney import DBusAddress, HeaderFields, new_signal
from jeepney.bus_messages import message_bus

from reactor.system_bus import BusError, open_bus
from tests.support.logind import private_bus


@pytest.mark.parametrize("answer", [b"", b"what?\r\n", b"OK 1234deadbeef\r\nERROR\r\n"])
@pytest.mark.filterwarnings("error")  # that a socket was left open is a warning
async def test_a_bus_that_does_not_let_us_in_leaves_no_socket_open(
    tmp_path: Path, answer: bytes, autojump_clock: trio.testing.MockClock
) -> None:
    path = tmp_path / "bus"
    with trio.socket.socket(trio.socket.AF_UNIX) as listening:
        await listening.bind(str(path))
        listening.listen()

        async def serve() -> None:
            connection, _ = await listening.accept()
            with connection:
                await connection.send(answer)
                while await connection.recv(4096):
                    pass

        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            with pytest.raises(BusError, match="system bus"):
                async with open_bus(f"unix:path={path}"):
                    pass
        gc.collect()


class _Steps(trio.abc.Instrument):
    """Cancels what goes on for more steps than any conversation has."""

    def __init__(self, scope: trio.CancelScope) -> None:
        self.left = 1_000
        self._scope = scope

    def before_task_step(self, task: trio.lowlevel.Task) -> None:  # noqa: ARG002 - trio's signature
        self.left -= 1
        if self.left == 0:
            self._scope.cancel()


@pytest.mark.parametrize("answer", [b"", b"REJECTED", b"OK 1234deadbeef\r\n"])
async def test_a_bus_that_closes_during_authentication_is_an_error_at_once(
    tmp_path: Path, answer: bytes
) -> None:
    path = tmp_path / "bus"
    with trio.socket.socket(trio.socket.AF_UNIX) as listening:
        await listening.bind(str(path))
        listening.listen()

        async def serve() -> None:
            connection, _ = await listening.accept()
            with connection:
                await connection.recv(4096)
                if answer:
                    await connection.send(answer)
                connection.shutdown(trio.socket.SHUT_WR)
                await trio.sleep_forever()

        with trio.CancelScope() as scope:
            steps = _Steps(scope)
            trio.lowlevel.add_instrument(steps)
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(serve)
                    with pytest.raises(BusError, match="closed the connection"):
                        async with open_bus(f"unix:path={path}"):
                            pass
                    nursery.cancel_scope.cancel()
            finally:
                trio.lowlevel.remove_instrument(steps)
        assert steps.left > 0


def _signal_to(name: str, signature: str, value: object) -> bytearray:
    """Return a signal for this connection alone, which the bus passes on from anybody to anybody."""
    signal = new_signal(DBusAddress("/x", interface="x.y"), "Z", signature, (value,))
    signal.header.fields[HeaderFields.destination] = name
    return bytearray(signal.serialise(serial=1_000))


async def test_a_message_of_a_descriptor_that_it_does_not_have_is_dropped(tmp_path: Path) -> None:
    with private_bus(tmp_path) as address:
        async with open_bus(address.address) as bus, open_bus(address.address) as other:
            message = _signal_to(str(bus._connection.unique_name), "u", 7)
            at = message.index(b"\x01u\0") + 1
            message[at : at + 1] = b"h"
            await other._connection.socket.send(bytes(message))
            assert await other.call(message_bus, "GetId") == await bus.call(message_bus, "GetId")


async def test_a_long_message_is_dropped_as_it_comes(tmp_path: Path) -> None:
    with private_bus(tmp_path) as address:
        async with open_bus(address.address) as bus, open_bus(address.address) as other:
            message = _signal_to(str(bus._connection.unique_name), "ay", bytes(16 << 20))
            tracemalloc.start()
            try:
                view = memoryview(message)
                while view:
                    view = view[await other._connection.socket.send(view) :]
                assert await other.call(message_bus, "GetId") == await bus.call(message_bus, "GetId")
                _, most_bytes = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert most_bytes < 2 << 20


async def test_signals_of_a_sender_that_was_not_named_are_dropped_however_many(tmp_path: Path) -> None:
    """Any local user may send them; those who wait for a signal would see theirs, or the connection end."""
    with private_bus(tmp_path) as address:
        async with open_bus(address.address) as bus, open_bus(address.address) as other:
            message = _signal_to(str(bus._connection.unique_name), "u", 7)
            for _ in range(40):
                await other._connection.socket.send(bytes(message))
            assert await other.call(message_bus, "GetId") == await bus.call(message_bus, "GetId")
            came = [bus.signals.receive_nowait() for _ in range(bus.signals.statistics().current_buffer_used)]
            senders = {one.header.fields[HeaderFields.sender] for one in came}
            assert senders == {"org.freedesktop.DBus"}  # which says that a name was acquired
