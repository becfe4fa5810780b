"""Work that is done in turns, so that what is urgent can go first in between, done without a pause."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import TypeVar

Found = TypeVar("Found")


def without_pause(turns: Generator[None, None, Found]) -> Found:
    """Return what the work comes to, all turns of it made now."""
    while True:
        try:
            next(turns)
        except StopIteration as over:
            found: Found = over.value
            return found


async def with_pauses(turns: Generator[None, None, Found], pause: Callable[[], Awaitable[None]]) -> Found:
    """Return what the work comes to, with a pause after each turn."""
    while True:
        try:
            next(turns)
        except StopIteration as over:
            found: Found = over.value
            return found
        await pause()
