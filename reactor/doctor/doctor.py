"""`reactor doctor`: what this node offers, which sources the daemon would use on it, and what is missing."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from reactor.doctor.kubernetes import kubernetes_features
from reactor.doctor.podman import podman_features
from reactor.doctor.runtime import runtime_feature
from reactor.doctor.thresholds import absurd_on_this_machine
from reactor.kernel.features import Feature, probe
from reactor.model.settings import BrakeMode, Settings
from reactor.terminal.tables import console, table

EBPF, MEMCG, MEMORY_HIGH, PSI = "ebpf", "memcg-eventfd", "memory-high", "psi"
EBPF_PIDS, PROCESSES, TICKER = "ebpf-pids", "processes", "ticker"
EBPF_OOM, OOM_COUNTERS = "ebpf-oom", "oom-counters"
_NEEDS: Final = {
    EBPF: "eBPF watches",
    MEMCG: "memcg eventfd",
    MEMORY_HIGH: "memory.high",
    PSI: "pressure stall information",
    EBPF_PIDS: "eBPF process counts",
    PROCESSES: "process events",
    EBPF_OOM: "eBPF OOM kills",
}
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
    features = (
        *probe(delegated=wanted.kubernetes is None),
        runtime_feature(wanted),
        *podman_features(wanted),
        *kubernetes_features(wanted),
    )
    by_name = {feature.name: feature for feature in features}
    plans = source_plans(settings or Settings(), by_name)
    brake = brake_plan(settings or Settings(), by_name)
    absurd = absurd_on_this_machine(wanted)
    works = any(feature.name == _CONTROLLER and feature.available for feature in features)
    if output == "json":
        found = {
            "features": [asdict(one) for one in features],
            "sources": [asdict(one) for one in plans],
            "brake": brake,
            "absurd_thresholds": absurd,
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
    for what, why in absurd.items():
        screen.print(f"{what}: {why}")
    for feature in features:
        if not feature.available and feature.remedy:
            screen.print(f"remedy: {feature.name}: {feature.remedy}")
    for feature in features:
        if verbose and feature.log:
            screen.print(f"log of {feature.name}:\n{feature.log}")
    if not works:
        screen.print("reactor can't guard this node: without a memory controller there are no pods to end")
    return 0 if works else 1


def brake_plan(settings: Settings, features: Mapping[str, Feature]) -> str:
    """Return whether the brake would be used, and why not."""
    if settings.brake is BrakeMode.OFF:
        return "not used: switched off in the configuration"
    if not _there(MEMORY_HIGH, features):
        feature = features.get(_NEEDS[MEMORY_HIGH])
        return f"not used: memory.high: {'unknown' if feature is None else feature.detail}"
    return "used while a hard memory threshold is crossed on a cgroup below the root"


def source_plans(settings: Settings, features: Mapping[str, Feature]) -> tuple[SourcePlan, ...]:
    """Return the sources in the order of their chains; one stands in only where the one before is missing."""
    sources = settings.sources
    chain = [
        _plan(EBPF, "memory, at the crossing itself", features, allowed=sources.ebpf),
        _plan(MEMCG, "memory, at the crossing itself", features, allowed=sources.memcg),
        _plan(MEMORY_HIGH, "memory, with a brake", features, allowed=sources.memory_high),
    ]
    pids = _plan(
        EBPF_PIDS,
        "process ids, at the crossing itself",
        features,
        allowed=sources.ebpf and sources.processes,
    )
    oom = _plan(EBPF_OOM, "the kernel's OOM kills, each", features, allowed=sources.ebpf)
    if _there(MEMCG, features):
        on_v1 = "the memory controller is on cgroup v1"
        chain[0], pids, oom = (
            dataclasses.replace(plan, used=False, because=on_v1) for plan in (chain[0], pids, oom)
        )
    return (
        *_one_of(chain),
        _plan(PSI, "memory, as a hint", features, allowed=sources.psi),
        *_one_of((pids, _plan(PROCESSES, "process ids, at each fork", features, allowed=sources.processes))),
        *_one_of(
            (
                oom,
                SourcePlan(
                    name=OOM_COUNTERS,
                    used=True,
                    purpose="the kernel's OOM kills, counted",
                    because="every kernel counts them",
                ),
            )
        ),
        SourcePlan(
            name=TICKER,
            used=True,
            purpose="everything, the last resort",
            because=f"every {settings.housekeeping_interval_seconds:g} s",
        ),
    )


def _one_of(chain: Sequence[SourcePlan]) -> Iterator[SourcePlan]:
    """Yield the steps of a chain: the first that can be used is, the others stand by."""
    first: str | None = None
    for step in chain:
        if step.used and first is not None:
            yield dataclasses.replace(step, used=False, because=f"{first} comes first")
        else:
            first = step.name if step.used else first
            yield step


def _there(name: str, features: Mapping[str, Feature]) -> bool:
    feature = features.get(_NEEDS[name])
    return feature is not None and feature.available


def _plan(name: str, purpose: str, features: Mapping[str, Feature], *, allowed: bool) -> SourcePlan:
    feature = features.get(_NEEDS[name])
    because = "" if feature is None else feature.detail
    if not allowed:
        because = "switched off in the configuration"
    return SourcePlan(name=name, used=_there(name, features) and allowed, purpose=purpose, because=because)


def _yes(*, used: bool) -> str:
    return "yes" if used else "no"
