"""Requests to one API server (or one kubelet): JSON in and out, retried where that helps.

What is refused comes as an ApiError that says what the operator can mend. Nothing here waits longer than it
is told to; a caller that needs an answer asks again.
"""

from __future__ import annotations

import email.utils
import json
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final
from urllib.parse import urlencode

import httpcore2
import trio

import reactor
from reactor.backoff import Backoff
from reactor.bounded_json import JsonError, loads
from reactor.kube.answers import BROKEN, because, header, refusal
from reactor.kube.credentials import Session, Sessions
from reactor.kube.errors import BusyError, UnauthorizedError, UnreachableError

FIELD_MANAGER: Final = "reactor"
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
_ATTEMPTS: Final = 4
_CONNECTIONS: Final = 8
_IDLE_SECONDS: Final = 75.0  # below what load balancers cut; a handshake takes milliseconds of the loop
_CONNECT_SECONDS: Final = 5.0
_ANSWER_SECONDS: Final = 15.0
_ANSWER_BYTES: Final = 4 << 20  # one object, of at most 1.5 MiB at the server
_REFUSAL_BYTES: Final = 1 << 16
_CLOCKS_APART_SECONDS: Final = 30.0
_WRITES: Final = frozenset({"POST", "PUT", "PATCH"})
# A server that went away without a word (a pulled cable) is noticed within a minute, as client-go does.
_SOCKET_OPTIONS: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 60_000),
)


