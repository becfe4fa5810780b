"""Waiting for what nothing reports: until it holds, and with a deadline that says what did not happen."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final

import trio

# What every wait is multiplied by: an emulated machine starts a process in a second.
PATIENCE: Final = float(os.environ.get("REACTOR_TEST_PATIENCE", "1"))
_SECONDS: Final = 90.0  # of a busy machine; what holds sooner is not waited for


def eventually(
    true: Callable[[], object], what: str = "it holds", seconds: float = _SECONDS, pause_seconds: float = 0.01
) -> None:
    """Wait until `true` returns what is true. Raises AssertionError that names `what` did not happen."""
    seconds *= PATIENCE
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
    seconds *= PATIENCE
    deadline = trio.current_time() + seconds
    while not true():
        assert trio.current_time() < deadline, f"not within {seconds:g} s: {what}"
        await trio.sleep(pause_seconds)
