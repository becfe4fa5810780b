"""The reclaim that a rule asks for, beside the loop: so much of one cgroup, for so long, and no pod ends.

Each piece is reclaimed by a thread of ordinary priority, in which the kernel blocks; between two of them it
is asked whether the reclaim may go on. What memory.low and memory.min protect stays.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Final, Protocol, TypeVar

import trio

from reactor.errors import ReactorError
from reactor.guard.memory_reclaiming import Measured
from reactor.guard.record import Reclaimed
from reactor.kernel import memory_reclaim
from reactor.kernel.cgroup import CgroupTree, MemoryCounters
from reactor.model.amounts import bytes_text
from reactor.model.rules import Firing
from reactor.model.signals import Reclaim, RuleSignal
from reactor.reclaim.pod_memory import PIECE_BYTES
from reactor.reclaim.reclaims import ReclaimReport
from reactor.text import printable
from reactor.threads import in_thread

_LEAST_BYTES: Final = 1 << 20

_Result = TypeVar("_Result")


class Taking(Protocol):
    """Reclaims from a cgroup; blocks."""

    def take(self, cgroup: str, wanted_bytes: int, *, to_swap: bool) -> int:
        """Reclaim so much; return how much that came to. Raises OSError, ReactorError."""


class RuleReclaiming:
    """Makes one reclaim at a time."""

    def __init__(self, tree: CgroupTree, reclaims: Taking) -> None:
        self._tree = tree
        self._reclaims = reclaims
        self._is_busy = False
        self.unavailable_because = memory_reclaim.unavailable_because(tree)

    async def run(self, firing: Firing, may_go_on: Callable[[], bool]) -> Reclaimed:
        """Return what was reclaimed. It ends where `may_go_on` is false, asked between two pieces.

        A piece that hangs in the kernel is left to its thread when the time is up.
        """
        cgroup, most_seconds = firing.cgroup, firing.rule.reclaim_seconds
        problems: list[str] = []
        taken_bytes = wanted_bytes = 0
        measured = Measured(Reclaim.RULE, RuleSignal.RULE, partial(self._spare_bytes, cgroup))
        if self.unavailable_because is not None:
            problems.append(self.unavailable_because)
        elif self._is_busy:
            problems.append("an earlier reclaim still hangs in the kernel")
        elif measured.before_bytes is not None:
            wanted_bytes = max(_LEAST_BYTES, int(firing.rule.amount.of(-measured.before_bytes)))
            with trio.move_on_after(most_seconds) as scope:
                while taken_bytes < wanted_bytes:
                    if not may_go_on():
                        problems.append("not all of it: memory of the node is short, or being freed")
                        break
                    piece_bytes = min(PIECE_BYTES, wanted_bytes - taken_bytes)
                    try:
                        freed_bytes = await self._in_thread(
                            partial(self._reclaims.take, cgroup, piece_bytes, to_swap=False)
                        )
                    except (OSError, ReactorError) as error:
                        problems.append(str(error))
                        break
                    taken_bytes += freed_bytes
                    if freed_bytes < piece_bytes:  # the kernel finds no more
                        break
            if scope.cancelled_caught:
                problems.append(f"not done within {most_seconds:g} s")
        else:
            problems.append(f"the memory of {printable(cgroup)} can't be read")
        did = (f"{bytes_text(taken_bytes)} from {cgroup}",) if taken_bytes else ()
        return measured.reclaimed(wanted_bytes, ReclaimReport(did=did, problems=tuple(problems)))

    def _spare_bytes(self, cgroup: str) -> int | None:
        """Return what the cgroup holds, below zero: the less it holds the more is available."""
        try:
            with closing(MemoryCounters(self._tree, cgroup)) as counters:
                return -counters.usage_bytes()
        except (OSError, ReactorError):
            return None

    async def _in_thread(self, call: Callable[[], _Result]) -> _Result:
        def busy() -> _Result:
            self._is_busy = True
            try:
                return call()
            finally:
                self._is_busy = False

        return await in_thread(busy, abandon_on_cancel=True)