class ApiClient:
    """Asks one server. To be used by the tasks of one Trio loop; `aclose` closes what stands idle."""

    def __init__(
        self,
        sessions: Sessions,
        *,
        clock_unix_seconds: Callable[[], float] = time.time,
        backoff: Callable[[], Backoff] = Backoff,
    ) -> None:
        self._sessions = sessions
        self._clock_unix_seconds = clock_unix_seconds
        self._backoff = backoff
        self._pool: httpcore2.AsyncConnectionPool | None = None
        self._pool_of: Session | None = None
        self._retired: list[httpcore2.AsyncConnectionPool] = []
        self.clock_problem: str | None = None

    async def get(self, path: str, **query: str) -> Any:
        """Return an object, or a list. Raises ApiError."""
        return await self.request("GET", path, query=query)

    async def create(self, path: str, document: Mapping[str, Any]) -> Any:
        """Create an object in a collection; ConflictError where its name is taken."""
        return await self.request("POST", path, body=document)

    async def patch(self, path: str, document: Mapping[str, Any], kind: str = STRATEGIC_PATCH) -> Any:
        """Change an object; ConflictError where the patch names a uid or version that it has no more."""
        return await self.request("PATCH", path, body=document, kind=kind)

    async def delete(self, path: str, uid: str, *, grace_period_seconds: int | None = None) -> None:
        """Delete the object if it still has this uid; ConflictError where it has another."""
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        if grace_period_seconds is not None:
            options["gracePeriodSeconds"] = grace_period_seconds
        await self.request("DELETE", path, body=options)

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        kind: str = "application/json",
    ) -> Any:
        """Return the answer's JSON, None where it is empty. Raises ApiError after a few attempts.

        A write whose answer was lost may have been done: writes are therefore such as can be repeated (a
        fixed name, a patch to one state), and ConflictError of a repeated creation means that it is there.
        """
        asked = dict(query or {})
        if method in _WRITES:
            asked["fieldManager"] = FIELD_MANAGER
        backoff = self._backoff()
        renewed = False
        for attempts_left in range(_ATTEMPTS - 1, -1, -1):
            try:
                return await self._once(method, path, asked, body, kind)
            except UnauthorizedError:
                if renewed:
                    raise
                renewed = True
            except UnreachableError:
                if not attempts_left:
                    raise
                await backoff.pause()
            except BusyError as error:
                if not attempts_left:
                    raise
                await backoff.pause(error.retry_after_seconds)
        raise UnauthorizedError(f"{method} {path}", "refused again and again", status=401)

    @asynccontextmanager
    async def stream(
        self, path: str, query: Mapping[str, str], *, silence_seconds: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Give the answer to a GET as it arrives, in pieces. Raises ApiError, on the way as well.

        `silence_seconds` is for how long nothing may come. One attempt only.
        """
        what = f"GET {path}"
        async with self._answer("GET", path, query, None, "", silence_seconds) as answer:

            async def pieces() -> AsyncGenerator[bytes]:
                try:
                    async with aclosing(answer.aiter_stream()) as arriving:
                        async for piece in arriving:
                            yield piece
                except BROKEN as error:
                    raise UnreachableError(what, because(error)) from error

            async with aclosing(pieces()) as given:
                yield given

    async def aclose(self) -> None:
        """Close every connection that is not in use."""
        for pool in (self._pool, *self._retired):
            if pool is not None:
                await pool.aclose()
        self._pool, self._retired = None, []

    async def _once(
        self, method: str, path: str, query: Mapping[str, str], body: Mapping[str, Any] | None, kind: str
    ) -> Any:
        content = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        what = f"{method} {path}"
        with trio.move_on_after(_CONNECT_SECONDS + _ANSWER_SECONDS):
            async with self._answer(method, path, query, content, kind, _ANSWER_SECONDS) as answer:
                text = await _read(answer, _ANSWER_BYTES, what)
            try:
                return loads(text) if text.strip() else None
            except JsonError as error:
                raise UnreachableError(what, f"answered JSON that is refused: {error}") from error
        raise UnreachableError(what, f"no answer within {_CONNECT_SECONDS + _ANSWER_SECONDS:g} s")

    @asynccontextmanager
    async def _answer(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        content: bytes | None,
        kind: str,
        silence_seconds: float,
    ) -> AsyncIterator[httpcore2.Response]:
        """Give a successful answer whose body is still to be read. Raises ApiError for any other."""
        what = f"{method} {path}"
        session = await self._sessions.session()
        url = f"{session.server}{path}" + (f"?{urlencode(query)}" if query else "")
        headers = _headers(session, None if content is None else kind)
        extensions = _extensions(session, silence_seconds)
        pool = await self._pool_for(session)
        try:
            async with pool.stream(
                method, url, headers=headers, content=content, extensions=extensions
            ) as answer:
                self._compare_clocks(answer)
                if answer.status == 401:
                    self._sessions.distrust()
                if answer.status >= 300:
                    raise refusal(answer, await _refused(answer, what), method, path, query)
                yield answer
        except BROKEN as error:
            raise UnreachableError(what, f"{session.server}: {because(error)}") from error

    async def _pool_for(self, session: Session) -> httpcore2.AsyncConnectionPool:
        """Return the pool of a session; one for another TLS context is closed once it is not in use."""
        before = self._pool_of
        if self._pool is not None and before is not None and session.tls is before.tls:
            return self._pool
        if self._pool is not None:
            self._retired.append(self._pool)
        self._pool_of = session
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=session.tls,
            max_connections=_CONNECTIONS,
            keepalive_expiry=_IDLE_SECONDS,
            socket_options=_SOCKET_OPTIONS,
        )
        for retired in [one for one in self._retired if all(each.is_idle() for each in one.connections)]:
            self._retired.remove(retired)
            await retired.aclose()
        return self._pool

    def _compare_clocks(self, answer: httpcore2.Response) -> None:
        """Note where the server's clock and ours are apart: tokens and certificates then fail oddly."""
        told = header(answer, b"date")
        try:
            server_unix_seconds = email.utils.parsedate_to_datetime(told or "").timestamp()
        except (ValueError, TypeError, OverflowError, IndexError):  # the parser knows no others' dates
            return
        ahead_seconds = server_unix_seconds - self._clock_unix_seconds()
        self.clock_problem = (
            None
            if abs(ahead_seconds) < _CLOCKS_APART_SECONDS
            else f"the server's clock is {abs(ahead_seconds):.0f} s "
            f"{'ahead of' if ahead_seconds > 0 else 'behind'} this node's; accepted: clocks kept by NTP"
        )


def _headers(session: Session, kind: str | None) -> dict[bytes | str, bytes | str]:
    """Return a request's headers; `kind` is what its body is, None where it has none."""
    headers: dict[bytes | str, bytes | str] = {
        "Accept": "application/json",
        "User-Agent": f"reactor/{reactor.__version__}",
    }
    if session.token is not None:
        headers["Authorization"] = f"Bearer {session.token}"
    if kind is not None:
        headers["Content-Type"] = kind
    return headers


def _extensions(session: Session, silence_seconds: float) -> dict[str, Any]:
    """Return what the library has no arguments for: times, and the name that the certificate has to bear."""
    extensions: dict[str, Any] = {
        "timeout": {
            "connect": _CONNECT_SECONDS,
            "read": silence_seconds,
            "write": _ANSWER_SECONDS,
            "pool": _ANSWER_SECONDS,
        }
    }
    if session.server_name is not None:
        extensions["sni_hostname"] = session.server_name
    return extensions


async def _read(answer: httpcore2.Response, limit: int, what: str) -> bytes:
    read = bytearray()
    async with aclosing(answer.aiter_stream()) as arriving:
        async for piece in arriving:
            read += piece
            if len(read) > limit:
                raise UnreachableError(what, f"answered more than {limit} bytes")
    return bytes(read)


async def _refused(answer: httpcore2.Response, what: str) -> bytes:
    """Return the body of a refusal, nothing where that is absurd."""
    try:
        return await _read(answer, _REFUSAL_BYTES, what)
    except UnreachableError:
        return b""
