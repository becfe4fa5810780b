"""Questions on the daemon's Unix socket: one JSON line asks, one JSON line answers.

{"command": "status"}    {"command": "explain", "pod": "web"}    {"command": "top", "pods": 40}
{"command": "healthz"}
{"error": "..."}
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import trio

from reactor.errors import NoDaemonError, ReactorError
from reactor.tell.connections import Connections, Peer, Turns

_LOG: Final = logging.getLogger("reactor.daemon")
_QUESTION_BYTES: Final = 4096
_ANSWER_BYTES: Final = 64 << 20
_PATIENCE_SECONDS: Final = 30.0
_A_WHILE_SECONDS: Final = 3.0
_AGAIN_SECONDS: Final = 0.05
_CONNECTIONS: Final = 8

Answer = Mapping[str, Any]
Command = Callable[[Mapping[str, Any]], Answer | Awaitable[Answer]]
OnFailure = Callable[[Exception], None]

_FAILED: Final[Answer] = {"error": "internal error; see the log"}


def _log_failure(error: Exception) -> None:
    _LOG.error("a question can't be answered", exc_info=error)


async def serve(
    listener: socket.socket, commands: Mapping[str, Command], on_failure: OnFailure = _log_failure
) -> None:
    """Answer questions until cancelled. A command answers at once, or yields to the loop meanwhile.

    `on_failure` is called with the failure of an answer. The listener is closed at the end.
    """
    turns = Turns()

    async def attend(peer: Peer) -> None:
        line = await _line(peer)
        peer.answering()
        await turns.wait()
        await peer.send(_encoded(await _answer(line, commands, on_failure), on_failure))

    with trio.socket.from_stdlib_socket(listener) as trio_socket:
        await Connections(attend, _CONNECTIONS, on_failure).serve(trio_socket)


def ask(
    path: Path,
    question: Mapping[str, Any],
    *,
    patience_seconds: float = _PATIENCE_SECONDS,
    on_wait: Callable[[], object] = lambda: None,
    a_while_seconds: float = _A_WHILE_SECONDS,
) -> dict[str, Any]:
    """Return the daemon's answer; blocks. Raises NoDaemonError where there is none.

    Where nothing listens that is known at once. Where something does the answer is waited for: a daemon that
    has just started answers once its steward has, and so does one whose steward was restarted meanwhile.
    `on_wait` is called once if that takes `a_while_seconds`.
    """
    wait = _Wait(patience_seconds, a_while_seconds, on_wait)
    try:
        while not (answer := _exchange(path, json.dumps(question).encode() + b"\n", wait)):
            wait.pause()
    except TimeoutError as error:
        raise NoDaemonError(
            f"{path}: no answer within {patience_seconds:g} s: the daemon is starting, or does not get to "
            "answering; `journalctl --unit=reactor` has its log"
        ) from error
    except OSError as error:
        why = error.strerror or str(error)
        raise NoDaemonError(
            f"{path}: {why}; is `reactor run` running, with this socket, and are you root or its user?"
        ) from error
    try:
        document = json.loads(answer)
    except ValueError as error:
        raise NoDaemonError(f"{path}: answered {answer[:80]!r}; accepted: one line of JSON") from error
    if not isinstance(document, dict):
        raise NoDaemonError(f"{path}: answered {answer[:80]!r}; accepted: a JSON object")
    return document


class _Wait:
    """How long a client waits yet. What takes longer raises TimeoutError."""

    def __init__(
        self, patience_seconds: float, a_while_seconds: float, on_wait: Callable[[], object]
    ) -> None:
        self._begun = time.monotonic()
        self._patience_seconds = patience_seconds
        self._a_while_seconds = a_while_seconds
        self._on_wait: Callable[[], object] | None = on_wait

    def left(self) -> float:
        """Return for how long to wait next, in seconds; call `on_wait` where it has taken a while."""
        passed = time.monotonic() - self._begun
        if passed >= self._patience_seconds:
            raise TimeoutError
        if self._on_wait is not None and passed >= self._a_while_seconds:
            on_wait, self._on_wait = self._on_wait, None
            on_wait()
        until = self._patience_seconds if self._on_wait is None else self._a_while_seconds
        return min(until, self._patience_seconds) - passed

    def pause(self) -> None:
        time.sleep(min(_AGAIN_SECONDS, self.left()))


def _exchange(path: Path, question: bytes, wait: _Wait) -> bytes:
    """Return the answer, nothing where the peer ended before it gave one. Raises OSError."""
    answer = b""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        _connect(connection, path, wait)
        try:
            connection.sendall(question)
            while (more := _receive(connection, wait)) and len(answer) < _ANSWER_BYTES:
                answer += more
        except (BrokenPipeError, ConnectionResetError):
            return b""
    return answer


def _connect(connection: socket.socket, path: Path, wait: _Wait) -> None:
    """Connect; where the daemon's backlog is full try again, since Linux does not wait with a timeout."""
    while True:
        connection.settimeout(wait.left())
        try:
            connection.connect(os.fspath(path))
        except BlockingIOError:
            wait.pause()
        else:
            return


def _receive(connection: socket.socket, wait: _Wait) -> bytes:
    while True:
        connection.settimeout(wait.left())
        try:
            return connection.recv(1 << 16)
        except TimeoutError:
            continue  # unless no time is left


async def _line(peer: Peer) -> bytes:
    received = b""
    while b"\n" not in received and len(received) <= _QUESTION_BYTES:
        more = await peer.receive()
        if not more:
            break
        received += more
    return received.partition(b"\n")[0]


async def _answer(
    line: bytes, commands: Mapping[str, Command], on_failure: OnFailure = _log_failure
) -> Answer:
    """Return the answer to a question. Whatever is asked, nothing is raised."""
    try:
        question = json.loads(line)
    except (ValueError, RecursionError):
        question = None
    name = question.get("command") if isinstance(question, dict) else None
    command = commands.get(name) if isinstance(name, str) else None
    if command is None:
        accepted = ", ".join(json.dumps({"command": name}) for name in commands)
        return {"error": f"got {line[:80]!r}; accepted: {accepted}"}
    try:
        answer = command(question)
        return answer if isinstance(answer, Mapping) else await answer
    except ReactorError as error:
        return {"error": str(error)}
    except Exception as error:  # noqa: BLE001 - a question must never cost the node its guard
        on_failure(error)
        return _FAILED


def _encoded(answer: Answer, on_failure: OnFailure) -> bytes:
    try:
        return json.dumps(answer, default=str).encode() + b"\n"
    except Exception as error:  # noqa: BLE001 - what can't be said ends nothing
        on_failure(error)
        return json.dumps(_FAILED).encode() + b"\n"
