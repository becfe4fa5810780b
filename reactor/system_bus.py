"""One connection to the system bus: calls with a time limit, signals of known senders, a name to serve by.

Any local user may send a signal straight to this connection, whatever was subscribed to: only what comes from
the unique name that the caller has asked the bus for is passed on. A message of more than 64 KiB is dropped
unread; none that is waited for is as long.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import trio
from jeepney import (
    DBusAddress,
    HeaderFields,
    Message,
    MessageFlag,
    MessageType,
    Properties,
    new_error,
    new_method_call,
    new_method_return,
    new_signal,
)
from jeepney.auth import BEGIN, Authenticator
from jeepney.bus import get_bus
from jeepney.bus_messages import message_bus
from jeepney.fds import FileDescriptor
from jeepney.io.trio import DBusConnection
from jeepney.low_level import Parser, calc_msg_size
from jeepney.wrappers import DBusErrorResponse, unwrap_msg

from reactor.errors import ReactorError, failure_text

_CALL_SECONDS: Final = 10.0
_LONGEST_MESSAGE_BYTES: Final = 64 << 10
_SIZE_BYTES: Final = 16  # in which a message says how long it is
_MOST_SIGNALS: Final = 16
_MOST_CALLS: Final = 16
_DO_NOT_QUEUE: Final = 4
_OWNERS: Final = frozenset({1, 4})  # primary owner, already owner


class BusError(ReactorError):
    """The bus, or a service on it, can't be reached, refuses a call, or answers with something else."""


