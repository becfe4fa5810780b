"""A gRPC server on a Unix socket that answers as a test tells it to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h2.config
import h2.connection
import h2.events
import trio

HEADERS = [(":status", "200"), ("content-type", "application/grpc")]


class Server:
    """Serves `answer(connection, method)` at `path`; the caller may send what it likes, even nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.answer: Callable[[h2.connection.H2Connection, str], None] = succeed(b"")
        self.methods: list[str] = []
        self.timeouts: list[str] = []
        self.raw: bytes | None = None
        self.closes = False
        self.connections = 0

    async def serve(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        if self.raw is not None:
            await stream.send_all(self.raw)
            if self.closes:
                return
        connection = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, header_encoding="utf-8")
        )
        connection.initiate_connection()
        while received := await stream.receive_some():
            ended = False
            for event in connection.receive_data(received):
                if isinstance(event, h2.events.RequestReceived):
                    headers = {str(name): str(value) for name, value in event.headers}
                    self.methods.append(headers[":path"])
                    self.timeouts.append(headers["grpc-timeout"])
                ended |= isinstance(event, h2.events.StreamEnded)
            if ended:
                self.answer(connection, self.methods[-1])
            await stream.send_all(connection.data_to_send())
            if ended and self.closes:
                return


def succeed(message: bytes, *, split: int = 16_000) -> Callable[[h2.connection.H2Connection, str], None]:
    """Return what answers with a message, in data frames of at most `split` bytes."""

    def answer(connection: h2.connection.H2Connection, _: str) -> None:
        connection.send_headers(1, HEADERS)
        framed = b"\0" + len(message).to_bytes(4, "big") + message
        for start in range(0, len(framed), split):
            connection.send_data(1, framed[start : start + split])
        connection.send_headers(1, [("grpc-status", "0")], end_stream=True)

    return answer


def fail(status: str, message: str = "") -> Callable[[h2.connection.H2Connection, str], None]:
    """Return what answers with an error, by trailers alone."""

    def answer(connection: h2.connection.H2Connection, _: str) -> None:
        trailers = [*HEADERS, ("grpc-status", status), ("grpc-message", message)]
        connection.send_headers(1, trailers, end_stream=True)

    return answer
