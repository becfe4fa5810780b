"""Clients' connections at a bounded price, be they silent, slow, many or malicious.

    before accept   a slot must be free, and the turn be there: a flood waits in the kernel's backlog
    all taken       the connection that has been silent longest makes way, so that a new client is answered
    each            has a deadline for its whole request and another for its answer; it is read now and then,
                    and answered in its turn
    no descriptor   is waited out (EMFILE, ENFILE, ENOBUFS, ENOMEM)

What a client sends never raises here beyond its own connection.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from reactor.backoff import Pace

_REQUEST_SECONDS: Final = 5.0
_ANSWER_SECONDS: Final = 5.0
# For so long a connection is left alone where all slots are taken: a request is there at once, or a round
# trip later; an answer fits into the kernel's buffer, or goes out as the client reads.
_SILENT_SECONDS: Final = 0.1
_ANSWERING_SECONDS: Final = 1.0
# A connection costs 0.3 to 1 ms of a CPU, most of it in the kernel, an answer of 20 KiB as much again.
_ACCEPTS_PER_SECOND: Final = 60.0
_ACCEPTS_AT_ONCE: Final = 32
_ANSWERS_PER_SECOND: Final = 20.0
_ANSWERS_AT_ONCE: Final = 8
_BETWEEN_RECEIVES_SECONDS: Final = 0.05
_RECEIVE_BYTES: Final = 4096
_EXHAUSTED_SECONDS: Final = 0.1
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
# The listener's own defects. Everything else that accept(2) raises is about the connection that it took.
_BROKEN: Final = frozenset({errno.EBADF, errno.EINVAL, errno.ENOTSOCK, errno.EOPNOTSUPP, errno.EFAULT})


class Turns:
    """Lets answers go out at a bounded rate. A client that is gone before its turn takes none."""

    def __init__(self) -> None:
        self._line = trio.Lock()
        self._pace = Pace(burst=_ANSWERS_AT_ONCE, per_second=_ANSWERS_PER_SECOND)

    async def wait(self) -> None:
        """Wait for a turn."""
        async with self._line:
            await self._pace.turn()


class Peer:
    """A client's connection: first its request is received, then it is answered."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._has_received = False
        now = trio.current_time()
        self.scope = trio.CancelScope(deadline=now + _REQUEST_SECONDS)
        self.spared_until = now + _SILENT_SECONDS

    async def receive(self) -> bytes:
        """Return what comes next of the request, empty at its end; not at once, so that drops cost little."""
        if self._has_received:
            await trio.sleep(_BETWEEN_RECEIVES_SECONDS)
        self._has_received = True
        return bytes(await self._stream.receive_some(_RECEIVE_BYTES))

    def answering(self) -> None:
        """Note that the request is whole: from now on the deadline is the answer's."""
        now = trio.current_time()
        self.scope.deadline = now + _ANSWER_SECONDS
        self.spared_until = now + _ANSWERING_SECONDS

    async def send(self, answer: bytes) -> None:
        await self._stream.send_all(answer)


Attend = Callable[[Peer], Awaitable[None]]


class Connections:
    """Accepts up to `most` connections at once and attends to each; `on_failure` gets its failures."""

    def __init__(self, attend: Attend, most: int, on_failure: Callable[[Exception], None]) -> None:
        self._attend_to = attend
        self._most = most
        self._on_failure = on_failure
        self._open: set[Peer] = set()
        self._reserved = 0
        self._freed = trio.Event()
        self._pace = Pace(burst=_ACCEPTS_AT_ONCE, per_second=_ACCEPTS_PER_SECOND)

    async def serve(self, *listeners: trio.socket.SocketType) -> None:
        """Serve until cancelled; the listeners stay open."""
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                nursery.start_soon(self._accept, listener, nursery)

    async def _accept(self, listener: trio.socket.SocketType, nursery: trio.Nursery) -> None:
        while True:
            await self._pace.turn()
            await trio.lowlevel.wait_readable(listener)
            await self._room()
            self._reserved += 1
            try:
                accepted, _ = await listener.accept()
                peer = Peer(trio.SocketStream(accepted))
                self._open.add(peer)
                nursery.start_soon(self._attend, peer, accepted)
            except OSError as error:
                if error.errno in _BROKEN:
                    raise
                if error.errno in _EXHAUSTED:
                    await trio.sleep(_EXHAUSTED_SECONDS)
            finally:
                self._reserved -= 1

    async def _room(self) -> None:
        """Wait until there is room for one more; the one that has been spared for long enough makes it."""
        while len(self._open) + self._reserved >= self._most:
            self._freed = trio.Event()
            if not self._open:
                await self._freed.wait()
                continue
            first = min(self._open, key=lambda peer: peer.spared_until)
            with trio.move_on_at(first.spared_until):
                await self._freed.wait()
                continue
            if first.spared_until <= trio.current_time():
                first.scope.cancel()
                await self._freed.wait()

    async def _attend(self, peer: Peer, accepted: trio.socket.SocketType) -> None:
        try:
            with accepted, peer.scope:
                await self._attend_to(peer)
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            pass  # the client is gone
        except Exception as error:  # noqa: BLE001 - what a client asks costs only that client
            self._on_failure(error)
        finally:
            self._open.discard(peer)
            self._freed.set()
