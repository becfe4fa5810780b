"""Events to real web servers on loopback: well-behaved ones, and those that do what they like."""

from __future__ import annotations

import json
import os
import re
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import trio
import trio.testing

from reactor.model.settings import NotificationSettings, WebhookSettings
from reactor.tell.channels import NotSentError, Outbox, Webhook
from reactor.tell.events import Event, Events
from tests.support.waiting import until

Treat = Callable[[trio.abc.Stream], Awaitable[None]]
OK = b"HTTP/1.1 204 No Content\r\n\r\n"


def answer(status: int, *headers: str) -> bytes:
    head = "".join(f"{line}\r\n" for line in (f"HTTP/1.1 {status} x", *headers, "Content-Length: 0"))
    return head.encode() + b"\r\n"


_MADE: list[Webhook] = []


class Server:
    """Keeps the requests that it gets, each as its head and its document."""

    def __init__(self) -> None:
        self.port = 0
        self.connections = 0
        self.requests: list[tuple[str, dict]] = []

    async def request(self, stream: trio.abc.Stream) -> None:
        """Read a request. Raises EOFError where there is no other."""
        received = b""
        while b"\r\n\r\n" not in received:
            more = await stream.receive_some(65536)
            if not more:
                raise EOFError
            received += more
        head, _, body = received.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        while len(body) < length:
            body += await stream.receive_some(65536)
        self.requests.append((head.decode(), json.loads(body)))

    def answering(self, *answers: bytes) -> Treat:
        """Answer requests with these, and all after them as the last."""
        left = list(answers)

        async def treat(stream: trio.abc.Stream) -> None:
            while True:
                await self.request(stream)
                await stream.send_all(left.pop(0) if len(left) > 1 else left[0])

        return treat


@asynccontextmanager
async def serving(
    treat: Treat | None = None, *, server: Server | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Server]:
    made = server or Server()

    async def connected(stream: trio.abc.Stream) -> None:
        made.connections += 1
        try:
            await (treat or made.answering(OK))(stream)
        except (trio.BrokenResourceError, ssl.SSLError, EOFError):
            return

    async with trio.open_nursery() as nursery:
        if tls is None:
            [listener] = await nursery.start(partial(trio.serve_tcp, connected, 0, host="127.0.0.1"))
        else:
            [secured] = await nursery.start(
                partial(trio.serve_ssl_over_tcp, connected, 0, tls, host="127.0.0.1")
            )
            listener = secured.transport_listener
        made.port = listener.socket.getsockname()[1]
        yield made
        while _MADE:  # the connections that they have kept
            _MADE.pop().close()
        nursery.cancel_scope.cancel()


def event(message: str = "m") -> Event:
    [made] = Events("a").take({"kind": "oom-kill", "message": message, "scope": "node"})
    return made


def webhook(
    url: str | None, *, timeout_seconds: float = 5.0, give_up_seconds: float = 60.0, **more
) -> Webhook:
    settings = NotificationSettings(webhook=WebhookSettings(url=url, **more), timeout_seconds=timeout_seconds)
    made = Webhook(lambda: settings, first_pause_seconds=0.01, give_up_seconds=give_up_seconds)
    _MADE.append(made)
    return made


async def test_an_event_is_posted_as_json_and_its_connection_serves_the_next() -> None:
    async with serving() as server:
        channel = webhook(f"http://127.0.0.1:{server.port}/hooks/reactor?a=b")
        sent = [event("one"), event("m" * 900)]
        for one in sent:
            await channel.send(one)

    (head, _), _ = server.requests
    assert [one.document for one in sent] == [document for _, document in server.requests]
    assert head.startswith("POST /hooks/reactor?a=b HTTP/1.1")
    assert "content-type: application/json" in head.lower()
    assert "authorization" not in head.lower()
    assert 1 == server.connections


@pytest.mark.parametrize("status", [500, 503, 429, 408])
async def test_an_event_that_the_server_does_not_take_now_is_sent_again(status: int) -> None:
    server = Server()
    async with serving(server.answering(answer(status), answer(status, "Retry-After: 0"), OK), server=server):
        channel = webhook(f"http://127.0.0.1:{server.port}")
        await channel.send(event("once"))

    assert ["a: once"] * 3 == [document["text"] for _, document in server.requests]
    assert channel.problem is None


