"""Events on their way over one channel: bounded, counted, and waited for by no one else.

waiting     256 events at most, unless fewer are asked for; what comes then is dropped and counted
sent        the channel has taken them
failed      the channel has given them up; why is the outbox's problem until the next one is sent

Of minor events 30 are taken in a minute, while half of the room is left, and the others skipped and
counted: a pod that is killed at its own limit again and again does not keep an eviction from being told.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

import trio

from reactor.errors import ReactorError
from reactor.tell.events import Event

_MOST_WAITING: Final = 256
_MINOR_EVENTS: Final = 30
_MINOR_SECONDS: Final = 60.0


class NotSentError(ReactorError):
    """A channel has given an event up; the text says why."""


class Channel(Protocol):
    """A way to operators."""

    @property
    def name(self) -> str:
        """Return its name in `status`, metrics and the log."""

    @property
    def problem(self) -> str | None:
        """Return why an event is late at present, None where none is."""

    def takes(self, event: Event) -> bool:
        """Return whether the configuration wants such an event sent by it."""

    async def send(self, event: Event) -> None:
        """Send an event, in a time that is bounded. Raises NotSentError."""


class Outbox:
    """`run` sends, `at_once` events at a time at most."""

    def __init__(self, channel: Channel, *, at_once: int = 1, most_waiting: int = _MOST_WAITING) -> None:
        self.channel = channel
        self.sent = 0
        self.failed = 0
        self.dropped = 0
        self._at_once = at_once
        self._under_way = 0
        self._failure: str | None = None
        self.skipped = 0
        self._is_full = False
        self._most_waiting = most_waiting
        self._minor_at: deque[float] = deque(maxlen=_MINOR_EVENTS)
        self._in, self._out = trio.open_memory_channel[Event](most_waiting)

    @property
    def waiting(self) -> int:
        """Return how many events are neither sent nor given up."""
        return self._in.statistics().current_buffer_used + self._under_way

    @property
    def problem(self) -> str | None:
        """Return what is wrong at present in one line, None where nothing is."""
        why = self.channel.problem or self._failure
        if self._is_full:
            why = f"events are dropped, its queue is full{'' if why is None else f': {why}'}"
        return None if why is None else f"{why} ({self.failed} failed, {self.dropped} dropped)"

    def put(self, event: Event) -> None:
        """Queue an event if the channel is to send it. Never blocks."""
        if not self.channel.takes(event):
            return
        room = self._most_waiting // 2 if event.is_minor else self._most_waiting
        is_full = self._in.statistics().current_buffer_used >= room
        if event.is_minor and (is_full or not self._has_turn()):
            self.skipped += 1
        elif is_full:
            self.dropped += 1
            self._is_full = True
        else:
            self._is_full = False
            self._in.send_nowait(event)

    def _has_turn(self) -> bool:
        """Return whether a minor event may be taken now, and take note of it."""
        now = trio.current_time()
        if len(self._minor_at) == _MINOR_EVENTS and now - self._minor_at[0] < _MINOR_SECONDS:
            return False
        self._minor_at.append(now)
        return True

    async def run(self) -> None:
        """Send what is queued, until cancelled."""
        async with trio.open_nursery() as nursery:
            for _ in range(self._at_once):
                nursery.start_soon(self._send_each)

    async def _send_each(self) -> None:
        async for event in self._out:
            self._under_way += 1
            try:
                await self.channel.send(event)
            except NotSentError as error:
                self.failed += 1
                self._failure = str(error)
            except Exception:
                self.failed += 1  # a defect of ours, which the supervisor tells of
                raise
            else:
                self.sent += 1
                self._failure = None
            finally:
                self._under_way -= 1
