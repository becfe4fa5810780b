from __future__ import annotations

import json
import os
import socket
import stat
import threading

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reactor.daemon.status_socket import (
    AnotherDaemonError,
    NoDaemonError,
    _answer,
    ask,
    listen,
    serve,
)

COMMANDS = {"status": lambda question: {"asked": dict(question)}}


async def test_question_is_answered(nursery, tmp_path):
    path = tmp_path / "run" / "s.sock"
    nursery.start_soon(serve, listen(path), COMMANDS)

    answer = await trio.to_thread.run_sync(ask, path, {"command": "status", "pod": "x"})

    assert answer == {"asked": {"command": "status", "pod": "x"}}


async def test_socket_is_for_its_user_only(tmp_path):
    umask = os.umask(0)
    try:
        with listen(tmp_path / "run" / "s.sock"):
            assert stat.S_IMODE((tmp_path / "run" / "s.sock").stat().st_mode) == 0o600
            assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700
            assert os.umask(0) == 0
    finally:
        os.umask(umask)


async def test_socket_of_a_dead_daemon_is_replaced(tmp_path):
    listen(tmp_path / "s.sock").close()
    with listen(tmp_path / "s.sock") as listener:
        assert listener.getsockname() == str(tmp_path / "s.sock")


async def test_socket_of_a_living_daemon_is_left_alone(tmp_path):
    with listen(tmp_path / "s.sock"):
        with pytest.raises(AnotherDaemonError, match="a daemon answers there"):
            listen(tmp_path / "s.sock")
        assert (tmp_path / "s.sock").exists()


async def test_file_that_is_no_socket_is_left_alone(tmp_path):
    (tmp_path / "s.sock").write_text("precious")
    with pytest.raises(OSError, match="no socket"):
        listen(tmp_path / "s.sock")
    assert (tmp_path / "s.sock").read_text() == "precious"


async def test_silent_client_does_not_keep_others_from_their_answer(nursery, tmp_path):
    path = tmp_path / "s.sock"
    nursery.start_soon(serve, listen(path), COMMANDS)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(path))
        answer = await trio.to_thread.run_sync(ask, path, {"command": "status"})
    assert "asked" in answer


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(line=st.binary(max_size=100))
def test_arbitrary_bytes_are_answered_with_what_is_accepted(line):
    answer = trio.run(_answer, line, COMMANDS)

    assert "accepted" in answer["error"] or "asked" in answer


@pytest.mark.parametrize("line", [b"", b"[]", b'{"command": []}', b'{"command": "fly"}', b"[" * 10_000])
async def test_wrong_question_is_answered_with_what_is_accepted(line):
    assert '{"command": "status"}' in (await _answer(line, COMMANDS))["error"]


async def test_command_that_takes_its_time_is_answered_too(nursery, tmp_path):
    async def later(question):
        await trio.lowlevel.checkpoint()
        return {"later": question["pods"]}

    path = tmp_path / "s.sock"
    nursery.start_soon(serve, listen(path), {"top": later})

    assert await trio.to_thread.run_sync(ask, path, {"command": "top", "pods": 3}) == {"later": 3}


def test_without_a_daemon_the_asker_is_told_so(tmp_path):
    with pytest.raises(NoDaemonError, match="reactor run"):
        ask(tmp_path / "s.sock", {"command": "status"})


@pytest.mark.parametrize("answer", [b"", b"nonsense\n", b"[1]\n"])
def test_daemon_that_answers_nonsense_is_no_daemon(tmp_path, answer):
    with listen(tmp_path / "s.sock") as listener:

        def answer_once() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=answer_once)
        thread.start()
        with pytest.raises(NoDaemonError, match="accepted"):
            ask(tmp_path / "s.sock", {"command": "status"})
        thread.join()


async def test_answers_are_lines_of_json(tmp_path):
    assert json.dumps(await _answer(b'{"command": "status"}', COMMANDS)) == '{"asked": {"command": "status"}}'


@pytest.mark.parametrize(
    ("problem", "answer"),
    [
        (NoDaemonError("starting"), "starting"),
        (ZeroDivisionError("oops"), "a defect of reactor's, which its log tells of"),
    ],
)
async def test_question_that_can_not_be_answered_does_not_end_the_daemon(nursery, tmp_path, problem, answer):
    def command(_):
        raise problem

    path = tmp_path / "s.sock"
    nursery.start_soon(serve, listen(path), {"status": command})

    assert await trio.to_thread.run_sync(ask, path, {"command": "status"}) == {"error": answer}
    assert "accepted" in (await trio.to_thread.run_sync(ask, path, {"command": "x"}))["error"]
