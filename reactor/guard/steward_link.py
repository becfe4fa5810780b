"""The guard's side of the steward: restarts it, hands it lines of the journal, answers what it asks.

The guard needs nothing of it. While it is dead, stopped or stuck, lines wait in a bounded queue. What it
sends is checked as a stranger's: one fixed form, at a bounded pace; what is none is counted and dropped.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio

from reactor.backoff import Pace
from reactor.child_process import ChildProcess
from reactor.errors import ReactorError, StewardError
from reactor.forms import FormError
from reactor.guard.outbox import ClusterReports, RecordQueue, Send, encode
from reactor.guard.own_cgroups import OwnCgroups
from reactor.guard.usage_facts import UsageFacts
from reactor.link.frames import LONGEST_BYTES, FrameKind, Message, write_frames
from reactor.link.orders import Orders, commands_of, write_commands, write_order
from reactor.link.requests import LONGEST_BYTES as LONGEST_REQUEST
from reactor.link.requests import (
    QUESTIONS,
    Piece,
    ReclaimOver,
    Request,
    RequestKind,
    Space,
    Usages,
    read_request,
)
from reactor.model.settings import Command, Settings
from reactor.supervisor import RECOVERED_SECONDS

if TYPE_CHECKING:
    from reactor.guard.filesystem_facts import FilesystemFacts
    from reactor.guard.pod_facts import PodFacts

_LOG: Final = logging.getLogger("reactor.steward")
COMMAND: Final = (sys.executable, "-P", "-m", "reactor.steward")
# It says something every 12 s at the least; where one starves before it does, the next has twice as long.
_SILENT_SECONDS: Final = 30.0
_LONGEST_SILENT_SECONDS: Final = 480.0
_END_SECONDS: Final = 2.0
_READING_SECONDS: Final = 0.5
_REQUESTS_AT_ONCE: Final = 64
_REQUESTS_PER_SECOND: Final = 100.0
_WAITING_SECONDS: Final = 0.0004  # a listing of 110 pods, one of them new, takes 0.3 ms
# A question costs about a millisecond, and makes way for the loop.
_QUESTIONS_AT_ONCE: Final = 8
_QUESTIONS_PER_SECOND: Final = 20.0
_MOST_QUESTIONS: Final = 32
_OLDEST_NS: Final = 60 * 10**9
# A layout is another one where an operator has mounted something; each has all sources armed again.
_LAYOUTS_AT_ONCE: Final = 3
_LAYOUTS_SECONDS: Final = 60.0
_FAILED: Final = {"error": "internal error; see the log"}

Document = Mapping[str, Any]
Answer = Callable[[Request], Document | Awaitable[Document]]


class StewardLink:
    """Keeps one steward after the other; `run` is a part of the daemon, from one steward's start to its end.

    Each steward is sent the orders first: `start` and `settings`, until `order` gives others. `on_failure`
    is given what an answer has failed with. `storage` says what the steward is to count, `cgroups` where it
    lives, if anything does; `feeds` send it what else it is to know. `pid` is the present steward's, None
    without; `starts` counts them, and `refused` the requests that were none.
    """

    def __init__(
        self,
        records: RecordQueue,
        answers: Mapping[RequestKind, Answer],
        settings: Settings,
        on_failure: Callable[[Exception], None],
        *,
        command: Sequence[str] = COMMAND,
        silent_seconds: float = _SILENT_SECONDS,
    ) -> None:
        self.listener: socket.socket | None = None
        self.storage = UsageFacts()
        self.feeds: Sequence[Callable[[Send], Awaitable[None]]] = ()
        self.cgroups: OwnCgroups | None = None
        self.pid: int | None = None
        self.starts = 0
        self.refused = 0
        self._refused_at, self._refused_last = float("-inf"), ""
        self._records = records
        self._answers = answers
        self._orders = Orders(start=records.start, number=0, settings=settings)
        self._allowed: frozenset[Command] = frozenset()
        self._news: FilesystemFacts | None = None
        self._pods: PodFacts | None = None
        self._reports: ClusterReports | None = None
        self._session: _Session | None = None
        self._asked = 0
        self._layouts_at: deque[float] = deque(maxlen=_LAYOUTS_AT_ONCE)
        self._on_failure = on_failure
        self._command = command
        self._silent_seconds = self._patience_seconds = silent_seconds
        self._last_seconds = 0.0
        self._reordered = trio.Event()
        self._end_seconds: float | None = None
        self._requests_pace = Pace(burst=_REQUESTS_AT_ONCE, per_second=_REQUESTS_PER_SECOND)
        self._questions_pace = Pace(burst=_QUESTIONS_AT_ONCE, per_second=_QUESTIONS_PER_SECOND)

    @property
    def problem(self) -> str | None:
        """Return that requests were refused lately, None where none was."""
        if trio.current_time() - self._refused_at >= RECOVERED_SECONDS:
            return None
        return f"{self.refused} requests refused; the last: {self._refused_last}"

    async def run(self) -> None:
        """Start a steward and serve it until it ends. Raises StewardError then, and OSError without one.

        It is replaced, without an error, where other commands may be run: which, it can't change.
        """
        while True:
            why = await self._run_one()
            if self._commands == self._allowed:
                raise StewardError(f"steward: {why}")

    @property
    def _commands(self) -> frozenset[Command]:
        return commands_of(self._orders.settings)

    async def _run_one(self) -> str:
        """Start a steward, which may have the present commands run; return how it ended. Raises OSError."""
        self._allowed = self._commands
        commands_fd = write_commands(self._allowed)
        try:
            listener = () if self.listener is None else (self.listener.fileno(),)
            process = await ChildProcess.start(self._command, (commands_fd, *listener), self.cgroups)
        finally:
            os.close(commands_fd)
        self.pid = process.pid
        self.starts += 1
        self._last_seconds = trio.current_time()
        self._records.restart()
        if self._pods is not None and self._reports is not None:
            self._pods.restart()
            self._reports.restart()
        try:
            why = await self._serve(process.connection)
        finally:
            self.pid = None
            ends_in_order = self._end_seconds is not None or self._commands != self._allowed
            ended = await process.end(_END_SECONDS if ends_in_order else 0.0)
        return why or ended

    async def finish(self) -> None:
        """Wait until everything has been handed over, but not for long; then `run` may be cancelled.

        Called once more, for what came meanwhile, it waits no longer than the first call might.
        """
        if self._end_seconds is None:
            self._end_seconds = trio.current_time() + _END_SECONDS
        with trio.move_on_at(self._end_seconds):
            await self._records.wait_empty()

    def order(self, settings: Settings, news: FilesystemFacts) -> None:
        """Have the steward work by these settings; `news` receives what it observes by them."""
        self._orders = replace(self._orders, number=self._orders.number + 1, settings=settings)
        self._news = news
        self._reordered.set()

    def attend_cluster(self, pods: PodFacts, reports: ClusterReports) -> None:
        """Take part in a cluster: `pods` receive the listings of the node's, and `reports` are sent."""
        self._pods, self._reports = pods, reports

    def forget(self, news: FilesystemFacts) -> None:
        """Send these no more of what the steward observes."""
        if self._news is news:
            self._news = None

    async def observe(self, timeout_seconds: float) -> bool:
        """Have all filesystems observed now; return whether that was done in time."""
        with trio.move_on_after(timeout_seconds), suppress(StewardError):
            await self._ask(FrameKind.OBSERVE, {})
            return True
        return False

    async def ask(self, order: FrameKind, /, **about: object) -> ReclaimOver:
        """Have the steward do what this kind of message asks for, and return what came of it.

        Raises StewardError where there is no steward, or it ends meanwhile.
        """
        over = await self._ask(order, about)
        if not isinstance(over, ReclaimOver):
            raise StewardError(f"steward: answers {order.name} with something else")
        return over

    async def count(self, *, urgent: bool) -> None:
        """Have the places counted soon, if there are any. Raises StewardError without a steward."""
        session = await self._with_places()
        if session.places:
            await session.send(Message(FrameKind.COUNT, 0, encode({"urgent": urgent})))

    async def counted(self) -> None:
        """Have the places counted now, and return when they are. Raises StewardError without a steward."""
        await self._with_places()
        await self._ask(FrameKind.COUNT, {"urgent": True})

    def _present(self) -> _Session:
        if self._session is None:
            raise StewardError("steward: there is none at present")
        return self._session

    async def _with_places(self) -> _Session:
        """Return the present session, whose steward knows by then which places there are."""
        session = self._present()
        await session.send_places(self.storage)
        return session

    def document(self) -> dict[str, Any]:
        return {
            "pid": self.pid,
            "restarts": max(0, self.starts - 1),
            "lost_records": self._records.lost,
            "waiting_records": len(self._records),
            "refused_requests": self.refused,
            "memory": None if self.cgroups is None else self.cgroups.document(),
        }

    async def _serve(self, connection: trio.socket.SocketType) -> str:
        """Return why this steward is to be replaced, nothing where it has ended."""
        session = self._session = _Session(connection)
        self._reordered = trio.Event()
        outboxes = (self._records,) if self._reports is None else (self._records, self._reports)
        why = ""
        try:
            with suppress(StewardError):  # it has ended already, which is found out below
                await session.send(self._order())
            async with trio.open_nursery() as nursery:
                for call in (self._send_orders, self._receive, self._answer_questions):
                    nursery.start_soon(_until_over, partial(call, session), nursery.cancel_scope)
                for feed in (*(one.send_to for one in outboxes), *self.feeds):
                    nursery.start_soon(_until_over, partial(feed, session.send), nursery.cancel_scope)
                why = await self._notice_silence()
                nursery.cancel_scope.cancel()
        finally:
            self._session = None
            session.close()
            self.storage.steward_ended()
        return why

    def _order(self) -> Message:
        return Message(FrameKind.ORDERS, self._orders.number, write_order(self._orders))

    async def _send_orders(self, session: _Session) -> None:
        """Send orders, until other commands may be run than this steward was started with."""
        await session.send_places(self.storage)
        while True:
            if self._commands != self._allowed:
                return
            await self._reordered.wait()
            self._reordered = trio.Event()
            await session.send(self._order())

    async def _receive(self, session: _Session) -> None:
        while self.take_waiting(0.0):
            await trio.lowlevel.wait_readable(session.connection)
            await self._requests_pace.turn()

    def take_waiting(self, seconds: float = _WAITING_SECONDS) -> bool:
        """Do what the steward has asked for by now, for so long; return whether more can come."""
        session, until_seconds = self._session, time.monotonic() + seconds
        try:
            while session is not None and (raw := os.read(session.connection.fileno(), LONGEST_REQUEST + 1)):
                self._obey(raw, session)
                if time.monotonic() >= until_seconds:
                    return True
        except OSError as error:
            return isinstance(error, BlockingIOError)
        return False

    async def _notice_silence(self) -> str:
        """Return why a steward is replaced that was silent for too long, once it was."""
        is_late = False
        while True:
            waited_seconds = self._patience_seconds
            left_seconds = self._last_seconds + waited_seconds - trio.current_time()
            if left_seconds <= 0 and is_late:
                self._patience_seconds = min(2 * waited_seconds, _LONGEST_SILENT_SECONDS)
                return f"not heard of for {waited_seconds:g} s"
            # Where the guard itself was stopped for so long, what came meanwhile is read first.
            is_late = left_seconds <= 0
            await trio.sleep(_READING_SECONDS if is_late else left_seconds)

    async def _ask(self, kind: FrameKind, document: Mapping[str, Any]) -> Request | ReclaimOver:
        """Return what the steward answers. Raises StewardError where there is none, or it ends meanwhile."""
        session, self._asked = self._present(), self._asked + 1
        return await session.ask(Message(kind, self._asked, encode(document)))

    def _obey(self, raw: bytes, session: _Session) -> None:
        """Do what a datagram asks for; one that asks for nothing that can be is counted and dropped."""
        try:
            request = read_request(raw)
            if isinstance(request, Space):
                self._take_space(request)
            elif isinstance(request, Usages):
                self.storage.take(request)
            elif isinstance(request, ReclaimOver):
                session.answered(request)
            elif isinstance(request, Piece):
                if self._pods is None:
                    raise FormError("got pods of a cluster; accepted: on a Kubernetes node")  # noqa: TRY301
                self._pods.take(request)
            else:
                self._do(request, session)
        except Exception as error:  # noqa: BLE001 - a defect at one ends no pass, in the middle of which it is
            if self.problem is None:
                _LOG.error("steward: a request is refused: %s", error, exc_info=type(error) is not FormError)
            self.refused += 1
            self._refused_at, self._refused_last = trio.current_time(), str(error)
            return
        self._last_seconds, self._patience_seconds = trio.current_time(), self._silent_seconds

    def _do(self, request: Request, session: _Session) -> None:
        if request.kind in QUESTIONS:
            session.asked(request)
        elif request.kind is RequestKind.TAKEN:
            self._records.taken(request.number, request.lost)
        elif request.kind in {RequestKind.OBSERVED, RequestKind.COUNTED}:
            session.answered(request)
        elif request.kind is RequestKind.LAYOUT:
            self._take_layout(request)
        elif request.kind is RequestKind.PODS_COMPLETE and self._pods is not None:
            self._pods.confirm(request)
        elif request.kind is RequestKind.REPORTED and self._reports is not None:
            self._reports.reported(request.number)
        elif self._news is not None and request.kind is RequestKind.DISK_WAKE:
            self._news.wake()
        elif self._news is not None and request.kind is RequestKind.FILLING:
            self._news.on_filling()

    def _take_space(self, space: Space) -> None:
        age_ns = time.monotonic_ns() - space.at_ns
        if not 0 <= age_ns <= _OLDEST_NS or space.order > self._orders.number:
            raise FormError(
                f"got an observation of order {space.order}, {age_ns / 1e9:.3f} s old; accepted: of orders "
                f"that were given, 0 to {_OLDEST_NS / 1e9:g} s old"
            )
        if self._news is not None and space.order == self._orders.number:
            self._news.space(space)

    def _take_layout(self, request: Request) -> None:
        if self._news is None or request.number != self._orders.number:
            return
        now = trio.current_time()
        if len(self._layouts_at) == _LAYOUTS_AT_ONCE and now - self._layouts_at[0] < _LAYOUTS_SECONDS:
            raise FormError(f"got a layout; accepted: {_LAYOUTS_AT_ONCE} in {_LAYOUTS_SECONDS:g} s")
        self._layouts_at.append(now)
        self._news.adopt_layout(request.layout)

    async def _answer_questions(self, session: _Session) -> None:
        async for request in session.questions:
            await self._questions_pace.turn()
            answer = await self._answer(request)
            await session.send(Message(FrameKind.ANSWER, request.number, answer))

    async def _answer(self, request: Request) -> bytes:
        try:
            answer = self._answers[request.kind](request)
            content = encode(answer if isinstance(answer, Mapping) else await answer)
            if len(content) > LONGEST_BYTES:
                raise ValueError(f"an answer of {len(content)} bytes; accepted: {LONGEST_BYTES}")  # noqa: TRY301
        except ReactorError as error:
            return encode({"error": str(error)})
        except Exception as error:  # noqa: BLE001 - a question must never cost the node its guard
            self._on_failure(error)
            return encode(_FAILED)
        return content


