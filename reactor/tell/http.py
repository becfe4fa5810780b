"""The HTTP endpoint of the steward's: /metrics, /healthz for what restarts a daemon that hangs, a page at /.

The first two ask the guard, which answers when its loop comes round to it: health is what guards says of
itself. Metrics come in short, or all of them (`?series=all`). They are asked for and printed once a second at
the most, in each of the two formats and extents, and all who ask meanwhile get the same. What connections
cost is bound by `connections`, what is a request is h11's to say.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qs

import h11
import trio

from reactor.tell.connections import Connections, Peer, Turns
from reactor.tell.metrics import CollectorRegistry, choose_encoder

_LOG: Final = logging.getLogger("reactor.metrics")
_HEAD_BYTES: Final = 8192
_RETRY_SECONDS: Final = 30.0
_CONNECTIONS: Final = 16
_BACKLOG: Final = 128
_GOOD_FOR_SECONDS: Final = 1.0
_PLAIN: Final = "text/plain; charset=utf-8"
_HTML: Final = "text/html; charset=utf-8"
_OPEN_METRICS: Final = "application/openmetrics-text"
_TEXT: Final = "text/plain"
_ALL: Final = "all"
_MOST_FIELDS: Final = 16
_EXTENTS: Final = b"accepted: series=all, or nothing for the short form\n"

OnFailure = Callable[[Exception], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """What is answered, but for the headers that every answer has."""

    status: HTTPStatus
    body: bytes
    kind: str = _PLAIN


# Given what the client accepts, and its query.
Page = Callable[[str, str], Awaitable[Response]]
IsAlive = Callable[[], bool | Awaitable[bool]]
Refresh = Callable[[], Awaitable[None]]


def _log_failure(error: Exception) -> None:
    _LOG.error("answering a request failed", exc_info=error)


async def serve_metrics(  # noqa: PLR0913 - what is served
    registry: CollectorRegistry,
    address: tuple[str, int],
    is_alive: IsAlive = lambda: True,
    on_failure: OnFailure = _log_failure,
    *,
    every: CollectorRegistry | None = None,
    refresh: Refresh = trio.lowlevel.checkpoint,
    live: Callable[[], bytes] | None = None,
    on_address: Callable[[str | None], None] = lambda _: None,
    task_status: trio.TaskStatus[tuple[trio.SocketListener, ...]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; the task's status is the listeners, none where there can't be any.

    Who asks for `?series=all` gets those of `every` in place of `registry`'s.
    `live` makes the page of the last hour, at `/`. `/healthz` answers 200 while `is_alive` says so, else 503.
    `refresh` brings what the registry collects up to date. A page that fails is answered by 500, and
    `on_failure` is called with the reason.

    An address that is taken is reported, to `on_address` too, and tried again every half a minute: a
    predecessor may still be ending, and nothing else depends on this.
    """
    listeners = await _listen(address, on_address, task_status)
    pages: dict[str, Page] = {
        "/metrics": Exposition(registry, on_failure, refresh, every=every).page,
        "/healthz": lambda *_: _health(is_alive),
    }
    if live is not None:
        pages["/"] = partial(_live, live)

    turns = {path: Turns() for path in pages}  # so that no health is waited for behind scrapes

    async def attend(peer: Peer) -> None:
        await _answer(pages, turns, peer, on_failure)

    try:
        connections = Connections(attend, _CONNECTIONS, on_failure)
        await connections.serve(*(listener.socket for listener in listeners))
    finally:
        for listener in listeners:
            listener.socket.close()


async def _listen(
    address: tuple[str, int],
    on_address: Callable[[str | None], None],
    task_status: trio.TaskStatus[tuple[trio.SocketListener, ...]],
) -> list[trio.SocketListener]:
    host, port = address
    reported = False
    while True:
        try:
            listeners = await trio.open_tcp_listeners(port, host=host, backlog=_BACKLOG)
        except OSError as error:
            if not reported:
                why = "the port is taken" if error.errno == errno.EADDRINUSE else str(error)
                _LOG.error("no metrics at %s:%d: %s; trying again", host, port, why)
                on_address(f"none at {host}:{port}: {why}; trying again")
                reported = True
                task_status.started(())
            await trio.sleep(_RETRY_SECONDS)
            continue
        if reported:
            _LOG.info("metrics at %s:%d", host, port)
            on_address(None)
        else:
            task_status.started(tuple(listeners))
        return listeners


