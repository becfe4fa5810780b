"""What the operator wants to be done before a soft eviction: commands, HTTP calls, systemd's prekill hooks.

All run at once, in the steward, with one time limit. The guard waits for that limit at most, and for nothing
if the hard threshold is crossed. A hook can decide nothing: of what it answers only its success counts, and
that is shown. Source of the protocol: systemd, src/oom and varlink-io.systemd.oom.Prekill.c; a message is
JSON that ends with a zero byte.
"""

from __future__ import annotations

import json
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import trio

import reactor
from reactor.errors import ReactorError
from reactor.model.settings import HookSettings
from reactor.programs import RunProgram, run_to_problem
from reactor.text import printable
from reactor.threads import in_thread
from reactor.web_address import WebAddress, read_web_address

if TYPE_CHECKING:
    from reactor.http_client import HttpClient

PREKILL_DIRECTORY: Final = Path("/run/systemd/oomd.prekill.hook")
_METHOD: Final = "io.systemd.oom.Prekill.Notify"
_MOST_SOCKETS: Final = 16
_ANSWER_BYTES: Final = 64 << 10
_READ_BYTES: Final = 4 << 10
_BETWEEN_READS_SECONDS: Final = 0.002  # one that floods waits; the steward does not
_LONGEST_PROBLEM: Final = 200

_Hook = Callable[[float], Awaitable[None]]


class HookError(ReactorError):
    """A hook was not done, and why."""


class Hooks:
    """Runs the hooks that the settings name by then. `directory` is another one in tests."""

    def __init__(self, run: RunProgram = run_to_problem, *, directory: Path = PREKILL_DIRECTORY) -> None:
        self._run = run
        self._directory = directory
        self._client: HttpClient | None = None

    def close(self) -> None:
        """Close the connections that are kept."""
        if self._client is not None:
            self._client.close()

    async def before(
        self, settings: HookSettings, asked: Mapping[str, Any], seconds: float
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Run all hooks for an eviction; return those that were done in time, and what went wrong of others.

        `asked` is what they are given of it; `seconds` is their time, if it is less than is configured.
        """
        hooks = await self._hooks(settings, asked)
        limit_seconds = min(settings.timeout_seconds, seconds)
        done: list[str] = []
        problems: list[str] = []

        async def run(name: str, hook: _Hook) -> None:
            why = f"{name}: not done within {limit_seconds:g} s"
            with trio.move_on_after(limit_seconds):
                try:
                    await hook(limit_seconds)
                except HookError as error:
                    why = f"{name}: {error}"
                else:
                    done.append(printable(name))
                    return
            problems.append(printable(why)[:_LONGEST_PROBLEM])

        async with trio.open_nursery() as nursery:
            for name, hook in hooks:
                nursery.start_soon(run, name, hook)
        return tuple(done), tuple(problems)

    async def _hooks(self, settings: HookSettings, asked: Mapping[str, Any]) -> list[tuple[str, _Hook]]:
        """Return each hook with its name; several may have the same."""
        content = json.dumps(asked).encode()
        hooks: list[tuple[str, _Hook]] = [
            (command[0], partial(self._command, command, content)) for command in settings.commands
        ]
        for address in filter(None, map(read_web_address, settings.urls)):
            hooks += [(address.origin, partial(self._call, address, content))]
        if settings.prekill and asked.get("cgroup"):
            paths = await in_thread(_sockets, self._directory, abandon_on_cancel=True)
            hooks += [(str(path), partial(_notify, path, asked["cgroup"])) for path in paths]
        return hooks

    async def _command(self, command: Sequence[str], content: bytes, seconds: float) -> None:
        why = await self._run(tuple(command), seconds, given=content, leaves_nothing=True)
        if why is not None:
            raise HookError(why)

    async def _call(self, address: WebAddress, content: bytes, seconds: float) -> None:
        import ssl  # noqa: PLC0415 - imported where a hook is called by TLS

        from reactor.http_client import HttpClient, HttpError, Origin  # noqa: PLC0415 - where one is by HTTP

        if self._client is None:
            self._client = HttpClient()
        tls = ssl.create_default_context() if address.is_tls else None
        headers = [
            ("Content-Type", "application/json"),
            ("User-Agent", f"reactor/{reactor.__version__}"),
        ]
        try:
            async with self._client.request(
                Origin(host=address.host, port=address.port, tls=tls),
                "POST",
                address.target,
                headers=headers,
                body=content,
                silence_seconds=seconds,
            ) as answer:
                if answer.status not in range(200, 300):
                    raise HookError(f"answered {answer.status}")
        except (HttpError, OSError) as error:
            raise HookError(str(error)) from error


def unusable_because(directory: Path) -> str | None:
    """Return why no socket there is called: only root may say who is told of evictions. None: they are."""
    try:
        found = directory.stat()
    except OSError as error:
        return f"{directory}: {error.strerror}"
    if found.st_uid not in {0, os.geteuid()}:
        return f"{directory} belongs to uid {found.st_uid}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{directory} has mode {stat.S_IMODE(found.st_mode):04o}: others may write it"
    return None


def _sockets(directory: Path) -> list[Path]:
    """Return systemd's hooks: the sockets of a directory that only root can write."""
    if unusable_because(directory) is not None:
        return []
    try:
        return sorted(path for path in directory.iterdir() if path.is_socket())[:_MOST_SOCKETS]
    except OSError:
        return []


async def _notify(path: Path, cgroup: str, _seconds: float) -> None:
    """Call a socket's Notify and wait for its answer. Raises HookError."""
    call = {"method": _METHOD, "parameters": {"cgroup": cgroup}}
    try:
        with trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            await connection.connect(str(path))
            message = json.dumps(call).encode() + b"\0"
            while message:
                message = message[await connection.send(message) :]
            answer = await _answer(connection)
    except OSError as error:
        raise HookError(str(error.strerror or error)) from error
    try:
        document = json.loads(answer)
    except (ValueError, RecursionError) as error:
        raise HookError("answers with something else than JSON") from error
    if not isinstance(document, dict):
        raise HookError("answers with something else than a reply")
    if "error" in document:
        raise HookError(f"answers with the error {str(document['error'])[:100]}")


async def _answer(connection: trio.socket.SocketType) -> bytes:
    received = bytearray()
    while b"\0" not in received:
        piece = await connection.recv(_READ_BYTES)
        if not piece:
            raise HookError("ended without an answer")
        received += piece
        if len(received) > _ANSWER_BYTES:
            raise HookError(f"answers with more than {_ANSWER_BYTES} bytes")
        await trio.sleep(_BETWEEN_READS_SECONDS)
    return bytes(received[: received.index(b"\0")])
