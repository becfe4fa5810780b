"""Requests to one API server (or one kubelet): JSON in and out, retried where that helps.

What is refused comes as an ApiError that says what the operator can mend. Nothing here waits longer than it
is asked to; a caller that needs an answer asks again.
"""

from __future__ import annotations

import email.utils
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import trio

import reactor
from reactor.backoff import Backoff
from reactor.http_client import Answer, HttpClient, HttpError, Origin
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
    VersionTooLargeError,
)
from reactor.text import JsonError, loads

_LONGEST_WHY: Final = 1000
_LONGEST_RETRY_AFTER_SECONDS: Final = 60.0
_KINDS: Final[dict[int, type[ApiError]]] = {
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: ExpiredError,
}
_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
# Paths of the kubelet's own server, and the resource that its authorizer asks about. Source:
# pkg/kubelet/server/auth.go; KubeletFineGrainedAuthz, on since 1.33, asks for nodes/pods before nodes/proxy.
_KUBELET: Final = {"/pods": "nodes/pods", "/stats/summary": "nodes/stats"}
BEFORE_NODES_PODS: Final = (1, 33)
NODES_PROXY: Final = (
    "a kubelet before 1.33 asks for nodes/proxy, which also allows to run commands in every pod"
)


def refusal(answer: Answer, body: bytes, method: str, path: str, query: Mapping[str, str]) -> ApiError:
    """Return what the server's refusal comes to; `body` is a v1.Status as a rule."""
    what = f"{method} {path}"
    status = answer.status
    document: Any = None
    with suppress(JsonError, RecursionError):
        document = loads(body)
    message = document.get("message") if isinstance(document, Mapping) else None
    why = f"HTTP status {status}" if message is None else f"{message!s:.{_LONGEST_WHY}}"
    if status == 429 or status >= 500:
        kind = VersionTooLargeError if status == 504 and _is_too_large(document, why) else BusyError
        return kind(what, why, status=status, retry_after_seconds=_retry_after_seconds(answer))
    if status == 403:
        why = f"{why}; missing rule: {rule_for(method, path, query)}"
    if status == 401:
        why = f"{why}; the token or certificate is not, or no longer, good"
    return _KINDS.get(status, InvalidError)(what, why, status=status)


def _is_too_large(status: Any, message: str) -> bool:
    """Return whether a v1.Status says that there is no such version yet; before 1.19 its message alone does.

    Source: client-go's reflector, isTooLargeResourceVersionError.
    """
    details = status.get("details") if isinstance(status, Mapping) else None
    causes = details.get("causes") if isinstance(details, Mapping) else None
    reasons = [
        one.get("reason") for one in (causes if isinstance(causes, list) else ()) if isinstance(one, Mapping)
    ]
    return "ResourceVersionTooLarge" in reasons or "Too large resource version" in message


def _retry_after_seconds(answer: Answer) -> float | None:
    asked = answer.header(b"retry-after") or ""
    if not asked.isascii() or not asked.isdigit() or len(asked) > 9:
        return None
    return min(float(asked), _LONGEST_RETRY_AFTER_SECONDS)


def rule_for(method: str, path: str, query: Mapping[str, str]) -> str:
    """Return the RBAC rule that a request needs, as one line of YAML, with the namespace where it matters.

    Source: apiserver's RequestInfo resolver; for the kubelet pkg/kubelet/server/auth.go.
    """
    if path in _KUBELET:
        rule = _rule("", _KUBELET[path], "get")
        return f"{rule} ({NODES_PROXY})" if path == "/pods" else rule
    parts = [part for part in path.split("/") if part]
    if parts[:1] == ["api"]:
        group, tail = "", parts[2:]
    elif parts[:1] == ["apis"]:
        group, tail = parts[1], parts[3:]
    else:
        return f"{{nonResourceURLs: [{path}], verbs: [{method.lower()}]}}"
    namespace = None
    if tail[:1] == ["namespaces"] and len(tail) > 2:
        namespace, tail = tail[1], tail[2:]
    resource = "/".join((tail[0], *tail[2:])) if tail else ""
    where = "" if namespace is None else f" in namespace {namespace}"
    return _rule(group, resource, _verb(method, query, is_named=len(tail) > 1)) + where


def _verb(method: str, query: Mapping[str, str], *, is_named: bool) -> str:
    if method != "GET":
        return _VERBS.get(method, method.lower())
    if query.get("watch") in {"true", "1"}:
        return "watch"
    return "get" if is_named else "list"


def _rule(group: str, resource: str, verb: str) -> str:
    return f'{{apiGroups: ["{group}"], resources: ["{resource}"], verbs: ["{verb}"]}}'