@pytest.mark.parametrize("status", [301, 400, 401, 404])
async def test_an_event_that_the_server_refuses_is_not_sent_again(status: int) -> None:
    server = Server()
    async with serving(server.answering(answer(status, "Location: http://127.0.0.1:1/")), server=server):
        with pytest.raises(NotSentError, match=rf"http://127\.0\.0\.1:{server.port} answered {status}"):
            await webhook(f"http://127.0.0.1:{server.port}/secret").send(event())

    assert 1 == len(server.requests)


async def test_a_pause_that_the_server_wants_is_kept_to_within_reason(autojump_clock) -> None:
    server = Server()
    slow = (
        answer(503, "Retry-After: 30"),
        answer(503, "Retry-After: 999999999"),
        answer(503, "Retry-After: -1"),
    )
    at: list[float] = []
    treat = server.answering(*slow, OK)

    async def timed(stream: trio.abc.Stream) -> None:
        await treat(stream)

    async with serving(timed, server=server):
        channel = webhook(f"http://127.0.0.1:{server.port}", give_up_seconds=600)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(channel.send, event())
            for number in range(1, 5):
                await until(lambda: len(server.requests) == number, "it", seconds=900, pause_seconds=0.05)  # noqa: B023
                at.append(trio.current_time())

    pauses = [round(after - before) for before, after in pairwise(at)]
    assert [30, 300, 0] == pauses


async def test_an_event_that_is_never_taken_is_given_up_and_the_next_is_sent() -> None:
    server = Server()

    async def treat(stream: trio.abc.Stream) -> None:
        while True:
            await server.request(stream)
            poison = "poison" in server.requests[-1][1]["text"]
            await stream.send_all(answer(500) if poison else OK)

    async with serving(treat, server=server), trio.open_nursery() as nursery:
        outbox = Outbox(webhook(f"http://127.0.0.1:{server.port}", give_up_seconds=0.5))
        nursery.start_soon(outbox.run)
        outbox.put(event("poison"))
        await until(lambda: outbox.failed == 1, "it is given up")
        assert "given up after 0.5 s: http://127.0.0.1" in str(outbox.problem)
        outbox.put(event("good"))
        await until(lambda: outbox.sent == 1, "the next")
        assert outbox.problem is None
        nursery.cancel_scope.cancel()


async def silent(stream: trio.abc.Stream) -> None:
    del stream
    await trio.sleep_forever()


async def dripping(stream: trio.abc.Stream) -> None:
    await stream.receive_some(65536)
    while True:
        await stream.send_all(b"H")
        await trio.sleep(0.05)


async def endless_head(stream: trio.abc.Stream) -> None:
    await stream.receive_some(65536)
    await stream.send_all(b"HTTP/1.1 200 OK\r\n")
    while True:
        await stream.send_all(b"X-Filler: " + b"x" * 1000 + b"\r\n")


async def garbage(stream: trio.abc.Stream) -> None:
    await stream.receive_some(65536)
    await stream.send_all(bytes(range(256)) * 100)
    await stream.aclose()


async def hanging_up(stream: trio.abc.Stream) -> None:
    await stream.aclose()


@pytest.mark.parametrize("treat", [silent, dripping, endless_head, garbage, hanging_up])
async def test_a_server_that_never_answers_is_tried_again_and_is_the_problem_meanwhile(
    treat: Treat,
) -> None:
    async with serving(treat) as server, trio.open_nursery() as nursery:
        outbox = Outbox(
            webhook(f"http://127.0.0.1:{server.port}/secret", timeout_seconds=0.2, give_up_seconds=600.0)
        )
        nursery.start_soon(outbox.run)
        outbox.put(event())
        await until(lambda: "trying again" in str(outbox.problem), "the problem")
        assert f"http://127.0.0.1:{server.port}" in str(outbox.problem)
        assert "secret" not in str(outbox.problem)
        await until(lambda: server.connections >= 2, "the next attempt")
        assert (0, 0) == (outbox.sent, outbox.failed)
        nursery.cancel_scope.cancel()


async def test_a_server_that_never_answers_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    async with serving(silent) as server:
        with pytest.raises(NotSentError, match=r"given up after 60 s: http://127\.0\.0\.1"):
            await webhook(f"http://127.0.0.1:{server.port}").send(event())
    assert server.connections >= 2


