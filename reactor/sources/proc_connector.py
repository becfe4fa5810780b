"""Forks wake the loop, so that a fork bomb meets the pid thresholds at once and not at the next tick.

A node may fork tens of thousands of times a second all day long without ever holding many processes. So the
kernel samples (`kernel.proc_events`): one fork in N, N an eighth of what is left to the nearest threshold,
which gives eight observations on the way there, however fast. Between two wakes the socket is not read.
"""

from __future__ import annotations

import errno
import math
import os
import socket
import time
from collections.abc import Callable
from typing import Final

import trio

from reactor.errors import KernelInterfaceError
from reactor.kernel.proc_events import (
    MAXIMUM_SAMPLE,
    Acknowledgement,
    decode_events,
    open_socket,
    request,
    sample_forks,
)
from reactor.model.signals import Signal
from reactor.model.wakes import Wake, WakeKind
from reactor.sources.catalogue import PROCESSES
from reactor.sources.process_levels import ProcessLevels
from reactor.sources.wakes import SourceBoard, Wakes

# A fork bomb at 20,000 a second makes 400 processes meanwhile; a pass each time takes a few percent.
_REST_SECONDS: Final = 0.02
# Forks that arrive faster than this many in a rest say no more than fewer would: sample less.
_CROWD: Final = 8
_READS: Final = 64  # in a row at most; each costs about 30 us
_QUIET_SECONDS: Final = 0.5
_LOOKS_PER_MARGIN: Final = 8
_ANSWER_SECONDS: Final = 2.0
_READ_BYTES: Final = 4096  # one event is 76 bytes; netlink gives one a read
_KERNEL_ADDRESS: Final = (0, 0)


def sample_for(margin: int | None, crowding: int = 1) -> int:
    """Return N, of one fork in N to be reported: a power of two, 1 to MAXIMUM_SAMPLE.

    `margin` is how many more processes there may be before the nearest threshold (None: no threshold).
    `crowding` is a factor for forks that come too fast to be read.
    """
    if margin is None:
        return MAXIMUM_SAMPLE
    wanted = max(1, margin // _LOOKS_PER_MARGIN) * crowding
    return min(MAXIMUM_SAMPLE, 1 << (wanted.bit_length() - 1))


class ProcConnector:
    """Wakes the loop for forks. Each pass calls `expect` with the distance to the threshold."""

    name = PROCESSES

    def __init__(
        self,
        wakes: Wakes,
        board: SourceBoard,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._wakes = wakes
        self._board = board
        self._clock_ns = clock_ns
        self._margin: int | None = None
        self._crowding = 1
        self._one_in = MAXIMUM_SAMPLE
        self._events: socket.socket | None = None
        self._armed: Callable[[str], None] = lambda _: None

    def unavailable_because(self) -> str | None:
        """Return None: whether the kernel grants it is found out by asking."""
        return None

    def expect(self, levels: ProcessLevels | None) -> None:
        """Take note of how many processes are left to the nearest pid threshold."""
        self._margin = None if levels is None else levels.margin
        if self._resample():
            self._armed(self._detail())

    async def watch(self, armed: Callable[[str], None]) -> None:
        """Listen until the kernel refuses or fails (OSError)."""
        self._armed = armed
        self._one_in = sample_for(self._margin, self._crowding)
        token = int.from_bytes(os.urandom(3), "big")
        with open_socket(one_in=self._one_in) as events:
            try:
                events.sendto(request(listen=True, token=token), _KERNEL_ADDRESS)
                with trio.move_on_after(_ANSWER_SECONDS) as patience:
                    await _granted(events, token)
                if patience.cancelled_caught:
                    raise OSError(
                        errno.EOPNOTSUPP,
                        "the process connector does not answer: it needs CONFIG_PROC_EVENTS and the"
                        " initial pid and user namespaces",
                    )
                self._events = events
                armed(self._detail())
                self._wake()  # for what was forked while the socket was closed
                await self._keep_waiting(events)
            finally:
                self._events = None
                events.sendto(request(listen=False, token=token), _KERNEL_ADDRESS)

    async def _keep_waiting(self, events: socket.socket) -> None:
        while True:
            count = 0
            with trio.move_on_after(_QUIET_SECONDS if self._crowding > 1 else math.inf):
                await trio.lowlevel.wait_readable(events)
                count = self._drain(events)
            if count:
                self._wake()
            # Forks that come faster than they can be read are thinned out further, but only as long
            # as they do.
            if count > _CROWD:
                self._crowding = min(self._crowding * 2, MAXIMUM_SAMPLE)
            elif count <= 1:
                self._crowding = max(self._crowding // 2, 1)
            if self._resample():
                self._armed(self._detail())
            await trio.sleep(_REST_SECONDS)

    def _drain(self, events: socket.socket) -> int:
        """Read all that is queued; return the number of forks in it, at least one where some were lost."""
        count = 0
        while count < _READS:
            try:
                count += len(decode_events(events.recv(_READ_BYTES)))
            except BlockingIOError:
                return count
            except KernelInterfaceError:
                count += 1  # a message that can't be read still is an event
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                self._board.count_lost(PROCESSES)
                count += _CROWD + 1
        return count

    def _resample(self) -> bool:
        """Put the filter right where the sample is no longer what the margin asks for."""
        one_in = sample_for(self._margin, self._crowding)
        if one_in == self._one_in or self._events is None:
            return False
        sample_forks(self._events, one_in=one_in)
        self._one_in = one_in
        return True

    def _detail(self) -> str:
        return f"one fork in {self._one_in}"

    def _wake(self) -> None:
        self._board.count_wake(PROCESSES)
        self._wakes.notify(
            Wake(
                source=PROCESSES,
                kind=WakeKind.PROCESSES,
                at_ns=self._clock_ns(),
                signal=Signal.PID_AVAILABLE,
            )
        )


async def _granted(events: socket.socket, token: int) -> None:
    """Return once the kernel has granted the request. Raises OSError with its reason where it did not."""
    while True:
        await trio.lowlevel.wait_readable(events)
        try:
            answers = decode_events(events.recv(_READ_BYTES))
        except (BlockingIOError, KernelInterfaceError):
            continue
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            continue
        for answer in answers:
            if isinstance(answer, Acknowledgement) and answer.token == token:
                if answer.error_number:
                    number = answer.error_number
                    raise OSError(number, os.strerror(number), "process connector")
                return
