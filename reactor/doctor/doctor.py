"""`reactor doctor`: what this node offers, which sources the daemon would use on it, and what is missing."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Final

from reactor.doctor.disks import without_holders_by_name
from reactor.doctor.kubernetes import kubernetes_features
from reactor.doctor.managed_oom import managed_oom_on_this_machine
from reactor.doctor.remedies import NONE_IS_NEEDED, each_once, fitting, this_place
from reactor.doctor.runtime import podman_features, runtime_feature
from reactor.doctor.swap import swap_feature
from reactor.doctor.thresholds import (
    absurd_on_this_machine,
    late_on_this_machine,
    without_swap_on_this_machine,
)
from reactor.kernel.cgroup_files import CgroupVersion
from reactor.kernel.features import Feature, probe
from reactor.model.settings import EbpfLoader, KernelKill, OomOrderMode, Settings
from reactor.model.signals import Signal
from reactor.sources.catalogue import (
    BY_NAME,
    MEMCG_EVENTFD,
    RULE_PRESSURE,
    SOURCES,
    SWAP,
    TICKER,
    Source,
    Watched,
    steps_of,
)
from reactor.terminal.tables import console, table

_CONTROLLER: Final = "cgroup memory controller"
_MEMORY_HIGH: Final = "memory.high"
_SWITCHED_OFF: Final = "switched off in the configuration"
_ON_V1: Final = "the memory controller is on cgroup v1"
_WARRANTS: Final = "eBPF warrants"
_NO_CHOICE: Final = frozenset({_SWITCHED_OFF, _ON_V1})


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlan:
    """Whether a source would be used, for what, and why so."""

    name: str
    used: bool
    purpose: str
    because: str


def examine(settings: Settings | None, output: str, *, verbose: bool = False, strict: bool = False) -> int:
    """Print what there is; the exit status is 1 where reactor can't guard this node at all.

    With `strict` it is 2 there, and 1 where something less than the first choice would be used. With
    `verbose` the verifier's log of each eBPF program that was refused is printed too.
    """
    wanted = settings or Settings()
    place = this_place()
    features = (
        *(fitting(one, place) for one in probe(for_others=_writes_for_others(wanted))),
        swap_feature(wanted),
        runtime_feature(wanted),
        *podman_features(wanted),
        *kubernetes_features(wanted),
    )
    by_name = {feature.name: feature for feature in features}
    plans = source_plans(settings or Settings(), by_name)
    kernel_kill = kernel_kill_plan(settings or Settings(), by_name)
    absurd, late = absurd_on_this_machine(wanted), late_on_this_machine(wanted)
    without_swap = without_swap_on_this_machine(wanted)
    without_files = without_holders_by_name(wanted)
    systemd_oomd = managed_oom_on_this_machine(wanted)
    works = any(feature.name == _CONTROLLER and feature.available for feature in features)
    lacks = second_choices(wanted, plans, by_name)
    status = exit_status(works=works, lacks=lacks, strict=strict)
    if output == "json":
        found = {
            "features": [asdict(one) for one in features],
            "sources": [asdict(one) for one in plans],
            "kernel_kill": kernel_kill,
            "absurd_thresholds": absurd,
            "late_thresholds": late,
            "thresholds_without_swap": without_swap,
            "thresholds_without_files": without_files,
            "systemd_oomd": systemd_oomd,
            "can_guard": works,
            "second_choices": lacks,
        }
        print(json.dumps(found))
        return status
    screen = console()
    rows = [(one.name, _yes(used=one.available), one.detail) for one in features]
    screen.print(table(("FEATURE", "THERE", "DETAIL"), rows))
    screen.print(
        table(
            ("SOURCE", "USED", "FOR", "BECAUSE"),
            [(one.name, _yes(used=one.used), one.purpose, one.because) for one in plans],
        )
    )
    screen.print(f"kernel kill: {kernel_kill}")
    for what, why in (*absurd.items(), *late.items(), *without_swap.items(), *without_files.items()):
        screen.print(f"{what}: {why}")
    for why in systemd_oomd:
        screen.say(f"systemdOomd: {why}")
    for what, why in lacks.items():
        screen.say(f"second choice: {what}: {why}")
    for remedy, names in each_once(_of_use(features, plans, wanted.kernel_kill)).items():
        screen.say(f"remedy: {', '.join(names)}: {remedy}")
    for feature in features:
        if verbose and feature.log:
            screen.print(f"log of {feature.name}:\n{feature.log}")
    if not works:
        screen.print("reactor can't guard this node: the cgroup memory controller is missing")
    return status


def _writes_for_others(wanted: Settings) -> bool:
    """Return whether files of users other than root are written; a kubelet's cgroups belong to root."""
    return wanted.kubernetes is None or wanted.oom_order is OomOrderMode.POLICY


