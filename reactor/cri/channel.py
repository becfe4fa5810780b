"""One gRPC call over a Unix socket: HTTP/2 by h2, a connection for each call, a deadline on all of it.

Calls are few (some in ten seconds) and a Unix socket's connection costs some tens of microseconds. With one
for each there is nothing to keep alive, nothing to resume after the runtime was restarted, no task that
reads for others; and a call that is cancelled is cancelled at the runtime too, by the end of its connection.

grpcio would have been the other choice: it adds 9 MiB to the daemon where h2 adds 0.8, and brings threads
of its own into a process that locks its memory and runs in real time.
Source: gRPC over HTTP2 (grpc/grpc, doc/PROTOCOL-HTTP2.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
import trio

from reactor.errors import RuntimeServiceError, RuntimeUnavailableError

LARGEST_MESSAGE_BYTES: Final = 16 << 20  # the kubelet's own limit
_WINDOW_BYTES: Final = 1 << 20
_READ_BYTES: Final = 16 << 10  # what is taken apart in one go: some milliseconds, whatever frames it has
_MOST_EVENTS: Final = 200  # that bring no data: a server has some ten to send
_LONGEST_CODE: Final = 4
_LONGEST_WHY: Final = 500
_PREFIX_BYTES: Final = 5  # one byte for compression, four for the length
# A server's first frame has to be its settings; else h2 would wait for the rest of a frame of megabytes.
_FRAME_TYPE: Final = slice(3, 4)
_SETTINGS: Final = b"\x04"

# Source: grpc/grpc, doc/statuscodes.md
_CODES: Final = (
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
)


async def call(endpoint: Path, method: str, request: bytes, deadline_seconds: float) -> bytes:
    """Return the answer to a unary call of `/package.Service/Method`.

    Raises RuntimeUnavailableError where no answer comes in time or to its end, RuntimeServiceError where the
    runtime answers with an error. Both name the endpoint and the method.
    """
    try:
        with trio.fail_after(deadline_seconds):
            async with await trio.open_unix_socket(endpoint) as stream:
                return await _Exchange(endpoint, method).run(stream, request, deadline_seconds)
    except trio.TooSlowError:
        raise RuntimeUnavailableError(endpoint, method, f"no answer within {deadline_seconds:g} s") from None
    except (OSError, trio.BrokenResourceError) as error:
        cause = error.__cause__ if isinstance(error, trio.BrokenResourceError) else error
        why = getattr(cause, "strerror", None) or str(cause or error)
        raise RuntimeUnavailableError(endpoint, method, why) from error
    except (h2.exceptions.H2Error, UnicodeError) as error:
        why = f"what it sent is no HTTP/2: {error}"[:_LONGEST_WHY]
        raise RuntimeUnavailableError(endpoint, method, why) from error


@dataclass(slots=True)
class _Exchange:
    """What has been received of one call's answer."""

    endpoint: Path
    method: str
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    begun: bool = False
    ended: bool = False
    events: int = 0

    async def run(self, stream: trio.SocketStream, request: bytes, deadline_seconds: float) -> bytes:
        connection = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        )
        connection.local_settings.initial_window_size = _WINDOW_BYTES
        connection.initiate_connection()
        connection.increment_flow_control_window(_WINDOW_BYTES)
        connection.send_headers(1, _request_headers(self.method, deadline_seconds))
        # A request names an id or two: far from the peer's window and frame size.
        connection.send_data(1, b"\0" + len(request).to_bytes(4, "big") + request, end_stream=True)
        await stream.send_all(connection.data_to_send())
        while not self.ended:
            received = await stream.receive_some(_READ_BYTES)
            while received and not self.begun and len(received) < _FRAME_TYPE.stop:
                more = await stream.receive_some(_READ_BYTES)
                received = more and received + more
            if not received:
                raise self._unavailable("it closed the connection before its answer was complete")
            if not self.begun and received[_FRAME_TYPE] != _SETTINGS:
                raise self._unavailable(f"what it sent is no HTTP/2: {received[:32]!r}")
            self.begun = True
            for event in connection.receive_data(received):
                self._take(connection, event)
            if self.events > _MOST_EVENTS:
                raise self._unavailable(f"more than {_MOST_EVENTS} of its frames bring no data")
            if not self.ended:
                await stream.send_all(connection.data_to_send())
        return self._answer()

    def _take(self, connection: h2.connection.H2Connection, event: h2.events.Event) -> None:
        if not isinstance(event, h2.events.DataReceived) or not event.data:
            self.events += 1
        if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
            self.headers |= {_as_text(name): _as_text(value) for name, value in event.headers}
        elif isinstance(event, h2.events.DataReceived):
            self.body += event.data
            if len(self.body) > LARGEST_MESSAGE_BYTES:
                raise self._unavailable(f"its answer has more than {LARGEST_MESSAGE_BYTES} bytes")
            connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            self.ended = True
        elif isinstance(event, h2.events.StreamReset | h2.events.ConnectionTerminated):
            raise self._unavailable(f"it gave the call up (HTTP/2 error {event.error_code})")

    def _answer(self) -> bytes:
        code = self.headers.get("grpc-status")
        if code is None or not code.isdecimal() or len(code) > _LONGEST_CODE:
            got = self.headers.get(":status")
            raise self._unavailable(
                f"no gRPC service: HTTP status {str(got)[:20]}, grpc-status {str(code)[:20]}"
            )
        if int(code) != 0:
            name = _CODES[int(code)] if int(code) < len(_CODES) else f"code {code}"
            why = unquote(self.headers.get("grpc-message", "")[:_LONGEST_WHY])
            raise RuntimeServiceError(self.endpoint, self.method, name, why)
        if len(self.body) < _PREFIX_BYTES:
            raise self._unavailable("its answer has no message")
        is_compressed, size = self.body[0], int.from_bytes(self.body[1:_PREFIX_BYTES], "big")
        if is_compressed or size != len(self.body) - _PREFIX_BYTES:
            raise self._unavailable("its answer is not one uncompressed message")
        return bytes(self.body[_PREFIX_BYTES:])

    def _unavailable(self, why: str) -> RuntimeUnavailableError:
        return RuntimeUnavailableError(self.endpoint, self.method, why)


def _request_headers(method: str, deadline_seconds: float) -> list[tuple[str, str]]:
    return [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", method),
        (":authority", "localhost"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", "reactor"),
        # So that the runtime gives up with us: at most eight digits.
        ("grpc-timeout", f"{min(99_999_999, math.ceil(deadline_seconds * 1000))}m"),
    ]


def _as_text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "replace")
