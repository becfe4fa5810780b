"""Thresholds, and the observations that are compared with them."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, NamedTuple

from reactor.model.signals import RESOURCE, Resource, Signal

_SINGLE: Final = struct.Struct("f")

PROCESS_SIGNALS: Final = frozenset({Signal.PID_AVAILABLE})
SWAP_SIGNALS: Final = frozenset({Signal.SWAP_AVAILABLE})


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdValue:
    """An absolute amount or a share of the capacity; exactly one of the two is given.

    `text` is the value as it was written (`10%`, `2Gi`). `share` is what the kubelet makes of a percentage.
    """

    text: str
    amount: Fraction | None = None
    percent: Fraction | None = None
    share: float = field(init=False, repr=False, compare=False, default=0.0)
    whole: Fraction | int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        """Compute what `of` needs once: a pass asks for dozens of amounts."""
        if self.percent is not None:
            object.__setattr__(self, "share", _single(_single(float(self.percent)) / 100))
        elif self.amount is not None:
            is_whole = self.amount.denominator == 1
            object.__setattr__(self, "whole", int(self.amount) if is_whole else self.amount)

    def __hash__(self) -> int:
        """Return a hash that is cheap: a Fraction's takes 2 us, and a pass hashes dozens of thresholds."""
        return hash(self.text)

    def of(self, capacity: int) -> Fraction | int:
        """Return the amount (bytes, inodes, processes) that the value means at this capacity.

        A share is computed as the kubelet does, in single precision and cut to a whole number: 10 % of 101
        process ids are 10, and 15 % of 100 GB are 15,000,000,596 bytes. Where an amount is a whole number it
        is an int, which compares 20 times as fast. Source: parsePercentage, GetThresholdQuantity.
        """
        return int(capacity * self.share) if self.amount is None else self.whole


def _single(number: float) -> float:
    return float(_SINGLE.unpack(_SINGLE.pack(number))[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """`signal < value`: soft with a grace period, hard without one."""

    signal: Signal
    value: ThresholdValue
    grace_period_seconds: float = 0.0
    minimum_reclaim: ThresholdValue | None = None

    def __hash__(self) -> int:
        return hash((self.signal, self.value.text, self.grace_period_seconds))

    @property
    def is_hard(self) -> bool:
        """Return whether the threshold acts at once. Upstream: a grace period of zero is what hard means."""
        return self.grace_period_seconds == 0

    def is_absurd_at(self, capacity: int) -> bool:
        """Return whether the value is at or above the capacity: it would be met whatever is available."""
        return self.value.of(capacity) >= capacity

    def target(self, capacity: int) -> Fraction | int:
        """Return how much is to be available before evicting for it ends: value and minimum reclaim."""
        wanted = self.value.of(capacity)
        return wanted if self.minimum_reclaim is None else wanted + self.minimum_reclaim.of(capacity)

    def missing(self, seen: Observation) -> int:
        return max(0, int(self.target(seen.capacity)) - seen.available)

    def __str__(self) -> str:
        """Return it as operators write it, `memory.available<100Mi`."""
        return f"{self.signal}<{self.value.text}"


class Observation(NamedTuple):
    """What one signal showed: bytes, inodes or processes. A tuple, as `model.pods.PodUsage` is.

    `taken_at_seconds` orders observations of one signal (None: as fresh as the pass itself).
    `inactive_file_bytes` is how much of the usage counts as available (memory signals only; None: not
    observed): page cache that the kernel reclaims before anything else, usage minus working set. Where
    memory counts as MemAvailable it is all that can be reclaimed, less what the kernel itself holds of a
    machine: below zero where that is more. `is_mem_available` says that it does.
    """

    available: int
    capacity: int
    taken_at_seconds: float | None = None
    inactive_file_bytes: int | None = None
    is_mem_available: bool = False

    def at(self, taken_at_seconds: float) -> Observation:
        """Return the same as seen at that time; `_replace` takes three times as long."""
        return Observation(
            self.available, self.capacity, taken_at_seconds, self.inactive_file_bytes, self.is_mem_available
        )

    @property
    def absurdity(self) -> str | None:
        """Return why the numbers can't be true, None where they can.

        An absurd statistic is unknown, never pressure (kubernetes/kubernetes#52386).
        """
        if self.capacity <= 0:
            return f"capacity is {self.capacity}"
        if self.available < 0:
            return f"available is {self.available}"
        if self.available > self.capacity:
            return f"available {self.available} is above the capacity {self.capacity}"
        return None


# What was seen of every signal last, and when.


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
