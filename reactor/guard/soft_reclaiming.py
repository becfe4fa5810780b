"""The reclaim before a soft eviction, beside the loop: from pod after pod, until enough is available.

Each piece is reclaimed by a thread of ordinary priority, in which the kernel blocks; between two of them the
loop looks whether there is enough, or anything that does not wait for a reclaim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, Protocol, TypeVar

import trio

from reactor.errors import ReactorError
from reactor.guard.memory_reclaiming import Measured
from reactor.guard.parts import Node
from reactor.guard.record import Reclaimed
from reactor.model.amounts import bytes_text
from reactor.model.decisions import SoftReclaim
from reactor.model.signals import Reclaim
from reactor.reclaim.pod_memory import PIECE_BYTES, Reclaimable
from reactor.reclaim.reclaims import ReclaimReport
from reactor.threads import in_thread

_MOST_CGROUPS: Final = 256
# What is reclaimed while others take it: a reclaim is no way to keep pods swapping.
_MOST_TIMES: Final = 2

_Result = TypeVar("_Result")


class PodReclaims(Protocol):
    """Reclaims from pods' cgroups; both calls block."""

    def most_first(self, cgroups: Sequence[str]) -> Sequence[Reclaimable]:
        """Return what these could give, those that could give most first."""

    def take(self, cgroup: str, wanted_bytes: int, *, to_swap: bool) -> int:
        """Reclaim so much; return how much that came to. Raises OSError, ReactorError."""


class _Taken:
    """What has been taken of which cgroup, in words."""

    def __init__(self) -> None:
        self._bytes: dict[tuple[str, bool], int] = {}
        self.problems: list[str] = []

    def add(self, cgroup: str, amount_bytes: int, *, to_swap: bool) -> None:
        self._bytes[cgroup, to_swap] = self._bytes.get((cgroup, to_swap), 0) + amount_bytes

    def lines(self) -> Iterator[str]:
        for (cgroup, to_swap), amount_bytes in self._bytes.items():
            if amount_bytes:
                yield f"{bytes_text(amount_bytes)} {'to swap' if to_swap else 'of page cache'} from {cgroup}"


class SoftReclaiming:
    """Makes one reclaim at a time, of twice what is wanted at the most; it stops when that is there."""

    def __init__(self, reclaims: PodReclaims, node: Node) -> None:
        self._reclaims = reclaims
        self._node = node
        self._busy = False

    async def run(
        self, asked: SoftReclaim, cgroups: Sequence[str], is_awaited: Callable[[], bool]
    ) -> Reclaimed:
        """Return what was reclaimed. It ends where `is_awaited` is false, asked between two pieces.

        A piece that hangs in the kernel is left to its thread when the time is up.
        """
        most_seconds = asked.until_seconds - asked.began_seconds
        measured = Measured.on(self._node, Reclaim.POD_MEMORY, asked.threshold.signal)
        taken = _Taken()
        if self._busy:
            taken.problems.append("an earlier reclaim is still under way")
        elif measured.before_bytes is not None:
            enough_bytes = measured.before_bytes + asked.wanted_bytes

            def is_over() -> bool:
                available_bytes = measured.available_bytes()
                return available_bytes is None or available_bytes >= enough_bytes or not is_awaited()

            with trio.move_on_after(most_seconds) as scope:
                await self._take(asked, cgroups[:_MOST_CGROUPS], is_over, taken)
            if scope.cancelled_caught:
                taken.problems.append(f"not done within {most_seconds:g} s")
        report = ReclaimReport(did=tuple(taken.lines()), problems=tuple(taken.problems))
        return measured.reclaimed(asked.wanted_bytes, report)

    async def _take(
        self, asked: SoftReclaim, cgroups: Sequence[str], is_over: Callable[[], bool], taken: _Taken
    ) -> None:
        left_bytes = _MOST_TIMES * asked.wanted_bytes
        for one in await self._in_thread(partial(self._reclaims.most_first, cgroups)):
            for to_swap, helps_bytes, idle_bytes in (
                (True, one.swap_bytes, 0),
                (False, one.cache_bytes, one.idle_cache_bytes),
            ):
                useful_bytes = min(helps_bytes, left_bytes)
                if not useful_bytes:
                    continue
                # What is idle goes first, and counts for nothing.
                pieces = _pieces(useful_bytes + idle_bytes)
                spent_bytes = 0
                while not is_over() and (piece_bytes := next(pieces, 0)):
                    take = partial(self._reclaims.take, one.cgroup, piece_bytes, to_swap=to_swap)
                    try:
                        freed_bytes = await self._in_thread(take)
                    except (OSError, ReactorError) as error:
                        taken.problems.append(str(error))
                        break
                    taken.add(one.cgroup, freed_bytes, to_swap=to_swap)
                    spent_bytes += freed_bytes
                    if freed_bytes < piece_bytes:  # there is no more of it
                        break
                left_bytes -= max(0, spent_bytes - idle_bytes)

    async def _in_thread(self, call: Callable[[], _Result]) -> _Result:
        def busy() -> _Result:
            self._busy = True
            try:
                return call()
            finally:
                self._busy = False

        return await in_thread(busy, abandon_on_cancel=True)


def _pieces(amount_bytes: int) -> Iterator[int]:
    while amount_bytes > 0:
        yield min(PIECE_BYTES, amount_bytes)
        amount_bytes -= PIECE_BYTES
