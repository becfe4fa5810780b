"""HTTP/1.1 requests: h11 for the protocol, Trio's streams for the bytes, a few connections kept for the next.

For the API server, the kubelet and podman, by TCP, TLS or a Unix socket. Nothing is followed, decompressed or
sent through a proxy. The peer is not trusted: an answer's head is bounded in bytes and in time, its body in
the time between two pieces and, where it is read whole, in bytes; for all of it the caller sets a deadline.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Final

import h11
import trio

from reactor.errors import ReactorError

_CONNECTIONS: Final = 8
_IDLE_SECONDS: Final = 75.0  # below what load balancers cut; a handshake takes milliseconds of the loop
_CONNECT_SECONDS: Final = 5.0
_READ_BYTES: Final = 64 << 10
_HEAD_BYTES: Final = 64 << 10
_INTERIM_ANSWERS: Final = 8  # 1xx, of which nothing is expected
_REPEATABLE: Final = frozenset({"GET"})
_BROKEN: Final = (OSError, trio.BrokenResourceError, h11.ProtocolError)
# A server that went away without a word (a pulled cable) is noticed within a minute, as client-go does.
_SOCKET_OPTIONS: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 60_000),
)


_Asked = tuple[h11.Event, ...]


class HttpError(ReactorError):
    """There is no answer, or only a part of one; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where requests go: to a Unix socket, or to a port of a host, with TLS where there is a context.

    `server_name` is the name that the server's certificate has to bear; None for that of the host.
    """

    host: str = "localhost"
    port: int = 80
    tls: ssl.SSLContext | None = None
    server_name: str | None = None
    unix_socket: str | None = None

    @property
    def authority(self) -> str:
        """Return what the header Host says."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Answer:
    """The head of an answer, and its body as it arrives."""

    def __init__(self, head: h11.Response, connection: _Connection, silence_seconds: float) -> None:
        self.status = head.status_code
        self._headers = head.headers
        self._connection = connection
        self._silence_seconds = silence_seconds

    def header(self, name: bytes) -> str | None:
        """Return the first value of a header; `name` in lower case."""
        return next((value.decode("latin-1") for key, value in self._headers if key == name), None)

    async def pieces(self) -> AsyncGenerator[bytes]:
        """Yield the body; what arrives at once is one piece, of at most 128 KiB. Raises HttpError."""
        while (piece := await self._connection.piece(self._silence_seconds)) is not None:
            yield piece

    async def read(self, largest_bytes: int) -> bytes:
        """Return the body. Raises HttpError, also for a larger one."""
        body = bytearray()
        async with aclosing(self.pieces()) as arriving:
            async for piece in arriving:
                body += piece
                if len(body) > largest_bytes:
                    raise HttpError(f"answered more than {largest_bytes} bytes")
        return bytes(body)


class HttpClient:
    """Makes requests, eight at a time at most. For the tasks of one Trio loop.

    A connection is kept if its answer was read to the end, and serves the next request to the same origin.
    """

    def __init__(self) -> None:
        self._turns = trio.Semaphore(_CONNECTIONS)
        self._idle: list[_Connection] = []

    @asynccontextmanager
    async def request(
        self,
        origin: Origin,
        method: str,
        target: str,
        *,
        headers: Sequence[tuple[str, str]] = (),
        body: bytes | None = None,
        silence_seconds: float,
    ) -> AsyncIterator[Answer]:
        """Give the answer, whatever its status. Raises HttpError, on the way as well.

        `silence_seconds` is for how long nothing may come: neither the head as a whole nor a piece of the
        body.
        """
        async with self._turns:
            asked = _encoded(origin, method, target, headers, body)
            connection, head = await self._ask(
                origin, asked, silence_seconds, is_repeatable=method in _REPEATABLE
            )
            try:
                yield Answer(head, connection, silence_seconds)
            finally:
                if connection.is_ready_for_the_next():
                    self._idle.append(connection)
                else:
                    connection.close()

    def close(self) -> None:
        """Close every connection that is not in use."""
        while self._idle:
            self._idle.pop().close()

    async def _ask(
        self, origin: Origin, asked: _Asked, silence_seconds: float, *, is_repeatable: bool
    ) -> tuple[_Connection, h11.Response]:
        while True:
            kept = self._take_idle(origin)
            connection = kept or await _connect(origin)
            try:
                return connection, await connection.ask(asked, silence_seconds)
            except HttpError:
                connection.close()
                # A server may close a kept connection just as the next request is on its way. A request that
                # it has not begun to answer, and that may be done twice, is made once more elsewhere.
                if kept is None or not connection.closed_unheard or not is_repeatable:
                    raise
            except BaseException:
                connection.close()
                raise

    def _take_idle(self, origin: Origin) -> _Connection | None:
        """Take a connection that was kept; close those that won't serve again, or are of another origin."""
        usable = [one for one in self._idle if one.origin == origin and one.is_usable()]
        for one in self._idle:
            if one not in usable:
                one.close()
        self._idle = usable
        return usable.pop() if usable else None


