"""The HTTP endpoint among clients that send anything, anyhow, as many as they like."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reactor.tell.http import Exposition, serve_metrics
from reactor.tell.metrics import Collector, CollectorRegistry, Metrics
from tests.support.readings import reading_of

pytestmark = pytest.mark.suite("hostile clients")

GET = b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n"


def some_metrics() -> Metrics:
    """Return the metrics of a daemon that has just started."""
    metrics = Metrics()
    metrics.read(reading_of())
    return metrics


@asynccontextmanager
async def serving(
    registry: CollectorRegistry | None = None, is_alive: Callable[[], bool] = lambda: True
) -> AsyncIterator[tuple[int, list[Exception]]]:
    """Serve; give the port, and what the endpoint's owner was told of failures."""
    failures: list[Exception] = []
    registry = some_metrics().registry if registry is None else registry
    async with trio.open_nursery() as nursery:
        serve = partial(serve_metrics, registry, ("127.0.0.1", 0), is_alive, failures.append)
        (listener,) = await nursery.start(serve)
        yield listener.socket.getsockname()[1], failures
        nursery.cancel_scope.cancel()


async def exchange(port: int, *pieces: bytes, pause_seconds: float = 0.0) -> bytes:
    """Send the pieces and return what comes back until the end; a reset is an end, too."""
    answer = b""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        try:
            for piece in pieces:
                await stream.send_all(piece)
                await trio.sleep(pause_seconds)
            await stream.send_eof()
            while more := await stream.receive_some(65536):
                answer += more
        except trio.BrokenResourceError:
            pass
    return answer


def status_of(answer: bytes) -> int:
    found = re.match(rb"HTTP/1\.1 (\d{3}) ", answer)
    assert found, answer[:80]
    return int(found[1])


