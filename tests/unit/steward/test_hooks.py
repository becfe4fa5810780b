"""Hooks before a soft eviction: real commands, sockets and calls, and each way in which one goes wrong.

Whatever a hook does, it costs its time limit and nothing else: the others are done, and the loop runs on.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
import trio

from reactor.model.settings import HookSettings
from reactor.steward.hooks import Hooks, unusable_because

ASKED = {"event": "before-eviction", "pod": "cgroup/hog", "cgroup": "/node/hog", "grace_period_seconds": 10}
LIMIT_SECONDS = 1.0
Serve = Callable[[trio.SocketStream], Awaitable[None]]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    found = tmp_path / "hooks"
    found.mkdir(mode=0o755)
    return found


async def before(
    directory: Path, *, seconds: float = 60.0, **hooks: object
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Run hooks, and look that the loop runs on meanwhile."""
    settings = HookSettings(**{"timeout_seconds": LIMIT_SECONDS, **hooks})  # type: ignore[arg-type]
    turns = 0
    began = trio.current_time()
    async with trio.open_nursery() as nursery:

        async def turn() -> None:
            nonlocal turns
            while True:
                await trio.sleep(0.01)
                turns += 1

        nursery.start_soon(turn)
        runner = Hooks(directory=directory)
        found = await runner.before(settings, ASKED, seconds)
        runner.close()
        nursery.cancel_scope.cancel()
    if trio.current_time() - began > LIMIT_SECONDS / 2:
        assert turns > 5
    return found


async def listen(nursery: trio.Nursery, path: Path, serve: Serve) -> None:
    """Have a socket of systemd's protocol served."""
    listener = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    await listener.bind(str(path))
    listener.listen(4)
    nursery.start_soon(trio.serve_listeners, serve, [trio.SocketListener(listener)])


async def called(stream: trio.SocketStream) -> dict[str, object]:
    """Return the call that has come."""
    received = b""
    while not received.endswith(b"\0"):
        received += await stream.receive_some(4096)
    document: dict[str, object] = json.loads(received[:-1])
    return document


async def test_systemds_hooks_are_called_by_its_protocol(directory: Path, nursery: trio.Nursery) -> None:
    calls: list[object] = []

    async def serve(stream: trio.SocketStream) -> None:
        calls.append(await called(stream))
        await stream.send_all(b'{"parameters": {}}\0')

    await listen(nursery, directory / "one", serve)
    await listen(nursery, directory / "two", serve)
    done, problems = await before(directory, prekill=True)
    call = {"method": "io.systemd.oom.Prekill.Notify", "parameters": {"cgroup": "/node/hog"}}
    assert [call, call] == calls
    assert ((str(directory / "one"), str(directory / "two")), ()) == (tuple(sorted(done)), problems)
    nursery.cancel_scope.cancel()


async def _hangs(stream: trio.SocketStream) -> None:
    await called(stream)
    await trio.sleep_forever()


async def _dies(stream: trio.SocketStream) -> None:
    await called(stream)
    await stream.aclose()


async def _garbage(stream: trio.SocketStream) -> None:
    await called(stream)
    await stream.send_all(b"\xff{[\x01" * 100 + b"\0")


async def _deep(stream: trio.SocketStream) -> None:
    await called(stream)
    await stream.send_all(b"[" * 30_000 + b"\0")


async def _no_reply(stream: trio.SocketStream) -> None:
    await called(stream)
    await stream.send_all(b"[]\0")


async def _error(stream: trio.SocketStream) -> None:
    await called(stream)
    await stream.send_all(b'{"error": "org.varlink.service.MethodNotFound\\u001b[2J"}\0')


async def _floods(stream: trio.SocketStream) -> None:
    try:
        while True:
            await stream.send_all(b"x" * 4096)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass


async def _drips(stream: trio.SocketStream) -> None:
    try:
        while True:
            await stream.send_all(b" ")
            await trio.sleep(0.05)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass


@pytest.mark.parametrize(
    ("serve", "why"),
    [
        (_hangs, "not done within 1 s"),
        (_drips, "not done within 1 s"),
        (_dies, "ended without an answer"),
        (_garbage, "something else than JSON"),
        (_deep, "something else than JSON"),
        (_no_reply, "something else than a reply"),
        (_error, "answers with the error org.varlink.service.MethodNotFound"),
        (_floods, "answers with more than 65536 bytes"),
    ],
)
async def test_a_socket_that_goes_wrong_costs_its_time_limit_and_nothing_else(
    directory: Path, nursery: trio.Nursery, serve: Serve, why: str
) -> None:
    async def good(stream: trio.SocketStream) -> None:
        await called(stream)
        await stream.send_all(b"{}\0")

    await listen(nursery, directory / "bad", serve)
    await listen(nursery, directory / "good", good)
    done, problems = await before(directory, prekill=True)
    assert (str(directory / "good"),) == done
    (problem,) = problems
    assert why in problem
    assert problem.isprintable()
    nursery.cancel_scope.cancel()


