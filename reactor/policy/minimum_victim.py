"""Pods that hold too little to be worth a kill go after those that hold more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from reactor.model.decisions import RankedPod
from reactor.model.thresholds import Observation, Threshold, ThresholdValue


def small_ones_passed_over(
    ranking: Sequence[RankedPod], minimum: ThresholdValue, threshold: Threshold, seen: Observation
) -> tuple[RankedPod, ...]:
    """Return the ranking with the pods that hold less than the minimum behind the others that may go.

    A share is one of what is missing to the threshold and its minimum reclaim. Where no pod holds as much
    the ranking stays as it was. A pod without statistics keeps its place, and so does one whose usage could
    not be read, which is behind all others.
    """
    minimum_bytes = minimum.of(threshold.missing(seen))
    first, small, last = [], [], []
    for place in ranking:
        if place.unreadable or not place.evictable:
            last.append(place)
        elif place.usage is None or place.usage >= minimum_bytes:
            first.append(place)
        else:
            small.append(replace(place, is_passed_over=True))
    return (*first, *small, *last) if first else tuple(ranking)