class _Session:
    """The pair to one steward. Messages go out whole, one after the other."""

    def __init__(self, connection: trio.socket.SocketType) -> None:
        self.connection = connection
        self._asking, self.questions = trio.open_memory_channel[Request](_MOST_QUESTIONS)
        self._sending = trio.Lock()
        self._awaited: dict[int, trio.MemorySendChannel[Request | ReclaimOver]] = {}
        self.places: set[int] = set()
        self._sending_places = trio.Lock()

    async def send(self, message: Message) -> None:
        """Send a message; wait where the steward does not read. Raises StewardError where it has ended."""
        async with self._sending:
            for frame in write_frames(message):
                try:
                    await self.connection.send(frame)
                except (OSError, trio.ClosedResourceError) as error:  # another task may have seen its end
                    raise StewardError("steward: has ended meanwhile") from error

    async def ask(self, message: Message) -> Request | ReclaimOver:
        """Send a message of one frame and return what is answered. Raises StewardError without an answer."""
        send, receive = trio.open_memory_channel[Request | ReclaimOver](1)
        self._awaited[message.number] = send
        try:
            await self.send(message)
            return await receive.receive()
        except trio.EndOfChannel as error:
            raise StewardError("steward: has ended meanwhile") from error
        finally:
            self._awaited.pop(message.number, None)

    async def send_places(self, storage: UsageFacts) -> None:
        """Send which places have come or gone since the last time. Raises as `send`."""
        async with self._sending_places:
            for places in storage.changes(self.places):
                await self.send(Message(FrameKind.PLACES, 0, write_order(places)))

    def answered(self, answer: Request | ReclaimOver) -> None:
        """Pass an answer on. One that is not awaited any more is dropped."""
        send = self._awaited.pop(answer.number, None)
        if send is not None:
            send.send_nowait(answer)

    def asked(self, question: Request) -> None:
        """Take a question. Raises FormError where too many wait already."""
        try:
            self._asking.send_nowait(question)
        except trio.WouldBlock as error:
            raise FormError(f"got a question; accepted: {_MOST_QUESTIONS} at a time") from error

    def close(self) -> None:
        """End the wait for each answer: there will be none."""
        for send in self._awaited.values():
            send.close()


async def _until_over(call: Callable[[], Awaitable[None]], scope: trio.CancelScope) -> None:
    """Make a call that is over when the steward has ended, which is the end of the others then."""
    with suppress(OSError, StewardError):
        await call()
    scope.cancel()
