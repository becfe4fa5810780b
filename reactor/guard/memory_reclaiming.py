"""A reclaim of memory that belongs to no pod, beside the loop, measured by what the node has afterwards."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Final, Protocol

import trio

from reactor.guard.parts import Node
from reactor.guard.record import Reclaimed
from reactor.model.decisions import MemoryReclaim
from reactor.model.signals import RESOURCE, Reclaim, Signal
from reactor.reclaim.reclaims import ReclaimReport
from reactor.threads import in_thread

_LOG: Final = logging.getLogger("reactor.reclaim")


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
        began_unix_seconds, began_seconds = time.time(), time.monotonic()
        most_seconds = asked.until_seconds - asked.began_seconds
        before = self._available_bytes(asked.signal)
        report = ReclaimReport(problems=(f"not done within {most_seconds:g} s",))
        if self._busy:
            report = ReclaimReport(problems=("an earlier reclaim is still under way",))
        else:
            with trio.move_on_after(most_seconds):
                report = await in_thread(
                    self._reclaim, asked.wanted_bytes, dead, most_seconds, abandon_on_cancel=True
                )
        after = self._available_bytes(asked.signal)
        reclaimed = Reclaimed(
            kind=Reclaim.MEMORY,
            signal=asked.signal,
            resource=RESOURCE[asked.signal],
            at_unix_seconds=began_unix_seconds,
            wanted=asked.wanted_bytes,
            freed=None if before is None or after is None else after - before,
            took_seconds=time.monotonic() - began_seconds,
            did=report.did,
            problems=report.problems,
        )
        _LOG.info("%s", reclaimed)
        for problem in report.problems:
            _LOG.warning("reclaim of %s: %s", Reclaim.MEMORY, problem)
        return reclaimed

    def _reclaim(self, wanted_bytes: int, dead: Sequence[str], most_seconds: float) -> ReclaimReport:
        self._busy = True
        try:
            return self._reclaims.run(wanted_bytes, dead, most_seconds)
        finally:
            self._busy = False

    def _available_bytes(self, signal: Signal) -> int | None:
        seen = self._node.memory().get(signal)
        return None if seen is None else seen.available
