from __future__ import annotations

from collections.abc import Callable

import h2.connection
import pytest

from reactor.cri.client import RuntimeClient
from reactor.cri.messages import Container, Containers, Version
from reactor.errors import RuntimeServiceError, RuntimeUnavailableError
from tests.unit.cri.scripted_grpc import Server, fail, succeed


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
