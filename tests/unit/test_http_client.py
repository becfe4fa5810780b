from __future__ import annotations

import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from reactor.http_client import HttpClient, HttpError, Origin

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
Serve = Callable[[trio.abc.Stream, int], Awaitable[None]]


class Server:
    """Treats each connection by a function of the stream and the connection's number, counted from 0."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.connections = 0


@asynccontextmanager
async def serving(treat: Serve, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    async def connected(stream: trio.abc.Stream) -> None:
        number, server.connections = server.connections, server.connections + 1
        try:
            await treat(stream, number)
        except (trio.BrokenResourceError, ssl.SSLError):
            return

    async with trio.open_nursery() as nursery:
        server = Server(Origin())
        if tls is None:
            [listener] = await nursery.start(partial(trio.serve_tcp, connected, 0, host="127.0.0.1"))
        else:
            [secured] = await nursery.start(
                partial(trio.serve_ssl_over_tcp, connected, 0, tls, host="127.0.0.1")
            )
            listener = secured.transport_listener
        server.origin = Origin(host="127.0.0.1", port=listener.socket.getsockname()[1])
        yield server
        nursery.cancel_scope.cancel()


def sending(*answers: bytes, stays: bool = True) -> Serve:
    """Answer the requests of each connection, in this order; then stay silent, or close."""

    async def treat(stream: trio.abc.Stream, _: int) -> None:
        for answer in answers:
            if not await stream.receive_some(65536):
                return
            await stream.send_all(answer)
        if stays:
            await trio.sleep_forever()

    return treat


@pytest.fixture
async def client() -> AsyncIterator[HttpClient]:
    made = HttpClient()
    yield made
    made.close()


async def asked(
    client: HttpClient, origin: Origin, method: str = "GET", *, largest_bytes: int = 1000
) -> bytes:
    async with client.request(origin, method, "/", silence_seconds=5) as answer:
        return await answer.read(largest_bytes)


async def test_requests_share_a_connection_once_an_answer_has_been_read(client: HttpClient) -> None:
    async with serving(sending(OK, CHUNKED + b"1\r\na\r\n0\r\n\r\n", OK)) as server:
        assert [b"{}", b"a", b"{}"] == [await asked(client, server.origin) for _ in range(3)]
        assert 1 == server.connections


async def test_a_connection_whose_answer_was_not_read_to_its_end_does_not_serve_again(
    client: HttpClient,
) -> None:
    async with serving(sending(OK, OK)) as server:
        async with client.request(server.origin, "GET", "/", silence_seconds=5):
            pass
        await asked(client, server.origin)
        assert 2 == server.connections


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged",
        OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"),
        OK.replace(b"1.1", b"1.0"),
    ],
    ids=["more than was asked for", "Connection: close", "HTTP/1.0"],
)
async def test_a_connection_that_the_answer_ends_does_not_serve_again(
    client: HttpClient, answer: bytes
) -> None:
    async with serving(sending(answer, OK)) as server:
        assert [b"{}", b"{}"] == [await asked(client, server.origin) for _ in range(2)]
        assert 2 == server.connections


async def test_another_name_of_the_server_gets_a_connection_of_its_own_and_the_kept_one_is_closed(
    client: HttpClient,
) -> None:
    ended = trio.Event()

    async def treat(stream: trio.abc.Stream, number: int) -> None:
        await stream.receive_some(65536)
        await stream.send_all(OK)
        assert not await stream.receive_some(65536)
        if number == 0:
            ended.set()

    async with serving(treat) as server:
        await asked(client, server.origin)
        here = server.origin
        await asked(client, Origin(host=here.host, port=here.port, server_name="other"))
        with trio.fail_after(90):
            await ended.wait()
        assert 2 == server.connections


async def test_a_connection_that_was_idle_for_long_does_not_serve_again(
    client: HttpClient, autojump_clock: trio.testing.MockClock
) -> None:
    async with serving(sending(OK, OK)) as server:
        await asked(client, server.origin)
        await trio.sleep(74)
        await asked(client, server.origin)
        assert 1 == server.connections
        await trio.sleep(76)
        await asked(client, server.origin)
        assert 2 == server.connections


async def test_a_kept_connection_that_the_server_has_closed_does_not_serve_again(client: HttpClient) -> None:
    async with serving(sending(OK, stays=False)) as server:
        for _ in range(3):
            assert b"{}" == await asked(client, server.origin, "POST")
            await trio.testing.wait_all_tasks_blocked()


def closing_at_the_second_request() -> tuple[Serve, list[bytes]]:
    """Answer the first request of a connection and close it at the second; note the second."""
    dropped: list[bytes] = []

    async def treat(stream: trio.abc.Stream, _: int) -> None:
        await stream.receive_some(65536)
        await stream.send_all(OK)
        dropped.append(bytes(await stream.receive_some(65536)))

    return treat, dropped


async def test_a_read_that_a_kept_connection_drops_is_made_once_more_on_a_new_one(client: HttpClient) -> None:
    treat, dropped = closing_at_the_second_request()
    async with serving(treat) as server:
        await asked(client, server.origin)
        assert b"{}" == await asked(client, server.origin)
        assert (2, 1) == (server.connections, len(dropped))


async def test_a_write_that_a_kept_connection_drops_is_not_made_again(client: HttpClient) -> None:
    treat, dropped = closing_at_the_second_request()
    async with serving(treat) as server:
        await asked(client, server.origin)
        with pytest.raises(HttpError, match="closed without an answer"):
            await asked(client, server.origin, "PATCH")
        assert (1, 1) == (server.connections, len(dropped))


async def test_a_read_that_a_new_connection_drops_is_not_made_again(client: HttpClient) -> None:
    async with serving(sending(b"", stays=False)) as server:
        with pytest.raises(HttpError, match="closed without an answer"):
            await asked(client, server.origin)
        assert 1 == server.connections


async def test_a_read_whose_answer_has_begun_is_not_made_again(client: HttpClient) -> None:
    async with serving(sending(OK, b"HTTP/1.1 200", stays=False)) as server:
        await asked(client, server.origin)
        with pytest.raises(HttpError, match="closed"):
            await asked(client, server.origin)
        assert 1 == server.connections


async def test_a_refusal_comes_through_though_the_server_has_not_read_the_request(client: HttpClient) -> None:
    refused = b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

    async def treat(stream: trio.abc.Stream, _: int) -> None:
        await stream.send_all(refused)
        assert isinstance(stream, trio.SocketStream)
        await stream.send_eof()
        while await stream.receive_some(65536):
            pass

    async with (
        serving(treat) as server,
        client.request(server.origin, "POST", "/", body=b"x" * (4 << 20), silence_seconds=5) as answer,
    ):
        assert 413 == answer.status


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"220 mail\r\n\r\n", "invalid HTTP"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000, "invalid HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 50_000, "invalid HTTP"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 9 + OK, "instead of an answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n[", "invalid HTTP"),
        (CHUNKED + b"ffffffffffffffffffff\r\n", "invalid HTTP"),
        (CHUNKED + b"1;" + b"x" * 200_000, "invalid HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", "invalid HTTP"),
        (CHUNKED + b"400\r\n" + b"x" * 1024 + b"\r\n", "answered more than 1000 bytes"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1024, "answered more than 1000 bytes"),
    ],
)
async def test_what_is_no_answer_is_reported_and_its_connection_closed(
    client: HttpClient, answer: bytes, told: str
) -> None:
    async with serving(sending(answer, stays=False)) as server:
        with pytest.raises(HttpError, match=told):
            await asked(client, server.origin)
        assert [] == client._idle


async def test_interim_answers_are_passed_over(client: HttpClient) -> None:
    async with serving(sending(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 3 + OK)) as server:
        assert b"{}" == await asked(client, server.origin)


async def test_a_head_that_drips_is_given_up_and_a_body_that_drips_is_not(
    client: HttpClient, autojump_clock: trio.testing.MockClock
) -> None:
    def dripping(drip: bytes) -> Serve:
        async def treat(stream: trio.abc.Stream, _: int) -> None:
            await stream.receive_some(65536)
            for byte in drip:
                await stream.send_all(bytes([byte]))
                await trio.sleep(1)

        return treat

    async with serving(dripping(OK)) as server:
        with pytest.raises(HttpError, match="no answer within 5 s"):
            await asked(client, server.origin)

    async def in_pieces(stream: trio.abc.Stream, _: int) -> None:
        await stream.receive_some(65536)
        await stream.send_all(CHUNKED)
        for _ in range(10):
            await trio.sleep(4)
            await stream.send_all(b"1\r\nx\r\n")
        await trio.sleep(6)

    async with (
        serving(in_pieces) as server,
        client.request(server.origin, "GET", "/", silence_seconds=5) as answer,
    ):
        pieces = answer.pieces()
        assert b"x" * 10 == b"".join([await anext(pieces) for _ in range(10)])
        with pytest.raises(HttpError, match="nothing more within 5 s"):
            await anext(pieces)


async def test_a_cancelled_request_closes_its_connection(
    client: HttpClient, autojump_clock: trio.testing.MockClock
) -> None:
    ended = trio.Event()

    async def treat(stream: trio.abc.Stream, _: int) -> None:
        while await stream.receive_some(65536):
            pass
        ended.set()

    async with serving(treat) as server:
        with trio.move_on_after(1):
            await asked(client, server.origin)
        await ended.wait()
        assert [] == client._idle


async def test_at_most_eight_connections_are_open_at_a_time(client: HttpClient) -> None:
    answers = trio.Event()

    async def treat(stream: trio.abc.Stream, _: int) -> None:
        await answers.wait()
        while await stream.receive_some(65536):
            await stream.send_all(OK)

    async with serving(treat) as server, trio.open_nursery() as nursery:
        for _ in range(30):
            nursery.start_soon(asked, client, server.origin)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert 8 == server.connections
        answers.set()
    assert 8 == server.connections


async def test_a_unix_socket_is_an_origin(client: HttpClient, tmp_path: Path) -> None:
    heads: list[bytes] = []

    async def treat(stream: trio.SocketStream) -> None:
        heads.append(bytes(await stream.receive_some(65536)))
        await stream.send_all(OK)

    listener = trio.socket.socket(trio.socket.AF_UNIX)
    await listener.bind(str(tmp_path / "s"))
    listener.listen()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, treat, [trio.SocketListener(listener)])
        assert b"{}" == await asked(client, Origin(unix_socket=str(tmp_path / "s")))
        nursery.cancel_scope.cancel()
    listener.close()
    assert heads[0].startswith(b"GET / HTTP/1.1\r\nHost: localhost:80\r\n")


def certificate(directory: Path, name: str) -> tuple[Path, Path]:
    """Make a certificate for a name that is no address; return it and its key."""
    kind = "-x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:prime256v1"
    made = f"-keyout {name}.key -out {name}.crt -days 2 -subj /CN={name} -addext subjectAltName=DNS:{name}"
    subprocess.run(
        ["openssl", "req", *kind.split(), *made.split()],
        cwd=directory,
        check=True,
        capture_output=True,
    )
    return directory / f"{name}.crt", directory / f"{name}.key"


async def test_tls_checks_the_name_that_the_certificate_has_to_bear_and_keeps_the_connection(
    client: HttpClient, tmp_path: Path
) -> None:
    shown, key = certificate(tmp_path, "api.example")
    of_server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    of_server.load_cert_chain(shown, key)
    tls = ssl.create_default_context(cafile=str(shown))
    async with serving(sending(OK, OK), tls=of_server) as server:
        port = server.origin.port
        named = Origin(host="127.0.0.1", port=port, tls=tls, server_name="api.example")
        assert [b"{}", b"{}"] == [await asked(client, named) for _ in range(2)]
        assert 1 == server.connections
        with pytest.raises(HttpError, match="certificate verify failed"):
            await asked(client, Origin(host="127.0.0.1", port=port, tls=tls))


async def test_a_server_that_stalls_in_the_handshake_is_given_up(
    client: HttpClient, autojump_clock: trio.testing.MockClock
) -> None:
    async def treat(stream: trio.abc.Stream, _: int) -> None:
        await trio.sleep_forever()

    async with serving(treat) as server:
        tls = ssl.create_default_context()
        with pytest.raises(HttpError, match="no TLS within 5 s"):
            await asked(client, Origin(host="127.0.0.1", port=server.origin.port, tls=tls))


@given(
    raw=st.binary(max_size=80)
    | st.builds(
        lambda head, rest: head + rest, st.sampled_from([OK[:17], OK, CHUNKED]), st.binary(max_size=60)
    )
)
@settings(max_examples=80, deadline=None)
def test_no_bytes_raise_anything_but_an_http_error(raw: bytes) -> None:
    async def ask() -> None:
        async with serving(sending(raw, stays=False)) as server:
            client = HttpClient()
            for _ in range(2):
                try:
                    await asked(client, server.origin)
                except HttpError:
                    continue
            client.close()

    trio.run(ask)
