"""What podman is asked: what it has in images, which of them containers are of; and to remove one.

Source: podman's API reference, libpod (docs/source/_static/api.html), as of 4.0, which later ones keep.

Requests are few (two in five minutes) and a Unix socket's connection costs some tens of microseconds, so each
has a connection of its own. h11 adds 0.2 MiB to the steward; a client with pools and TLS adds 3.4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import quote

import h11
import trio

from reactor.bounded_json import JsonError, loads
from reactor.errors import PodmanError

_API: Final = "/v4.0.0/libpod"
_ANSWER_SECONDS: Final = 15.0  # its unit usually starts it for each request
_REMOVAL_SECONDS: Final = 60.0
_NOT_FOUND: Final = 404
_LONGEST_WHY: Final = 500
_Found = TypeVar("_Found")

LARGEST_ANSWER_BYTES: Final = 8 << 20  # thousands of images, at two kilobytes each
_READ_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PodmanImage:
    """An image, with every name by which it goes (none: what a build left over)."""

    id: str
    names: tuple[str, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PodmanInfo:
    """Which podman answers, and the directory below which its images lie."""

    version: str
    graph_root: str


class PodmanClient:
    """Calls podman at a socket. Every call raises PodmanError."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    async def info(self) -> PodmanInfo:
        """Return what it says of itself."""

        def parse(found: Any) -> PodmanInfo:
            return PodmanInfo(
                version=_text(found["version"]["Version"]), graph_root=_text(found["store"]["graphRoot"])
            )

        return await self._get("/info", parse)

    async def images(self) -> tuple[PodmanImage, ...]:
        """Return the images, without the layers between them and their bases."""

        def parse(found: Any) -> tuple[PodmanImage, ...]:
            return tuple(
                PodmanImage(
                    id=_text(one["Id"]),
                    names=tuple(map(_text, one.get("Names") or ())),
                    size_bytes=int(one["Size"]),
                )
                for one in found or ()
            )

        return await self._get("/images/json", parse)

    async def images_in_use(self) -> frozenset[str]:
        """Return the ids of the images that containers are of, running or not."""

        def parse(found: Any) -> frozenset[str]:
            return frozenset(_text(one["ImageID"]) for one in found or ())

        return await self._get("/containers/json?all=true", parse)

    async def remove(self, name: str) -> None:
        """Take a name away, and with the last one the image; by its id where it has none.

        Never by force, which would remove the containers that are of it as well: podman refuses while there
        are any. What is gone already is no error.
        """
        await self._ask("DELETE", f"/images/{quote(name, safe='')}", _REMOVAL_SECONDS)

    async def _get(self, path: str, parse: Callable[[Any], _Found]) -> _Found:
        body = await self._ask("GET", path, _ANSWER_SECONDS)
        try:
            return parse(loads(body))
        except (JsonError, ValueError, OverflowError, KeyError, TypeError, AttributeError) as error:
            got = f"answered {body[:60]!r} ({type(error).__name__}: {error!s:.200})"
            raise PodmanError(
                self.endpoint, f"GET {path}", f"{got}; accepted: the JSON of podman 4.0 or later"
            ) from error

    async def _ask(self, method: str, path: str, deadline_seconds: float) -> bytes:
        answer = await request(self.endpoint, method, _API + path, deadline_seconds)
        is_gone = method == "DELETE" and answer.status == _NOT_FOUND
        if answer.status >= 300 and not is_gone:
            why = f"{answer.status}: {_why(answer.body)}"
            raise PodmanError(self.endpoint, f"{method} {path}", why, status=answer.status)
        return answer.body


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _why(body: bytes) -> str:
    """Return why podman refused, in its own words."""
    try:
        found = loads(body)
    except JsonError:
        found = None
    message = found.get("message") if isinstance(found, Mapping) else None
    return message[:_LONGEST_WHY] if isinstance(message, str) else repr(body[:80])


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
        why = f"answered with invalid HTTP: {error}"
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
