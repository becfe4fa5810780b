"""The HTTP endpoint, inside Trio: /metrics, and /healthz for whoever restarts a daemon that hangs.

Why not prometheus_client's own server: it answers in threads, and a thread at normal priority that is
preempted while it holds the interpreter's lock holds up a loop that runs under SCHED_FIFO. A scrape here
costs the loop the time that it takes to print the metrics, about two milliseconds, and never more.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import trio

from reactor.daemon.prometheus import CollectorRegistry, choose_encoder

_LOG: Final = logging.getLogger("reactor.metrics")
_REQUEST_BYTES: Final = 8192
_REQUEST_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 30.0
_CONNECTIONS: Final = 16
_PLAIN: Final = "text/plain; charset=utf-8"

# Given the request's headers: status, content type, body.
Page = Callable[[Mapping[str, str]], tuple[str, str, bytes]]


async def serve_metrics(
    registry: CollectorRegistry,
    address: tuple[str, int],
    is_alive: Callable[[], bool] = lambda: True,
    *,
    task_status: trio.TaskStatus[tuple[trio.SocketListener, ...]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; the task's status is the listeners, none where there can't be any.

    `/healthz` answers 200 while `is_alive` says so, else 503.

    An address that is taken is reported and tried again every half a minute: a predecessor may still be
    ending, and nothing else depends on this.
    """
    host, port = address
    reported = False
    while True:
        try:
            listeners = await trio.open_tcp_listeners(port, host=host)
        except OSError as error:
            if not reported:
                why = "the port is taken" if error.errno == errno.EADDRINUSE else str(error)
                _LOG.error("no metrics at %s:%d: %s; trying again", host, port, why)
                reported = True
                task_status.started(())
            await trio.sleep(_RETRY_SECONDS)
            continue
        if reported:
            _LOG.info("metrics at %s:%d", host, port)
        else:
            task_status.started(tuple(listeners))
        pages = {
            "/metrics": partial(_metrics, registry),
            "/healthz": partial(_health, is_alive),
        }
        await trio.serve_listeners(partial(_answer, pages, trio.CapacityLimiter(_CONNECTIONS)), listeners)


async def _answer(
    pages: Mapping[str, Page], limiter: trio.CapacityLimiter, stream: trio.SocketStream
) -> None:
    """Answer one request and close; a client that is slow, gone or talks nonsense costs only its own."""
    try:
        with trio.move_on_after(_REQUEST_SECONDS):
            async with limiter, stream:
                request = await _head(stream)
                if request is not None:
                    await stream.send_all(_response(pages, *request))
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass


async def _head(stream: trio.SocketStream) -> tuple[str, str, Mapping[str, str]] | None:
    """Return method, path and headers of a request; None for something that is none."""
    received = b""
    while b"\r\n\r\n" not in received:
        more = await stream.receive_some(_REQUEST_BYTES)
        received += more
        if not more or len(received) > _REQUEST_BYTES:
            return None
    lines = received.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3:
        return None
    headers = dict(line.partition(":")[::2] for line in lines[1:])
    return (
        words[0],
        words[1].partition("?")[0],
        {name.lower(): text.strip() for name, text in headers.items()},
    )


def _response(pages: Mapping[str, Page], method: str, path: str, headers: Mapping[str, str]) -> bytes:
    kind = _PLAIN
    if method not in {"GET", "HEAD"}:
        status, body = "405 Method Not Allowed", b"only GET\n"
    elif path not in pages:
        status, body = "404 Not Found", f"only {' and '.join(pages)}\n".encode()
    else:
        status, kind, body = pages[path](headers)
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    ).encode("latin-1")
    return head if method == "HEAD" else head + body


def _metrics(registry: CollectorRegistry, headers: Mapping[str, str]) -> tuple[str, str, bytes]:
    encode, kind = choose_encoder(headers.get("accept", ""))
    return "200 OK", kind, encode(registry)


def _health(is_alive: Callable[[], bool], _: Mapping[str, str]) -> tuple[str, str, bytes]:
    if is_alive():
        return "200 OK", _PLAIN, b"ok\n"
    return "503 Service Unavailable", _PLAIN, b"no pass for a while\n"
