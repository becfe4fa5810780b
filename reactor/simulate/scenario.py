"""The scenario document: a node's history in formats that users already have (docs/scenarios.md)."""

from __future__ import annotations

import gc
import gzip
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import IO, Any, Final, NewType

from reactor.config.decode import CONVERTER, check_document, decode, register_scalar, strict
from reactor.config.documents import LARGEST_OF_PEOPLE, load_document
from reactor.config.kubelet import KubeletConfiguration
from reactor.config.pod import PodDocument, pod
from reactor.config.scalars import Count, Instant, Seconds, enumeration
from reactor.config.section import WrittenRule
from reactor.errors import ConfigError, Problem, Refused
from reactor.model.pod_lists import Preference
from reactor.model.pods import Image, Pod
from reactor.model.rules import Measure, MemoryEvent, Metric, PressureResource, Rule
from reactor.model.settings import EvictionSettings
from reactor.model.signals import Layout, Reclaim
from reactor.plain import open_regular, read_regular
from reactor.simulate.summary import Summary

Number = NewType("Number", float)

API_VERSION = "reactor/v1alpha1"
KIND = "Scenario"
_LARGEST_BYTES: Final = 1 << 30

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
    Measure.REFAULTS: "refaults",
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
    refaults: Count | None = None

    def values(self) -> dict[Metric, float]:
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
            (Measure.REFAULTS, self.refaults),
        ):
            if value is not None:
                yield Metric(measure), value


def metrics_to_record(rules: Iterable[Rule]) -> tuple[Metric, ...]:
    """Return what is recorded of the cgroups of rules: what other rules on the same would observe, too."""
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


class Preferred(StrEnum):
    """Whether a pod goes before all others or after them, as the lists of a plain node say."""

    PREFER = "prefer"
    AVOID = "avoid"


register_scalar(CONVERTER, Preferred, enumeration(Preferred))


@strict
@dataclass(frozen=True, slots=True, kw_only=True)
class _Filesystems:
    dedicated_image_fs: bool = False
    split_image_fs: bool = False

    @property
    def layout(self) -> Layout:
        if self.split_image_fs:
            return Layout.SPLIT
        return Layout.DEDICATED if self.dedicated_image_fs else Layout.SINGLE


@strict
@dataclass(frozen=True, slots=True, kw_only=True)
class _Image:
    id: str
    size_bytes: Count
    first_detected: Instant | None = None
    last_used: Instant | None = None
    in_use: bool = False
    pinned: bool = False


@strict
@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One evaluation pass, `at` seconds after the scenario's start.

    `oom_kills` of the kernel's since the step before, at the node's own limit; no decision depends on them.
    `preferences` and `pod_cgroups` are by uid, of the step's own `pods`. `cgroups` are what rules observe;
    a step without them repeats those of the step before.
    """

    at: Seconds
    pods: tuple[Pod, ...] | None = None
    preferences: Mapping[str, Preferred] = field(default_factory=dict)
    pod_cgroups: Mapping[str, RecordedCgroup] = field(default_factory=dict)
    cgroups: Mapping[RecordedCgroup, CgroupNumbers] | None = None
    summary: Summary | None = None
    stats_error: bool = False
    after_reclaim: Mapping[Reclaim, Summary] = field(default_factory=dict)
    reclaim_error: tuple[Reclaim, ...] = ()
    admit: tuple[Pod, ...] = ()
    oom_kills: Count = Count(0)  # noqa: RUF009 - an int


@strict
@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedNode:
    """Which node a recording is of, and since when: what a fleet's pools and times are by."""

    name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    began: str = ""


