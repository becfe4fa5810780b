"""Eviction thresholds out of a KubeletConfiguration: values, defaults, what is derived from what.

Source: ParseThresholdConfig, addAllocatableThresholds and UpdateContainerFsThresholds in
pkg/kubelet/eviction/helpers.go; defaults_linux.go.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Final, NewType

from reactor.config.decode import CONVERTER, register_scalar
from reactor.config.refused import Refused
from reactor.config.scalars import as_quantity
from reactor.model.signals import ON_DISK, RESOURCE, Layout, Signal
from reactor.model.thresholds import Threshold, ThresholdValue

MinimumReclaim = NewType("MinimumReclaim", ThresholdValue)

DEFAULT_HARD: Final[dict[Signal, str]] = {
    Signal.MEMORY_AVAILABLE: "100Mi",
    Signal.NODEFS_AVAILABLE: "10%",
    Signal.NODEFS_INODES_FREE: "5%",
    Signal.IMAGEFS_AVAILABLE: "15%",
    Signal.IMAGEFS_INODES_FREE: "5%",
}
_ACCEPTED = "a quantity above 0 such as 100Mi, or a share from 0% to 100%"
_ACCEPTED_RECLAIM = "a quantity such as 500Mi, or a share above 0%"
_PERCENTAGE = re.compile(r"(?P<number>[0-9]{1,100}(?:\.[0-9]{0,100})?|\.[0-9]{1,100})%", re.ASCII)
_DROPPED = frozenset({"0%", "100%"})
_CONTAINERFS: Final = {
    Signal.CONTAINERFS_AVAILABLE: (Signal.NODEFS_AVAILABLE, Signal.IMAGEFS_AVAILABLE),
    Signal.CONTAINERFS_INODES_FREE: (Signal.NODEFS_INODES_FREE, Signal.IMAGEFS_INODES_FREE),
}


def threshold_value(raw: object) -> ThresholdValue:
    """Return a threshold's value as written. Raises Refused."""
    if isinstance(raw, str) and raw.endswith("%"):
        percent = _percentage(raw)
        if percent is None or percent > 100:
            raise Refused(raw, _ACCEPTED)
        return ThresholdValue(text=raw, percent=percent)
    found = _amount(raw, _ACCEPTED)
    if found.amount == 0:
        raise Refused(raw, _ACCEPTED)
    return found


def minimum_reclaim(raw: object) -> MinimumReclaim:
    """Return a minimum reclaim as written. Raises Refused."""
    if isinstance(raw, str) and raw.endswith("%"):
        percent = _percentage(raw)
        if not percent:
            raise Refused(raw, _ACCEPTED_RECLAIM)
        return MinimumReclaim(ThresholdValue(text=raw, percent=percent))
    return MinimumReclaim(_amount(raw, _ACCEPTED_RECLAIM))


def _amount(raw: object, accepted: str) -> ThresholdValue:
    try:
        return ThresholdValue(text=str(raw), amount=as_quantity(raw).amount)
    except Refused as error:
        raise Refused(raw, accepted) from error


def _percentage(text: str) -> Fraction | None:
    found = _PERCENTAGE.fullmatch(text)
    return None if found is None else Fraction(found["number"])


def is_dropped(value: object) -> bool:
    """Return whether a threshold's value as written means that there is none."""
    return isinstance(value, str) and value in _DROPPED


def hard_values(
    given: Mapping[Signal, ThresholdValue] | None, *, merge_defaults: bool, has_kubelet: bool = True
) -> dict[Signal, ThresholdValue]:
    """Return the hard thresholds' values in configuration order.

    None given: the defaults. Any given: those alone, unless they are to be merged into the defaults. Without
    a kubelet no default is for a filesystem: most pods have no files there that end with them.
    """
    defaults = {
        signal: threshold_value(text)
        for signal, text in DEFAULT_HARD.items()
        if has_kubelet or RESOURCE[signal] not in ON_DISK
    }
    if given is None:
        return defaults
    return {**defaults, **given} if merge_defaults else dict(given)


def all_thresholds(
    hard: Mapping[Signal, ThresholdValue],
    soft: Mapping[Signal, ThresholdValue],
    grace_periods_seconds: Mapping[Signal, float],
    minimum_reclaims: Mapping[Signal, MinimumReclaim],
    *,
    layout: Layout,
    enforces_pods: bool,
) -> tuple[Threshold, ...]:
    """Return the thresholds in configuration order, hard before soft, derived ones last.

    Every soft signal that is not dropped needs its grace period in the mapping. `enforces_pods` copies the
    hard memory threshold to the pods' own cgroup. containerfs has no thresholds of its own: those of the
    filesystem on which writable layers lie in this layout.
    """
    own = [
        Threshold(
            signal=signal,
            value=value,
            grace_period_seconds=grace,
            minimum_reclaim=minimum_reclaims.get(signal),
        )
        for signal, value, grace in (
            *((signal, value, 0.0) for signal, value in hard.items()),
            *((signal, value, grace_periods_seconds.get(signal, 0.0)) for signal, value in soft.items()),
        )
        if not is_dropped(value.text) and signal not in _CONTAINERFS
    ]
    allocatable = [
        replace(threshold, signal=Signal.ALLOCATABLE_MEMORY_AVAILABLE)
        for threshold in own
        if enforces_pods and threshold.signal is Signal.MEMORY_AVAILABLE and threshold.is_hard
    ]
    containerfs = [
        replace(threshold, signal=signal)
        for signal, (nodefs, imagefs) in _CONTAINERFS.items()
        for threshold in own
        if threshold.signal is (imagefs if layout is Layout.DEDICATED else nodefs)
    ]
    return tuple(dict.fromkeys((*own, *allocatable, *containerfs)))


def ignored_signals(*given: Mapping[Signal, object] | None) -> tuple[Signal, ...]:
    """Return the configured signals that have no effect: containerfs, whose thresholds are derived."""
    return tuple(dict.fromkeys(signal for keys in given for signal in keys or () if signal in _CONTAINERFS))


register_scalar(CONVERTER, ThresholdValue, lambda raw, _: threshold_value(raw))
register_scalar(CONVERTER, MinimumReclaim, lambda raw, _: minimum_reclaim(raw))
