"""`reactor doctor`: what this node offers, which sources the daemon would use on it, and what is missing."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

from reactor.doctor.in_a_pod import is_in_a_pod, with_remedy_in_a_pod
from reactor.doctor.kubernetes import kubernetes_features
from reactor.doctor.runtime import podman_features, runtime_feature
from reactor.doctor.thresholds import absurd_on_this_machine, late_on_this_machine
from reactor.kernel.cgroup_files import CgroupVersion
from reactor.kernel.features import Feature, probe
from reactor.model.settings import BrakeMode, Settings
from reactor.sources.catalogue import BY_NAME, MEMCG_EVENTFD, MEMORY_HIGH, SOURCES, TICKER, Source, Watched
from reactor.terminal.tables import console, table

_CONTROLLER: Final = "cgroup memory controller"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlan:
    """Whether a source would be used, for what, and why so."""

    name: str
    used: bool
    purpose: str
    because: str


def examine(settings: Settings | None, output: str, *, verbose: bool = False) -> int:
    """Print what there is; the exit status is 1 where reactor can't guard this node at all.

    With `verbose` the verifier's log of each eBPF program that was refused is printed too.
    """
    wanted = settings or Settings()
    probed = probe(delegated=wanted.kubernetes is None)
    features = (
        *(map(with_remedy_in_a_pod, probed) if is_in_a_pod() else probed),
        runtime_feature(wanted),
        *podman_features(wanted),
        *kubernetes_features(wanted),
    )
    by_name = {feature.name: feature for feature in features}
    plans = source_plans(settings or Settings(), by_name)
    brake = brake_plan(settings or Settings(), by_name)
    absurd, late = absurd_on_this_machine(wanted), late_on_this_machine(wanted)
    works = any(feature.name == _CONTROLLER and feature.available for feature in features)
    if output == "json":
        found = {
            "features": [asdict(one) for one in features],
            "sources": [asdict(one) for one in plans],
            "brake": brake,
            "absurd_thresholds": absurd,
            "late_thresholds": late,
        }
        print(json.dumps(found))
        return 0 if works else 1
    screen = console()
    rows = [(one.name, _yes(used=one.available), one.detail) for one in features]
    screen.print(table(("FEATURE", "THERE", "DETAIL"), rows))
    screen.print(
        table(
            ("SOURCE", "USED", "FOR", "BECAUSE"),
            [(one.name, _yes(used=one.used), one.purpose, one.because) for one in plans],
        )
    )
    screen.print(f"brake: {brake}")
    for what, why in (*absurd.items(), *late.items()):
        screen.print(f"{what}: {why}")
    for feature in features:
        if not feature.available and feature.remedy:
            screen.print(f"remedy: {feature.name}: {feature.remedy}")
    for feature in features:
        if verbose and feature.log:
            screen.print(f"log of {feature.name}:\n{feature.log}")
    if not works:
        screen.print("reactor can't guard this node: the cgroup memory controller is missing")
    return 0 if works else 1


def brake_plan(settings: Settings, features: Mapping[str, Feature]) -> str:
    """Return whether the brake would be used, and why not."""
    if settings.brake is BrakeMode.OFF:
        return "not used: switched off in the configuration"
    feature = _feature(BY_NAME[MEMORY_HIGH], features)
    if feature is None or not feature.available:
        return f"not used: memory.high: {'unknown' if feature is None else feature.detail}"
    return "used while a hard memory threshold is crossed on a cgroup below the root"


def source_plans(settings: Settings, features: Mapping[str, Feature]) -> tuple[SourcePlan, ...]:
    """Return the sources in the order of their chains; one stands in only where the one before is missing."""
    plans: list[SourcePlan] = []
    first: dict[Watched, str] = {}
    for source in SOURCES:
        plan = _plan(source, settings, features)
        if plan.used and not source.is_hint:
            before = first.setdefault(source.watched, source.name)
            if before != source.name:
                plan = dataclasses.replace(plan, used=False, because=f"{before} comes first")
        plans.append(plan)
    return tuple(plans)


def _plan(source: Source, settings: Settings, features: Mapping[str, Feature]) -> SourcePlan:
    """Return whether a source can be used by itself, whatever comes before it in its chain."""
    feature = _feature(source, features)
    used = source.feature is None or (feature is not None and feature.available)
    because = source.because if feature is None else feature.detail
    if source.name == TICKER:
        because = f"every {settings.housekeeping_interval_seconds:g} s"
    eventfd = _feature(BY_NAME[MEMCG_EVENTFD], features)
    if not source.is_allowed(settings.sources):
        used, because = False, "switched off in the configuration"
    elif source.version is CgroupVersion.V2 and eventfd is not None and eventfd.available:
        used, because = False, "the memory controller is on cgroup v1"
    return SourcePlan(name=source.name, used=used, purpose=source.purpose, because=because)


def _feature(source: Source, features: Mapping[str, Feature]) -> Feature | None:
    return None if source.feature is None else features.get(source.feature)


def _yes(*, used: bool) -> str:
    return "yes" if used else "no"
