"""The steward's end of the pair: what it asks the guard, and what it reports of the journal."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import trio

from reactor.errors import ReactorError
from reactor.forms import FormError
from reactor.link.frames import FRAME_BYTES, Assembly, FrameKind, Message
from reactor.link.requests import Piece, ReclaimOver, Request, RequestKind, Space, Usages, write_request

# After such a silence. The guard takes each message for a sign of life, and waits for 30 s; at rest it hears
# of the filesystems each 10 s.
_ALIVE_SECONDS: Final = 12.0
_ANSWER_SECONDS: Final = 4.0
_BETWEEN_TAKEN_SECONDS: Final = 0.02
_MOST_OUTGOING: Final = 64

Said = Request | Space | ReclaimOver | Usages | Piece


class GuardError(ReactorError):
    """The guard does not answer, or refuses to."""


class Guard:
    """`take` is called with every message that is no answer, in their order."""

    def __init__(self, connection: trio.socket.SocketType, take: Callable[[Message], None]) -> None:
        self._connection = connection
        self._outgoing, self._to_send = trio.open_memory_channel[Said](_MOST_OUTGOING)
        self._take = take
        self._asked = 0
        self._waiting: dict[int, trio.MemorySendChannel[bytes]] = {}
        self._taken_up_to = 0
        self._lost = 0
        self._has_taken = trio.Event()
        self._silence = trio.CancelScope()

    async def ask(self, kind: RequestKind, places: int = 0) -> dict[str, Any]:
        """Return the guard's answer. Raises GuardError where there is none in time, or an error."""
        self._asked += 1
        number = self._asked
        send, receive = trio.open_memory_channel[bytes](1)
        self._waiting[number] = send
        try:
            with trio.move_on_after(_ANSWER_SECONDS):
                await self.say(Request(kind=kind, number=number, places=places))
                document: dict[str, Any] = json.loads(await receive.receive())
                if "error" in document:
                    raise GuardError(document["error"])
                return document
        finally:
            del self._waiting[number]
        raise GuardError(f"the guard has not answered within {_ANSWER_SECONDS:g} s")

    async def is_alive(self) -> bool:
        """Return whether the guard says that its passes go on."""
        try:
            return bool((await self.ask(RequestKind.HEALTH))["alive"])
        except GuardError:
            return False

    def taken(self, place: int, *, is_written: bool) -> None:
        """Report that a line is done with, soon; to be called in the lines' order."""
        self._taken_up_to = place
        self._lost += not is_written
        self._has_taken.set()

    async def hear(self) -> None:
        """Take what the guard says, until it closes its end. Raises GuardError for what is no message."""
        assembly = Assembly()
        while True:
            try:
                raw = await self._connection.recv(FRAME_BYTES + 1)
            except ConnectionResetError:  # it ended with requests unread; what it said before comes now
                continue
            if not raw:
                return
            try:
                message = assembly.take(raw)
            except FormError as error:
                raise GuardError(
                    f"a message of the guard's is refused: {error}; both processes are to be of one version: "
                    "restart reactor after an upgrade"
                ) from error
            if message is None:
                continue
            if message.kind is not FrameKind.ANSWER:
                self._take(message)
            elif message.number in self._waiting:
                self._waiting[message.number].send_nowait(message.content)

    async def say_alive(self) -> None:
        """Say that the loop runs wherever nothing else was said for a while, until cancelled."""
        while True:
            await self.say(Request(kind=RequestKind.ALIVE))
            self._silence = trio.CancelScope(deadline=trio.current_time() + _ALIVE_SECONDS)
            with self._silence:
                await trio.sleep_forever()

    async def say_taken(self) -> None:
        """Say how far the journal is written, until cancelled."""
        while True:
            await self._has_taken.wait()
            self._has_taken = trio.Event()
            lost, self._lost = self._lost, 0
            await self.say(Request(kind=RequestKind.TAKEN, number=self._taken_up_to, lost=lost))
            await trio.sleep(_BETWEEN_TAKEN_SECONDS)

    async def say(self, request: Said) -> None:
        """Say something in its turn."""
        await self._outgoing.send(request)

    def offer(self, request: Request | Space) -> None:
        """Send something in its turn, or not at all if the guard does not read."""
        with suppress(trio.WouldBlock):
            self._outgoing.send_nowait(request)

    async def send(self) -> None:
        """Send what is said, until cancelled."""
        async for request in self._to_send:
            try:
                await self._connection.send(write_request(request))
            except (BrokenPipeError, ConnectionResetError):  # heard of in `hear`
                await trio.sleep_forever()
            self._silence.deadline = trio.current_time() + _ALIVE_SECONDS
