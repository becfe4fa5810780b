"""Releases what the brake has engaged, in a thread of its own.

So a release waits neither for a write that engages and reclaims, nor for the loop: its deadline holds even if
both hang.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Final

from reactor.brake.braking import Braking
from reactor.errors import ReactorError
from reactor.model.amounts import bytes_text

_LOG: Final = logging.getLogger("reactor.brake")
_AGAIN_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """Asks for a release, at the latest by then; None ends the thread once nothing is left to release."""

    braking: Braking | None
    because: str = ""
    at_seconds: float = 0.0


class BrakeRelease:
    """Releases what it is given; `on_released` is called in its thread with each that is done.

    `seconds` sums up how long brakes were on, `problem` is why one could not be released.
    """

    def __init__(self, on_released: Callable[[Braking], None]) -> None:
        self._on_released = on_released
        self._orders: SimpleQueue[_Order] = SimpleQueue()
        # A daemon thread: one that hangs in a write must not keep the process from ending.
        self._thread = Thread(target=self._run, name="reactor-brake-off", daemon=True)
        self.seconds = 0.0
        self.problem: str | None = None

    def start(self) -> None:
        """Start the thread; harmless when repeated."""
        if not self._thread.is_alive():
            self._thread.start()

    def release(self, braking: Braking, because: str, at_seconds: float = 0.0) -> None:
        """Have it released at once, or at an instant of the monotonic clock; never blocks."""
        self._orders.put(_Order(braking=braking, because=because, at_seconds=at_seconds))

    def close(self, timeout_seconds: float) -> None:
        """End the thread when everything is released, and wait for that, but not for ever."""
        self._orders.put(_Order(braking=None))
        self._thread.join(timeout_seconds)

    def _run(self) -> None:
        waiting: list[_Order] = []
        ended = False
        while waiting or not ended:
            try:
                order = self._orders.get(timeout=_until_next(waiting))
                ended |= order.braking is None
                waiting.append(order)
            except Empty:
                pass
            now_seconds = time.monotonic()
            due = [order for order in waiting if order.at_seconds <= now_seconds]
            waiting = [order for order in waiting if order.at_seconds > now_seconds]
            waiting += [again for order in due if (again := self._put_back(order)) is not None]
            waiting = [order for order in waiting if order.braking is not None and order.braking.is_on]

    def _put_back(self, order: _Order) -> _Order | None:
        """Put the operator's value back; return when to try again, None where that isn't needed."""
        braking = order.braking
        if braking is None or not braking.is_on:
            return None
        braking.end(order.because)
        try:
            braking.high.put_back(braking.name)
        except (OSError, ReactorError) as error:
            if self.problem is None:
                _LOG.error("brake on %s: not released: %s", braking.cgroup, error)
            self.problem = str(error)
            at_seconds = time.monotonic() + _AGAIN_SECONDS
            return _Order(braking=braking, because=order.because, at_seconds=at_seconds)
        self.problem = None
        braking.released_ns = time.monotonic_ns()
        if braking.engaged_ns is not None:
            self.seconds += (braking.released_ns - braking.engaged_ns) / 1e9
        _log(braking, braking.released_ns)
        self._on_released(braking)
        return None


def _log(braking: Braking, released_ns: int) -> None:
    if braking.engaged_ns is not None:
        _LOG.info(
            "brake on %s: memory.high=%s for %.1f ms; released: %s",
            braking.cgroup,
            bytes_text(braking.high_bytes),
            (released_ns - braking.engaged_ns) / 1e6,
            braking.released_because,
        )
    elif braking.problem is not None:
        _LOG.warning("brake on %s: not engaged: %s", braking.cgroup, braking.problem)


def _until_next(waiting: list[_Order]) -> float | None:
    if not waiting:
        return None
    return max(0.0, min(order.at_seconds for order in waiting) - time.monotonic())
