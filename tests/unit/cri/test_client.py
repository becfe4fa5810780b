from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import h2.connection
import pytest
import trio

from reactor.cri import client
from reactor.cri.client import KNOWN_ENDPOINTS, RuntimeClient, find_endpoint, socket_path
from reactor.cri.messages import Container, Containers, Version
from reactor.errors import RuntimeServiceError, RuntimeUnavailableError
from tests.support.this_machine import open_descriptors
from tests.unit.cri.scripted_grpc import HEADERS, Server, fail, succeed


def _old(connection: h2.connection.H2Connection, method: str) -> None:
    if "v1alpha2" in method:
        succeed(Version(runtime_name="containerd", runtime_version="1.4").encode())(connection, method)
    else:
        fail("12", "unknown service runtime.v1.RuntimeService")(connection, method)


async def test_a_runtime_of_today_is_spoken_to_in_v1(server: Server) -> None:
    server.answer = succeed(Version(runtime_name="cri-o").encode())
    client = RuntimeClient(f"unix://{server.path}")
    assert (await client.version()).runtime_name == "cri-o"
    assert client.api_version == "v1"


async def test_an_old_runtime_is_spoken_to_in_v1alpha2(server: Server) -> None:
    server.answer = _old
    client = RuntimeClient(str(server.path))
    assert (await client.version()).runtime_version == "1.4"
    assert client.api_version == "v1alpha2"
    await client.version()
    assert server.methods[-1] == "/runtime.v1alpha2.RuntimeService/Version"
    assert sum("/runtime.v1." in method for method in server.methods) == 1


async def test_a_runtime_that_was_replaced_by_another_version_is_asked_again(server: Server) -> None:
    server.answer = _old
    client = RuntimeClient(str(server.path))
    await client.version()
    new = succeed(b"")

    def answer(connection: h2.connection.H2Connection, method: str) -> None:
        (fail("12") if "v1alpha2" in method else new)(connection, method)

    server.answer = answer
    with pytest.raises(RuntimeServiceError):
        await client.version()
    await client.version()
    assert client.api_version == "v1"


async def test_an_error_that_is_not_about_the_version_is_not_taken_for_one(server: Server) -> None:
    server.answer = fail("14", "shutting down")
    client = RuntimeClient(str(server.path))
    with pytest.raises(RuntimeServiceError, match="UNAVAILABLE: shutting down"):
        await client.version()
    assert client.api_version is None


async def test_a_large_answer_is_read_like_a_small_one(server: Server) -> None:
    many = Containers(containers=tuple(Container(id=f"{number:064}") for number in range(500)))
    server.answer = succeed(many.encode())
    assert await RuntimeClient(str(server.path)).containers() == many.containers


async def test_an_answer_that_is_no_message_is_named(server: Server) -> None:
    server.answer = succeed(b"\xff\xff\xff")
    with pytest.raises(RuntimeUnavailableError, match="ListContainers: got"):
        await RuntimeClient(str(server.path)).containers()


async def _stop_sandbox(client: RuntimeClient) -> None:
    await client.stop_sandbox("a")


async def _stop_container(client: RuntimeClient) -> None:
    await client.stop_container("a", 0)


async def _remove_image(client: RuntimeClient) -> None:
    await client.remove_image("a")


@pytest.mark.parametrize("end", [_stop_sandbox, _stop_container, _remove_image])
async def test_ending_what_is_gone_already_is_no_error_but_other_errors_are(
    server: Server, end: Callable[[RuntimeClient], object]
) -> None:
    client = RuntimeClient(str(server.path))
    server.answer = succeed(b"")
    await client.version()
    server.answer = fail("5", "not found")
    await end(client)  # type: ignore[misc]
    server.answer = fail("2", "busy")
    with pytest.raises(RuntimeServiceError, match="busy"):
        await end(client)  # type: ignore[misc]


_METHOD = "/runtime.v1.RuntimeService/Version"


async def _call(server: Server, deadline_seconds: float = 5.0) -> bytes:
    return await client.call(server.path, _METHOD, b"asked", deadline_seconds)


async def test_the_answer_of_a_call_is_its_message(server: Server) -> None:
    server.answer = succeed(b"answer")
    assert await _call(server) == b"answer"
    assert server.methods == [_METHOD]


async def test_the_runtime_gets_the_deadline(server: Server) -> None:
    await _call(server, 2.5)
    assert server.timeouts == ["2500m"]


async def test_an_answer_in_many_frames_is_put_together(server: Server) -> None:
    message = os.urandom(60_000)
    server.answer = succeed(message, split=7)
    assert await _call(server) == message


async def test_an_error_of_the_runtime_has_its_code_and_its_words(server: Server) -> None:
    server.answer = fail("5", "no such container: %22a%22")
    with pytest.raises(RuntimeServiceError, match='Version: NOT_FOUND: no such container: "a"') as caught:
        await _call(server)
    assert caught.value.code == "NOT_FOUND"
    assert str(server.path) in str(caught.value)


