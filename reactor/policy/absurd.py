"""Thresholds that guard nothing, or would evict every pod: named here, in words for an operator.

Which of them are never acted on is decided where thresholds are held against observations (thresholds.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from reactor.model.signals import RESOURCE, Signal
from reactor.model.thresholds import Observation, Threshold
from reactor.policy.messages import format_amount

_OF_WHAT: Final = {
    Signal.MEMORY_AVAILABLE: "the node has",
    Signal.ALLOCATABLE_MEMORY_AVAILABLE: "the pods' cgroups may use",
    Signal.PID_AVAILABLE: "the node may run",
}


def absurd_thresholds(
    thresholds: Iterable[Threshold], observations: Mapping[Signal, Observation]
) -> dict[str, str]:
    """Return what is wrong with each threshold at the capacity observed, by its name.

    - a threshold at or above the capacity would always be met: it is ignored;
    - a soft one that is not above the hard one of its signal is never the first to be met;
    - a minimum reclaim up to the capacity is never reached, so that a threshold once met stays met.

    A threshold whose signal was not observed, or is absurd itself, is not judged.
    """
    known = [
        (threshold, seen)
        for threshold in thresholds
        if (seen := observations.get(threshold.signal)) is not None and seen.absurdity is None
    ]
    hard: dict[Signal, Threshold] = {}
    for threshold, seen in known:
        if threshold.is_hard and not threshold.is_absurd_at(seen.capacity):
            hard[threshold.signal] = threshold
    return {
        f"{'' if threshold.is_hard else 'soft '}threshold {threshold}": "; ".join(found)
        for threshold, seen in known
        if (found := list(_problems(threshold, seen, hard.get(threshold.signal))))
    }


def _problems(threshold: Threshold, seen: Observation, hard: Threshold | None) -> Iterator[str]:
    if threshold.is_absurd_at(seen.capacity):
        capacity = format_amount(seen.capacity, RESOURCE[threshold.signal])
        of_what = _OF_WHAT.get(threshold.signal, "the filesystem has")
        yield (
            f"ignored: it is not below the {capacity} that {of_what}, so it would be met at all times "
            "and evict every pod"
        )
        return
    wanted = threshold.value.of(seen.capacity)
    if not threshold.is_hard and hard is not None and wanted <= hard.value.of(seen.capacity):
        yield f"has no effect: it is not above the hard threshold {hard}, which is met first"
    reclaim = threshold.minimum_reclaim
    if reclaim is not None and threshold.target(seen.capacity) >= seen.capacity:
        yield (
            f"its minimum reclaim of {reclaim.text} can't be reached: once met it stays met, "
            "and evicts pod after pod"
        )
