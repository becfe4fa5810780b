"""A reclaim of memory beside the loop, and how it is measured; here of what belongs to no pod."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol, Self

import trio

from reactor.guard.parts import Node
from reactor.guard.record import Reclaimed
from reactor.model.decisions import MemoryReclaim
from reactor.model.signals import Reclaim, Resource, RuleSignal, Signal
from reactor.reclaim.reclaims import ReclaimReport
from reactor.threads import in_thread

_LOG: Final = logging.getLogger("reactor.reclaim")


class Measured:
    """A reclaim while it is measured: it begins with what is available then.

    `available_bytes` returns what is available now, None where it is not observed.
    """

    def __init__(
        self, kind: Reclaim, signal: Signal | RuleSignal, available_bytes: Callable[[], int | None]
    ) -> None:
        self._kind = kind
        self._signal = signal
        self.available_bytes = available_bytes
        self._began_unix_seconds, self._began_seconds = time.time(), time.monotonic()
        self.before_bytes = available_bytes()

    @classmethod
    def on(cls, node: Node, kind: Reclaim, signal: Signal) -> Self:
        """Return a reclaim that is measured by what the node has available."""

        def available_bytes() -> int | None:
            seen = node.memory().get(signal)
            return None if seen is None else seen.available

        return cls(kind, signal, available_bytes)

    def reclaimed(self, wanted_bytes: int, report: ReclaimReport) -> Reclaimed:
        """Return what has come of it, and log that."""
        before_bytes, after_bytes = self.before_bytes, self.available_bytes()
        reclaimed = Reclaimed(
            kind=self._kind,
            signal=self._signal,
            resource=Resource.MEMORY,
            at_unix_seconds=self._began_unix_seconds,
            wanted=wanted_bytes,
            freed=None if before_bytes is None or after_bytes is None else after_bytes - before_bytes,
            took_seconds=time.monotonic() - self._began_seconds,
            did=report.did,
            problems=report.problems,
        )
        _LOG.info("%s", reclaimed)
        for problem in report.problems:
            _LOG.warning("reclaim of %s: %s", self._kind, problem)
        return reclaimed


class CgroupReclaims(Protocol):
    """Reclaims from cgroups."""

    def run(self, wanted_bytes: int, dead: Sequence[str], most_seconds: float) -> ReclaimReport:
        """Reclaim so much, from the dead cgroups first; blocks, and never raises."""


class MemoryReclaiming:
    """Makes one reclaim at a time. Its thread has the ordinary priority: it must not displace the loop."""

    def __init__(self, reclaims: CgroupReclaims, node: Node) -> None:
        self._reclaims = reclaims
        self._node = node
        self._busy = False

    async def run(self, asked: MemoryReclaim, dead: Sequence[str]) -> Reclaimed:
        """Return what was reclaimed; a reclaim that hangs in the kernel is left to its thread."""
        most_seconds = asked.until_seconds - asked.began_seconds
        measured = Measured.on(self._node, Reclaim.MEMORY, asked.signal)
        report = ReclaimReport(problems=(f"not done within {most_seconds:g} s",))
        if self._busy:
            report = ReclaimReport(problems=("an earlier reclaim is still under way",))
        else:
            with trio.move_on_after(most_seconds):
                report = await in_thread(
                    self._reclaim, asked.wanted_bytes, dead, most_seconds, abandon_on_cancel=True
                )
        return measured.reclaimed(asked.wanted_bytes, report)

    def _reclaim(self, wanted_bytes: int, dead: Sequence[str], most_seconds: float) -> ReclaimReport:
        self._busy = True
        try:
            return self._reclaims.run(wanted_bytes, dead, most_seconds)
        finally:
            self._busy = False