@pytest.mark.parametrize(
    "accept",
    [
        "text/plain;version=x",
        "application/openmetrics-text;version=",
        "application/openmetrics-text;version=1.0.0.x",
        "text/plain;version=1.0.0;escaping=\xff",
        ";;;,,,===",
        "*/*",
        "",
    ],
)
async def test_any_accept_header_is_answered_with_the_metrics(accept):
    async with serving() as (port, failures):
        request = f"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\n\r\n".encode("latin-1")
        answer = await exchange(port, request)

    assert (200, []) == (status_of(answer), failures)
    assert b"reactor_config_reloads_total" in answer


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        (
            b"application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.3",
            b"application/openmetrics-text",
        ),
        (b"text/plain;version=0.0.4,application/openmetrics-text", b"text/plain; version=0.0.4"),
        (b"text/html", b"text/plain; version=0.0.4"),
    ],
)
async def test_format_is_the_first_that_the_client_accepts(accept, kind):
    async with serving() as (port, _):
        answer = await exchange(port, b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: " + accept + b"\r\n\r\n")

    assert b"Content-Type: " + kind in answer


class Broken(Collector):
    """Metrics that can't be collected."""

    def describe(self):
        return iter(())

    def collect(self):
        raise ZeroDivisionError("no metrics")


async def test_metrics_that_can_not_be_printed_are_a_500_and_health_is_answered():
    registry = CollectorRegistry()
    registry.register(Broken())
    async with serving(registry) as (port, failures):
        answers = [await exchange(port, GET % path) for path in (b"/metrics", b"/metrics", b"/healthz")]

    assert [500, 500, 200] == [status_of(answer) for answer in answers]
    assert ["ZeroDivisionError"] == [type(one).__name__ for one in failures]


async def test_health_that_can_not_be_told_is_a_500():
    def is_alive() -> bool:
        raise ZeroDivisionError("nobody knows")

    async with serving(is_alive=is_alive) as (port, _):
        assert 500 == status_of(await exchange(port, GET % b"/healthz"))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    requests=st.lists(
        st.one_of(
            st.binary(max_size=300),
            st.builds(
                lambda method, path, header: (
                    method + b" " + path + b" HTTP/1.1\r\nHost: x\r\n" + header + b"\r\n\r\n"
                ),
                st.sampled_from([b"GET", b"HEAD", b"POST", b"\x00", b"GET" * 100]),
                st.one_of(st.sampled_from([b"/metrics", b"/healthz", b"*"]), st.binary(max_size=40)),
                st.one_of(
                    st.binary(max_size=80),
                    st.binary(max_size=40).map(lambda value: b"Accept: " + value),
                    st.just(b"Content-Length: 5\r\nTransfer-Encoding: chunked"),
                ),
            ),
            st.binary(min_size=1, max_size=20).map(lambda some: some * 2000),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_any_bytes_are_answered_or_closed_upon_and_the_next_request_is_served(requests):
    async def main() -> None:
        async with serving() as (port, failures):
            for request in requests:
                with trio.fail_after(90):
                    answer = await exchange(port, request)
                assert answer == b"" or status_of(answer) // 100 in {2, 4, 5}
            assert 200 == status_of(await exchange(port, GET % b"/healthz"))
            assert failures == []

    trio.run(main)


async def test_head_in_pieces_is_one_request():
    request = GET % b"/healthz"
    async with serving() as (port, _):
        answer = await exchange(port, *(bytes([one]) for one in request), pause_seconds=0.001)

    assert 200 == status_of(answer)


async def test_head_that_does_not_end_is_refused():
    async with serving() as (port, _):
        answer = await exchange(port, b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 3000)

    assert answer == b"" or status_of(answer) == 431


async def test_silent_client_is_closed_upon_at_the_deadline(autojump_clock):
    async with serving() as (port, _):
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        async with stream:
            await stream.send_all(b"GET /metr")
            began = trio.current_time()
            with suppress(trio.BrokenResourceError):
                assert b"" == await stream.receive_some(1)
            assert trio.current_time() - began < 6


async def test_health_is_answered_while_silent_clients_hold_every_connection(mock_clock):
    mock_clock.rate = 0.2  # on a slow machine, too, all is done before the deadline
    async with serving() as (port, _), trio.open_nursery() as nursery:
        silent = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(40)]
        for stream in silent[::2]:
            await stream.send_all(b"GET /healthz HTTP/1.1\r\n")
        with trio.fail_after(4):  # less than the deadline of the silent ones
            answers = [await exchange(port, GET % b"/healthz") for _ in range(5)]
        for stream in silent:
            nursery.start_soon(stream.aclose)

    assert [200] * 5 == [status_of(answer) for answer in answers]


async def test_client_that_does_not_read_its_answer_makes_way(mock_clock):
    mock_clock.rate = 0.2
    async with serving() as (port, _):
        deaf = []
        for _ in range(20):
            raw = trio.socket.socket()
            raw.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, 1)
            await raw.connect(("127.0.0.1", port))
            await raw.send(GET % b"/metrics")
            deaf.append(raw)
        with trio.fail_after(4):
            assert 200 == status_of(await exchange(port, GET % b"/healthz"))
        for raw in deaf:
            raw.close()


async def test_metrics_are_printed_once_a_second_for_each_format(autojump_clock):
    failures: list[Exception] = []
    exposition = Exposition(some_metrics().registry, failures.append)
    for _ in range(100):
        for accept in ("text/plain", "application/openmetrics-text;version=2", "text/plain;version=7.1", "x"):
            assert (await exposition.page(accept)).body
        await trio.sleep(0.05)

    assert exposition.printed <= 2 * 6
    assert failures == []


@pytest.mark.parametrize(
    ("target", "status", "has_all"),
    [
        (b"/metrics", 200, False),
        (b"/metrics?series=all", 200, True),
        (b"/metrics?collect%5B%5D=x&series=all", 200, True),
        (b"/metrics?series=", 200, False),
        (b"/metrics?series=some", 400, False),
        (b"/metrics?series=all&series=all", 400, False),
        (b"/metrics?" + b"&".join([b"a=1"] * 100), 400, False),
    ],
)
async def test_all_series_are_shown_to_those_who_ask_for_them(
    target: bytes, status: int, *, has_all: bool
) -> None:
    metrics = some_metrics()
    async with trio.open_nursery() as nursery:
        serve = partial(serve_metrics, metrics.short, ("127.0.0.1", 0), every=metrics.registry)
        (listener,) = await nursery.start(serve)
        answer = await exchange(listener.socket.getsockname()[1], GET % target)
        nursery.cancel_scope.cancel()
    assert status == status_of(answer)
    assert has_all is (b'reactor_evictions_total{outcome="failed",signal="pid.available"} 0.0' in answer)
