"""Has the steward count what pods take of the filesystems, which is never waited for but before a ranking.

Housekeeping asks for a count at each of its turns; the steward makes it with a share of a CPU, and rests
after one that took long. A filesystem that fills, and an eviction whose files are to go, are urgent.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Protocol

import trio

from reactor.guard.node import Node
from reactor.guard.steward_link import StewardError
from reactor.model.pods import Pod

_AGAIN_SECONDS: Final = 0.1


class Counting(Protocol):
    """Has places counted by the steward. Both raise StewardError where there is none."""

    async def count(self, *, urgent: bool) -> None:
        """Have the places counted soon."""

    async def counted(self) -> None:
        """Have the places counted now, and return when they are."""


class StorageWatch:
    """Says which places the known pods have, and when they are to be counted."""

    def __init__(self, known: Node, steward: Counting) -> None:
        self._known = known
        self._steward = steward
        self._due = trio.Event()
        self._is_urgent = False

    def due(self, *, urgent: bool = False) -> None:
        """Have everything counted soon; an urgent count takes a larger share of a CPU."""
        self._is_urgent |= urgent
        self._due.set()

    async def look(self, most_seconds: float) -> None:
        """Have everything counted now; return when that is done, or `most_seconds` are over."""
        if any(pod.storage for pod in self._pods()):
            with trio.move_on_after(most_seconds):
                await self._counted()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Ask for counts whenever they are due, until cancelled."""
        task_status.started()
        while True:
            await self._due.wait()
            self._due = trio.Event()
            urgent, self._is_urgent = self._is_urgent, False
            self._known.storage.assign(self._pods())
            # A steward that comes later is asked at the next turn.
            with suppress(StewardError):
                await self._steward.count(urgent=urgent)

    async def _counted(self) -> None:
        while True:
            self._known.storage.assign(self._pods())
            with suppress(StewardError):
                await self._steward.counted()
                return
            await trio.sleep(_AGAIN_SECONDS)  # the next one is being started

    def _pods(self) -> Sequence[Pod]:
        return self._known.with_lingering(self._known.pods)
