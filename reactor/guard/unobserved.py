"""Which node conditions nothing can be said of: a signal of theirs has not been observed for long."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from reactor.model.signals import CONDITION, NodeCondition, Signal
from reactor.model.thresholds import Threshold

# Inodes are not among them: a filesystem may have none to count.
_TELLING: Final = frozenset(
    {
        Signal.MEMORY_AVAILABLE,
        Signal.NODEFS_AVAILABLE,
        Signal.IMAGEFS_AVAILABLE,
        Signal.PID_AVAILABLE,
    }
)


class Unobserved:
    """Notes since when signals are not observed. What was observed goes stale first (`Observed`)."""

    def __init__(self, *, patience_seconds: float) -> None:
        self._patience_seconds = patience_seconds
        self._since: dict[Signal, float] = {}

    def conditions(
        self,
        thresholds: Iterable[Threshold],
        observed: Collection[Signal],
        in_force: Collection[NodeCondition],
        now_seconds: float,
    ) -> tuple[NodeCondition, ...]:
        """Return the conditions that are neither in force nor known not to be, by the thresholds there are.

        For a moment after the start, and after a reload, nothing need be observed yet.
        """
        missing = {one.signal for one in thresholds} & _TELLING - frozenset(observed)
        self._since = {signal: self._since.get(signal, now_seconds) for signal in missing}
        unknown = {
            CONDITION[signal]
            for signal, since in self._since.items()
            if now_seconds - since > self._patience_seconds
        }
        return tuple(one for one in NodeCondition if one in unknown and one not in in_force)
