"""What podman is asked: what it has in images, which of them containers are of; and to remove one.

Source: podman's API reference, libpod (docs/source/_static/api.html), as of 4.0, which later ones keep.

Requests are few (two in five minutes) and a Unix socket's connection costs some tens of microseconds, so each
has a connection of its own: podman's unit ends it when nobody is connected.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import quote

import trio

from reactor.errors import PodmanError
from reactor.text import JsonError, loads

DEFAULT_SOCKET: Final = "/run/podman/podman.sock"
"""Where podman's own unit (`podman.socket`) has it."""

_API: Final = "/v4.0.0/libpod"
_ANSWER_SECONDS: Final = 15.0  # its unit usually starts it for each request
_REMOVAL_SECONDS: Final = 60.0
_NOT_FOUND: Final = 404
_LONGEST_WHY: Final = 500
_Found = TypeVar("_Found")

LARGEST_ANSWER_BYTES: Final = 8 << 20  # thousands of images, at two kilobytes each


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


def find_socket(configured: str | None) -> str | None:
    """Return the socket that is to be used: the one configured, else podman's own where there is one."""
    if configured is not None:
        return configured
    try:
        is_socket = stat.S_ISSOCK(os.stat(DEFAULT_SOCKET).st_mode)
    except OSError:
        return None
    return DEFAULT_SOCKET if is_socket else None


class PodmanClient:
    """Calls podman at a socket. Every call raises PodmanError."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    async def info(self) -> PodmanInfo:
        """Return what it says of itself."""
        return await self._get(
            "/info",
            lambda found: PodmanInfo(
                version=_text(found["version"]["Version"]), graph_root=_text(found["store"]["graphRoot"])
            ),
        )

    async def images(self) -> tuple[PodmanImage, ...]:
        """Return the images, without the layers between them and their bases."""

        def parse(one: Any) -> PodmanImage:
            names = tuple(map(_text, one.get("Names") or ()))
            return PodmanImage(id=_text(one["Id"]), names=names, size_bytes=int(one["Size"]))

        return await self._get("/images/json", lambda found: tuple(map(parse, found or ())))

    async def images_in_use(self) -> frozenset[str]:
        """Return the ids of the images that containers are of, running or not."""
        path = "/containers/json?all=true"
        return await self._get(path, lambda found: frozenset(_text(one["ImageID"]) for one in found or ()))

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
        from reactor.http_client import HttpClient, HttpError, Origin  # noqa: PLC0415 - imported where podman is

        call = f"{method} {path}"
        try:
            with trio.fail_after(deadline_seconds):
                async with HttpClient().request(
                    Origin(unix_socket=self.endpoint),
                    method,
                    _API + path,
                    headers=[("Connection", "close")],
                    silence_seconds=deadline_seconds,
                ) as answer:
                    body = await answer.read(LARGEST_ANSWER_BYTES)
        except trio.TooSlowError as error:
            why = f"no answer within {deadline_seconds:g} s"
            raise PodmanError(self.endpoint, call, why) from error
        except HttpError as error:
            raise PodmanError(self.endpoint, call, str(error)) from error
        is_gone = method == "DELETE" and answer.status == _NOT_FOUND
        if answer.status >= 300 and not is_gone:
            why = f"{answer.status}: {_why(body)}"
            raise PodmanError(self.endpoint, call, why, status=answer.status)
        return body


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