async def test_a_server_whose_answer_never_ends_has_taken_the_event() -> None:
    server = Server()

    async def treat(stream: trio.abc.Stream) -> None:
        await server.request(stream)
        await stream.send_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            await stream.send_all(b"10000\r\n" + b"x" * 65536 + b"\r\n")

    async with serving(treat, server=server):
        channel = webhook(f"http://127.0.0.1:{server.port}")
        await channel.send(event())
        await channel.send(event())
    assert 2 == len(server.requests)


async def test_thousands_of_events_wait_in_a_bounded_queue_while_the_server_is_silent() -> None:
    async with serving(silent) as server, trio.open_nursery() as nursery:
        outbox = Outbox(webhook(f"http://127.0.0.1:{server.port}"))
        nursery.start_soon(outbox.run)
        for number in range(5000):
            outbox.put(event(str(number)))
        assert 5000 == outbox.waiting + outbox.dropped
        assert outbox.waiting <= 257
        nursery.cancel_scope.cancel()


async def test_secrets_come_from_files_which_are_read_again_for_each_attempt(tmp_path: Path) -> None:
    url, token = tmp_path / "url", tmp_path / "token"
    server = Server()
    async with serving(server.answering(answer(503), OK), server=server), trio.open_nursery() as nursery:
        channel = webhook(None, url_path=str(url), token_path=str(token))
        nursery.start_soon(channel.send, event())
        await until(
            lambda: f"{url}: No such file or directory; trying again" == channel.problem, "the problem"
        )
        token.write_text("first\n")
        url.write_text(f"http://127.0.0.1:{server.port}/T0/B0/xyz\n")
        await until(lambda: server.requests, "the first attempt")
        token.write_text("second\n")

    first, second = (head for head, _ in server.requests)
    assert first.startswith("POST /T0/B0/xyz ")
    assert "Authorization: Bearer first" in first
    assert "Authorization: Bearer second" in second


@pytest.mark.parametrize("content", ["", "a\nb", "x" * 5000, "\x1b[2J", "ftp://x", "https://u:p@x/"])
async def test_a_file_that_holds_no_address_is_named_without_its_content(
    tmp_path: Path, content: str
) -> None:
    path = tmp_path / "url"
    path.write_text(content)
    with pytest.raises(NotSentError, match=rf"{re.escape(str(path))}: accepted: ") as told:
        await webhook(None, url_path=str(path), give_up_seconds=0).send(event())
    assert not content or content not in str(told.value)


async def test_a_fifo_in_a_secrets_place_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "url"
    os.mkfifo(path)
    with pytest.raises(NotSentError, match="not a regular file"):
        await webhook(None, url_path=str(path), give_up_seconds=0).send(event())


async def test_a_token_never_goes_over_the_network_in_the_clear(tmp_path: Path) -> None:
    url, token = tmp_path / "url", tmp_path / "token"
    url.write_text("http://192.0.2.1/x")
    token.write_text("t")
    with pytest.raises(NotSentError, match="by https or to this machine only"):
        await webhook(None, url_path=str(url), token_path=str(token)).send(event())


def certificate(directory: Path, names: str) -> tuple[Path, Path]:
    """Make a certificate for names, as subjectAltName has them; return it and its key."""
    kind = "-x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -days 2 -subj /CN=x"
    made = f"-keyout key -out crt -addext subjectAltName={names}"
    subprocess.run(
        ["openssl", "req", *kind.split(), *made.split()], cwd=directory, check=True, capture_output=True
    )
    return directory / "crt", directory / "key"


@pytest.mark.parametrize(
    ("names", "authority", "why"),
    [
        ("IP:127.0.0.1", "crt", None),
        ("IP:127.0.0.1", None, "certificate verify failed"),
        ("DNS:other.example", "crt", "certificate verify failed"),
    ],
    ids=["its own", "of an unknown authority", "of another name"],
)
async def test_the_servers_certificate_is_checked(
    tmp_path: Path, names: str, authority: str | None, why: str | None
) -> None:
    shown, key = certificate(tmp_path, names)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(shown, key)
    async with serving(tls=tls) as server:
        known = None if authority is None else str(tmp_path / authority)
        channel = webhook(f"https://127.0.0.1:{server.port}/", ca_path=known, give_up_seconds=0)
        if why is None:
            await channel.send(event())
        else:
            with pytest.raises(NotSentError, match=why):
                await channel.send(event())
    assert len(server.requests) == (why is None)
