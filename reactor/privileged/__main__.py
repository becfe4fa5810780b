"""The process: `python -m reactor.privileged COMMANDS STEWARD WALKERS`, descriptors all three.

COMMANDS is the guard's sealed file of the commands that may be run. STEWARD and WALKERS are the pairs on
which requests come. It ends with the steward, and ends what it runs.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from contextlib import suppress
from functools import partial
from typing import Final

from reactor.processes import import_trio

import_trio()

import trio  # noqa: E402 - not before what it has no use for is replaced

from reactor.forms import FormError  # noqa: E402
from reactor.kernel.filesystem import read_project_quota  # noqa: E402
from reactor.link.orders import read_commands  # noqa: E402
from reactor.model.settings import Command  # noqa: E402
from reactor.privileged.messages import (  # noqa: E402
    LONGEST_RUN,
    Cancel,
    Over,
    Run,
    read_asked,
    write_over,
)
from reactor.privileged.quotas import QUESTION, write_answer  # noqa: E402
from reactor.programs import run_to_problem  # noqa: E402
from reactor.threads import in_thread  # noqa: E402

_MOST_RUNS: Final = 32
_MOST_QUOTAS: Final = 4  # at a time: one waits for its filesystem
_PAUSE_SECONDS: Final = 0.01  # after what was refused
_DESCRIPTOR_BYTES: Final = socket.CMSG_SPACE(16 * 4)


async def serve(
    allowed: frozenset[Command], steward: trio.socket.SocketType, walkers: trio.socket.SocketType
) -> None:
    """Answer both until the steward closes its end; what still runs then is ended."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_answer_quotas, walkers)
        await _Runs(allowed, steward).serve()
        nursery.cancel_scope.cancel()


class _Runs:
    """Commands that are being run, by their numbers."""

    def __init__(self, allowed: frozenset[Command], steward: trio.socket.SocketType) -> None:
        self._allowed = allowed
        self._steward = steward
        self._runs: dict[int, trio.CancelScope] = {}

    async def serve(self) -> None:
        async with trio.open_nursery() as nursery:
            with suppress(OSError):
                while raw := await self._steward.recv(LONGEST_RUN):
                    try:
                        self._begin(read_asked(raw), nursery)
                    except FormError as error:
                        sys.stderr.write(f"{error}\n")
                        await trio.sleep(_PAUSE_SECONDS)
            nursery.cancel_scope.cancel()

    def _begin(self, asked: Run | Cancel, nursery: trio.Nursery) -> None:
        if isinstance(asked, Cancel):
            if asked.number in self._runs:
                self._runs[asked.number].cancel()
        elif asked.number in self._runs:
            raise FormError(f"got run {asked.number} again; accepted: each once")
        elif asked.command not in self._allowed:
            nursery.start_soon(self._answer, asked, "not run: it is not in the configuration")
        elif len(self._runs) >= _MOST_RUNS:
            nursery.start_soon(self._answer, asked, f"not run: {_MOST_RUNS} commands are running already")
        else:
            self._runs[asked.number] = trio.CancelScope()
            nursery.start_soon(self._run, asked)

    async def _run(self, run: Run) -> None:
        problem: str | None = "cancelled"
        try:
            with self._runs[run.number]:
                problem = await run_to_problem(
                    run.command, run.timeout_seconds, given=run.given, leaves_nothing=run.leaves_nothing
                )
        finally:
            del self._runs[run.number]
        await self._answer(run, problem)

    async def _answer(self, run: Run, problem: str | None) -> None:
        with suppress(OSError):
            await self._steward.send(write_over(Over(run.number, problem)))


async def _answer_quotas(walkers: trio.socket.SocketType) -> None:
    limiter = trio.CapacityLimiter(_MOST_QUOTAS)
    async with trio.open_nursery() as nursery:
        while True:
            raw, ancillary, _, _ = await walkers.recvmsg(QUESTION.size, _DESCRIPTOR_BYTES)
            if not raw:  # the steward and the walkers have ended
                return
            fds = _descriptors(ancillary)
            try:
                if len(raw) != QUESTION.size or len(fds) != 1:
                    await trio.sleep(_PAUSE_SECONDS)
                    continue
                number, project = QUESTION.unpack(raw)
                if limiter.borrowed_tokens >= _MOST_QUOTAS:
                    await _send(walkers, write_answer(number, errno.EAGAIN))
                else:
                    nursery.start_soon(partial(_answer_quota, walkers, number, fds.pop(), project, limiter))
            finally:
                for fd in fds:
                    os.close(fd)


async def _answer_quota(
    walkers: trio.socket.SocketType, number: int, fd: int, project: int, limiter: trio.CapacityLimiter
) -> None:
    answer = write_answer(number, *await in_thread(_read_quota, fd, project, limiter=limiter))
    await _send(walkers, answer)


def _read_quota(fd: int, project: int) -> tuple[int, bytes]:
    try:
        return 0, read_project_quota(fd, project)
    except OSError as error:
        return error.errno or errno.EIO, b""
    finally:
        os.close(fd)


async def _send(walkers: trio.socket.SocketType, answer: bytes) -> None:
    with suppress(OSError):
        await walkers.send(answer)


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    """Return the descriptors that came with a datagram."""
    found: list[int] = []
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found += memoryview(content[: len(content) // 4 * 4]).cast("i").tolist()
    return found


def main(arguments: list[str]) -> None:
    """Answer until the steward ends."""
    commands_fd, steward_fd, walkers_fd = map(int, arguments)
    for fd in (commands_fd, steward_fd, walkers_fd):
        os.set_inheritable(fd, False)  # noqa: FBT003 - its one argument
    allowed = frozenset(read_commands(commands_fd))
    trio.run(_serve, allowed, steward_fd, walkers_fd)


async def _serve(allowed: frozenset[Command], steward_fd: int, walkers_fd: int) -> None:
    steward, walkers = (
        trio.socket.from_stdlib_socket(socket.socket(fileno=fd)) for fd in (steward_fd, walkers_fd)
    )
    with steward, walkers:
        await serve(allowed, steward, walkers)


if __name__ == "__main__":
    main(sys.argv[1:])