async def test_an_error_code_of_later_days_is_named_by_its_number(server: Server) -> None:
    server.answer = fail("99")
    with pytest.raises(RuntimeServiceError, match="code 99"):
        await _call(server)


async def test_a_runtime_that_does_not_answer_is_given_up_at_the_deadline(
    server: Server, autojump_clock: trio.testing.MockClock
) -> None:
    server.answer = lambda _connection, _method: None
    with pytest.raises(RuntimeUnavailableError, match=r"Version: no answer within 30 s"):
        await _call(server, 30.0)


async def test_a_missing_socket_is_named(tmp_path: Path) -> None:
    with pytest.raises(RuntimeUnavailableError, match=rf"{tmp_path}/none: Version: No such file"):
        await client.call(tmp_path / "none", _METHOD, b"", 5.0)


async def test_a_socket_without_a_listener_is_named(tmp_path: Path) -> None:
    path = tmp_path / "left-behind.sock"
    with trio.socket.socket(trio.socket.AF_UNIX) as left:
        await left.bind(str(path))
    with pytest.raises(RuntimeUnavailableError, match="Connection refused"):
        await client.call(path, _METHOD, b"", 5.0)


async def test_what_is_no_grpc_server_is_distinguished(server: Server) -> None:
    server.raw = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n" * 3
    with pytest.raises(RuntimeUnavailableError, match="no HTTP/2"):
        await _call(server)


async def test_a_connection_that_is_closed_at_once_is_no_answer(server: Server) -> None:
    server.raw, server.closes = b"", True
    with pytest.raises(RuntimeUnavailableError):
        await _call(server)


async def test_an_answer_that_is_cut_off_is_no_answer(server: Server) -> None:
    def answer(connection: h2.connection.H2Connection, _: str) -> None:
        connection.send_headers(1, HEADERS)
        connection.send_data(1, b"\0\0\0\0\x09part")

    server.answer, server.closes = answer, True
    with pytest.raises(
        RuntimeUnavailableError, match=r"closed the connection before|Broken pipe|reset by peer"
    ):
        await _call(server)


@pytest.mark.parametrize("body", [b"", b"\0\0", b"\0\0\0\0\x09short", b"\x01\0\0\0\x01z"])
async def test_an_answer_that_is_not_one_message_is_refused(server: Server, body: bytes) -> None:
    def answer(connection: h2.connection.H2Connection, _: str) -> None:
        connection.send_headers(1, HEADERS)
        connection.send_data(1, body)
        connection.send_headers(1, [("grpc-status", "0")], end_stream=True)

    server.answer = answer
    with pytest.raises(RuntimeUnavailableError, match="message"):
        await _call(server)


async def test_an_answer_without_a_status_is_refused(server: Server) -> None:
    def answer(connection: h2.connection.H2Connection, _: str) -> None:
        connection.send_headers(1, [(":status", "404")], end_stream=True)

    server.answer = answer
    with pytest.raises(RuntimeUnavailableError, match="HTTP status 404, grpc-status None"):
        await _call(server)


async def test_a_call_that_the_runtime_gives_up_is_named(server: Server) -> None:
    server.answer = lambda connection, _: connection.reset_stream(1, 8)
    with pytest.raises(RuntimeUnavailableError, match="gave the call up"):
        await _call(server)


async def test_an_answer_without_end_is_given_up(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "LARGEST_MESSAGE_BYTES", 1000)
    server.answer = succeed(bytes(2000))
    with pytest.raises(RuntimeUnavailableError, match="more than 1000 bytes"):
        await _call(server)


async def test_no_descriptor_is_left_open_by_calls_of_any_outcome(server: Server) -> None:
    async def outcomes() -> None:
        for answer in (succeed(b"a"), fail("5")):
            server.answer = answer
            try:
                await _call(server)
            except RuntimeServiceError:
                continue

    await outcomes()
    await trio.testing.wait_all_tasks_blocked()
    before = open_descriptors()
    for _ in range(20):
        await outcomes()
    await trio.testing.wait_all_tasks_blocked()
    assert before == open_descriptors()


def _listen(root: Path, endpoint: str) -> None:
    path = root / endpoint.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def test_the_first_known_socket_is_found(tmp_path: Path) -> None:
    _listen(tmp_path, "/run/crio/crio.sock")
    assert find_endpoint(tmp_path) == "/run/crio/crio.sock"
    _listen(tmp_path, KNOWN_ENDPOINTS[0])
    assert find_endpoint(tmp_path) == KNOWN_ENDPOINTS[0]


def test_a_file_that_is_no_socket_is_not_taken_for_a_runtime(tmp_path: Path) -> None:
    path = tmp_path / "run/crio/crio.sock"
    path.parent.mkdir(parents=True)
    path.write_text("")
    assert find_endpoint(tmp_path) is None


def test_an_endpoint_may_be_written_as_the_kubelet_takes_it() -> None:
    assert socket_path("unix:///run/crio/crio.sock") == Path("/run/crio/crio.sock")
    assert socket_path("/run/crio/crio.sock") == Path("/run/crio/crio.sock")