@strict
@dataclass(frozen=True, slots=True, kw_only=True)
class _Document:
    api_version: str
    kind: str
    steps: tuple[Step, ...]
    name: str = ""
    kubelet_configuration: KubeletConfiguration = field(default_factory=KubeletConfiguration)
    filesystems: _Filesystems = field(default_factory=_Filesystems)
    pods: tuple[Pod, ...] = ()
    preferences: Mapping[str, Preferred] = field(default_factory=dict)
    pod_cgroups: Mapping[str, RecordedCgroup] = field(default_factory=dict)
    rules: tuple[WrittenRule, ...] = ()
    images: tuple[_Image, ...] = ()
    node: RecordedNode = field(default_factory=RecordedNode)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A scenario, read and checked. `settings` are what `configuration` comes to in its layout.

    `numbers` are for each step what rules observe, by cgroup; None where the step repeats them.
    """

    name: str
    configuration: KubeletConfiguration
    layout: Layout
    settings: EvictionSettings
    pods: tuple[Pod, ...]
    images: tuple[Image, ...]
    steps: tuple[Step, ...]
    rules: tuple[Rule, ...] = ()
    numbers: tuple[Mapping[str, Mapping[Metric, float]] | None, ...] = ()
    warnings: tuple[str, ...] = ()
    node: RecordedNode = field(default_factory=RecordedNode)


def scenario_from_text(text: str, name: str) -> Scenario:
    """Return the scenario in `text`, which came from `name`. Raises ConfigError with every problem."""
    return scenario_of(load_document(text, name, most_bytes=LARGEST_OF_PEOPLE))


def scenario_of(raw: Any) -> Scenario:
    """Return the scenario that a document of plain values is. Raises ConfigError with every problem."""
    document = decode(raw, _Document)
    return Scenario(
        name=document.name,
        configuration=document.kubelet_configuration,
        layout=document.filesystems.layout,
        settings=eviction_settings(document.kubelet_configuration, document.filesystems.layout),
        pods=_known(document.pods, document.preferences, document.pod_cgroups),
        images=tuple(
            Image(
                id=image.id,
                size_bytes=image.size_bytes,
                first_detected_seconds=image.first_detected,
                last_used_seconds=image.last_used,
                in_use=image.in_use,
                pinned=image.pinned,
            )
            for image in document.images
        ),
        steps=tuple(map(_complete, document.steps)),
        rules=tuple(one.rule() for one in document.rules),
        numbers=tuple(map(_numbers, document.steps)),
        warnings=document.kubelet_configuration.warnings,
        node=document.node,
    )


def step_of(raw: Any) -> tuple[Step, Mapping[str, Mapping[Metric, float]] | None]:
    """Return one step by itself, and what rules observe in it. Raises ConfigError."""
    step = decode(raw, Step)
    return _complete(step), _numbers(step)


def _complete(step: Step) -> Step:
    if not step.preferences and not step.pod_cgroups:
        return step
    return replace(step, pods=_known(step.pods or (), step.preferences, step.pod_cgroups))


def _numbers(step: Step) -> Mapping[str, Mapping[Metric, float]] | None:
    return None if step.cgroups is None else {name: one.values() for name, one in step.cgroups.items()}


def _known(
    pods: tuple[Pod, ...], preferences: Mapping[str, Preferred], cgroups: Mapping[str, RecordedCgroup]
) -> tuple[Pod, ...]:
    """Return pods with what stands beside them: which go first or last, and where they are."""
    if not preferences and not cgroups:
        return pods
    return tuple(
        replace(
            one,
            preference=Preference[preferences[one.uid].name] if one.uid in preferences else one.preference,
            cgroup=cgroups.get(one.uid, one.cgroup),
        )
        for one in pods
    )


def eviction_settings(configuration: KubeletConfiguration, layout: Layout) -> EvictionSettings:
    """Return what the decisions over a recording go by."""
    return configuration.eviction_settings(
        layout,
        # A recording says how the node was: an eviction in it is over at once.
        evictions_per_minute=None,
        in_flight_deadline_seconds=0.0,
    )


def _checks(raw: Mapping[str, Any]) -> Iterator[Refused]:
    yield from _kind(raw)
    yield from _layout(raw)
    yield from _same_pods(raw.get("pods"), "pods")
    yield from _of_pods(raw, "")
    yield from _steps(raw.get("steps"))
    yield from _rules(raw.get("rules"))


def _rules(rules: object) -> Iterator[Refused]:
    names = set()
    for index, rule in enumerate(rules if isinstance(rules, list) else ()):
        name = rule.get("name") if isinstance(rule, Mapping) else None
        if isinstance(name, str) and name in names:
            yield Refused(name, "a name that no other rule has", at=f"rules[{index}].name")
        names.add(name if isinstance(name, str) else None)


def _kind(raw: Mapping[str, Any]) -> Iterator[Refused]:
    for key, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        given = raw.get(key)
        if given is not None and given != wanted:
            yield Refused(given, wanted, at=key)


def _layout(raw: Mapping[str, Any]) -> Iterator[Refused]:
    given = raw.get("filesystems")
    if (
        isinstance(given, Mapping)
        and given.get("splitImageFs") is True
        and given.get("dedicatedImageFs") is not True
    ):
        yield Refused(
            given["splitImageFs"], "false, or dedicatedImageFs as well", at="filesystems.splitImageFs"
        )


def _steps(steps: object) -> Iterator[Refused]:
    latest = 0.0
    for index, step in enumerate(steps if isinstance(steps, list) else ()):
        if not isinstance(step, Mapping):
            continue
        yield from _same_pods(step.get("pods"), f"steps[{index}].pods")
        yield from _of_pods(step, f"steps[{index}].")
        try:
            at = decode(step.get("at"), Seconds)
        except ConfigError:
            continue
        if at < latest:
            yield Refused(
                step["at"], f"{latest:g}s or later, where the step before is", at=f"steps[{index}].at"
            )
        latest = max(latest, at)


def _of_pods(raw: Mapping[str, Any], at: str) -> Iterator[Refused]:
    for key in ("preferences", "podCgroups"):
        if raw.get(key) and not raw.get("pods"):
            yield Refused(raw[key], f"{key} of the pods that stand beside them", at=f"{at}{key}")


def _same_pods(pods: object, at: str) -> Iterator[Refused]:
    seen = set()
    for index, raw in enumerate(pods if isinstance(pods, list) else ()):
        try:
            uid = pod(decode(raw, PodDocument)).uid
        except ConfigError:
            continue
        if uid in seen:
            yield Refused(uid, "a uid that no other pod has", at=f"{at}[{index}].metadata.uid")
        seen.add(uid)


check_document(_Document, _checks)


def scenario_in(path: str) -> Scenario:
    """Return the scenario in a file (`-`: standard input). Raises ConfigError with every problem."""
    name = "standard input" if path == "-" else path
    return scenario_from_text(_read(path, name), name)


@contextmanager
def without_cycle_collection() -> Iterator[None]:
    """A long recording is millions of values without a cycle; searching for some takes half of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def warn(scenario: Scenario) -> None:
    """Print on standard error what of a scenario has no effect, or is recorded as a failure."""
    failed = [
        f"steps[{index}]: the reclaim of {kind} fails in this step, as recorded"
        for index, step in enumerate(scenario.steps)
        for kind in step.reclaim_error
    ]
    for warning in (*scenario.warnings, *failed):
        print(f"warning: {warning}", file=sys.stderr)


def _read(path: str, name: str) -> str:
    try:
        if path == "-":
            return _bounded(sys.stdin.buffer, "more", name).decode("utf-8")
        if path.endswith(".gz"):
            with open_regular(Path(path)) as zipped, gzip.open(zipped, "rb") as file:
                return _bounded(file, "more, decompressed", name).decode("utf-8")
        return read_regular(Path(path), _LARGEST_BYTES).decode("utf-8")
    except (EOFError, zlib.error) as error:
        raise ConfigError([Problem(path=name, got=str(error), accepted="a whole gzip file")]) from error
    except OSError as error:
        raise ConfigError(
            [Problem(path=name, got=str(error.strerror or error), accepted="a readable file")]
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError([Problem(path=name, got=str(error), accepted="UTF-8 text")]) from error


def _bounded(file: IO[bytes] | gzip.GzipFile, got: str, name: str) -> bytes:
    content = file.read(_LARGEST_BYTES + 1)
    if len(content) > _LARGEST_BYTES:
        accepted = f"at most {_LARGEST_BYTES >> 30} GiB"
        raise ConfigError([Problem(path=name, got=got, accepted=accepted)])
    return content
