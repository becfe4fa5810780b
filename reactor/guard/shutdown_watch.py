"""The process that watches logind (reactor/shutdown), and the guard's end of the socket pair to it.

The guard opens no bus. What the process tells is checked as a stranger's; while there is none nothing is held
up, and pressure is defended all the same.
"""

from __future__ import annotations

import errno
import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import trio

from reactor.backoff import Pace
from reactor.child_process import ChildProcess
from reactor.errors import ReactorError
from reactor.forms import FormError
from reactor.link.shutdown import (
    GO_ON,
    LONGEST_BYTES,
    ShutdownNews,
    ShutdownNewsKind,
    read_news,
)

_LOG: Final = logging.getLogger("reactor.shutdown")
COMMAND: Final = (sys.executable, "-P", "-m", "reactor.shutdown")
_NEWS_AT_ONCE: Final = 16
_NEWS_PER_SECOND: Final = 10.0
_END_SECONDS: Final = 1.0


class ShutdownWatchError(ReactorError):
    """The process that watches logind has ended."""


class ShutdownWatch:
    """Keeps one process after the other, `run` from one's start to its end; `on_news` is told what it says.

    `pid` is the present one's, None without; `inhibited_seconds` for how long logind waits for it at the
    most, None where it would not. `problem` is what it says is wrong. `refused` counts messages that were
    none.
    """

    def __init__(self, on_news: Callable[[ShutdownNews], None], *, command: Sequence[str] = COMMAND) -> None:
        self.pid: int | None = None
        self.inhibited_seconds: int | None = None
        self.problem: str | None = None
        self.refused = 0
        self._on_news = on_news
        self._command = command
        self._connection: trio.socket.SocketType | None = None

    async def run(self, wanted_seconds: int, kubelet_config_path: str | None) -> None:
        """Have a shutdown held up for so long until cancelled. Raises ShutdownWatchError, OSError."""
        of_kubelet = () if kubelet_config_path is None else (kubelet_config_path,)
        process = await ChildProcess.start((*self._command, str(wanted_seconds), *of_kubelet))
        self.pid, self._connection = process.pid, process.connection
        try:
            await self._receive(process.connection)
        finally:
            self.pid = self._connection = self.inhibited_seconds = self.problem = None
            ended = await process.end(_END_SECONDS)
        raise ShutdownWatchError(f"the process that watches logind: {ended}")

    async def go_on(self) -> None:
        """Let a shutdown go on: what was to be done before it is done."""
        if self._connection is not None:
            with suppress(OSError):  # has ended, and its lock with it
                await self._connection.send(GO_ON)

    async def _receive(self, connection: trio.socket.SocketType) -> None:
        pace = Pace(burst=_NEWS_AT_ONCE, per_second=_NEWS_PER_SECOND)
        while True:
            try:
                raw = await connection.recv(LONGEST_BYTES + 1)
            except OSError as error:
                if error.errno != errno.ECONNRESET:
                    raise
                return
            if not raw:
                return
            await pace.turn()
            try:
                news = read_news(raw)
            except FormError as error:
                self.refused += 1
                if self.refused == 1:
                    _LOG.error("the process that watches logind: a message is refused: %s", error)
                continue
            self._heed(news)

    def _heed(self, news: ShutdownNews) -> None:
        if news.kind is ShutdownNewsKind.INHIBITED:
            self.inhibited_seconds = news.seconds
        elif news.kind is ShutdownNewsKind.NOT_INHIBITED:
            self.inhibited_seconds = None
        elif news.kind is ShutdownNewsKind.PROBLEM:
            self.problem = news.text or None
        self._on_news(news)
