"""Commands that free space on a node: run without a shell, with a deadline, and not too often."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

import trio

from reactor.model.settings import ReclaimSettings
from reactor.model.signals import Filesystem
from reactor.programs import RunProgram, run_to_problem
from reactor.reclaim.reclaims import ReclaimReport


class CommandReclaim:
    """Runs the commands of a filesystem, one after the other."""

    def __init__(
        self,
        settings: ReclaimSettings,
        *,
        clock_seconds: Callable[[], float] = trio.current_time,
        run: RunProgram = run_to_problem,
    ) -> None:
        self._settings = settings
        self._run = run
        self._clock_seconds = clock_seconds
        self._ran_at_seconds: dict[Filesystem, float] = {}

    async def run(self, filesystems: Collection[Filesystem]) -> ReclaimReport | None:
        """Run the commands configured for these filesystems; None where there are none, or not again yet."""
        did: list[str] = []
        problems: list[str] = []
        for filesystem, commands in self._settings.commands.items():
            since_seconds = self._clock_seconds() - self._ran_at_seconds.get(filesystem, -math.inf)
            if filesystem not in filesystems or since_seconds < self._settings.pause_seconds:
                continue
            for command in commands:
                problem = await self._run(command, self._settings.timeout_seconds)
                did.append(" ".join(command))
                problems += [] if problem is None else [f"{command[0]}: {problem}"]
            self._ran_at_seconds[filesystem] = self._clock_seconds()
        return ReclaimReport(did=tuple(did), problems=tuple(problems)) if did else None
