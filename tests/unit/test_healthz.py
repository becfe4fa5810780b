"""The probe of a daemon's health: what it asks, what it answers by its exit status, what it costs."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from reactor import healthz
from reactor.guard.single_instance import single_instance_lock
from tests.support.running_threads import running
from tests.support.waiting import until


@contextmanager
def answering(path: Path, answer: bytes) -> Iterator[list[bytes]]:
    """Answer one question on a socket; give the questions."""
    asked: list[bytes] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()

        def answer_once(_: threading.Event) -> None:
            connection, _ = listener.accept()
            with connection:
                asked.append(connection.recv(4096))
                connection.sendall(answer)

        with running([answer_once]):
            yield asked


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b'{"alive": true}\n', 0),
        (b'{"alive": false}\n', 1),
        (b'{"error": "internal error; see the log"}\n', 1),
        (b"", 1),
    ],
)
def test_the_exit_status_is_what_the_guard_answers(
    tmp_path: Path, answer: bytes, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "reactor.sock"
    with answering(path, answer) as asked:
        assert status == healthz.main([str(path)])
    assert [b'{"command": "healthz"}\n'] == asked
    assert status == len(capsys.readouterr().err.splitlines())


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b'{"alive": true, "not_ready_because": null}\n', 0),
        (b'{"alive": true, "not_ready_because": "configuration: the file is refused"}\n', 1),
        (b'{"alive": false, "not_ready_because": null}\n', 1),
        (b'{"alive": true}\n', 1),
    ],
)
def test_readiness_is_also_that_the_configuration_was_not_refused_at_the_start(
    tmp_path: Path, answer: bytes, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "reactor.sock"
    with answering(path, answer):
        assert status == healthz.main(["--ready", str(path)])
    errors = capsys.readouterr().err
    assert ("is refused" in errors) == (b"is refused" in answer)


async def test_a_daemon_that_stands_by_is_alive_and_says_why_it_is_not_ready(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    for why, expected in (("configuration: the file is refused", True), (None, False)):
        path = tmp_path / f"{why is None}.sock"
        async with single_instance_lock(state, stand_by=False), trio.open_nursery() as nursery:

            async def stand_by(path: Path = path, why: str | None = why) -> None:
                turn = single_instance_lock(state, stand_by=True, socket_path=path, not_ready_because=why)
                async with turn:
                    pass

            nursery.start_soon(stand_by)
            await until(lambda path=path: healthz.problem(str(path)) is None)  # type: ignore[misc]
            said = healthz.problem(str(path), or_not_ready=True)
            assert expected == ("the file is refused" in str(said))
            nursery.cancel_scope.cancel()


def test_without_a_daemon_it_fails_and_says_where_it_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "reactor.sock"
    assert 1 == healthz.main([str(path)])
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))  # a daemon that has died leaves its socket
    Path(healthz.stand_by_path(str(path))).touch()  # and one that stood by its file, without the lock
    assert 1 == healthz.main([str(path)])
    errors = capsys.readouterr().err.splitlines()
    assert ["No such file or directory", "Connection refused"] == [one.rpartition(": ")[2] for one in errors]
    assert all(one.startswith(f"reactor: {path}: ") for one in errors)


def test_arguments_are_one_socket_at_most(capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == healthz.main(["--help"])
    assert "SOCKET" in capsys.readouterr().out
    assert 2 == healthz.main(["--sockt"])
    assert 2 == healthz.main(["a", "b"])
    assert "usage:" in capsys.readouterr().err


def test_it_imports_nothing_but_the_interpreters_own_modules() -> None:
    def modules(first: str) -> set[str]:
        text = f"{first}; import sys; print(*sys.modules)"
        ended = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
        return set(ended.stdout.split())

    assert {"reactor", "reactor.healthz", "fcntl", "_socket"} >= modules("import reactor.healthz") - modules(
        "pass"
    )
