"""One HTTP request over a Unix socket: h11 on a connection of its own, a deadline on all of it.

Requests are few (two in five minutes) and a Unix socket's connection costs some tens of microseconds. h11
adds 0.2 MiB to the daemon; a client with pools and TLS adds 3.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import h11
import trio

from reactor.errors import PodmanError

LARGEST_ANSWER_BYTES: Final = 8 << 20  # thousands of images, at two kilobytes each
_READ_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What was answered, whatever its status."""

    status: int
    body: bytes


async def request(endpoint: str, method: str, target: str, deadline_seconds: float) -> Answer:
    """Return the answer to a request without a body.

    Raises PodmanError: no socket, no answer, too late, no HTTP, more than 8 MiB.
    """
    try:
        with trio.fail_after(deadline_seconds):
            async with await trio.open_unix_socket(endpoint) as stream:
                return await _exchange(stream, method, target)
    except trio.TooSlowError:
        why = f"no answer within {deadline_seconds:g} s"
    except (OSError, trio.BrokenResourceError) as error:
        why = str(getattr(error, "strerror", None) or error.__cause__ or error)
    except h11.ProtocolError as error:
        why = f"answered what is no HTTP: {error}"
    raise PodmanError(endpoint, f"{method} {target}", why)


async def _exchange(stream: trio.SocketStream, method: str, target: str) -> Answer:
    connection = h11.Connection(h11.CLIENT)
    asked = h11.Request(method=method, target=target, headers=[("Host", "podman"), ("Connection", "close")])
    await stream.send_all(connection.send(asked) + connection.send(h11.EndOfMessage()))
    status, body = 0, bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await stream.receive_some(_READ_BYTES))
        elif isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > LARGEST_ANSWER_BYTES:
                raise h11.RemoteProtocolError(f"more than {LARGEST_ANSWER_BYTES} bytes")
        elif isinstance(event, h11.EndOfMessage):
            return Answer(status=status, body=bytes(body))
        elif not isinstance(event, h11.InformationalResponse):
            raise h11.RemoteProtocolError(f"{event!r:.80} instead of an answer")
