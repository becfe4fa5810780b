from __future__ import annotations

import json
import os
import socket
import stat
import threading
from contextlib import ExitStack

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reactor.errors import NoDaemonError
from reactor.guard.reports import EvictionOrder
from reactor.guard.single_instance import AnotherDaemonError, listen
from reactor.steward.answers import RecentRecords, explanation, name_asked, places_asked
from reactor.steward.answers import status as completed
from reactor.tell.status_socket import _answer, ask, serve

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


@pytest.mark.parametrize(
    "question",
    [
        b'{"command": "explain", "pod": [1]}',
        b'{"command": "explain", "pod": {"a": {}}}',
        b'{"command": "top", "pods": -1}',
        b'{"command": "top", "pods": ' + b"9" * 4000 + b"}",
        b'{"command": "top", "pods": ' + b"9" * 5000 + b"}",
        b'{"command": "top", "pods": 1e400}',
        b'{"command": "status", "x": ' + b"[" * 900 + b"]" * 900 + b"}",
    ],
)
async def test_wrong_types_and_sizes_are_answered_and_nothing_is_raised(make_view, question):
    loop, view, _ = make_view()
    order, failures, recent = EvictionOrder(), [], RecentRecords()

    async def explained(asked):
        name = name_asked(asked.get("pod"))
        return explanation(await view().explain(loop.usages), recent, name)

    commands = {
        "status": lambda _: completed(view().status(), recent, {}),
        "explain": explained,
        "top": lambda asked: view().top(
            order, loop.usages, loop.node.memory(), places_asked(asked.get("pods", 40))
        ),
    }

    document = await _answer(question, commands, failures.append)

    assert {"error", "pods"} & document.keys()
    assert failures == []


async def test_answer_that_can_not_be_written_as_json_is_an_error(nursery, tmp_path):
    path, deep = tmp_path / "s.sock", []
    for _ in range(100_000):
        deep = [deep]
    nursery.start_soon(serve, listen(path), {"status": lambda _: {"deep": deep}})

    answer = await trio.to_thread.run_sync(ask, path, {"command": "status"})
    assert answer == {"error": "internal error; see the log"}
    while deep:  # not by the interpreter, which would recurse
        (deep,) = deep


async def test_question_is_answered_while_silent_clients_hold_every_connection(mock_clock, nursery, tmp_path):
    mock_clock.rate = 0.2  # on a slow machine, too, it is before the deadline of the silent ones
    path = tmp_path / "s.sock"
    nursery.start_soon(serve, listen(path), COMMANDS)
    with ExitStack() as silent:
        for _ in range(40):
            silent.enter_context(socket.socket(socket.AF_UNIX)).connect(str(path))
        with trio.fail_after(4):
            assert "asked" in await trio.to_thread.run_sync(ask, path, {"command": "status"})


async def test_command_that_takes_its_time_is_answered_too(nursery, tmp_path):
    async def later(question):
        await trio.lowlevel.checkpoint()
        return {"later": question["pods"]}

    path = tmp_path / "s.sock"
    nursery.start_soon(serve, listen(path), {"top": later})

    assert await trio.to_thread.run_sync(ask, path, {"command": "top", "pods": 3}) == {"later": 3}


def test_without_a_daemon_the_asker_gets_that_answer(tmp_path):
    with pytest.raises(NoDaemonError, match="reactor run"):
        ask(tmp_path / "s.sock", {"command": "status"})


def test_question_waits_for_room_where_others_have_filled_the_backlog(tmp_path):
    path = tmp_path / "s.sock"
    answers = []
    with ExitStack() as open_sockets:
        listener = open_sockets.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(path))
        listener.listen(0)
        listener.settimeout(90)
        others = -1
        error = 0
        while not error:
            client = open_sockets.enter_context(socket.socket(socket.AF_UNIX))
            client.settimeout(0)
            error = client.connect_ex(str(path))
            others += 1
        asking = threading.Thread(target=lambda: answers.append(ask(path, {"command": "status"})))
        asking.start()
        asking.join(0.2)  # it has found the backlog full
        for _ in range(others + 1):
            connection, _ = listener.accept()
            open_sockets.enter_context(connection)
        connection.recv(4096)
        connection.sendall(b'{"pods": 1}\n')
        connection.shutdown(socket.SHUT_RDWR)
        asking.join()

    assert [{"pods": 1}] == answers


def test_daemon_that_takes_the_question_and_is_still_starting_is_waited_for(tmp_path):
    said = threading.Event()
    with listen(tmp_path / "s.sock") as listener:

        def answer_late() -> None:
            said.wait(30)
            _answer_once(listener, b'{"pods": 1}\n')

        thread = threading.Thread(target=answer_late, daemon=True)
        thread.start()
        answer = ask(tmp_path / "s.sock", {"command": "status"}, on_wait=said.set, a_while_seconds=0.05)
        thread.join()

    assert answer == {"pods": 1}


def test_daemon_that_never_answers_is_given_up_and_said_to_be_there(tmp_path):
    with (
        listen(tmp_path / "s.sock"),
        pytest.raises(NoDaemonError, match=r"no answer within 0\.1 s: the daemon is starting"),
    ):
        ask(tmp_path / "s.sock", {"command": "status"}, patience_seconds=0.1)


def test_question_is_asked_again_where_who_took_it_ended_without_an_answer(tmp_path):
    with listen(tmp_path / "s.sock") as listener:

        def answer_twice() -> None:
            _answer_once(listener, b"")
            listener.accept()[0].close()  # with the question unread: reset
            _answer_once(listener, b'{"pods": 1}\n')

        thread = threading.Thread(target=answer_twice, daemon=True)
        thread.start()
        answer = ask(tmp_path / "s.sock", {"command": "status"})
        thread.join()

    assert answer == {"pods": 1}


def _answer_once(listener: socket.socket, answer: bytes) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(answer)


@pytest.mark.parametrize("answer", [b"nonsense\n", b"[1]\n"])
def test_daemon_that_answers_nonsense_is_no_daemon(tmp_path, answer):
    with listen(tmp_path / "s.sock") as listener:
        thread = threading.Thread(target=_answer_once, args=(listener, answer), daemon=True)
        thread.start()
        with pytest.raises(NoDaemonError, match="accepted"):
            ask(tmp_path / "s.sock", {"command": "status"})
        thread.join()


async def test_answers_are_lines_of_json(tmp_path):
    assert json.dumps(await _answer(b'{"command": "status"}', COMMANDS)) == '{"asked": {"command": "status"}}'


async def test_name_that_is_not_utf_8_comes_through_byte_for_byte(nursery, tmp_path):
    name = os.fsdecode(b"\xff\xfe-pod")
    path = tmp_path / "s.sock"
    nursery.start_soon(serve, listen(path), {"status": lambda _: {"pod": name}})

    assert await trio.to_thread.run_sync(ask, path, {"command": "status"}) == {"pod": name}


@pytest.mark.parametrize(
    ("problem", "answer"),
    [
        (NoDaemonError("starting"), "starting"),
        (ZeroDivisionError("oops"), "internal error; see the log"),
    ],
)
async def test_question_that_can_not_be_answered_does_not_end_the_daemon(nursery, tmp_path, problem, answer):
    def command(_):
        raise problem

    path = tmp_path / "s.sock"
    nursery.start_soon(serve, listen(path), {"status": command})

    assert await trio.to_thread.run_sync(ask, path, {"command": "status"}) == {"error": answer}
    assert "accepted" in (await trio.to_thread.run_sync(ask, path, {"command": "x"}))["error"]
