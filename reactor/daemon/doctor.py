"""`reactor doctor`: what this node offers, which sources the daemon would use on it, and what is missing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

from reactor.daemon.show import console, table
from reactor.kernel.features import Feature, probe
from reactor.model.settings import Settings

MEMCG, MEMORY_HIGH, PSI, PROCESSES, TICKER = "memcg-eventfd", "memory-high", "psi", "processes", "ticker"
_NEEDS: Final = {
    MEMCG: "memcg eventfd",
    MEMORY_HIGH: "memory.high",
    PSI: "pressure stall information",
    PROCESSES: "process events",
}
_CONTROLLER: Final = "cgroup memory controller"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlan:
    """Whether a source would be used, for what, and why so."""

    name: str
    used: bool
    purpose: str
    because: str


def examine(settings: Settings | None, output: str) -> int:
    """Print what there is; the exit status is 1 where reactor can't guard this node at all."""
    features = probe()
    plans = source_plans(settings or Settings(), {feature.name: feature for feature in features})
    works = any(feature.name == _CONTROLLER and feature.available for feature in features)
    if output == "json":
        found = {"features": [asdict(one) for one in features], "sources": [asdict(one) for one in plans]}
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
    for feature in features:
        if not feature.available and feature.remedy:
            screen.print(f"remedy: {feature.name}: {feature.remedy}")
    if not works:
        screen.print("reactor can't guard this node: without a memory controller there are no pods to end")
    return 0 if works else 1


def source_plans(settings: Settings, features: Mapping[str, Feature]) -> tuple[SourcePlan, ...]:
    """Return the sources in the order of their chains; one stands in only where the one before is missing."""
    sources = settings.sources
    memcg = _plan(MEMCG, "memory, at the crossing itself", features, allowed=sources.memcg)
    high = _plan(MEMORY_HIGH, "memory, with a brake", features, allowed=sources.memory_high)
    if memcg.used and high.used:
        high = SourcePlan(
            name=high.name, used=False, purpose=high.purpose, because=f"{memcg.name} comes first"
        )
    return (
        memcg,
        high,
        _plan(PSI, "memory, as a hint", features, allowed=sources.psi),
        _plan(PROCESSES, "process ids, at each fork", features, allowed=sources.processes),
        SourcePlan(
            name=TICKER,
            used=True,
            purpose="everything, the last resort",
            because=f"every {settings.housekeeping_interval_seconds:g} s",
        ),
    )


def _plan(name: str, purpose: str, features: Mapping[str, Feature], *, allowed: bool) -> SourcePlan:
    feature = features.get(_NEEDS[name])
    there = feature is not None and feature.available
    because = "" if feature is None else feature.detail
    if not allowed:
        because = "switched off in the configuration"
    return SourcePlan(name=name, used=there and allowed, purpose=purpose, because=because)


def _yes(*, used: bool) -> str:
    return "yes" if used else "no"
