"""The steward's end of the privileged process: its start, and the commands that it runs."""

from __future__ import annotations

import math
import socket
import subprocess
import sys
from contextlib import suppress
from typing import Final, Self

import trio

from reactor.errors import ReactorError
from reactor.forms import FormError
from reactor.model.settings import Command
from reactor.privileged.messages import (
    LONGEST_OVER,
    Cancel,
    Run,
    read_over,
    write_asked,
)
from reactor.processes import child_environment

COMMAND: Final = (sys.executable, "-P", "-m", "reactor.privileged")
_ABSENT: Final = "not run: the process that runs commands is not there yet"


class PrivilegedError(ReactorError):
    """The privileged process has ended, or answers with what it can't have to say."""


class Privileged:
    """The process, started before the steward gives its rights up; it ends with the steward.

    `walkers_fd` is for the walkers, each of which gets a copy (`quotas`).
    """

    def __init__(
        self, process: subprocess.Popen[bytes], steward: socket.socket, walkers: socket.socket
    ) -> None:
        self._process = process  # its end is seen by the pair
        self._steward = steward
        self._walkers = walkers
        self._commands: Commands | None = None

    @classmethod
    def start(cls, commands_fd: int) -> Self:
        """Start it; `commands_fd` is the guard's file (`link.orders`). Raises OSError."""
        kind = socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC
        steward, its_steward = socket.socketpair(socket.AF_UNIX, kind)
        walkers, its_walkers = socket.socketpair(socket.AF_UNIX, kind)
        with its_steward, its_walkers:
            fds = (commands_fd, its_steward.fileno(), its_walkers.fileno())
            process = subprocess.Popen(
                (*COMMAND, *map(str, fds)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd="/",
                env=child_environment(),
                pass_fds=fds,
            )
        return cls(process, steward, walkers)

    @property
    def walkers_fd(self) -> int:
        """Return the descriptor on which quotas are asked for."""
        return self._walkers.fileno()

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        """Close the pairs, by which it ends, and wait for that."""
        if self._commands is not None:
            self._commands.close()
        self._steward.close()
        self._walkers.close()
        self._process.wait()

    def commands(self) -> Commands:
        """Return where its commands are run. For Trio's thread."""
        self._commands = Commands(self._steward)
        return self._commands


class Commands:
    """Has the operator's commands run. `run_to_problem` is that of `programs`, made by the process.

    Without a connection none can be run.
    """

    def __init__(self, process: socket.socket | None = None) -> None:
        self._process = process
        self._connection: trio.socket.SocketType | None = None
        if process is not None:
            process.setblocking(False)  # noqa: FBT003 - its one argument
            self._connection = trio.socket.from_stdlib_socket(process.dup())
        self._number = 0
        self._awaited: dict[int, trio.MemorySendChannel[str | None]] = {}

    def close(self) -> None:
        """Close the pair: what runs is ended, and the process ends."""
        if self._connection is not None:
            self._connection.close()

    async def run(self) -> None:
        """Take what the process answers. Raises PrivilegedError once it has ended; until then, for ever."""
        if self._connection is None:
            await trio.sleep_forever()
        try:
            while raw := await self._connection.recv(LONGEST_OVER):
                over = read_over(raw)
                with suppress(KeyError):
                    self._awaited.pop(over.number).send_nowait(over.problem)
        except (OSError, FormError) as error:
            raise PrivilegedError(f"the process that runs commands: {error}") from error
        raise PrivilegedError("the process that runs commands has ended")

    async def run_to_problem(
        self, command: Command, timeout_seconds: float, *, given: bytes = b"", leaves_nothing: bool = False
    ) -> str | None:
        """Have a command run and return what went wrong, None where nothing did; cancelled, it is ended."""
        if self._connection is None:
            return _ABSENT
        self._number += 1
        number = self._number
        run = Run(
            number=number,
            command=command,
            timeout_seconds=timeout_seconds,
            leaves_nothing=leaves_nothing,
            given=given,
        )
        send, receive = trio.open_memory_channel[str | None](math.inf)
        self._awaited[number] = send
        try:
            await self._connection.send(write_asked(run))
            return await receive.receive()
        except (OSError, FormError) as error:
            return str(error)
        except trio.Cancelled:
            self._cancel(number)
            raise
        finally:
            self._awaited.pop(number, None)

    def _cancel(self, number: int) -> None:
        """Have a run ended, without waiting for that."""
        if self._process is not None:
            with suppress(OSError):
                self._process.send(write_asked(Cancel(number)))
