"""What wakes the loop for memory: a chain of watches, each standing in for the one before, and hints.

    ebpf            v2   at the crossing itself
    memcg-eventfd   v1   at the crossing itself
    memory-high     v2   events of memory.high, which throttles too
    ticker               whatever else fails (its own source)

    memcg-reclaim   v1   beside the chain: crossings that page cache hides from usage
    psi                  beside the chain: a hint that memory is short, never a reason to act by itself

One step of the chain watches at a time (`chain`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import trio

from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.memory_control import BorrowedHighs
from reactor.model.settings import Settings
from reactor.model.wakes import SourceHealth, WakeKind
from reactor.sources.catalogue import SOURCES, SourceBoard, switched_on
from reactor.sources.chain import Chain, Step, keep_trying, off_because
from reactor.sources.ebpf_memory import EbpfMemory
from reactor.sources.levels import MemoryLevel
from reactor.sources.memcg import MemcgEventfd, MemcgReclaim
from reactor.sources.memory_high import MemoryHigh
from reactor.sources.psi import PsiHint
from reactor.sources.wakes import Wakes

# memory.high would slow down allocators before they have crossed anything, and hints come too late.
_TAKE_EARLY: Final = frozenset(source.name for source in SOURCES if source.prepares)


class MemoryStep(Step, Protocol):
    """One way of being woken for memory."""

    def arm(self, levels: Sequence[MemoryLevel]) -> None:
        """Watch these levels and no others from now on. Never blocks; at any time, also before `watch`."""


class MemorySource:
    """Arms the levels it is given with the best that this node has.

    `highs` has one memory.high for each cgroup in this process. `steps` and `hints` replace the chain and
    what runs beside it; steps that come first are preferred.
    """

    def __init__(
        self,
        tree: CgroupTree,
        settings: Settings,
        wakes: Wakes,
        board: SourceBoard,
        highs: BorrowedHighs | None = None,
        *,
        steps: Sequence[MemoryStep] | None = None,
        hints: Sequence[MemoryStep] | None = None,
    ) -> None:
        allowed = switched_on(settings.sources)
        if steps is None:
            steps = (
                EbpfMemory(tree, wakes, board, settings.sources.ebpf_loader),
                MemcgEventfd(tree, wakes, board),
                MemoryHigh(tree, wakes, board, highs or BorrowedHighs()),
            )
        if hints is None:
            hints = (MemcgReclaim(tree, wakes, board), PsiHint(tree, wakes, board))
        self._board = board
        self._steps = steps
        self._chain = Chain(steps, allowed, wakes, board, kind=WakeKind.MEMORY)
        self._hints = [(hint, off_because(hint, allowed)) for hint in hints]

    def arm(self, levels: Sequence[MemoryLevel]) -> None:
        """Ask to be woken at these levels and no others. Returns at once; arming goes on behind it."""
        crossings = [level for level in levels if not level.is_early]
        for step in self._steps:
            step.arm(levels if step.name in _TAKE_EARLY else crossings)
        for hint, _ in self._hints:
            hint.arm(crossings)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep one step of the chain and all the hints going until cancelled."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._chain.run)
            for hint, because in self._hints:
                if because is None:
                    nursery.start_soon(keep_trying, hint.name, self._board, hint.watch)
                else:
                    self._board.set(hint.name, SourceHealth.OFF, because)
            task_status.started()

    async def wait_armed(self) -> str:
        """Return the name of the step that is watching; wait while there is none."""
        return await self._chain.wait_armed()
