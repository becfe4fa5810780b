"""Requests to one API server (or one kubelet): JSON in and out, retried where that helps.

What is refused comes as an ApiError that says what the operator can mend. Nothing here waits longer than it
is told to; whoever needs an answer asks again.
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
from reactor.kube.backoff import Backoff
from reactor.kube.credentials import Session, Sessions
from reactor.kube.errors import (
    ApiError,
    BusyError,
    ConflictError,
    ExpiredError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    UnauthorizedError,
    UnreachableError,
)
from reactor.kube.rules import rule_for

FIELD_MANAGER: Final = "reactor"
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
_ATTEMPTS: Final = 4
_CONNECTIONS: Final = 8
_IDLE_SECONDS: Final = 75.0  # below what load balancers cut; a handshake takes milliseconds of the loop
_CONNECT_SECONDS: Final = 5.0
_ANSWER_SECONDS: Final = 15.0
_LONGEST_RETRY_AFTER_SECONDS: Final = 60.0
_ANSWER_BYTES: Final = 16 << 20
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
_KINDS: Final[dict[int, type[ApiError]]] = {
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: ExpiredError,
}


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
                except _BROKEN as error:
                    raise UnreachableError(what, _because(error)) from error

            async with aclosing(pieces()) as given:
                yield given

    async def aclose(self) -> None:
        """Close every connection that nobody uses."""
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
                return json.loads(text) if text.strip() else None
            except (ValueError, RecursionError) as error:
                raise UnreachableError(what, f"answered {text[:80]!r}; accepted: JSON") from error
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
        headers: dict[bytes | str, bytes | str] = {
            "Accept": "application/json",
            "User-Agent": f"reactor/{reactor.__version__}",
        }
        if session.token is not None:
            headers["Authorization"] = f"Bearer {session.token}"
        if content is not None:
            headers["Content-Type"] = kind
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
        url = f"{session.server}{path}" + (f"?{urlencode(query)}" if query else "")
        pool = await self._pool_for(session)
        try:
            async with pool.stream(
                method, url, headers=headers, content=content, extensions=extensions
            ) as answer:
                self._compare_clocks(answer)
                if answer.status == 401:
                    self._sessions.distrust()
                if answer.status >= 300:
                    raise await _refusal(answer, method, path, query)
                yield answer
        except _BROKEN as error:
            raise UnreachableError(what, f"{session.server}: {_because(error)}") from error

    async def _pool_for(self, session: Session) -> httpcore2.AsyncConnectionPool:
        """Return the pool of a session; one for another TLS context is closed once nobody uses it."""
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
        told = _header(answer, b"date")
        try:
            server = email.utils.parsedate_to_datetime(told or "")
        except ValueError:
            return
        ahead_seconds = server.timestamp() - self._clock_unix_seconds()
        self.clock_problem = (
            None
            if abs(ahead_seconds) < _CLOCKS_APART_SECONDS
            else f"the server's clock is {abs(ahead_seconds):.0f} s "
            f"{'ahead of' if ahead_seconds > 0 else 'behind'} this node's; accepted: clocks kept by NTP"
        )


_BROKEN: Final = (
    httpcore2.NetworkError,
    httpcore2.ProtocolError,
    httpcore2.TimeoutException,
    httpcore2.UnsupportedProtocol,
    OSError,
)


async def _read(answer: httpcore2.Response, limit: int, what: str) -> bytes:
    read = bytearray()
    async with aclosing(answer.aiter_stream()) as arriving:
        async for piece in arriving:
            read += piece
            if len(read) > limit:
                raise UnreachableError(what, f"answered more than {limit} bytes")
    return bytes(read)


async def _refusal(answer: httpcore2.Response, method: str, path: str, query: Mapping[str, str]) -> ApiError:
    """Return what the server's refusal comes to."""
    what = f"{method} {path}"
    status = answer.status
    try:
        told = json.loads(await _read(answer, _REFUSAL_BYTES, what))
        why = str(told["message"])
    except (ValueError, KeyError, TypeError, RecursionError, UnreachableError):
        why = f"HTTP status {status}"
    if status == 429 or status >= 500:
        return BusyError(what, why, status=status, retry_after_seconds=_retry_after_seconds(answer))
    if status == 403:
        why = f"{why}; missing rule: {rule_for(method, path, query)}"
    if status == 401:
        why = f"{why}; the token or certificate is not, or no longer, good"
    return _KINDS.get(status, InvalidError)(what, why, status=status)


def _retry_after_seconds(answer: httpcore2.Response) -> float | None:
    told = _header(answer, b"retry-after") or ""
    if not told.isascii() or not told.isdigit() or len(told) > 9:
        return None
    return min(float(told), _LONGEST_RETRY_AFTER_SECONDS)


def _header(answer: httpcore2.Response, name: bytes) -> str | None:
    return next((value.decode("latin-1") for key, value in answer.headers if key.lower() == name), None)


def _because(error: BaseException) -> str:
    """Return why a connection failed: the deepest cause that says something."""
    told = type(error).__name__
    cause: BaseException | None = error
    while cause is not None:
        text = " ".join((getattr(cause, "strerror", None) or str(cause)).split())
        told = text or told
        cause = _cause(cause)
    return told


def _cause(error: BaseException) -> BaseException | None:
    if isinstance(error, BaseExceptionGroup):
        return error.exceptions[0]
    if error.__cause__ is None and error.args and isinstance(error.args[0], BaseException):
        return error.args[0]  # the library raises its own kinds anew, each around the first
    return error.__cause__
