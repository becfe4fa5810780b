"""What wakes the loop for memory: a chain of watches, each standing in for the one before, and hints.

    ebpf            v2   at the crossing itself
    memcg-eventfd   v1   at the crossing itself
    memory-high     v2   events of memory.high, which brakes too
    ticker               whatever else fails (its own source)

    memcg-reclaim   v1   beside the chain: crossings that page cache hides from usage
    psi                  beside the chain: a hint that memory is short, never a reason to act by itself

One step of the chain watches at a time. When it fails, the next takes over while the first is tried again
with backoff; when the first stands again, the next is called off.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import trio

from reactor.kernel.cgroup import CgroupTree
from reactor.model.settings import Settings
from reactor.model.wakes import SourceHealth, Wake, WakeKind
from reactor.sources.attempts import Backoff, failure_text, keep_trying
from reactor.sources.ebpf import EBPF, EbpfMemory
from reactor.sources.levels import MemoryLevel
from reactor.sources.memcg import MEMCG_EVENTFD, MemcgEventfd
from reactor.sources.memcg_reclaim import MEMCG_RECLAIM, MemcgReclaim
from reactor.sources.memory_high import MEMORY_HIGH, MemoryHigh
from reactor.sources.psi import PSI, PsiHint
from reactor.sources.wakes import SourceBoard, Wakes

__all__ = ["MemoryLevel", "MemorySource", "MemoryStep"]

_TICKER_IS_LEFT: Final = "the ticker is left"


class MemoryStep(Protocol):
    """One way of being woken for memory."""

    @property
    def name(self) -> str:
        """Return the source's name on the board and in wakes."""

    def unavailable_because(self) -> str | None:
        """Return why this node can't have it, None where it may be tried."""

    def arm(self, levels: Sequence[MemoryLevel]) -> None:
        """Watch these levels and no others from now on. Never blocks; at any time, also before `watch`."""

    async def watch(self, armed: Callable[[str], None]) -> None:
        """Watch until it fails, then raise. Call `armed` with a detail for the board whenever it is armed.

        Cancelled when an earlier step stands again: leaves nothing open and nothing set behind.
        """


class _Link:
    """A step's place in the chain: standing with `detail`, or down because of `error`."""

    __slots__ = ("calls_off", "detail", "error", "off_because", "step")

    def __init__(self, step: MemoryStep, off_because: str | None) -> None:
        self.step = step
        self.off_because = off_because
        self.detail: str | None = None
        self.error: str | None = None
        self.calls_off = trio.CancelScope()


class MemorySource:
    """Arms the levels it is given with the best that this node has.

    `steps` and `hints` replace the chain and what runs beside it; steps that come first are preferred.
    """

    def __init__(
        self,
        tree: CgroupTree,
        settings: Settings,
        wakes: Wakes,
        board: SourceBoard,
        *,
        steps: Sequence[MemoryStep] | None = None,
        hints: Sequence[MemoryStep] | None = None,
    ) -> None:
        allowed = {
            EBPF: settings.sources.ebpf,
            MEMCG_EVENTFD: settings.sources.memcg,
            MEMCG_RECLAIM: settings.sources.memcg,
            MEMORY_HIGH: settings.sources.memory_high,
            PSI: settings.sources.psi,
        }
        if steps is None:
            steps = (
                EbpfMemory(tree, wakes, board),
                MemcgEventfd(tree, wakes, board),
                MemoryHigh(tree, wakes, board),
            )
        if hints is None:
            hints = (MemcgReclaim(tree, wakes, board), PsiHint(tree, wakes, board))
        self._wakes = wakes
        self._board = board
        self._links = [_Link(step, _off_because(step, allowed)) for step in steps]
        self._hints = [(hint, _off_because(hint, allowed)) for hint in hints]
        self._changed = trio.Event()

    def arm(self, levels: Sequence[MemoryLevel]) -> None:
        """Ask to be woken at these levels and no others. Returns at once; arming goes on behind it."""
        for link in self._links:
            link.step.arm(levels)
        for hint, _ in self._hints:
            hint.arm(levels)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep one step of the chain and all the hints going until cancelled."""
        self._report()
        async with trio.open_nursery() as nursery:
            for link in self._links:
                if link.off_because is None:
                    nursery.start_soon(self._keep, link)
            for hint, off_because in self._hints:
                if off_because is None:
                    nursery.start_soon(keep_trying, hint.name, self._board, hint.watch)
                else:
                    self._board.set(hint.name, SourceHealth.OFF, off_because)
            task_status.started()

    async def wait_armed(self) -> str:
        """Return the name of the step that is watching; wait while there is none."""
        while (standing := self._standing()) is None:
            await self._changed.wait()
        return standing.step.name

    async def _keep(self, link: _Link) -> None:
        backoff = Backoff()
        while True:
            while self._is_spared(link):
                await self._changed.wait()
            backoff.begin()
            with trio.CancelScope() as link.calls_off:
                await self._try(link)
            if link.calls_off.cancelled_caught:
                self._set(link, detail=None, error=None)
            else:
                # Whatever was crossed while nobody watched is for the loop to find.
                self._wake(link)
                await backoff.pause()

    async def _try(self, link: _Link) -> None:
        try:
            await link.step.watch(lambda detail: self._set(link, detail=detail, error=None))
        except Exception as error:  # noqa: BLE001 - a source never takes the daemon down, whatever it met
            self._set(link, detail=None, error=failure_text(error))
        else:
            self._set(link, detail=None, error="ended by itself")

    def _set(self, link: _Link, *, detail: str | None, error: str | None) -> None:
        link.detail, link.error = detail, error
        if detail is not None:
            for later in self._links[self._links.index(link) + 1 :]:
                later.calls_off.cancel()
        self._report()
        self._changed.set()
        self._changed = trio.Event()

    def _standing(self) -> _Link | None:
        return next((link for link in self._links if link.detail is not None), None)

    def _is_spared(self, link: _Link) -> bool:
        """Return whether an earlier step stands, or has not been tried yet."""
        earlier = self._links[: self._links.index(link)]
        return any(before.off_because is None and before.error is None for before in earlier)

    def _report(self) -> None:
        standing = self._standing()
        for link in self._links:
            self._board.set(link.step.name, *_health(link, standing))

    def _wake(self, link: _Link) -> None:
        self._wakes.notify(Wake(source=link.step.name, kind=WakeKind.MEMORY, at_ns=time.monotonic_ns()))


def _off_because(step: MemoryStep, allowed: dict[str, bool]) -> str | None:
    if not allowed.get(step.name, True):
        return "switched off in the configuration"
    return step.unavailable_because()


def _health(link: _Link, standing: _Link | None) -> tuple[SourceHealth, str]:
    if link.off_because is not None:
        return SourceHealth.OFF, link.off_because
    if link is standing:
        return SourceHealth.ARMED, link.detail or ""
    if link.error is None:
        return SourceHealth.OFF, f"{standing.step.name} is armed" if standing else "not armed yet"
    if standing is None:
        return SourceHealth.FAILED, f"{link.error}; {_TICKER_IS_LEFT}"
    return SourceHealth.DEGRADED, f"{link.error}; {standing.step.name} stands in"