def exit_status(*, works: bool, lacks: Mapping[str, str], strict: bool) -> int:
    """Return the exit status of the command."""
    if not strict:
        return 0 if works else 1
    return (1 if lacks else 0) if works else 2


def second_choices(
    settings: Settings, plans: Iterable[SourcePlan], features: Mapping[str, Feature]
) -> dict[str, str]:
    """Return what would be used, or done without, in place of a first choice, each with the reason.

    What the configuration switches off, and what the other cgroup version has, is no choice at all.
    """
    found: dict[str, str] = {}
    for watched in (Watched.MEMORY, Watched.PROCESSES, Watched.OOM_KILLS):
        names = {source.name for source in steps_of(watched)}
        chain = [plan for plan in plans if plan.name in names and _is_choice(plan, features)]
        if chain and not chain[0].used:
            used = next((plan.name for plan in chain if plan.used), TICKER)
            found[watched] = f"{used} in place of {chain[0].name}: {chain[0].because}"
    wanted = ["capabilities"]
    wanted += ["realtime"] if settings.realtime.fifo_priority else []
    wanted += ["memory lock"] if settings.realtime.lock_memory else []
    for name in wanted:
        feature = features.get(name)
        if feature is not None and not feature.available:
            found[name] = feature.detail
    return found


def _is_choice(plan: SourcePlan, features: Mapping[str, Feature]) -> bool:
    on_v2 = features.get(_MEMORY_HIGH)
    is_of_v1 = BY_NAME[plan.name].version is CgroupVersion.V1
    return plan.because not in _NO_CHOICE and not (is_of_v1 and on_v2 is not None and on_v2.available)


def _of_use(
    features: Iterable[Feature], plans: Iterable[SourcePlan], kernel_kill: KernelKill
) -> Iterator[Feature]:
    """Yield the features but for those of the other version of cgroups, and those that nothing needs."""
    idle = {BY_NAME[plan.name].feature for plan in plans if plan.because == _ON_V1}
    if idle or kernel_kill is KernelKill.OFF:
        idle.add(_WARRANTS)
    return (one for one in features if one.name not in idle and not one.remedy.startswith(NONE_IS_NEEDED))


def kernel_kill_plan(settings: Settings, features: Mapping[str, Feature]) -> str:
    """Return whether the kernel would kill at a crossing, and why not."""
    feature = features.get(_WARRANTS)
    eventfd = _feature(BY_NAME[MEMCG_EVENTFD], features)
    because = (
        None
        if feature is not None and feature.available
        else "unknown"
        if feature is None
        else feature.detail
    )
    if eventfd is not None and eventfd.available:
        because = _ON_V1
    elif settings.sources.ebpf_loader is EbpfLoader.BCC:
        because = "reactor.ebpf.loader is bcc"
    if settings.kernel_kill is KernelKill.OFF:
        can = "this node can" if because is None else f"this node can't: {because}"
        return f"not used: switched off in the configuration; {can}"
    if because is not None:
        return f"not used: {because}"
    return "used where it is certain in advance whom a crossing of a hard memory threshold evicts"


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
    if source.name == SWAP and not _watches_swap(settings):
        used, because = False, "no threshold is for swap.available"
    if source.name == RULE_PRESSURE and not _has_rules_on_pressure(settings):
        used, because = False, "no rule is on pressure"
    if source.name == TICKER:
        because = f"every {settings.housekeeping_interval_seconds:g} s"
    eventfd = _feature(BY_NAME[MEMCG_EVENTFD], features)
    if not source.is_allowed(settings.sources):
        used, because = False, _SWITCHED_OFF
    elif source.version is CgroupVersion.V2 and eventfd is not None and eventfd.available:
        used, because = False, _ON_V1
    return SourcePlan(name=source.name, used=used, purpose=source.purpose, because=because)


def _watches_swap(settings: Settings) -> bool:
    return any(one.signal is Signal.SWAP_AVAILABLE for one in settings.eviction.thresholds)


def _has_rules_on_pressure(settings: Settings) -> bool:
    return any(one.metric.resource is not None for rule in settings.rules for one in rule.conditions)


def _feature(source: Source, features: Mapping[str, Feature]) -> Feature | None:
    return None if source.feature is None else features.get(source.feature)


def _yes(*, used: bool) -> str:
    return "yes" if used else "no"