class Bus:
    """A connection. `signals` has those of the sender that `listen` named, oldest first."""

    def __init__(self, connection: DBusConnection) -> None:
        self._connection = connection
        self._awaited: dict[int, trio.MemorySendChannel[Message]] = {}
        self._senders: set[str] = {"org.freedesktop.DBus"}
        self._calls: trio.MemorySendChannel[Message] | None = None
        self._pass_on, self.signals = trio.open_memory_channel[Message](_MOST_SIGNALS)

    async def call(self, address: DBusAddress, method: str, signature: str = "", *arguments: Any) -> Any:
        """Return what a call answers: its values as a tuple. Raises BusError."""
        return await self._ask(new_method_call(address, method, signature or None, arguments), method)

    async def property(self, address: DBusAddress, name: str, kind: type) -> Any:
        """Return a property's value. Raises BusError, also where it is not of this type."""
        answer = await self._ask(Properties(address).get(name), name)
        value = answer[0][1] if answer and isinstance(answer[0], tuple) and len(answer[0]) == 2 else None
        if not isinstance(value, kind):
            raise BusError(f"{address.bus_name}: {name}: got {value!r:.80}; accepted: {kind.__name__}")
        return value

    async def emit(self, path: str, interface: str, member: str, signature: str, *arguments: Any) -> None:
        """Send a signal to whom it may concern, and return when the bus has it. Raises BusError."""
        signal = new_signal(DBusAddress(path, interface=interface), member, signature, arguments)
        await self._send(signal, member)
        await self._ask(message_bus.GetId(), "GetId")  # answered in the order of what was sent

    async def subscribe(self, *rules: str) -> None:
        """Have the bus pass on what these rules match. Raises BusError."""
        for rule in rules:
            await self._ask(message_bus.AddMatch(rule), "AddMatch")

    async def listen(self, service: str) -> str:
        """Have the signals of this service passed on; return its unique name. Raises BusError."""
        answer = await self._ask(message_bus.GetNameOwner(service), f"GetNameOwner {service}")
        owner = str(answer[0])
        self._senders.add(owner)
        return owner

    async def own(self, name: str) -> None:
        """Become the owner of a name. Raises BusError, also where another process has it."""
        (result,) = await self._ask(message_bus.RequestName(name, _DO_NOT_QUEUE), f"RequestName {name}")
        if result not in _OWNERS:
            raise BusError(f"{name}: another process has this name on the system bus")

    def serve(self) -> trio.MemoryReceiveChannel[Message]:
        """Return the calls from now on; 16 of them wait at the most, and more are dropped."""
        self._calls, calls = trio.open_memory_channel[Message](_MOST_CALLS)
        return calls

    async def answer(self, call: Message, signature: str = "", *values: Any) -> None:
        """Answer a call. Raises BusError."""
        await self._reply(new_method_return(call, signature or None, values), call)

    async def refuse(self, call: Message, error: str, text: str) -> None:
        """Answer a call with an error of this name. Raises BusError."""
        await self._reply(new_error(call, error, "s", (text,)), call)

    async def _reply(self, reply: Message, call: Message) -> None:
        if not call.header.flags & MessageFlag.no_reply_expected:
            await self._send(reply, "reply")

    async def _send(self, message: Message, what: str) -> None:
        try:
            with trio.fail_after(_CALL_SECONDS):
                await self._connection.send(message)
        except trio.TooSlowError:
            raise BusError(f"system bus: {what}: not taken within {_CALL_SECONDS:g} s") from None
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise BusError(f"system bus: {what}: {failure_text(error)}") from error

    async def run(self) -> None:
        """Receive until cancelled. Raises BusError where the connection is lost."""
        while True:
            try:
                message = await self._connection.receive()
            except trio.EndOfChannel:
                raise BusError("system bus: has closed the connection") from None
            except (OSError, trio.BrokenResourceError) as error:
                raise BusError(f"system bus: {failure_text(error)}") from error
            self._dispatch(message)

    def _dispatch(self, message: Message) -> None:
        fields = message.header.fields
        if message.header.message_type is MessageType.signal:
            if fields.get(HeaderFields.sender) not in self._senders:
                _discard(message)
                return
            try:
                self._pass_on.send_nowait(message)
            except trio.WouldBlock:
                raise BusError("system bus: more signals than can be read") from None
            return
        if message.header.message_type is MessageType.method_call:
            _discard(message)  # descriptors: none that is served takes any
            with suppress(trio.WouldBlock):
                if self._calls is not None:
                    self._calls.send_nowait(message)
            return
        awaited = self._awaited.pop(fields.get(HeaderFields.reply_serial, -1), None)
        if awaited is None:
            _discard(message)
        else:
            awaited.send_nowait(message)

    async def _ask(self, message: Message, what: str) -> Any:
        send, receive = trio.open_memory_channel[Message](1)
        serial = next(self._connection.outgoing_serial)
        self._awaited[serial] = send
        where = message.header.fields.get(HeaderFields.destination, "system bus")
        try:
            with trio.fail_after(_CALL_SECONDS):
                await self._connection.send(message, serial=serial)
                return unwrap_msg(await receive.receive())
        except trio.TooSlowError:
            raise BusError(f"{where}: {what}: no answer within {_CALL_SECONDS:g} s") from None
        except DBusErrorResponse as error:
            raise BusError(f"{where}: {what}: {error.name}: {_text(error.data)}") from error
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise BusError(f"{where}: {what}: {failure_text(error)}") from error
        finally:
            self._awaited.pop(serial, None)
            with suppress(trio.WouldBlock):  # came, and is not waited for any more
                _discard(receive.receive_nowait())


