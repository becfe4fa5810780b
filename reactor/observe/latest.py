"""What was seen of every signal last, and when."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from reactor.model.signals import RESOURCE, Resource, Signal
from reactor.model.thresholds import Observation, Threshold

PROCESS_SIGNALS: Final = frozenset({Signal.PID_AVAILABLE})
SWAP_SIGNALS: Final = frozenset({Signal.SWAP_AVAILABLE})


class Observed:
    """The latest observation of each signal, on the pass's clock.

    A pass observes only what its wake is about. What it does not observe it takes over from before with
    the time at which that was seen, and the policy does not act on it again. Older than `stale_seconds` it
    is not known any more: a filesystem that hangs is neither pressed nor fine.
    """

    def __init__(self, stale_seconds: float) -> None:
        self.stale_seconds = stale_seconds
        self._latest: dict[Signal, Observation] = {}
        self._changed_seconds: dict[Signal, float] = {}

    def changed(self, signals: Collection[Signal], now_seconds: float) -> None:
        """Take over nothing of these signals that was observed before now, however late it is reported."""
        self._changed_seconds |= dict.fromkeys(signals, now_seconds)

    def take(self, asked: Collection[Signal], seen: Mapping[Signal, Observation], now_seconds: float) -> None:
        """Take over what was just seen of the signals asked for; one that is absent is unknown now."""
        for signal in asked:
            if signal in self._changed_seconds and now_seconds < self._changed_seconds[signal]:
                continue
            observation = seen.get(signal)
            if observation is None:
                self._latest.pop(signal, None)
            else:
                self._latest[signal] = observation.at(now_seconds)

    def at(self, now_seconds: float) -> dict[Signal, Observation]:
        """Return everything that is not stale."""
        return {
            signal: observation
            for signal, observation in self._latest.items()
            if now_seconds - (observation.taken_at_seconds or 0.0) <= self.stale_seconds
        }


def resources_wanting(
    thresholds: Iterable[Threshold], signals: Mapping[Signal, Observation]
) -> frozenset[Resource]:
    """Return the resources for which pods may have to be ranked: those short of a threshold.

    Minimum reclaims are counted in, so that this errs only by observing pods for nothing.
    """
    return frozenset(
        RESOURCE[threshold.signal]
        for threshold in thresholds
        if (seen := signals.get(threshold.signal)) is not None
        and seen.available <= int(threshold.target(seen.capacity)) + 1
        and not threshold.is_absurd_at(seen.capacity)
    )
