"""A chain of ways to be woken, each standing in for the one before.

One step watches at a time. When it fails, the next takes over while the first is tried again with backoff;
when the first stands again, the next is called off.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import trio

from reactor.model.wakes import SourceHealth, Wake, WakeKind
from reactor.sources.attempts import Backoff, failure_text
from reactor.sources.wakes import SourceBoard, Wakes


class Step(Protocol):
    """One way of being woken."""

    @property
    def name(self) -> str:
        """Return the source's name on the board and in wakes."""

    def unavailable_because(self) -> str | None:
        """Return why this node can't have it, None where it may be tried."""

    async def watch(self, armed: Callable[[str], None]) -> None:
        """Watch until it fails, then raise. Call `armed` with a detail for the board whenever it is armed.

        Cancelled when an earlier step stands again: leaves nothing open and nothing set behind.
        """


class _Link:
    """A step's place in the chain: standing with `detail`, or down because of `error`."""

    __slots__ = ("calls_off", "detail", "error", "off_because", "step")

    def __init__(self, step: Step, off_because: str | None) -> None:
        self.step = step
        self.off_because = off_because
        self.detail: str | None = None
        self.error: str | None = None
        self.calls_off = trio.CancelScope()


class Chain:
    """Keeps the first of the steps going that this node has; steps that come first are preferred.

    `allowed` is what the configuration says of each by name; `left` what remains without any. `kind` is of
    the wake that is given when a step has failed: whatever was crossed while nobody watched is for the loop
    to find.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        allowed: Mapping[str, bool],
        wakes: Wakes,
        board: SourceBoard,
        *,
        kind: WakeKind,
        left: str = "the ticker is left",
    ) -> None:
        self._wakes = wakes
        self._board = board
        self._kind = kind
        self._left = left
        self._links = [_Link(step, off_because(step, allowed)) for step in steps]
        self._changed = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep one step going until cancelled."""
        self._report()
        async with trio.open_nursery() as nursery:
            for link in self._links:
                if link.off_because is None:
                    nursery.start_soon(self._keep, link)
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
            self._board.set(link.step.name, *_health(link, standing, self._left))

    def _wake(self, link: _Link) -> None:
        self._wakes.notify(Wake(source=link.step.name, kind=self._kind, at_ns=time.monotonic_ns()))


def off_because(step: Step, allowed: Mapping[str, bool]) -> str | None:
    """Return why a step is not to be tried here, None where it is."""
    if not allowed.get(step.name, True):
        return "switched off in the configuration"
    return step.unavailable_because()


def _health(link: _Link, standing: _Link | None, left: str) -> tuple[SourceHealth, str]:
    if link.off_because is not None:
        return SourceHealth.OFF, link.off_because
    if link is standing:
        return SourceHealth.ARMED, link.detail or ""
    if link.error is None:
        return SourceHealth.OFF, f"{standing.step.name} is armed" if standing else "not armed yet"
    if standing is None:
        return SourceHealth.FAILED, f"{link.error}; {left}"
    return SourceHealth.DEGRADED, f"{link.error}; {standing.step.name} stands in"
