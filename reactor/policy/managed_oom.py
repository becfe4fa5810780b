"""What systemd's units say of being killed, as rules that do what systemd-oomd does.

Of memory pressure: `full avg10` of the unit is above its limit for its time while reclaim scans pages of it;
then goes the one below it of which the most pages were scanned. Of swap: the machine's swap and memory are
used above one limit; then goes the one below any of the units that has the most in swap. After either, 15 s.
Source: monitor_memory_pressure_contexts_handler and monitor_swap_contexts_handler in systemd's
src/oom/oomd-manager.c.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from reactor.model.managed_oom import ManagedOomKind, ManagedOomUnit, OomdDefaults
from reactor.model.pod_parents import PodParent
from reactor.model.rules import Condition, Measure, Metric, RankedBy, Rule, RuleAction
from reactor.policy.rules import is_at_or_below

# An operator's rule has no colon in its name.
_PREFIX = "systemd-oomd:"
_FULL = Metric(Measure.PRESSURE, "memory full avg10")
_SCANNED = Metric(Measure.PAGES_SCANNED)
_RECLAIM_SECONDS = 30.0
_COOLDOWN_SECONDS = 15.0
# What was scanned is counted from when the conditions began to hold: there has to be a second observation.
_SHORTEST_SECONDS = 2.0


def refused_because(unit: ManagedOomUnit, parents: Iterable[PodParent]) -> str | None:
    """Return why no pod can be evicted for a unit, None where one can: it is above or below their parents."""
    cgroup = unit.cgroup
    for parent in parents:
        if is_at_or_below(parent.fence, cgroup) or is_at_or_below(cgroup, parent.fence):
            return None
    return "there are no pods in it: it is neither above nor below reactor.pods.parents"


def managed_rules(units: Sequence[ManagedOomUnit], defaults: OomdDefaults) -> tuple[Rule, ...]:
    """Return the rules for these units: one for swap, and one for each limit and time of memory pressure.

    Users' own units have rules of their own: the name of a rule says whether it is theirs.
    """
    by_name: dict[str, tuple[float, float, bool, list[str]]] = {}
    of_swap: list[str] = []
    for unit in units:
        if unit.kind is ManagedOomKind.SWAP:
            of_swap.append(unit.cgroup)
            continue
        made = (*_limit(unit, defaults), unit.uid is None, list[str]())
        by_name.setdefault(rule_name(unit, defaults), made)[-1].append(unit.cgroup)
    rules = [
        Rule(
            name=name,
            cgroups=tuple(dict.fromkeys(cgroups)),
            conditions=(Condition(_FULL, percent), Condition(_SCANNED, 1, _RECLAIM_SECONDS)),
            for_seconds=seconds,
            action=RuleAction.EVICT_WORST,
            by=RankedBy.PGSCAN,
            cooldown_seconds=_COOLDOWN_SECONDS,
            rests_in_each=True,
            rests_in_each_slice=not is_systems,
        )
        for name, (percent, seconds, is_systems, cgroups) in by_name.items()
    ]
    if of_swap:
        limit = defaults.swap_used_percent
        metrics = Metric(Measure.SWAP_USED), Metric(Measure.USAGE)
        rules.append(
            Rule(
                name=f"{_PREFIX}swap",
                cgroups=("/",),
                conditions=tuple(Condition(metric, limit) for metric in metrics),
                for_seconds=0.0,
                action=RuleAction.EVICT_WORST,
                by=RankedBy.SWAP,
                cooldown_seconds=_COOLDOWN_SECONDS,
                below=tuple(dict.fromkeys(of_swap)),
            )
        )
    return tuple(rules)


def rule_name(unit: ManagedOomUnit, defaults: OomdDefaults) -> str:
    """Return the name of the rule that a unit comes to."""
    if unit.kind is ManagedOomKind.SWAP:
        return f"{_PREFIX}swap"
    percent, seconds = _limit(unit, defaults)
    whose = "pressure" if unit.uid is None else "user-pressure"
    return f"{_PREFIX}{whose}-{percent:g}%-{seconds:g}s"


def _limit(unit: ManagedOomUnit, defaults: OomdDefaults) -> tuple[float, float]:
    """Return the limit of a unit's memory pressure in percent, and for how many seconds it is above it."""
    seconds = unit.duration_seconds or defaults.pressure_seconds
    return unit.limit_percent or defaults.pressure_percent, max(_SHORTEST_SECONDS, seconds)