class _Connection:
    """A stream to an origin: one request after the other. What breaks it raises HttpError."""

    def __init__(self, origin: Origin, stream: trio.abc.Stream, transport: trio.SocketStream) -> None:
        self.origin = origin
        self.closed_unheard = False
        self._stream = stream
        self._transport = transport
        self._protocol = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES)
        self._is_cut = False
        self._idle_since_seconds = 0.0

    async def ask(self, asked: _Asked, silence_seconds: float) -> h11.Response:
        """Send a request; return the head of its answer."""
        with _in_time(silence_seconds, "no answer"):
            request = b"".join(self._protocol.send(event) or b"" for event in asked)
            try:
                await self._stream.send_all(request)
            except trio.BrokenResourceError:
                self._is_cut = True  # it may have answered, to refuse, before it had read everything
            for _ in range(_INTERIM_ANSWERS):
                while (event := self._protocol.next_event()) is h11.NEED_DATA:
                    await self._receive()
                if isinstance(event, h11.Response):
                    return event
                if not isinstance(event, h11.InformationalResponse):
                    break
            raise h11.RemoteProtocolError(f"{event!r:.80} instead of an answer")

    async def piece(self, silence_seconds: float) -> bytes | None:
        """Return what of the body has arrived, once there is some; None at its end."""
        with _in_time(silence_seconds, "nothing more"):
            piece = bytearray()
            while self._protocol.their_state is h11.SEND_BODY:
                event = self._protocol.next_event()
                if isinstance(event, h11.Data):
                    piece += event.data
                elif event is h11.NEED_DATA:
                    if piece:
                        break
                    await self._receive()
            return bytes(piece) or None

    def is_ready_for_the_next(self) -> bool:
        """Return whether another request may follow; begin its turn if so."""
        ends = {self._protocol.our_state, self._protocol.their_state}
        if self._is_cut or ends != {h11.DONE} or self._protocol.trailing_data != (b"", False):
            return False
        self._protocol.start_next_cycle()
        self._idle_since_seconds = trio.current_time()
        return True

    def is_usable(self) -> bool:
        """Return whether it has not been idle for too long; what can be read by now is its end at best."""
        age_seconds = trio.current_time() - self._idle_since_seconds
        return age_seconds < _IDLE_SECONDS and not self._transport.socket.is_readable()

    def close(self) -> None:
        """Close it at once: without TLS's farewell, for which HTTP does not wait either."""
        self._transport.socket.close()

    async def _receive(self) -> None:
        is_unheard = self._protocol.their_state is h11.SEND_RESPONSE and not self._protocol.trailing_data[0]
        try:
            received = await self._stream.receive_some(_READ_BYTES)
        except trio.BrokenResourceError:
            self.closed_unheard = is_unheard
            raise
        if not received and is_unheard:
            self.closed_unheard = True
            raise h11.RemoteProtocolError("closed without an answer")
        self._protocol.receive_data(bytes(received))


def _encoded(
    origin: Origin, method: str, target: str, headers: Sequence[tuple[str, str]], body: bytes | None
) -> _Asked:
    """Return a request as h11 has it. Raises HttpError for what can't be said in HTTP."""
    length = [] if body is None else [("Content-Length", str(len(body)))]
    try:
        named = [("Host", origin.authority), *length, *headers]
        head = h11.Request(method=method, target=target, headers=named)
    except (h11.LocalProtocolError, UnicodeError):
        # What they say quotes the header, and one of them is the token.
        why = "the path or a header has characters that HTTP does not allow; a token on two lines?"
        raise HttpError(why) from None
    return (head, *([h11.Data(data=body)] if body else []), h11.EndOfMessage())


async def _connect(origin: Origin) -> _Connection:
    with _in_time(_CONNECT_SECONDS, "no connection"):
        if origin.unix_socket is not None:
            transport = await trio.open_unix_socket(origin.unix_socket)
            return _Connection(origin, transport, transport)
        transport = await trio.open_tcp_stream(origin.host, origin.port)
    try:
        with _in_time(_CONNECT_SECONDS, "no TLS"):
            for option in _SOCKET_OPTIONS:
                transport.setsockopt(*option)
            if origin.tls is None:
                return _Connection(origin, transport, transport)
            name = origin.server_name or origin.host
            stream = trio.SSLStream(transport, origin.tls, server_hostname=name, https_compatible=True)
            await stream.do_handshake()
            return _Connection(origin, stream, transport)
    except BaseException:
        transport.socket.close()
        raise


@contextmanager
def _in_time(seconds: float, without: str) -> Iterator[None]:
    """Raise HttpError where the block takes longer, or what it talks to fails."""
    try:
        with trio.fail_after(seconds):
            yield
    except trio.TooSlowError as error:
        raise HttpError(f"{without} within {seconds:g} s") from error
    except _BROKEN as error:
        raise HttpError(_because(error)) from error


def _because(error: BaseException) -> str:
    """Return why a connection failed: the deepest cause that says something."""
    prefix = "answered with invalid HTTP: " if isinstance(error, h11.RemoteProtocolError) else ""
    why = type(error).__name__
    cause: BaseException | None = error
    while cause is not None:
        text = " ".join((getattr(cause, "strerror", None) or str(cause)).split())
        why = text or why
        cause = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else cause.__cause__
    return prefix + why
