"""The kernel's OOM kills, told as they happen or counted afterwards: a chain as for memory.

    ebpf-oom       each kill at once, with its victim and the cgroup whose limit was met
    oom-counters   how many there were, looked at with the housekeeping

A kill at a limit that reactor guards is a crossing that nobody was told of in time: it wakes the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from reactor.kernel.cgroup import CgroupTree
from reactor.model.oom import OomKill, OomScope
from reactor.model.settings import Settings
from reactor.model.signals import Signal
from reactor.model.wakes import Wake, WakeKind
from reactor.sources.chain import Chain, Step
from reactor.sources.ebpf_oom import EBPF_OOM, EbpfOom
from reactor.sources.oom_counters import OOM_COUNTERS, OomCounters
from reactor.sources.oom_scope import GuardedNode
from reactor.sources.wakes import SourceBoard, Wakes

__all__ = ["EBPF_OOM", "OOM_COUNTERS", "OomSource"]

TellKill = Callable[[OomKill], None]


class OomSource:
    """Tells of the OOM kills that concern the guarded node. `steps` replaces the chain."""

    def __init__(
        self,
        tree: CgroupTree,
        settings: Settings,
        wakes: Wakes,
        board: SourceBoard,
        tell: TellKill,
        *,
        steps: Sequence[Step] | None = None,
    ) -> None:
        self._wakes = wakes
        self._board = board
        self._tell = tell
        node = GuardedNode(settings.node_cgroup or "/", settings.pod_parents)
        if steps is None:
            steps = (
                EbpfOom.loaded_by(settings.sources.ebpf_loader, tree, node, board, self.heed),
                OomCounters(tree, node, self.heed, interval_seconds=settings.housekeeping_interval_seconds),
            )
        self._chain = Chain(
            steps,
            {EBPF_OOM: settings.sources.ebpf},
            wakes,
            board,
            kind=WakeKind.MEMORY,
            left="nobody counts them",
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Tell of kills until cancelled."""
        await self._chain.run(task_status=task_status)

    def heed(self, kill: OomKill) -> None:
        """Tell of a kill; wake the loop where it was at a limit that is guarded."""
        if kill.scope is OomScope.NODE:
            self._board.count_wake(kill.source)
            self._wakes.notify(
                Wake(
                    source=kill.source,
                    kind=WakeKind.MEMORY,
                    at_ns=kill.at_ns,
                    signal=Signal.MEMORY_AVAILABLE,
                )
            )
        self._tell(kill)