class Exposition:
    """The metrics as printed text, each format and extent printed once a second at most.

    `printed` counts how often they were printed.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        on_failure: OnFailure,
        refresh: Refresh = trio.lowlevel.checkpoint,
        *,
        every: CollectorRegistry | None = None,
    ) -> None:
        self._registries = {False: registry, True: registry if every is None else every}
        self._on_failure = on_failure
        self._refresh = refresh
        self._printing = trio.Lock()
        self._kept: dict[tuple[str, bool], tuple[float, Response]] = {}
        self.printed = 0

    async def page(self, accept: str, query: str = "") -> Response:
        """Return the metrics in the format that is accepted first; text where none of ours is."""
        wants_all = _wants_all(query)
        if wants_all is None:
            return Response(status=HTTPStatus.BAD_REQUEST, body=_EXTENTS)
        wanted = _format(accept), wants_all
        async with self._printing:
            now = trio.current_time()
            kept = self._kept.get(wanted)
            if kept is not None and now - kept[0] < _GOOD_FOR_SECONDS:
                return kept[1]
            response = await self._print(wanted)
            self._kept[wanted] = (now, response)
            return response

    async def _print(self, wanted: tuple[str, bool]) -> Response:
        self.printed += 1
        try:
            await self._refresh()
            encode, kind = choose_encoder(wanted[0])
            return Response(status=HTTPStatus.OK, kind=kind, body=encode(self._registries[wanted[1]]))
        except Exception as error:  # noqa: BLE001 - what can't be printed ends neither scrapes nor the daemon
            self._on_failure(error)
            return _failed()


def _wants_all(query: str) -> bool | None:
    """Return whether all series are asked for, None where the query can't be understood."""
    try:
        asked = parse_qs(query, max_num_fields=_MOST_FIELDS).get("series", [])
    except ValueError:
        return None
    return bool(asked) if asked in ([], [_ALL]) else None


def _format(accept: str) -> str:
    """Return the first of our formats that a client accepts.

    Not left to prometheus_client: it raises for versions that are no numbers, and echoes those that are.
    """
    for accepted in accept.split(","):
        kind = accepted.partition(";")[0].strip().lower()
        if kind in {_OPEN_METRICS, _TEXT}:
            return kind
    return _TEXT


async def _answer(
    pages: Mapping[str, Page], turns: Mapping[str, Turns], peer: Peer, on_failure: OnFailure
) -> None:
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD_BYTES)
    is_head = False
    try:
        request = await _request(connection, peer)
        peer.answering()
    except h11.RemoteProtocolError as error:
        status = HTTPStatus(error.error_status_hint)
        response = Response(status=status, body=b"this is no request\n")
    else:
        if request is None:
            return
        is_head = request.method == b"HEAD"
        if _path(request) in turns:
            await turns[_path(request)].wait()
        response = await _respond(pages, request, on_failure)
    await peer.send(_encoded(connection, response, is_head=is_head))


async def _request(connection: h11.Connection, peer: Peer) -> h11.Request | None:
    """Return a request's head; None where the client closes before it is whole.

    Raises h11.RemoteProtocolError for what is none.
    """
    while True:
        event = connection.next_event()
        if isinstance(event, h11.Request):
            return event
        if event is not h11.NEED_DATA:
            return None
        connection.receive_data(await peer.receive())


def _path(request: h11.Request) -> str:
    return request.target.partition(b"?")[0].decode("latin-1")


async def _respond(pages: Mapping[str, Page], request: h11.Request, on_failure: OnFailure) -> Response:
    path = _path(request)
    if request.method not in {b"GET", b"HEAD"}:
        return Response(status=HTTPStatus.METHOD_NOT_ALLOWED, body=b"only GET\n")
    if path not in pages:
        return Response(status=HTTPStatus.NOT_FOUND, body=f"only {' and '.join(pages)}\n".encode())
    accept = ",".join(value.decode("latin-1") for name, value in request.headers if name == b"accept")
    try:
        return await pages[path](accept, request.target.partition(b"?")[2].decode("latin-1"))
    except Exception as error:  # noqa: BLE001 - a page that fails is the client's 500 and nothing more
        on_failure(error)
        return _failed()


def _encoded(connection: h11.Connection, response: Response, *, is_head: bool) -> bytes:
    head = h11.Response(
        status_code=response.status,
        reason=response.status.phrase,
        headers=[
            ("Content-Type", response.kind),
            ("Content-Length", str(len(response.body))),
            ("Connection", "close"),
        ],
    )
    return connection.send(head) + (b"" if is_head else response.body)


def _failed() -> Response:
    return Response(status=HTTPStatus.INTERNAL_SERVER_ERROR, body=b"internal error; see the log\n")


async def _live(live: Callable[[], bytes], *_: str) -> Response:
    await trio.lowlevel.checkpoint()
    return Response(status=HTTPStatus.OK, kind=_HTML, body=live())


async def _health(is_alive: IsAlive) -> Response:
    answer = is_alive()
    if answer if isinstance(answer, bool) else await answer:
        return Response(status=HTTPStatus.OK, body=b"ok\n")
    return Response(status=HTTPStatus.SERVICE_UNAVAILABLE, body=b"no pass for a while\n")
