"""Waiting for what nothing reports: until it holds, and with a deadline that says what did not happen."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import trio

_SECONDS: Final = 30.0  # of a busy machine; what holds sooner is not waited for


def eventually(
    true: Callable[[], object], what: str = "it holds", seconds: float = _SECONDS, pause_seconds: float = 0.01
) -> None:
    """Wait until `true` returns what is true. Raises AssertionError that names `what` did not happen."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(pause_seconds)


async def until(
    true: Callable[[], object],
    what: str = "it holds",
    seconds: float = _SECONDS,
    pause_seconds: float = 0.005,
) -> None:
    """Wait as `eventually` does, by Trio's clock and with its other tasks running meanwhile."""
    deadline = trio.current_time() + seconds
    while not true():
        assert trio.current_time() < deadline, f"not within {seconds:g} s: {what}"
        await trio.sleep(pause_seconds)