async def test_a_socket_without_a_listener_is_named(directory: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stale:
        stale.bind(str(directory / "stale"))
    (directory / "file").write_text("no socket")
    assert ((), (f"{directory}/stale: Connection refused",)) == await before(directory, prekill=True)


async def test_a_directory_that_others_can_write_names_no_hooks(
    directory: Path, nursery: trio.Nursery
) -> None:
    await listen(nursery, directory / "theirs", _hangs)
    os.chmod(directory, 0o777)  # noqa: S103 - as it should not be
    assert ((), ()) == await before(directory, prekill=True)
    assert "others may write it" in (unusable_because(directory) or "")
    assert "No such file" in (unusable_because(directory / "none") or "")
    nursery.cancel_scope.cancel()


def _read(path: str) -> object:
    return json.loads(Path(path).read_text())


def _script(tmp_path: Path, name: str, text: str) -> tuple[str, ...]:
    path = tmp_path / name
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(0o755)
    return (str(path), str(tmp_path / f"{name}.out"))


async def test_commands_get_what_is_to_be_evicted(directory: Path, tmp_path: Path) -> None:
    copies = "import shutil, sys\nshutil.copyfileobj(sys.stdin.buffer, open(sys.argv[1], 'wb'))\n"
    command = _script(tmp_path, "copies", copies)
    assert ((command[0],), ()) == await before(directory, commands=(command,), timeout_seconds=30.0)
    assert _read(command[1]) == ASKED


async def test_two_commands_of_one_program_are_both_run(directory: Path, tmp_path: Path) -> None:
    files = tmp_path / "first", tmp_path / "second"
    commands = tuple(("/bin/sh", "-c", f"cat >{file}") for file in files)
    assert (("/bin/sh", "/bin/sh"), ()) == await before(directory, commands=commands, timeout_seconds=30.0)
    assert [ASKED, ASKED] == [_read(str(file)) for file in files]


async def test_two_addresses_of_one_server_are_both_posted_to(directory: Path, nursery: trio.Nursery) -> None:
    received: list[bytes] = []
    url = await _http(nursery, _answers(b"HTTP/1.1 204 No Content\r\n\r\n", received))
    done, problems = await before(directory, urls=(f"{url}/first", f"{url}/second"))
    assert ((url, url), ()) == (done, problems)
    assert {b"/first", b"/second"} == {head.split(b" ")[1] for head in received}
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import signal\nsignal.pause()", "not done within 1 s"),
        ("import sys\nsys.exit('no space left')", "exit status 1: no space left"),
        ("import sys\nwhile True: sys.stderr.write('x' * 4096)", "not done within 1 s"),
        ("import os\nos.kill(os.getpid(), 9)", "killed by signal 9"),
    ],
)
async def test_a_command_that_goes_wrong_costs_its_time_limit_and_nothing_else(
    directory: Path, tmp_path: Path, text: str, why: str
) -> None:
    done, problems = await before(directory, commands=(_script(tmp_path, "bad", text),))
    assert done == ()
    assert why in problems[0]


async def test_a_command_that_is_not_there_is_named(directory: Path) -> None:
    assert ((), ("/no/such: No such file or directory",)) == await before(
        directory, commands=(("/no/such",),)
    )


async def _http(nursery: trio.Nursery, serve: Serve) -> str:
    listeners = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
    return f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"


def _answers(answer: bytes, received: list[bytes]) -> Serve:
    async def serve(stream: trio.SocketStream) -> None:
        head = b""
        while b"grace_period_seconds" not in head:
            head += await stream.receive_some(4096)
        received.append(head)
        await stream.send_all(answer)

    return serve


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", None),
        (b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n", "answered 500"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", "answered 302"),
        (b"\0\1\2\r\n\r\n", ""),
        (b"", ""),
    ],
)
async def test_addresses_are_posted_to(
    directory: Path, nursery: trio.Nursery, answer: bytes, why: str | None
) -> None:
    received: list[bytes] = []
    url = await _http(nursery, _answers(answer, received))
    done, problems = await before(directory, urls=(f"{url}/before",))
    assert received[0].startswith(b"POST /before HTTP/1.1\r\n")
    assert json.loads(received[0].partition(b"\r\n\r\n")[2]) == ASKED
    if why is None:
        assert ((url,), ()) == (done, problems)
    else:
        assert done == ()
        assert why in problems[0]
    nursery.cancel_scope.cancel()


async def test_a_server_that_answers_byte_by_byte_costs_the_time_limit(
    directory: Path, nursery: trio.Nursery
) -> None:
    async def drips(stream: trio.SocketStream) -> None:
        await stream.send_all(b"HTTP/1.1 200 OK\r\nX-Slowly: ")
        await _drips(stream)

    url = await _http(nursery, drips)
    done, problems = await before(directory, urls=(url,))
    assert ((), (f"{url}: not done within 1 s",)) == (done, problems)
    nursery.cancel_scope.cancel()


async def test_what_is_left_of_the_grace_period_is_a_limit_too(directory: Path, tmp_path: Path) -> None:
    command = _script(tmp_path, "sleeps", "import time\ntime.sleep(60)")
    began = trio.current_time()
    _, problems = await before(directory, commands=(command,), seconds=0.2, timeout_seconds=30.0)
    assert (f"{command[0]}: not done within 0.2 s",) == problems
    assert trio.current_time() - began < 20
