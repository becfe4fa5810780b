"""Before a crossing: whom it would evict, by the decision itself on the observations that it would have.

That only saves work (`Ahead`): at the crossing everything is observed and decided afresh.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from reactor.model.decisions import Inputs, PolicyState
from reactor.model.kills import SlowReason
from reactor.model.pods import Pod
from reactor.model.signals import MEMORY_SIGNALS, Signal
from reactor.model.thresholds import Observation, Threshold
from reactor.policy.bounds import Bounded, if_others_hold
from reactor.policy.decide import decide, observed

Settle = Callable[[Inputs], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What the next crossing would find, as observed just now: a decision's inputs, and whom it evicts.

    `first` are the pods that would rank first with nothing left, the likeliest first: none while an eviction
    is awaited. `prepared` are those that the crossing itself would evict, if `first` is empty. `asleep` are
    pods that an eviction has emptied: the policy is asked about them once they live again.
    """

    inputs: Inputs
    first: Sequence[Pod] = ()
    prepared: Sequence[Pod] = ()
    asleep: Sequence[Pod] = ()

    @property
    def now_seconds(self) -> float:
        return self.inputs.now_seconds


class Ahead(Protocol):
    """What prepares for a crossing that is near (reactor/guard/approach.py). Nothing waits here or raises."""

    @property
    def reads_all(self) -> bool:
        """Whether it needs what all pods use, which takes milliseconds more of the loop near a crossing."""
        return False

    def near(self, forecast: Forecast, gives_way: Callable[[], bool]) -> None:
        """Prepare for a crossing as it would be now. What takes long ends once `gives_way` returns True."""

    def far(self) -> None:
        """Undo that: no crossing is near."""

    def pods(self, pods: Sequence[Pod]) -> None:
        """Take over the pods, which have changed."""
        del pods  # most go by the forecasts alone

    def retry_seconds(self) -> float:
        """Return when a fresh forecast is wanted though nothing wakes the loop; infinity for never."""
        return math.inf


# How far ahead of a hard threshold the loop is woken, in bytes and as a share of the capacity. An allocator
# of 2 GiB/s takes 16 ms and 2 ms for it, a pass that prepares takes 1.5 ms.
_AHEAD: Final = ((32 << 20, 16), (3 << 20, 128))
READY_PODS: Final = 2


def ahead_bytes(capacity_bytes: int) -> tuple[int, ...]:
    """Return how far ahead of a hard memory threshold the loop is to be woken, the farthest first."""
    return tuple(min(most_bytes, capacity_bytes // share) for most_bytes, share in _AHEAD)


def near(thresholds: Sequence[Threshold], memory: Mapping[Signal, Observation]) -> frozenset[Signal]:
    """Return whose hard memory thresholds are crossed, or less than their farthest early level away."""
    return frozenset(
        threshold.signal
        for threshold in thresholds
        if threshold.is_hard
        and threshold.signal in MEMORY_SIGNALS
        and (seen := memory.get(threshold.signal)) is not None
        and seen.absurdity is None
        and seen.available < threshold.value.of(seen.capacity) + ahead_bytes(seen.capacity)[0]
        and not threshold.is_absurd_at(seen.capacity)
    )


def with_victims(known: Forecast, nearby: Collection[Signal], settle: Settle = lambda *_: True) -> Forecast:
    """Return a forecast with whom the crossing of the signals that are `nearby` would evict.

    `settle` is called before each decision, and reads of the pods that have a bound alone what it needs. It
    returns whether a decision is needed: not if it would evict no pod.

    First it is decided with nothing left. The pods that will have grown by then are seen as they are now, so
    what will be missing seems to be outside them. Without earlier evictions no conclusion is drawn from that:
    neither that they did not help, nor that there is something to be reclaimed first.
    """
    if first := _first_at(known, dict.fromkeys(nearby, 0), settle):
        return replace(known, first=first, prepared=first)
    # Where all pods together hold less than the threshold none goes for a node with nothing left, since
    # evicting could not end that. The crossing itself evicts one.
    available = {}
    for signal in nearby:
        capacity = known.inputs.snapshot.signals[signal].capacity
        values = [
            int(one.value.of(capacity))
            for one in known.inputs.settings.thresholds
            if one.signal is signal and one.is_hard and not one.is_absurd_at(capacity)
        ]
        if values:
            available[signal] = max(0, min(values) - 1)
    return replace(known, first=(), prepared=_first_at(known, available, settle))


def _first_at(known: Forecast, available: Mapping[Signal, int], settle: Settle) -> tuple[Pod, ...]:
    """Return the pods that would be evicted first with so much of each signal available."""
    settings, state, seen, pods, now_seconds = known.inputs
    signals = {
        signal: seen.signals[signal]._replace(available=left, taken_at_seconds=None)
        for signal, left in available.items()
    }
    calm = state._replace(hard_memory_kills=(), evicted_at=())
    inputs = Inputs(settings, calm, seen._replace(signals=signals), pods, now_seconds)
    if not settle(inputs):
        return ()
    if state.hard_memory_kills:  # the crossing judges them: that is rehearsed, and nothing concluded
        decide(*inputs.with_state(state))
    _, decision = decide(*inputs)
    return tuple(place.pod for place in decision.ranking[:READY_PODS] if place.evictable)


def hold_too_little(known: Bounded) -> bool:
    """Return whether no pod is evicted for memory, since all of them together hold less than is missing.

    That is so if they do with all that their bounds allow: evictions are slowed down then.
    """
    due = observed(known.inputs)
    bounds = known.inputs.snapshot.bounds
    most_bytes = sum(map(bounds.__getitem__, bounds.keys() & known.standings.evictable.keys()))
    found = if_others_hold(known._replace(inputs=due.inputs), most_bytes)
    slowed = {
        one.signal
        for one in found.slowdowns
        if one.reason is SlowReason.OUTSIDE_PODS and known.inputs.now_seconds < one.until_seconds
    }
    return bool(due.thresholds) and all(one.signal in slowed for one in due.thresholds)


def is_unchanged(before: PolicyState, state: PolicyState) -> bool:
    """Return whether two states differ by no more than when things were last observed, as after each pass."""
    last_observed = before.condition_last_observed
    return before == state._replace(
        observed_at=before.observed_at, condition_last_observed=last_observed, calm=before.calm
    )
