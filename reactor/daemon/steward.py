"""The guard's side of the steward: restarts it, hands it lines of the journal, answers what it asks.

The guard needs nothing of it. While it is dead, stopped or stuck, lines wait in a bounded queue. What it
sends is checked as a stranger's: one fixed form, at a bounded pace; what is none is counted and dropped.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import trio

from reactor.daemon.record_queue import RecordQueue, encode
from reactor.daemon.steward_process import COMMAND, StewardError, StewardProcess
from reactor.errors import ReactorError
from reactor.link.frames import LONGEST_BYTES, FrameKind, Message, write_frames
from reactor.link.requests import (
    QUESTIONS,
    REQUEST_BYTES,
    Request,
    RequestError,
    RequestKind,
    read_request,
)
from reactor.sources.attempts import Pace

_LOG: Final = logging.getLogger("reactor.steward")
# It says that it lives every 5 s; what starts beside a node's full load takes its time.
_SILENT_SECONDS: Final = 30.0
_END_SECONDS: Final = 2.0
_READING_SECONDS: Final = 0.5
_REQUESTS_AT_ONCE: Final = 64
_REQUESTS_PER_SECOND: Final = 100.0
# A question costs about a millisecond, and makes way for the loop.
_QUESTIONS_AT_ONCE: Final = 8
_QUESTIONS_PER_SECOND: Final = 20.0
_MOST_ANSWERS: Final = 4
_FAILED: Final = {"error": "internal error; see the log"}

Answer = Callable[[Request], Awaitable[Mapping[str, Any]]]


class StewardLink:
    """Keeps one steward after the other; `run` is a part of the daemon, from one steward's start to its end.

    `orders` is what each steward is told first, and again after `reorder`. `on_failure` is given what an
    answer has failed with. `pid` is the present steward's, None without; `starts` counts them, and `refused`
    the requests that were none.
    """

    def __init__(
        self,
        records: RecordQueue,
        answers: Mapping[RequestKind, Answer],
        orders: Callable[[], Mapping[str, Any]],
        on_failure: Callable[[Exception], None],
        *,
        command: Sequence[str] = COMMAND,
        silent_seconds: float = _SILENT_SECONDS,
    ) -> None:
        self.listener: socket.socket | None = None
        self.pid: int | None = None
        self.starts = 0
        self.refused = 0
        self.problem: str | None = None
        self._records = records
        self._answers = answers
        self._orders = orders
        self._on_failure = on_failure
        self._command = command
        self._silent_seconds = silent_seconds
        self._heard_seconds = 0.0
        self._reordered = trio.Event()
        self._is_ending = False
        self._requests_pace = Pace(burst=_REQUESTS_AT_ONCE, per_second=_REQUESTS_PER_SECOND)
        self._questions_pace = Pace(burst=_QUESTIONS_AT_ONCE, per_second=_QUESTIONS_PER_SECOND)

    async def run(self) -> None:
        """Start a steward and serve it until it ends. Raises StewardError then, and OSError without one."""
        process = StewardProcess(self._command, self.listener)
        self.pid = process.pid
        self.starts += 1
        self._heard_seconds = trio.current_time()
        self._records.restart()
        why = ""
        try:
            why = await self._serve(process.connection)
        finally:
            self.pid = None
            ended = await process.end(_END_SECONDS if self._is_ending else 0.0)
        raise StewardError(f"steward: {why or ended}")

    async def finish(self) -> None:
        """Wait until everything has been handed over, but not for long; then `run` may be cancelled."""
        self._is_ending = True
        with trio.move_on_after(_END_SECONDS):
            await self._records.wait_empty()

    def reorder(self) -> None:
        """Tell the steward anew what it works by."""
        self._reordered.set()

    def document(self) -> dict[str, Any]:
        """Return how it stands, as plain JSON values."""
        return {
            "pid": self.pid,
            "restarts": max(0, self.starts - 1),
            "lost_records": self._records.lost,
            "waiting_records": len(self._records),
            "refused_requests": self.refused,
        }

    async def _serve(self, connection: trio.socket.SocketType) -> str:
        """Return why this steward is to be replaced, nothing where it has ended."""
        session = _Session(connection)
        self._reordered = trio.Event()
        with suppress(OSError):  # it has ended already, which is found out below
            await session.send(self._order())
        why = ""
        async with trio.open_nursery() as nursery:
            calls = (self._send_orders, self._send_records, self._receive, _Session.send_answers)
            for call in calls:
                nursery.start_soon(_until_over, partial(call, session), nursery.cancel_scope)
            why = await self._notice_silence()
            nursery.cancel_scope.cancel()
        return why

    def _order(self) -> Message:
        return Message(FrameKind.SETTINGS, 0, encode(self._orders()))

    async def _send_orders(self, session: _Session) -> None:
        while True:
            await self._reordered.wait()
            self._reordered = trio.Event()
            await session.send(self._order())

    async def _send_records(self, session: _Session) -> None:
        while True:
            await session.send(await self._records.next())

    async def _receive(self, session: _Session) -> None:
        while raw := await session.connection.recv(REQUEST_BYTES + 1):
            await self._requests_pace.turn()
            await self._obey(raw, session)

    async def _notice_silence(self) -> str:
        """Return what is to be said of a steward that was not heard of for too long, once that is so."""
        is_late = False
        while True:
            left_seconds = self._heard_seconds + self._silent_seconds - trio.current_time()
            if left_seconds <= 0 and is_late:
                return f"not heard of for {self._silent_seconds:g} s"
            # Where the guard itself was stopped for so long, what came meanwhile is read first.
            is_late = left_seconds <= 0
            await trio.sleep(_READING_SECONDS if is_late else left_seconds)

    async def _obey(self, raw: bytes, session: _Session) -> None:
        """Do what a datagram asks for; one that asks for nothing that can be is counted and dropped."""
        try:
            request = read_request(raw)
            if request.kind is RequestKind.TAKEN:
                self._records.taken(request.number, request.lost)
        except RequestError as error:
            self._refuse(error)
            return
        self._heard_seconds = trio.current_time()
        if request.kind in QUESTIONS:
            await self._questions_pace.turn()
            answer = Message(FrameKind.ANSWER, request.number, await self._answer(request))
            await session.answers.send(answer)

    async def _answer(self, request: Request) -> bytes:
        try:
            content = encode(await self._answers[request.kind](request))
            if len(content) > LONGEST_BYTES:
                raise ValueError(f"an answer of {len(content)} bytes; accepted: {LONGEST_BYTES}")  # noqa: TRY301
        except ReactorError as error:
            return encode({"error": str(error)})
        except Exception as error:  # noqa: BLE001 - a question must never cost the node its guard
            self._on_failure(error)
            return encode(_FAILED)
        return content

    def _refuse(self, error: RequestError) -> None:
        self.refused += 1
        if self.problem is None:
            _LOG.error("steward: a request is refused: %s", error)
        self.problem = f"{self.refused} requests refused; the last: {error}"


class _Session:
    """The pair to one steward. Messages go out whole, one after the other; few answers wait their turn."""

    def __init__(self, connection: trio.socket.SocketType) -> None:
        self.connection = connection
        self.answers, self._answered = trio.open_memory_channel[Message](_MOST_ANSWERS)
        self._sending = trio.Lock()

    async def send(self, message: Message) -> None:
        """Send a message; wait where the steward does not read. Raises OSError where it has ended."""
        async with self._sending:
            for frame in write_frames(message):
                await self.connection.send(frame)

    async def send_answers(self) -> None:
        """Send the answers that are made, until cancelled."""
        async for message in self._answered:
            await self.send(message)


async def _until_over(call: Callable[[], Awaitable[None]], scope: trio.CancelScope) -> None:
    """Make a call that is over when the steward has ended, which is the end of the others then."""
    with suppress(OSError):  # EPIPE, ECONNRESET
        await call()
    scope.cancel()