class _BoundedParser(Parser):  # type: ignore[misc]
    """Drops what no message that is waited for is, with the descriptors that came along.

    That is what is too long, and is not kept until it has come as a whole; and what can't be read: any local
    user may send that, since the bus does not check, say, which descriptor a body speaks of.
    """

    next_msg_size: int | None
    fds: list[FileDescriptor]

    def __init__(self, begun: Parser) -> None:
        super().__init__()
        # The next message may have begun already.
        self.buf, self.fds, self.next_msg_size = begun.buf, begun.fds, begun.next_msg_size
        self._to_drop = 0  # of a message that is too long

    def bytes_desired(self) -> int:
        """Return how much is to be received next: nothing of the message after this one."""
        if not self._to_drop:
            desired: int = super().bytes_desired()
            return min(desired, _LONGEST_MESSAGE_BYTES)
        return min(self._to_drop, _LONGEST_MESSAGE_BYTES)

    def get_next_message(self) -> Message | None:
        """Return the next message, None where it is not there as a whole."""
        while self._is_whole():
            raw, self.next_msg_size = self.buf.read(self.next_msg_size), None
            try:
                found: Message = Message.from_buffer(raw, fds=self.fds)
            except Exception:  # noqa: BLE001 - whatever it is: the next message begins behind it
                self._drop_descriptors()
                continue
            taken = found.header.fields.get(HeaderFields.unix_fds, 0)
            self.fds = self.fds[taken:]
            return found
        return None

    def _is_whole(self) -> bool:
        """Return whether the next message has come as a whole; what has come of one that is too long goes."""
        while True:
            if self._to_drop:
                come = min(self._to_drop, self.buf.bytes_buffered)
                if not come:
                    return False
                self.buf.read(come)
                self._to_drop -= come
                if not self._to_drop:
                    self._drop_descriptors()
                continue
            if self.next_msg_size is None:
                if self.buf.bytes_buffered < _SIZE_BYTES:
                    return False
                self.next_msg_size = calc_msg_size(self.buf.peek(_SIZE_BYTES))
            if self.next_msg_size <= _LONGEST_MESSAGE_BYTES:
                return bool(self.buf.bytes_buffered >= self.next_msg_size)
            self._to_drop, self.next_msg_size = self.next_msg_size, None

    def _drop_descriptors(self) -> None:
        for fd in self.fds:
            fd.close()
        self.fds = []


@asynccontextmanager
async def open_bus(address: str = "SYSTEM") -> AsyncIterator[Bus]:
    """Connect for the length of the block. Raises BusError where that can't be done.

    `address` is a bus's in D-Bus's own form; SYSTEM stands for that of the environment, or the usual one.
    What is wrong with the connection later is raised in the block, in a group.
    """
    try:
        with trio.fail_after(_CALL_SECONDS):
            connection = await _connected(address)
    except trio.TooSlowError:
        raise BusError(f"system bus: does not answer within {_CALL_SECONDS:g} s") from None
    except Exception as error:  # what the other end says while it lets us in, jeepney may not understand
        raise BusError(f"system bus: {failure_text(error)}") from error
    connection.parser = _BoundedParser(connection.parser)
    async with connection, trio.open_nursery() as nursery:
        bus = Bus(connection)
        nursery.start_soon(bus.run)
        yield bus
        nursery.cancel_scope.cancel()


async def _connected(address: str) -> DBusConnection:
    """Return a connection that the bus has let in.

    As jeepney's open_dbus_connection, which leaves its socket open where the bus does not let it in, or it is
    cancelled meanwhile.
    """
    stream = await trio.open_unix_socket(get_bus(address))
    try:
        await stream.send_all(b"\0")
        authenticator = Authenticator(enable_fds=True, inc_null_byte=False)
        for request in authenticator:
            await stream.send_all(request)
            authenticator.feed(await _received(stream))
        await stream.send_all(BEGIN)
        connection = DBusConnection(stream.socket, enable_fds=True)
        async with connection.router() as router:
            hello = await router.send_and_get_reply(message_bus.Hello())
            connection.unique_name = hello.body[0]
    except BaseException:
        stream.socket.close()
        raise
    return connection


async def _received(stream: trio.SocketStream) -> bytes:
    """Return what has come, never nothing: the authenticator would ask for more of that for ever."""
    received = bytes(await stream.receive_some())
    if not received:
        raise ConnectionResetError("closed the connection during authentication")
    return received


def _discard(message: Message) -> None:
    """Close the descriptors that came with a message."""
    for one in message.body:
        if isinstance(one, FileDescriptor):
            one.close()


def _text(data: Any) -> str:
    return " ".join(str(one) for one in data)[:200] if isinstance(data, (tuple, list)) else str(data)[:200]
