"""After the kill: wait until the memory is back, and chase what outlives it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from reactor.act import processes
from reactor.act.processes import Members
from reactor.errors import RefusedError

REAP_DEADLINE_SECONDS: Final = 10.0
_STRAGGLER_INTERVAL_SECONDS: Final = 0.25
_POLL_SECONDS: Final = 0.02  # for processes that no pidfd can be had of


@dataclass(frozen=True, slots=True, kw_only=True)
class ReapReport:
    """How a killed pod ended. `freed_ns` is None where it had not ended by the deadline."""

    cgroup: str
    freed_ns: int | None
    problems: tuple[str, ...] = ()


class Dying:
    """What has been killed and may not have ended yet: pidfds of it, by cgroup and process id."""

    def __init__(self) -> None:
        self._pidfds: dict[str, dict[int, int]] = {}
        self._turns: dict[str, trio.Lock] = {}

    def hold(self, cgroup: str, pidfds: dict[int, int]) -> None:
        """Keep pidfds to be waited on; those of an earlier kill of the same cgroup stay as they are."""
        kept = self._pidfds.setdefault(cgroup, {})
        for pid, fd in pidfds.items():
            if pid in kept or len(kept) >= processes.HELD:
                os.close(fd)
            else:
                kept[pid] = fd

    def close(self) -> None:
        """Close every descriptor. Harmless when repeated."""
        while self._pidfds:
            processes.close_all(self._pidfds.popitem()[1].values())

    async def wait_gone(
        self,
        cgroup: str,
        members: Members,
        kill_again: Callable[[], Sequence[str]],
        problems: dict[str, None],
    ) -> int:
        """Return when the last of a cgroup's processes had ended, in ns on CLOCK_MONOTONIC.

        `kill_again` is called for what is still there after a while; what it returns, and what it raises
        (RefusedError, OSError), goes to `problems`.
        """
        # One after the other: no two tasks may wait on a descriptor, nor one close it under the other.
        turn = self._turns.setdefault(cgroup, trio.Lock())
        try:
            async with turn:
                try:
                    await self._chase(cgroup, members, kill_again, problems)
                    freed_ns = time.monotonic_ns()
                finally:
                    processes.close_all(self._pidfds.pop(cgroup, {}).values())
        finally:
            if not turn.locked():
                self._turns.pop(cgroup, None)
        return freed_ns

    async def _chase(
        self,
        cgroup: str,
        members: Members,
        kill_again: Callable[[], Sequence[str]],
        problems: dict[str, None],
    ) -> None:
        while True:
            try:
                with trio.move_on_after(_STRAGGLER_INTERVAL_SECONDS) as patience:
                    await wait_empty(members, list(self._pidfds.get(cgroup, {}).values()))
                if not patience.cancelled_caught:
                    return
                if members():
                    problems |= dict.fromkeys(kill_again())
            except (RefusedError, OSError) as error:
                problems[str(error)] = None
                await trio.sleep(_STRAGGLER_INTERVAL_SECONDS)


async def wait_empty(members: Members, pidfds: Collection[int]) -> None:
    """Wait until these processes have exited and a listing shows no other."""
    await processes.wait_exited(pidfds)
    while members():  # noqa: ASYNC110 - v1 has no event for an empty cgroup
        await trio.sleep(_POLL_SECONDS)
