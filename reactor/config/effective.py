"""Every key of a configuration with the value in force, in the form in which it is written."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Final, NamedTuple

from reactor.config.decode import decode, key_of
from reactor.config.ineffective import SECTION
from reactor.config.kubelet import KubeletConfiguration
from reactor.config.refused import join
from reactor.config.scalars import Seconds
from reactor.config.section import Interval, Section, Size, SoftReclaimTime
from reactor.model.quantity import format_bytes
from reactor.model.settings import Settings
from reactor.model.thresholds import ThresholdValue

# Thresholds are told as what they come to.
_THRESHOLDS: Final = frozenset(
    {
        "evictionHard",
        "evictionSoft",
        "evictionSoftGracePeriod",
        "evictionMinimumReclaim",
        "mergeDefaultEvictionSettings",
    }
)


class Effective(NamedTuple):
    """A key's path, and its value as plain JSON, None for none."""

    path: str
    value: Any


def effective(document: Mapping[Any, Any], settings: Settings) -> Iterator[Effective]:
    """Yield every key but those of thresholds; the document is valid, and gave these settings."""
    section = document.get(SECTION) or {}
    chosen = _chosen(document, settings)
    for part, raw, path in (
        (decode(document, KubeletConfiguration), document, ""),
        (decode(section, Section), section, SECTION),
    ):
        for one in _fields(part, raw, path):
            yield one._replace(value=chosen.get(one.path, one.value))


def _chosen(document: Mapping[Any, Any], settings: Settings) -> Mapping[str, Any]:
    """Return what comes of keys that have no default of their own."""
    eviction = settings.eviction
    unwritten = (
        {}
        if "enforceNodeAllocatable" in document or settings.kubernetes is None
        else {"enforceNodeAllocatable": ["pods"]}
    )
    return {
        **unwritten,
        "evictionPressureTransitionPeriod": _seconds(eviction.pressure_transition_period_seconds),
        "imageMinimumGCAge": _seconds(eviction.image_gc.minimum_age_seconds),
        "reactor.evictionsPerMinute": eviction.evictions_per_minute,
        "reactor.pods.parents": list(settings.pod_parents),
    }


def _fields(part: Any, raw: Mapping[Any, Any], path: str) -> Iterator[Effective]:
    types = typing.get_type_hints(type(part))
    for field in dataclasses.fields(part):
        key, value = key_of(field), getattr(part, field.name)
        at, given = join(path, key), raw.get(key)
        if not path and key in _THRESHOLDS:
            continue
        if dataclasses.is_dataclass(value) and not isinstance(value, ThresholdValue):
            yield from _fields(value, given or {}, at)
        else:
            yield Effective(at, _written(value, types[field.name]) if given is None else given)


def _written(value: Any, declared: Any) -> Any:
    """Return a value as its author would write it."""
    if value is None:
        return None
    if declared in {Seconds, Interval, SoftReclaimTime}:
        return _seconds(value)
    if declared is Size:
        return format_bytes(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value


def _seconds(seconds: float) -> str:
    return f"{seconds:g}s"
