"""The guard's end of the process that gives scores back when the guard is gone: oom_restorer.py.

It is started when scores are to be written for the first time, and ends with the guard.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio

from reactor.errors import ReactorError
from reactor.guard.child_process import ChildProcess
from reactor.guard.oom_restorer import HELD, NONE, READY

# Not by -m: runpy takes another MiB.
_PROGRAM: Final = "import sys; from reactor.guard.oom_restorer import main; main(sys.argv[1])"
COMMAND: Final = (sys.executable, "-S", "-P", "-c", _PROGRAM)
_START_SECONDS: Final = 10.0
_SEND_SECONDS: Final = 1.0


class RestorerError(ReactorError):
    """No process stands by to restore scores."""


class Restorer:
    """Has one such process stand by, for scores by this file; `pid` is its id, None without."""

    def __init__(self, path: Path, command: Sequence[str] = COMMAND) -> None:
        self.pid: int | None = None
        self._command = (*command, str(path))
        self._process: ChildProcess | None = None

    async def stand_by(self) -> None:
        """Have it know that the guard is there and may have written scores. Raises RestorerError, OSError.

        One that has ended is replaced.
        """
        if not await self._is_sent(HELD):
            await self.end()
            await self._start()
            await self._is_sent(HELD)

    async def relax(self) -> None:
        """Have it know that no score is written."""
        await self._is_sent(NONE)

    async def end(self) -> None:
        """End it. It restores what the file says then."""
        process, self._process, self.pid = self._process, None, None
        if process is not None:
            await process.end(_START_SECONDS)

    async def _start(self) -> None:
        process = await ChildProcess.start(self._command)
        self._process, self.pid = process, process.pid
        answer = b""
        with trio.move_on_after(_START_SECONDS):
            with suppress(OSError):  # it has ended
                answer = await process.connection.recv(len(READY))
        if answer != READY:
            self._process = self.pid = None
            ended = await process.end()
            raise RestorerError(f"no process stands by to restore scores: {ended}")

    async def _is_sent(self, message: bytes) -> bool:
        if self._process is None:
            return False
        with trio.move_on_after(_SEND_SECONDS):
            try:
                await self._process.connection.send(message)
            except OSError:
                return False
            return True
        return False
