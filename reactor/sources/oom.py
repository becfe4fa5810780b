"""The kernel's OOM kills, reported as they happen or counted afterwards: a chain as for memory.

    ebpf-oom       each kill at once, with its victim and the cgroup whose limit was met
    oom-counters   their number, read with the housekeeping

A kill at a limit that reactor guards is a crossing that no source reported in time: it wakes the loop. The
passes have to wait for the memory that the victim frees. So a pass knows of a kill before the kill wakes it,
and a pass that is about to choose a victim asks for kills that are not reported yet (`take_now`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import trio

from reactor.kernel.cgroup import CgroupTree
from reactor.model.oom import OomKill, OomScope
from reactor.model.pod_parents import fences
from reactor.model.settings import Settings
from reactor.model.signals import Signal
from reactor.model.wakes import Wake, WakeKind
from reactor.sources.catalogue import OOM_COUNTERS, switched_on
from reactor.sources.chain import Chain, Step
from reactor.sources.ebpf_oom import EbpfOom
from reactor.sources.oom_counters import OomCounters
from reactor.sources.oom_notices import OomNotices
from reactor.sources.oom_scope import GuardedNode
from reactor.sources.wakes import SourceBoard, Wakes

TellKill = Callable[[OomKill], None]


class OomSource:
    """Tells of the OOM kills that concern the guarded node. `steps` replaces the chain.

    `expect` is given each kill whose victim is known, before the loop is woken; it must not block.
    """

    def __init__(
        self,
        tree: CgroupTree,
        settings: Settings,
        wakes: Wakes,
        board: SourceBoard,
        tell: TellKill,
        *,
        steps: Sequence[Step] | None = None,
        expect: TellKill = lambda _: None,
    ) -> None:
        self._wakes = wakes
        self._board = board
        self._tell = tell
        self._expect = expect
        node = GuardedNode(settings.node_cgroup or "/", fences(settings.pod_parents))
        if steps is None:
            steps = (
                EbpfOom(tree, node, board, self.heed, settings.sources.ebpf_loader),
                OomCounters(tree, node, self.heed, interval_seconds=settings.housekeeping_interval_seconds),
            )
        self._ebpf = next((step for step in steps if isinstance(step, EbpfOom)), None)
        self._notices = OomNotices(tree, node, interval_seconds=settings.housekeeping_interval_seconds)
        self._chain = Chain(
            steps,
            switched_on(settings.sources),
            wakes,
            board,
            kind=WakeKind.MEMORY,
            left="OOM kills are not counted",
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Tell of kills until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._notices.run)
            await self._chain.run(task_status=task_status)

    def take_now(self) -> Sequence[OomKill]:
        """Return the kills since the last call that were not reported yet; never waits, never raises.

        Without eBPF there is one at the most, of which nothing else is known.
        """
        found = None if self._ebpf is None else self._ebpf.take_now()
        if found is not None:
            return found
        if self._notices.struck():
            return (OomKill(source=OOM_COUNTERS, scope=OomScope.NODE, at_ns=time.monotonic_ns()),)
        return ()

    def heed(self, kill: OomKill) -> None:
        """Tell of a kill; wake the loop where it was at a limit that is guarded."""
        if kill.pid is not None:  # a kill that was only counted is seconds old
            self._expect(kill)
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
