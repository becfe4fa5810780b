"""How often to observe unasked: as often as it is of use, and no more than a share of a CPU.

What is observed again and again while a shortage lasts takes its time from the victims that are to free
memory, and in real time. So the pause follows from what the last one has cost: five times as long while a
pass may still kill. If none can, all of it together takes a few tenths of a percent of a CPU.

While evictions are slowed down, next to nothing is to be done for seconds, but a hog that comes meanwhile is
to be killed. So the pauses are long there, too, but never so long that a fast hog takes all memory in one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from reactor.model.decisions import PolicyState
from reactor.model.settings import EvictionSettings
from reactor.model.signals import MEMORY_SIGNALS, Reclaim, Resource, Signal
from reactor.model.thresholds import Observation, Threshold
from reactor.policy.holds import is_soft_memory, soft_pause_end, under_way
from reactor.policy.thresholds import is_hard_memory, thresholds_met

_SOONEST_PASS_SECONDS: Final = 0.02
_LOOK_AT_SLOWED_SECONDS: Final = 0.1
_GROWN_SHARE: Final = 16  # of the threshold
_ROUNDING_SECONDS: Final = 0.001
_TIMES: Final = 5
_TIMES_POWERLESS: Final = 2000
_TIMES_SLOWED: Final = 100  # between two passes, the wake included
_TIMES_SLOWED_PASSES: Final = 200
_LONGEST_SLOWED_SECONDS: Final = 1.0
_HOG_BYTES_A_SECOND: Final = 4 << 30
_LONGEST_SECONDS: Final = 0.25  # what a pass has cost that was held up says nothing of the next
_LONGEST_POWERLESS_SECONDS: Final = 1.0
_LONGEST_POWERLESS_PASS_SECONDS: Final = 10.0  # as often as housekeeping makes one anyway
_HURRIED_SECONDS: Final = 1.0
_WAKE_SECONDS: Final = 0.00025  # to be woken by a timer, which is in no measurement
# A cgroup's statistics may be old by any amount. Only every two seconds the kernel adds up all that CPUs have
# counted (mm/memcontrol.c, FLUSH_TIME). Before that a reader has it add up a cgroup that is marked for it,
# and a child that is still marked itself no longer marks its parent (memcg_rstat_updated). On 6.18 the page
# cache of a removed child stood in its parent's memory.stat until other memory moved, in 6 of 80 tries.
OLD_CACHE_SECONDS: Final = 2.5
CACHE_CHECK_SECONDS: Final = 0.02
_CACHE_BYTES: Final = 1 << 20


@dataclass(slots=True)
class Pace:
    """Knows what the last pass that evicted no pod has cost, and the last check between two passes."""

    pass_seconds: float = 0.0
    check_seconds: float = 0.0
    _hurried_until_seconds: float = -math.inf

    def between_passes_seconds(self, *, is_powerless: bool) -> float:
        """Return how long to wait for the next pass at least, where nothing but time asks for it."""
        longest_seconds = _LONGEST_POWERLESS_PASS_SECONDS
        return _pause_seconds(self.pass_seconds, longest_seconds, is_powerless=is_powerless)

    def between_slowed_passes_seconds(self) -> float:
        """Return how long to wait for the next pass at least while evictions are slowed down."""
        return min(_TIMES_SLOWED_PASSES * self.pass_seconds, _LONGEST_SLOWED_SECONDS)

    def between_checks_seconds(
        self, wanted_seconds: float, now_seconds: float, *, is_powerless: bool, left_bytes: int = 0
    ) -> float:
        """Return how long to wait for the next check, if one is wanted after so long.

        `left_bytes` is what is available while evictions are slowed down.
        """
        is_seldom = is_powerless and not self.is_hurried(now_seconds)
        # So long a hog may go unobserved: what is left has to last for the pass and kill, too.
        in_time_seconds = left_bytes / _HOG_BYTES_A_SECOND - 2 * self.pass_seconds
        return max(
            wanted_seconds,
            _pause_seconds(self.check_seconds, is_powerless=is_seldom),
            min(_TIMES_SLOWED * (self.check_seconds + _WAKE_SECONDS), in_time_seconds),
        )

    def hurry(self, now_seconds: float) -> None:
        """Check as often as is wanted for a second: a pod has come that may be evicted soon."""
        self._hurried_until_seconds = now_seconds + _HURRIED_SECONDS

    def is_hurried(self, now_seconds: float) -> bool:
        return now_seconds < self._hurried_until_seconds


def _pause_seconds(
    cost_seconds: float, longest_powerless_seconds: float = _LONGEST_POWERLESS_SECONDS, *, is_powerless: bool
) -> float:
    if is_powerless:
        return min(_TIMES_POWERLESS * (cost_seconds + _WAKE_SECONDS), longest_powerless_seconds)
    return min(_TIMES * cost_seconds, _LONGEST_SECONDS)


def has_grown(
    settings: EvictionSettings,
    state: PolicyState,
    before: Mapping[Signal, Observation],
    seen: Mapping[Signal, Observation],
) -> bool:
    """Return whether memory has become shorter since the last pass in a way that is worth another.

    Either a threshold is met that was not then, or of one that was, a hard one, much less is available: a
    level that stays crossed wakes the loop once, and if no pod could be evicted then, or only one in a while,
    another may have come. `before` is what the last pass observed.
    """
    now = {signal: observation for signal, observation in seen.items() if observation.absurdity is None}
    if any(threshold not in state.first_observed for threshold in thresholds_met(settings.thresholds, now)):
        return True
    return any(
        before[threshold.signal].available - now[threshold.signal].available
        > threshold.value.of(now[threshold.signal].capacity) // _GROWN_SHARE
        for threshold in state.thresholds_met
        if is_hard_memory(threshold) and threshold.signal in before and threshold.signal in now
    )


def cache_has_gone(before: Mapping[Signal, Observation], seen: Mapping[Signal, Observation]) -> bool:
    """Return whether page cache is gone that memory counted as available at the last pass."""
    return any(
        (before[signal].inactive_file_bytes or 0) - (seen[signal].inactive_file_bytes or 0) > _CACHE_BYTES
        for signal in MEMORY_SIGNALS & before.keys() & seen.keys()
    )


def next_pass_seconds(
    settings: EvictionSettings,
    state: PolicyState,
    now_seconds: float,
    pause_seconds: float = 0.0,
    slowed_pause_seconds: float = 0.0,
) -> float:
    """Return after how long the next pass is due though no source asks for it; infinity if none is.

    `pause_seconds` is the shortest pause, and `slowed_pause_seconds` that between slowed evictions.

    A level that stays crossed fires only once. While a victim is still freeing its memory others may
    take more than it gives, and while a soft threshold is in its grace period nothing need happen at all: no
    source reports either before the ticker. While evictions are slowed down the cause may go, or pods grow. A
    reclaim before a soft eviction may hang. A soft memory threshold evicts again at the end of its pause.
    """
    awaited = under_way(state, Reclaim.MEMORY, now_seconds) is not None or any(
        claim.resource is Resource.MEMORY for claim in state.claims
    )
    pressed = any(threshold.signal in MEMORY_SIGNALS for threshold in state.thresholds_met)
    is_soon = awaited and pressed
    soon_seconds = max(_SOONEST_PASS_SECONDS, pause_seconds) if is_soon else math.inf
    slowed_pause_seconds = max(pause_seconds, slowed_pause_seconds)
    soon_seconds = min(soon_seconds, _slowed_seconds(state, now_seconds, slowed_pause_seconds))
    ends = list(_grace_periods_end(state).values())
    soft = under_way(state, Reclaim.POD_MEMORY, now_seconds)
    if soft is not None:
        ends.append(soft.until_seconds + _ROUNDING_SECONDS)
    pause_end = soft_pause_end(settings, state) + _ROUNDING_SECONDS
    if now_seconds < pause_end and any(map(is_soft_memory, state.thresholds_met)):
        ends.append(pause_end)
    return min(soon_seconds, *(end - now_seconds for end in ends), math.inf)


def _slowed_seconds(state: PolicyState, now_seconds: float, pause_seconds: float) -> float:
    """Return when to check what is slowed down, infinity if nothing waits for that."""
    waits = {threshold.signal for threshold in state.thresholds_met if is_hard_memory(threshold)}
    left = [
        one.until_seconds + _ROUNDING_SECONDS - now_seconds
        for one in state.slowdowns
        if one.signal in waits and now_seconds < one.until_seconds + _ROUNDING_SECONDS
    ]
    return min(max(_LOOK_AT_SLOWED_SECONDS, pause_seconds), *left) if left else math.inf


def grace_period_ended(state: PolicyState, now_seconds: float) -> frozenset[Signal]:
    """Return the signals of soft thresholds whose grace period is over since the last pass."""
    ends = _grace_periods_end(state)
    return frozenset(threshold.signal for threshold, end in ends.items() if end <= now_seconds)


def _grace_periods_end(state: PolicyState) -> dict[Threshold, float]:
    return {
        threshold: since + threshold.grace_period_seconds + _ROUNDING_SECONDS
        for threshold, since in state.first_observed.items()
        if threshold not in state.thresholds_met
    }
