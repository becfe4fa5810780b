"""What of a configuration is in force: every key with its value, as it is written, and what has no effect."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import partial
from typing import Any, Final, NamedTuple

from reactor.config.decode import decode, key_of
from reactor.config.kubelet import KubeletConfiguration, ignored_signals
from reactor.config.section import Section, Size
from reactor.errors import join
from reactor.model.quantity import format_bytes, parse_quantity
from reactor.model.rules import RuleAction
from reactor.model.settings import KernelKill, MemoryAvailable, Settings, SystemdOomd
from reactor.model.signals import IN_BYTES, MEMORY_SIGNALS, RESOURCE, Signal
from reactor.model.thresholds import ThresholdValue
from reactor.text import nearest

SECTION: Final = "reactor"
_READ: Final = tuple(key_of(field) for field in dataclasses.fields(KubeletConfiguration))
_OF_SECTION: Final = frozenset(key_of(field) for field in dataclasses.fields(Section))
# Upstream's keys that resemble one that is read here. Source: kubelet/config/v1beta1/types.go.
_UPSTREAMS: Final = frozenset(
    {
        "cgroupDriver",
        "cgroupsPerQOS",
        "enforceNodeAllocatable",
        "kubeReservedCgroup",
        "kubeletCgroups",
        "reservedMemory",
        "reservedSystemCPUs",
        "shutdownGracePeriodByPodPriority",
        "staticPodURL",
        "staticPodURLHeader",
        "systemCgroups",
        "systemReservedCgroup",
    }
)
_RESERVABLE: Final = ("cpu", "memory", "ephemeral-storage", "pid")
_LEAST_BYTES: Final = 1 << 20  # of a threshold: the kernel's counters are no finer
_NUMBER: Final = re.compile(r"[0-9.]+(?![0-9.eE])")
_CONTAINERFS_RULE: Final = (
    "ignored; containerfs has the thresholds of the filesystem that holds writable layers"
)

# Thresholds are shown as what they come to.
_THRESHOLDS: Final = frozenset(
    {
        "evictionHard",
        "evictionSoft",
        "evictionSoftGracePeriod",
        "evictionMinimumReclaim",
        "mergeDefaultEvictionSettings",
    }
)


def _nested() -> Iterator[tuple[str, str]]:
    """Yield each key of a part of the section, with its path in the section."""
    for field in dataclasses.fields(Section):
        part: Any = field.default_factory
        if dataclasses.is_dataclass(part):
            yield from ((key_of(one), f"{key_of(field)}.{key_of(one)}") for one in dataclasses.fields(part))


_NESTED: Final = dict(_nested())


class Ineffective(NamedTuple):
    """Where something has no effect, and why."""

    path: str
    why: str


def misplaced(key: str) -> str:
    """Return where an unknown key of the section belongs, as an addition to a message; "" for nowhere."""
    if key in _READ:
        return f" (it belongs beside {SECTION}, not below it)"
    return f" (did you mean {SECTION}.{_NESTED[key]}?)" if key in _NESTED else ""


def ineffective(raw: Mapping[Any, Any], settings: Settings) -> Iterator[Ineffective]:
    """Yield what has no effect in a document, which is right in form and gave these settings."""
    yield from _not_read(raw)
    yield from _without_counterpart(raw, settings)
    yield from _reserved(raw)
    yield from _tiny(raw)
    if not settings.eviction.thresholds:
        evicted = (
            "pods are evicted by rules alone" if _has_evicting_rules(settings) else "no pod can be evicted"
        )
        yield Ineffective("evictionHard", f"there is no threshold, hard or soft: {evicted}")
    yield from _commands(settings)
    yield from _kernel_kill(settings)
    yield from _soft_reclaim(settings)
    yield from _in_time(settings)
    yield from _hooks(settings)
    yield from _process_victims(settings)


def _process_victims(settings: Settings) -> Iterator[Ineffective]:
    for index, one in enumerate(settings.pod_lists.process_victims):
        if settings.kubernetes is not None and one.pods.namespace is None:
            why = "has no effect on a Kubernetes node, where entries name a namespace"
            yield Ineffective(f"reactor.pods.processVictims[{index}]", why)


def _has_evicting_rules(settings: Settings) -> bool:
    evicting = {RuleAction.EVICT, RuleAction.EVICT_WORST}
    return settings.systemd_oomd is SystemdOomd.REPLACE or any(
        rule.action in evicting for rule in settings.rules
    )


def _not_read(raw: Mapping[Any, Any]) -> Iterator[Ineffective]:
    for key in raw:
        if key in _READ or key in _UPSTREAMS or key in {SECTION, "apiVersion", "kind"}:
            continue
        meant = nearest(key, (*_READ, SECTION))
        if key in _OF_SECTION:
            yield Ineffective(join("", key), f"ignored: it belongs below {SECTION}")
        elif meant is not None:
            yield Ineffective(join("", key), f"ignored: an unknown key (did you mean {meant}?)")


def _given(raw: Mapping[Any, Any], key: str) -> Mapping[Any, Any]:
    """Return what a mapping of the document says; a null says nothing, and its name is not read."""
    return {name: value for name, value in (raw.get(key) or {}).items() if value is not None}


def _without_counterpart(raw: Mapping[Any, Any], settings: Settings) -> Iterator[Ineffective]:
    given = partial(_given, raw)
    soft, graces, reclaims = map(given, ("evictionSoft", "evictionSoftGracePeriod", "evictionMinimumReclaim"))
    for key in ("evictionHard", "evictionSoft", "evictionMinimumReclaim"):
        for signal in ignored_signals(given(key)):
            yield Ineffective(join(key, signal), _CONTAINERFS_RULE)
    for key in ("evictionHard", "evictionSoft"):
        for signal in [name for name, value in (raw.get(key) or {}).items() if value is None]:
            yield Ineffective(join(key, signal), "null is no threshold; a kubelet refuses it")
    for signal in graces:
        if signal not in soft:
            yield Ineffective(
                join("evictionSoftGracePeriod", signal), f"no effect: evictionSoft has no {signal}"
            )
    watched = {threshold.signal for threshold in settings.eviction.thresholds}
    for signal in reclaims:
        if signal not in watched and not ignored_signals({Signal(signal): None}):
            yield Ineffective(
                join("evictionMinimumReclaim", signal), f"no effect: there is no threshold for {signal}"
            )


def _reserved(raw: Mapping[Any, Any]) -> Iterator[Ineffective]:
    for key in ("kubeReserved", "systemReserved"):
        for name in raw.get(key) or {}:
            meant = nearest(name, _RESERVABLE)
            if name not in _RESERVABLE and meant is not None:
                yield Ineffective(join(key, name), f"ignored: an unknown resource (did you mean {meant}?)")


def _tiny(raw: Mapping[Any, Any]) -> Iterator[Ineffective]:
    """Yield the amounts of bytes that are so small that a unit is missing."""
    for key in ("evictionHard", "evictionSoft", "evictionMinimumReclaim"):
        for signal, value in _given(raw, key).items():
            why = _tiny_because(value) if RESOURCE[Signal(signal)] in IN_BYTES else None
            if why is not None:
                yield Ineffective(join(key, signal), why)


def _tiny_because(value: object) -> str | None:
    try:
        amount = parse_quantity(str(value)).amount
    except ValueError:
        return None
    written = _NUMBER.match(str(value))
    if written is None or not 0 < amount < _LEAST_BYTES:
        return None
    if amount < 1:
        meant = f"{float(amount * 100):g}%" if written[0] == str(value) else f"{written[0]}Mi"
        return f"that is less than a byte; {meant}?"
    return f"that is {int(amount)} bytes; {written[0]}Mi?"


def _commands(settings: Settings) -> Iterator[Ineffective]:
    of_disks = [one for one in settings.eviction.thresholds if "fs." in one.signal]
    if settings.reclaim.commands and not of_disks:
        yield Ineffective("reactor.reclaim", "no effect: no threshold is for a filesystem")


def _kernel_kill(settings: Settings) -> Iterator[Ineffective]:
    """Yield why the kernel could never kill, though it is asked to."""
    is_hard = any(
        threshold.is_hard and threshold.signal in MEMORY_SIGNALS for threshold in settings.eviction.thresholds
    )
    if settings.kernel_kill is KernelKill.OFF:
        return
    if not is_hard:
        yield Ineffective("reactor.kernelKill", "has no effect: there is no hard memory threshold")
    if settings.memory_available is not MemoryAvailable.WORKING_SET:
        yield Ineffective("reactor.kernelKill", "has no effect with memoryAvailable: memAvailable")
    if settings.eviction.ranks_swap:
        yield Ineffective("reactor.kernelKill", "has no effect with ranking: memory+swap")


def _soft_reclaim(settings: Settings) -> Iterator[Ineffective]:
    thresholds = settings.eviction.thresholds
    is_soft = any(not one.is_hard and one.signal in MEMORY_SIGNALS for one in thresholds)
    if settings.eviction.soft_reclaim_seconds > 0 and not is_soft:
        yield Ineffective("reactor.reclaimBeforeSoft", "has no effect: there is no soft memory threshold")


def _in_time(settings: Settings) -> Iterator[Ineffective]:
    eviction = settings.eviction
    memory = [one for one in eviction.thresholds if one.signal in MEMORY_SIGNALS]
    hard = {one.signal for one in memory if one.is_hard}
    if settings.time_left_within is not None and not hard:
        yield Ineffective("reactor.timeLeftWithin", "has no effect: there is no hard memory threshold")
    if not eviction.soft_in_time:
        return
    path, soft = "reactor.softEviction", [one for one in memory if not one.is_hard and one.signal in hard]
    if not soft:
        yield Ineffective(
            path,
            "inTime has no effect: it needs a hard threshold on memory.available, "
            "and a soft one with a grace period above 0",
        )
    if eviction.max_pod_grace_period_seconds == 0:
        yield Ineffective(
            path, "inTime has no effect: evictionMaxPodGracePeriod is 0, so no pod is given time to end"
        )


def _hooks(settings: Settings) -> Iterator[Ineffective]:
    if not settings.hooks:
        return
    path, grace_seconds = "reactor.beforeEviction", settings.eviction.max_pod_grace_period_seconds
    if all(one.is_hard for one in settings.eviction.thresholds):
        yield Ineffective(path, "has no effect: there is no soft threshold, and hard ones wait for nothing")
    elif grace_seconds == 0:
        yield Ineffective(path, "has no effect: evictionMaxPodGracePeriod is 0, so pods are killed at once")
    elif 0 < grace_seconds < 2 * settings.hooks.timeout_seconds:
        yield Ineffective(
            join(path, "timeout"),
            f"hooks have {grace_seconds / 2:g} s at the most: half of evictionMaxPodGracePeriod",
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
            if given == {}:  # which may say much, as `kubernetes: {}` does
                yield Effective(at, {})
            yield from _fields(value, given or {}, at)
        else:
            yield Effective(at, _written(value, types[field.name]) if given is None else given)


def _written(value: Any, declared: Any) -> Any:
    """Return a value as its author would write it."""
    if value is None:
        return None
    if getattr(declared, "__supertype__", None) is float:  # each such type of a key is a time
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
