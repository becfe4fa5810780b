"""What rules look at, as a scenario has it: the numbers of cgroups, and those of them that a metric is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NewType

from reactor.config.decode import CONVERTER, register_scalar, strict
from reactor.config.refused import Refused
from reactor.config.scalars import Count, enumeration
from reactor.model.rules import Measure, MemoryEvent, Metric, PressureResource, Rule

Number = NewType("Number", float)
"""A number that is not negative."""
RecordedCgroup = NewType("RecordedCgroup", str)
"""The path of a cgroup, whatever its name."""

_KINDS: Final = ("some", "full")
_OF_PRESSURE: Final = ("avg10", "avg60")
_COUNTED: Final = {
    Measure.USAGE: "usagePercent",
    Measure.SWAP_USED: "swapUsedPercent",
    Measure.PAGES_SCANNED: "pagesScanned",
    Measure.SWAP_TRAFFIC: "swapTrafficBytes",
}


def _number(raw: Any, _: type) -> Number:
    if isinstance(raw, bool) or not isinstance(raw, (int, float)) or not 0 <= raw < 2**64:
        raise Refused(raw, "a number from 0 to 2^64-1")
    return Number(float(raw))


def _cgroup(raw: Any, _: type) -> RecordedCgroup:
    if not isinstance(raw, str) or not raw.startswith("/"):
        raise Refused(raw, "a cgroup's path from the hierarchy's root, such as /system.slice")
    return RecordedCgroup(raw)


register_scalar(CONVERTER, RecordedCgroup, _cgroup)
register_scalar(CONVERTER, Number, _number)
register_scalar(CONVERTER, PressureResource, enumeration(PressureResource))


@strict
@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """One line of a pressure file: averages in percent, and all stall so far."""

    avg10: Number | None = None
    avg60: Number | None = None
    total_seconds: Number | None = None


@strict
@dataclass(frozen=True, slots=True, kw_only=True)
class Stalls:
    """A pressure file."""

    some: Stall = field(default_factory=Stall)
    full: Stall = field(default_factory=Stall)


@strict
@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupNumbers:
    """What was observed of a cgroup; what is absent was not."""

    pressure: Mapping[PressureResource, Stalls] = field(default_factory=dict)
    events: Mapping[MemoryEvent, Count] = field(default_factory=dict)
    usage_percent: Number | None = None
    swap_used_percent: Number | None = None
    pages_scanned: Count | None = None
    swap_traffic_bytes: Count | None = None

    def values(self) -> dict[Metric, float]:
        """Return it by the metrics of rules."""
        return dict(self._values())

    def _values(self) -> Iterator[tuple[Metric, float]]:
        for resource, stalls in self.pressure.items():
            for kind, stall in (("some", stalls.some), ("full", stalls.full)):
                of = f"{resource} {kind}"
                for name, average in (("avg10", stall.avg10), ("avg60", stall.avg60)):
                    if average is not None:
                        yield Metric(Measure.PRESSURE, f"{of} {name}"), average
                if stall.total_seconds is not None:
                    yield Metric(Measure.STALL, of), stall.total_seconds
        for event, count in self.events.items():
            yield Metric(Measure.EVENTS, str(event)), count
        for measure, value in (
            (Measure.USAGE, self.usage_percent),
            (Measure.SWAP_USED, self.swap_used_percent),
            (Measure.PAGES_SCANNED, self.pages_scanned),
            (Measure.SWAP_TRAFFIC, self.swap_traffic_bytes),
        ):
            if value is not None:
                yield Metric(measure), value


def metrics_to_record(rules: Iterable[Rule]) -> tuple[Metric, ...]:
    """Return what is recorded of the cgroups of rules: what other rules on the same would look at, too."""
    resources = dict.fromkeys(condition.metric.resource for rule in rules for condition in rule.conditions)
    resources.setdefault(PressureResource.MEMORY)
    return (
        *(
            metric
            for resource in resources
            if resource is not None
            for kind in _KINDS
            for metric in (
                *(Metric(Measure.PRESSURE, f"{resource} {kind} {average}") for average in _OF_PRESSURE),
                Metric(Measure.STALL, f"{resource} {kind}"),
            )
        ),
        *(Metric(Measure.EVENTS, str(event)) for event in MemoryEvent),
        *map(Metric, _COUNTED),
    )


def numbers_document(values: Mapping[Metric, float | None]) -> dict[str, Any]:
    """Return observed values as a scenario has them; what was not observed is absent."""
    found: dict[str, Any] = {}
    for metric, value in values.items():
        if value is None:
            continue
        if metric.measure is Measure.EVENTS:
            found.setdefault("events", {})[metric.of] = int(value)
        elif metric.resource is not None:
            _, kind, *average = metric.of.split()
            stalls = found.setdefault("pressure", {}).setdefault(str(metric.resource), {})
            stalls.setdefault(kind, {})[average[0] if average else "totalSeconds"] = round(value, 6)
        else:
            is_counter = metric.is_counter
            found[_COUNTED[metric.measure]] = int(value) if is_counter else round(value, 3)
    return found
