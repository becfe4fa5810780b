"""What rules look at, recorded: the cgroups that they are for, and what goes to swap and comes back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.procfs import PROC
from reactor.kernel.psi import PRESSURE
from reactor.model.pod_parents import PodParent
from reactor.model.pods import Pod
from reactor.model.rules import Measure, Metric, RankedBy, Rule
from reactor.rules.observe import RuleObserver
from reactor.simulate.rule_numbers import metrics_to_record
from reactor.turns import without_pause
from reactor.workloads.search import find_selected

_MACHINE: Final = "/"
_SWAP_USED: Final = Metric(Measure.SWAP_USED)
_SWAP_TRAFFIC: Final = Metric(Measure.SWAP_TRAFFIC)
_SCANNED: Final = Metric(Measure.PAGES_SCANNED)
_CLEAR_PERCENT: Final = 2.0
_CLEAR_SHARE: Final = 10  # of the growth that a condition asks for

Observed = Mapping[str, Mapping[Metric, float | None]]


class RuleRecording:
    """Observes for a recording what rules look at, and says when that is worth a step."""

    def __init__(
        self,
        tree: CgroupTree,
        rules: Sequence[Rule],
        *,
        proc: Path = PROC,
        pressure: Path = PRESSURE,
        clock_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tree = tree
        self._rules = rules
        self._observer = RuleObserver(tree, proc=proc, pressure=pressure, clock_seconds=clock_seconds)
        self._metrics = metrics_to_record(rules) if rules else ()
        self._selectors = [PodParent(one) for rule in rules for one in rule.cgroups]
        self._ranks_by_scans = any(rule.by is RankedBy.PGSCAN for rule in rules)
        self._written: Observed | None = None

    def look(self, pods: Iterable[Pod]) -> dict[str, dict[Metric, float | None]]:
        """Return what is observed of each cgroup that a rule is for, and of the pods that it may rank."""
        found = {
            one.cgroup: self._observer.read(one.cgroup, one.directory, self._metrics)
            for one in without_pause(find_selected(self._tree, self._selectors, {})).values()
        }
        if self._ranks_by_scans:
            for cgroup in (pod.cgroup for pod in pods if pod.cgroup is not None):
                directory = f"{self._tree.memory_root}{cgroup}"
                found.setdefault(cgroup, {}).update(self._observer.read(cgroup, directory, (_SCANNED,)))
        machine = self._observer.read(_MACHINE, "", (_SWAP_USED, _SWAP_TRAFFIC))
        if machine[_SWAP_USED] is not None:  # the machine has swap
            found.setdefault(_MACHINE, {}).update(machine)
        return found

    def is_step(self, observed: Observed) -> bool:
        """Return whether this is worth a step: conditions hold, or their numbers have changed clearly."""
        before = self._written
        if before is None or before.keys() != observed.keys():
            return True
        return any(
            _may_hold(rule, observed[cgroup], before[cgroup])
            or _has_moved(rule, observed[cgroup], before[cgroup])
            for cgroup in observed
            for rule in self._rules
        )

    def written(self, observed: Observed) -> None:
        """Take note that this was written."""
        self._written = observed

    def too_short(self, interval_seconds: float) -> Iterator[str]:
        """Yield the conditions whose windows pass between two observations at this pace."""
        for rule in self._rules:
            for one in rule.conditions:
                if one.metric.is_counter and one.within_seconds < interval_seconds:
                    yield f"{rule.name}: {one}"


def _may_hold(rule: Rule, seen: Mapping[Metric, float | None], before: Mapping[Metric, float | None]) -> bool:
    """Return whether all gauges of a rule are past their limits, and all of its counters have grown."""
    for metric, limit, _ in rule.conditions:
        value, old = seen.get(metric), before.get(metric)
        if value is None or (value <= (old or 0.0) if metric.is_counter else value < limit):
            return False
    return True


def _has_moved(
    rule: Rule, seen: Mapping[Metric, float | None], before: Mapping[Metric, float | None]
) -> bool:
    """Return whether a metric of a rule is on the other side of its limit, or clearly another one."""
    for metric, limit, _ in rule.conditions:
        value, old = seen.get(metric), before.get(metric)
        if (value is None) != (old is None):
            return True
        if value is None or old is None:
            continue
        is_other_side = not metric.is_counter and (value >= limit) != (old >= limit)
        least = limit / _CLEAR_SHARE if metric.is_counter else _CLEAR_PERCENT
        if is_other_side or abs(value - old) >= least:
            return True
    return False
