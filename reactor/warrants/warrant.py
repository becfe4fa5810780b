"""One warrant: what it was decided on, and what came of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reactor.kernel.bpf.warrants import Result
from reactor.model.decisions import Decision, PolicyState, Snapshot
from reactor.model.pods import Pod, PodUsage
from reactor.model.settings import EvictionSettings
from reactor.policy.decide import decide
from reactor.sources.ebpf_watch import PAGE_BYTES
from reactor.warrants.certainty import CertainVictim, without_reclaim


class WarrantResult:
    """What the kernel has written of one warrant, read anew each time until `keep`.

    The program that kills takes the claim first and writes all else after it, so a guard on another CPU may
    follow before that is there.
    """

    def __init__(self, read: Callable[[], Result]) -> None:
        """`read` returns what is written of the last warrant: this one, until the next takes its place."""
        self._read = read
        self._kept: Result | None = None

    def __call__(self) -> Result:
        """Return it as far as it is written."""
        return self._read() if self._kept is None else self._kept

    def keep(self) -> None:
        """Have it stay what it is: another warrant is about to take its place."""
        self._kept = self()


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmedWarrant:
    """A warrant that was armed: for whom, and on what it was decided. `result` is its outcome.

    `level_bytes` is the working set at which the kernel sees the crossing.
    """

    generation: int
    victim: CertainVictim
    level_bytes: int
    armed_ns: int
    expires_ns: int
    settings: EvictionSettings
    state: PolicyState
    pods: Sequence[Pod]
    used: Mapping[str, PodUsage]
    decided_seconds: float
    result: WarrantResult

    def decision(self) -> Decision:
        """Return the decision that the warrant carries: that of the crossing, as the pods stood then."""
        crossed, settings = self.at_crossing(Snapshot()), without_reclaim(self.settings)
        return decide(settings, self.state, crossed, self.pods, self.decided_seconds)[1]

    def at_crossing(self, snapshot: Snapshot) -> Snapshot:
        """Return what was observed after the crossing with what was so at it.

        The victim is dying, or gone, and its memory coming back: the node was short of it all the same, and
        the kill is judged by what pods held when it was decided on.
        """
        signals = {**snapshot.signals, self.victim.threshold.signal: self.victim.crossing}
        return Snapshot(signals=signals, pods={**snapshot.pods, **self.used})

    def crossed_ns(self) -> int | None:
        """Return when the level was crossed, None where that is not written yet."""
        return self.result().crossed_ns

    def signalled_ns(self) -> int | None:
        """Return when the kernel sent SIGKILL, None where it refused to."""
        result = self.result()
        return None if result.error else result.signalled_ns or time.monotonic_ns()

    def document(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        result = self.result()
        used_bytes = (result.value_pages - result.inactive_pages) * PAGE_BYTES
        return {
            "generation": self.generation,
            "armed_ns": self.armed_ns,
            "crossed_ns": result.crossed_ns,
            "signalled_ns": result.signalled_ns,
            "level_bytes": self.level_bytes,
            "working_set_bytes": None if result.crossed_ns is None else used_bytes,
            "pid": result.pid or None,
            "comm": result.comm or None,
            "refused": os.strerror(-result.error) if result.error else None,
        }
