"""After the kill: wait until the memory is back, free it in our own context, chase what outlives it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from reactor.act import processes
from reactor.act.processes import Members
from reactor.errors import RefusedError
from reactor.kernel import libc
from reactor.kernel.scheduling import following

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
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(_release, list(self._pidfds.get(cgroup, {}).values()))
                        await self._chase(cgroup, members, kill_again, problems)
                        freed_ns = time.monotonic_ns()
                        nursery.cancel_scope.cancel()
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


async def _release(pidfds: Sequence[int]) -> None:
    """Free the victims' memory in our own context, so that it is not bound to their CPU share or priority.

    Only what has not begun to exit can be helped (ESRCH otherwise), so most calls do nothing; the one that
    counts is a victim that gets no CPU among busy siblings. Never raises OSError: it is only a help.
    """
    await trio.lowlevel.checkpoint_if_cancelled()
    own: list[int] = []  # the thread may outlive the caller's interest, and its descriptors
    with contextlib.suppress(OSError):
        own.extend(os.dup(fd) for fd in pidfds)
    # A limiter of its own, so that nothing is waited for, or cancelled, between here and the thread's begin.
    try:
        await trio.to_thread.run_sync(  # noqa: TID251 - in_thread may be cancelled before it begins
            following(_release_and_close), own, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1)
        )
    except RuntimeError:  # no thread can be started: a fork bomb has the last process id
        processes.close_all(own)


def _release_and_close(pidfds: Sequence[int]) -> None:
    for fd in pidfds:
        with contextlib.suppress(OSError):
            libc.process_mrelease(fd)
        os.close(fd)