class Recovery:
    """What the parts that ask one server know of each other."""

    def __init__(self) -> None:
        self._is_lost = False
        self._is_back = trio.Event()

    def lost(self) -> None:
        """Note that the server did not answer, or failed."""
        self._is_lost = True

    def reached(self) -> None:
        """Note that the server has answered."""
        if self._is_lost:
            self._is_lost = False
            back, self._is_back = self._is_back, trio.Event()
            back.set()

    async def pause(self, backoff: Backoff, error: ApiError, *, last_seconds: float | None = None) -> None:
        """Wait for the next pause after this error; for the shortest alone once the server is back.

        What the server asked for (Retry-After) is kept to, and so is the pause after a refusal.
        """
        retry_after_seconds = error.retry_after_seconds if isinstance(error, BusyError) else None
        if retry_after_seconds is not None or not isinstance(error, BusyError | UnreachableError):
            await backoff.pause(retry_after_seconds)
            return
        with trio.move_on_after(backoff.next_seconds(last_seconds=last_seconds)):
            await self._is_back.wait()
            backoff.reset()
            await backoff.pause()


FIELD_MANAGER: Final = "reactor"
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
_ATTEMPTS: Final = 4
_ANSWER_SECONDS: Final = 15.0
_REQUEST_SECONDS: Final = 20.0  # with the connection
_ANSWER_BYTES: Final = 4 << 20  # one object, of at most 1.5 MiB at the server
_REFUSAL_BYTES: Final = 1 << 16
_CLOCKS_APART_SECONDS: Final = 30.0
_WRITES: Final = frozenset({"POST", "PUT", "PATCH"})


class ApiClient:
    """Asks one server. To be used by the tasks of one Trio loop; `close` closes the idle connections."""

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
        self._http = HttpClient()
        self.clock_problem: str | None = None
        self.recovery = Recovery()

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
        async with (
            self._answer("GET", path, query, None, "", silence_seconds) as answer,
            aclosing(answer.pieces()) as pieces,
        ):
            yield pieces

    def close(self) -> None:
        """Close every connection that is not in use."""
        self._http.close()

    async def _once(
        self, method: str, path: str, query: Mapping[str, str], body: Mapping[str, Any] | None, kind: str
    ) -> Any:
        content = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        what = f"{method} {path}"
        with trio.move_on_after(_REQUEST_SECONDS):
            async with self._answer(method, path, query, content, kind, _ANSWER_SECONDS) as answer:
                text = await answer.read(_ANSWER_BYTES)
            try:
                return loads(text) if text.strip() else None
            except JsonError as error:
                raise UnreachableError(what, f"answered JSON that is refused: {error}") from error
        raise UnreachableError(what, f"no answer within {_REQUEST_SECONDS:g} s")

    @asynccontextmanager
    async def _answer(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        content: bytes | None,
        kind: str,
        silence_seconds: float,
    ) -> AsyncIterator[Answer]:
        """Give a successful answer whose body is still to be read. Raises ApiError for any other."""
        what = f"{method} {path}"
        session = await self._sessions.session()
        origin, prefix = _origin(session, what)
        target = f"{prefix}{path}" + (f"?{urlencode(query)}" if query else "")
        try:
            async with self._http.request(
                origin,
                method,
                target,
                headers=_headers(session, None if content is None else kind),
                body=content,
                silence_seconds=silence_seconds,
            ) as answer:
                self._compare_clocks(answer)
                if answer.status < 500:
                    self.recovery.reached()
                else:
                    self.recovery.lost()
                if answer.status == 401:
                    self._sessions.distrust()
                if answer.status >= 300:
                    raise refusal(answer, await _refused(answer), method, path, query)
                yield answer
        except HttpError as error:
            self.recovery.lost()
            raise UnreachableError(what, f"{session.server}: {error}") from error

    def _compare_clocks(self, answer: Answer) -> None:
        """Note where the server's clock and ours are apart: tokens and certificates then fail oddly."""
        date = answer.header(b"date")
        try:
            server_unix_seconds = email.utils.parsedate_to_datetime(date or "").timestamp()
        except (ValueError, TypeError, OverflowError, IndexError):  # the parser knows no others' dates
            return
        ahead_seconds = server_unix_seconds - self._clock_unix_seconds()
        self.clock_problem = (
            None
            if abs(ahead_seconds) < _CLOCKS_APART_SECONDS
            else f"the server's clock is {abs(ahead_seconds):.0f} s "
            f"{'ahead of' if ahead_seconds > 0 else 'behind'} this node's; accepted: clocks kept by NTP"
        )


def _origin(session: Session, what: str) -> tuple[Origin, str]:
    """Return where a session's server is, and what stands before each path."""
    try:
        url = urlsplit(session.server)
        host, port = url.hostname or "", url.port or (80 if session.tls is None else 443)
    except ValueError as error:
        raise UnreachableError(what, f"{session.server!r} is no address: {error}") from error
    return Origin(host=host, port=port, tls=session.tls, server_name=session.server_name), url.path


def _headers(session: Session, kind: str | None) -> list[tuple[str, str]]:
    """Return a request's headers; `kind` is what its body is, None where it has none."""
    headers = [("Accept", "application/json"), ("User-Agent", f"reactor/{reactor.__version__}")]
    if session.token is not None:
        headers.append(("Authorization", f"Bearer {session.token}"))
    if kind is not None:
        headers.append(("Content-Type", kind))
    return headers


async def _refused(answer: Answer) -> bytes:
    """Return the body of a refusal, nothing where that is absurd."""
    try:
        return await answer.read(_REFUSAL_BYTES)
    except HttpError:
        return b""
