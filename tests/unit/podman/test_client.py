from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reactor.errors import PodmanError
from reactor.podman import client as podman_client
from reactor.podman.client import PodmanClient, PodmanImage

IMAGE = {"Id": "a1", "Names": ["registry.example/web:1"], "Size": 5, "More": "of it"}


@asynccontextmanager
async def answering(path: Path, raw: bytes, *, closes: bool = True) -> AsyncIterator[list[bytes]]:
    """Answer every request at a socket with these bytes; give what was asked."""
    asked: list[bytes] = []

    async def serve(stream: trio.SocketStream) -> None:
        asked.append(await stream.receive_some())
        try:
            await stream.send_all(raw)
            if not closes:
                await trio.sleep_forever()
        except trio.BrokenResourceError:
            return  # who asked has heard enough

    async with trio.open_nursery() as nursery:
        listener = trio.socket.socket(trio.socket.AF_UNIX)
        await listener.bind(str(path))
        listener.listen()
        nursery.start_soon(trio.serve_listeners, serve, [trio.SocketListener(listener)])
        yield asked
        nursery.cancel_scope.cancel()


def answer(body: Any, status: str = "200 OK") -> bytes:
    content = json.dumps(body).encode()
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content


def raw_answer(content: bytes) -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "podman.sock"


@pytest.fixture
def client(path: Path) -> PodmanClient:
    return PodmanClient(str(path))


async def test_images_are_read_with_all_their_names_and_those_without_any(
    path: Path, client: PodmanClient
) -> None:
    async with answering(path, answer([IMAGE, {"Id": "b2", "Names": None, "Size": 7}])) as asked:
        web = PodmanImage(id="a1", names=("registry.example/web:1",), size_bytes=5)
        assert (web, PodmanImage(id="b2", names=(), size_bytes=7)) == await client.images()
    assert asked[0].startswith(b"GET /v4.0.0/libpod/images/json HTTP/1.1\r\n")


async def test_an_answer_in_pieces_is_put_together(path: Path, client: PodmanClient) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    pieces = head + b'2\r\n[{\r\n10\r\n"ImageID": "a1"}\r\n1\r\n]\r\n0\r\n\r\n'
    async with answering(path, pieces):
        assert frozenset({"a1"}) == await client.images_in_use()


async def test_a_refusal_has_podmans_own_words(path: Path, client: PodmanClient) -> None:
    refused = answer({"message": "image is in use by a container"}, "409 Conflict")
    async with answering(path, refused) as asked:
        with pytest.raises(PodmanError, match="409: image is in use by a container") as caught:
            await client.remove("registry.example/web:1")
    assert caught.value.status == 409
    assert str(path) in str(caught.value)
    assert asked[0].startswith(b"DELETE /v4.0.0/libpod/images/registry.example%2Fweb%3A1 HTTP/1.1\r\n")


async def test_an_image_that_is_gone_already_is_no_error(path: Path, client: PodmanClient) -> None:
    async with answering(path, answer({"message": "image not known"}, "404 Not Found")):
        await client.remove("a1")
        with pytest.raises(PodmanError, match="404: image not known"):
            await client.images()


async def test_a_missing_socket_is_named(path: Path, client: PodmanClient) -> None:
    with pytest.raises(PodmanError, match=rf"podman at {path}: GET .*/info: No such file"):
        await client.info()


async def test_a_socket_without_a_listener_is_named(path: Path, client: PodmanClient) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with pytest.raises(PodmanError, match="Connection refused"):
        await client.info()


async def test_a_podman_that_does_not_answer_is_given_up_at_the_deadline(
    path: Path, client: PodmanClient, autojump_clock: trio.testing.MockClock
) -> None:
    async with answering(path, b"", closes=False):
        with pytest.raises(PodmanError, match="no answer within 15 s"):
            await client.info()


async def test_an_answer_that_is_too_long_is_refused(
    path: Path, client: PodmanClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(podman_client, "LARGEST_ANSWER_BYTES", 100)
    async with answering(path, answer(["x" * 100])):
        with pytest.raises(PodmanError, match="more than 100 bytes"):
            await client.images()


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b"", "invalid HTTP"),
        (b"220 mail\r\n\r\n", "invalid HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n[", "invalid HTTP"),
        (answer({"Id": 5}), "accepted: the JSON of podman 4.0"),
        (answer([{"Id": 5, "Size": 1}]), "accepted: the JSON of podman 4.0"),
        (answer("x"), "accepted: the JSON of podman 4.0"),
        (raw_answer(b"[" * 100_000), "accepted: the JSON of podman 4.0"),
        (raw_answer(b"[" + b"[]," * 1_000_000 + b"[]]"), "at most 250000"),
        (raw_answer(b'[{"Id": "a", "Id": "b", "Size": 1}]'), "a key twice"),
        (raw_answer(b'[{"Id": "a", "Size": 1e999}]'), "accepted: the JSON of podman 4.0"),
        (raw_answer(b'[{"Id": "a", "Size": ' + b"9" * 5000 + b"}]"), "accepted: the JSON of podman 4.0"),
        (raw_answer(b'[{"Id": "\xff", "Size": 1}]'), "accepted: the JSON of podman 4.0"),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\nmore", "invalid HTTP"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000, "invalid HTTP"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000, "invalid HTTP"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffffff\r\n", "invalid HTTP"),
    ],
)
async def test_what_is_no_answer_is_reported_with_what_would_have_been_one(
    path: Path, client: PodmanClient, raw: bytes, told: str
) -> None:
    async with answering(path, raw):
        with pytest.raises(PodmanError, match=told):
            await client.images()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["Id", "Names", "Size", "ImageID", "version", "store"]), inner)
    ),
    max_leaves=8,
)


@given(raw=st.binary(max_size=60) | JSON.map(answer))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nothing_that_may_be_answered_is_more_than_an_error(
    raw: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("podman") / "s"
    client = PodmanClient(str(path))
    calls: list[Callable[[], Any]] = [client.images, client.images_in_use, client.info]

    async def ask_all() -> None:
        async with answering(path, raw):
            for call in calls:
                try:
                    await call()
                except PodmanError:
                    continue

    trio.run(ask_all)
