"""The keys of a KubeletConfiguration that are about eviction, with upstream's defaults and its checks.

Source: pkg/kubelet/apis/config/v1beta1/defaults.go, validation/validation.go.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction
from typing import Any, Final, NewType

from cattrs import BaseValidationError

from reactor.config.decode import CONVERTER, check_document, register_scalar
from reactor.config.scalars import Int32, Percent, Seconds, as_quantity, enumeration
from reactor.errors import Refused, join
from reactor.model.pods import SYSTEM_CRITICAL_PRIORITY
from reactor.model.quantity import Quantity
from reactor.model.settings import EvictionSettings, ImageGcSettings, ShutdownGroup
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
_PERCENTAGE = re.compile(r"(?P<number>[0-9]{1,30}(?:\.[0-9]{0,100})?|\.[0-9]{1,100})%", re.ASCII)
_DROPPED = frozenset({"0%", "100%"})
_CONTAINERFS: Final = {
    Signal.CONTAINERFS_AVAILABLE: (Signal.NODEFS_AVAILABLE, Signal.IMAGEFS_AVAILABLE),
    Signal.CONTAINERFS_INODES_FREE: (Signal.NODEFS_INODES_FREE, Signal.IMAGEFS_INODES_FREE),
}


class Enforced(StrEnum):
    """What enforceNodeAllocatable may name."""

    NONE = "none"
    PODS = "pods"
    SYSTEM_RESERVED = "system-reserved"
    SYSTEM_RESERVED_COMPRESSIBLE = "system-reserved-compressible"
    KUBE_RESERVED = "kube-reserved"
    KUBE_RESERVED_COMPRESSIBLE = "kube-reserved-compressible"


_UNSET = Seconds(0.0)  # upstream's defaulting takes a span of zero for one that was not given
_DEFAULT_TRANSITION_SECONDS = 300.0
_DEFAULT_MINIMUM_IMAGE_AGE_SECONDS = 120.0
_NORMAL = Int32(0)
_LONGEST_SHUTDOWN_SECONDS = 24 * 3600  # of a group; a shutdown is not held up for longer by any node


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
        for threshold in own
        for signal, (nodefs, imagefs) in _CONTAINERFS.items()
        if threshold.signal is (imagefs if layout is Layout.DEDICATED else nodefs)
    ]
    return tuple(dict.fromkeys((*own, *allocatable, *containerfs)))


def ignored_signals(*given: Mapping[Signal, object] | None) -> tuple[Signal, ...]:
    """Return the configured signals that have no effect: containerfs, whose thresholds are derived."""
    return tuple(dict.fromkeys(signal for keys in given for signal in keys or () if signal in _CONTAINERFS))


register_scalar(CONVERTER, ThresholdValue, lambda raw, _: threshold_value(raw))
register_scalar(CONVERTER, MinimumReclaim, lambda raw, _: minimum_reclaim(raw))
register_scalar(CONVERTER, Enforced, enumeration(Enforced))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownGracePeriod:
    """An item of shutdownGracePeriodByPodPriority; upstream takes any 64-bit number of seconds."""

    priority: Int32 = _NORMAL
    shutdown_grace_period_seconds: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletConfiguration:
    """What is read of the document; every other key of upstream's is accepted and ignored."""

    eviction_hard: Mapping[Signal, ThresholdValue] | None = None
    eviction_soft: Mapping[Signal, ThresholdValue] = field(default_factory=dict)
    eviction_soft_grace_period: Mapping[Signal, Seconds] = field(default_factory=dict)
    eviction_minimum_reclaim: Mapping[Signal, MinimumReclaim] = field(default_factory=dict)
    eviction_max_pod_grace_period: Int32 = Int32(0)  # noqa: RUF009 - an int
    eviction_pressure_transition_period: Seconds = _UNSET
    merge_default_eviction_settings: bool = False
    enforce_node_allocatable: tuple[Enforced, ...] | None = None
    local_storage_capacity_isolation: bool = True
    kernel_memcg_notification: bool = False
    image_gc_high_threshold_percent: Percent = field(
        default=Percent(85), metadata={"key": "imageGCHighThresholdPercent"}
    )
    image_gc_low_threshold_percent: Percent = field(
        default=Percent(80), metadata={"key": "imageGCLowThresholdPercent"}
    )
    image_minimum_gc_age: Seconds = field(default=_UNSET, metadata={"key": "imageMinimumGCAge"})
    image_maximum_gc_age: Seconds = field(default=_UNSET, metadata={"key": "imageMaximumGCAge"})
    cgroup_root: str = "/"
    static_pod_path: str = ""
    kube_reserved: Mapping[str, Quantity] = field(default_factory=dict)
    system_reserved: Mapping[str, Quantity] = field(default_factory=dict)
    shutdown_grace_period: Seconds = _UNSET
    shutdown_grace_period_critical_pods: Seconds = _UNSET
    shutdown_grace_period_by_pod_priority: tuple[ShutdownGracePeriod, ...] = ()

    @property
    def reserved_memory_bytes(self) -> int:
        return sum(
            reserved["memory"].value
            for reserved in (self.kube_reserved, self.system_reserved)
            if "memory" in reserved
        )

    @property
    def shutdown_groups(self) -> tuple[ShutdownGroup, ...]:
        """Return the groups of pods for which a shutdown is held up; none where that is switched off.

        A group's seconds below 0 count as 0, which is what upstream's timers make of them.
        """
        by_priority = self.shutdown_grace_period_by_pod_priority
        groups = tuple(
            ShutdownGroup(
                priority=one.priority,
                seconds=min(max(0, one.shutdown_grace_period_seconds), _LONGEST_SHUTDOWN_SECONDS),
            )
            for one in by_priority
        ) or _groups_of(self.shutdown_grace_period, self.shutdown_grace_period_critical_pods)
        return groups if any(group.seconds for group in groups) else ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return what is accepted but has no effect."""
        return tuple(
            f"{signal}: ignored; containerfs has the thresholds of the filesystem that holds writable layers"
            for signal in ignored_signals(
                self.eviction_hard, self.eviction_soft, self.eviction_minimum_reclaim
            )
        ) + tuple(self._shutdown_warnings())

    def _shutdown_warnings(self) -> Iterator[str]:
        """Yield what of the graceful shutdown is taken as something else than what is written."""
        items = self.shutdown_grace_period_by_pod_priority
        at = "shutdownGracePeriodByPodPriority"
        for index, one in enumerate(items):
            seconds = one.shutdown_grace_period_seconds
            if not 0 <= seconds <= _LONGEST_SHUTDOWN_SECONDS:
                counts_as = 0 if seconds < 0 else _LONGEST_SHUTDOWN_SECONDS
                yield f"{at}[{index}].shutdownGracePeriodSeconds: {seconds} counts as {counts_as}"
            if any(one.priority == other.priority for other in items[:index]):
                yield f"{at}[{index}]: has no pods; an earlier item has the priority {one.priority} too"
        if items and not self.shutdown_groups:
            yield f"{at}: no effect; the seconds of all items are 0"

    def eviction_settings(
        self,
        layout: Layout,
        *,
        evictions_per_minute: int | None,
        in_flight_deadline_seconds: float,
        has_kubelet: bool = True,
    ) -> EvictionSettings:
        """Return the policy's settings.

        Without a kubelet enforceNodeAllocatable means nothing unless it is written, no threshold for a
        filesystem is a default, and pods are evicted for one only if files are removed with them.
        """
        enforced = self.enforce_node_allocatable
        if enforced is None:
            enforced = (Enforced.PODS,) if has_kubelet else ()
        return EvictionSettings(
            thresholds=all_thresholds(
                hard_values(
                    self.eviction_hard,
                    merge_defaults=self.merge_default_eviction_settings,
                    has_kubelet=has_kubelet,
                ),
                self.eviction_soft,
                self.eviction_soft_grace_period,
                self.eviction_minimum_reclaim,
                layout=layout,
                enforces_pods=Enforced.PODS in enforced,
            ),
            layout=layout,
            pressure_transition_period_seconds=self.eviction_pressure_transition_period
            or _DEFAULT_TRANSITION_SECONDS,
            max_pod_grace_period_seconds=self.eviction_max_pod_grace_period,
            local_storage_capacity_isolation=self.local_storage_capacity_isolation,
            kernel_memcg_notification=self.kernel_memcg_notification,
            image_gc=ImageGcSettings(
                high_threshold_percent=self.image_gc_high_threshold_percent,
                low_threshold_percent=self.image_gc_low_threshold_percent,
                minimum_age_seconds=self.image_minimum_gc_age or _DEFAULT_MINIMUM_IMAGE_AGE_SECONDS,
                maximum_age_seconds=self.image_maximum_gc_age,
            ),
            evictions_per_minute=evictions_per_minute,
            in_flight_deadline_seconds=in_flight_deadline_seconds,
            evicts_holders_only=not has_kubelet,
        )


def _groups_of(whole_seconds: float, critical_seconds: float) -> tuple[ShutdownGroup, ...]:
    """Return the groups that the two plain keys stand for, in whole seconds. Source: migrateConfig."""
    whole_seconds = min(whole_seconds, _LONGEST_SHUTDOWN_SECONDS)
    critical_seconds = min(critical_seconds, whole_seconds)
    return (
        ShutdownGroup(priority=0, seconds=int(whole_seconds - critical_seconds)),
        ShutdownGroup(priority=SYSTEM_CRITICAL_PRIORITY, seconds=int(critical_seconds)),
    )


_read_fields: Callable[[Any, Any], KubeletConfiguration] = CONVERTER.get_structure_hook(KubeletConfiguration)


def _checks(raw: Mapping[str, Any]) -> Iterator[Refused]:
    yield from _soft_without_grace(raw)
    yield from _none_with_others(raw)
    yield from _both_kinds_of_shutdown(raw)
    for check, keys in _BETWEEN_KEYS:
        # Checked on these keys alone, so that it is reported even if other keys are wrong as well.
        try:
            part = _read_fields({key: raw[key] for key in keys if key in raw}, KubeletConfiguration)
        except (BaseValidationError, Refused):
            continue
        for found in check(part):
            # As written: 90s, not 90.0.
            yield Refused(raw[found.at], found.accepted, at=found.at) if found.at in raw else found


def _soft_without_grace(raw: Mapping[str, Any]) -> Iterator[Refused]:
    soft, graces = raw.get("evictionSoft"), raw.get("evictionSoftGracePeriod")
    if not isinstance(soft, Mapping):
        return
    given = graces if isinstance(graces, Mapping) else {}
    for signal, value in soft.items():
        if (
            value is not None
            and not is_dropped(value)
            and given.get(signal) is None
            and signal in set(Signal)
        ):
            yield Refused(
                value,
                f"a grace period for it at {join('evictionSoftGracePeriod', signal)}",
                at=join("evictionSoft", signal),
            )


def _none_with_others(raw: Mapping[str, Any]) -> Iterator[Refused]:
    entries = raw.get("enforceNodeAllocatable")
    if isinstance(entries, list) and "none" in entries and len(entries) > 1:
        yield Refused(entries, "none alone, or others without it", at="enforceNodeAllocatable")


def _image_gc_percents(part: KubeletConfiguration) -> Iterator[Refused]:
    low, high = part.image_gc_low_threshold_percent, part.image_gc_high_threshold_percent
    if low >= high:
        yield Refused(
            low, f"less than imageGCHighThresholdPercent, which is {high}", at="imageGCLowThresholdPercent"
        )


def _image_gc_ages(part: KubeletConfiguration) -> Iterator[Refused]:
    minimum = part.image_minimum_gc_age or _DEFAULT_MINIMUM_IMAGE_AGE_SECONDS
    if 0 < part.image_maximum_gc_age <= minimum:
        yield Refused(
            part.image_maximum_gc_age,
            f"0, or more than imageMinimumGCAge, which is {minimum:g} s",
            at="imageMaximumGCAge",
        )


def _shutdown(part: KubeletConfiguration) -> Iterator[Refused]:
    whole, critical = part.shutdown_grace_period, part.shutdown_grace_period_critical_pods
    if critical > whole:
        yield Refused(
            critical,
            f"at most shutdownGracePeriod, which is {whole:g} s",
            at="shutdownGracePeriodCriticalPods",
        )
    for at, seconds in (("shutdownGracePeriod", whole), ("shutdownGracePeriodCriticalPods", critical)):
        if 0 < seconds < 1:
            yield Refused(seconds, "0, or at least 1s", at=at)


def _both_kinds_of_shutdown(raw: Mapping[str, Any]) -> Iterator[Refused]:
    """Yield that both kinds of keys are given, in upstream's words. Source: ValidateKubeletConfiguration."""
    items = raw.get("shutdownGracePeriodByPodPriority")
    plain = (raw.get("shutdownGracePeriod"), raw.get("shutdownGracePeriodCriticalPods"))
    if isinstance(items, list) and items and any(_is_span(one) for one in plain):
        why = "Cannot specify both shutdownGracePeriodByPodPriority and shutdownGracePeriod at the same time"
        yield Refused(items, f"nothing here, or no other key: {why}", at="shutdownGracePeriodByPodPriority")


def _is_span(raw: object) -> bool:
    """Return whether this is a span above 0; one of no accepted form is reported by itself."""
    try:
        return bool(CONVERTER.structure(raw, Seconds) > 0)
    except Refused:
        return False


_BETWEEN_KEYS: Final = (
    (_image_gc_percents, ("imageGCHighThresholdPercent", "imageGCLowThresholdPercent")),
    (_image_gc_ages, ("imageMinimumGCAge", "imageMaximumGCAge")),
    (_shutdown, ("shutdownGracePeriod", "shutdownGracePeriodCriticalPods")),
)

check_document(KubeletConfiguration, _checks)
