"""What the rules, and `systemdOomd: replace`, come to on this machine now, for `reactor config check`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from reactor.errors import ReactorError
from reactor.forms import FormError
from reactor.kernel.cgroup import CgroupTree, CgroupVersion
from reactor.kernel.memory_control import unavailable_because
from reactor.kernel.procfs import PROC
from reactor.kernel.psi import PRESSURE
from reactor.link.managed_oom import LONGEST_BYTES, PATH, ManagedOomReport, read_report_at_once
from reactor.model.name_patterns import PodParent
from reactor.model.rules import EVICTING, Condition, Measure, Metric, RankedBy, Rule, RuleAction
from reactor.model.settings import Settings, SystemdOomd
from reactor.plain import read_regular
from reactor.policy.rules import is_at_or_below
from reactor.rules.managed import missing_because, refused_because
from reactor.rules.observe import RuleObserver
from reactor.rules.oomd_conf import oomd_defaults
from reactor.threads import without_pause
from reactor.workloads.search import Selected, find_selected

_MOST_READ: Final = 256
_SHOWN: Final = 3

Values = Mapping[str, Mapping[Metric, float | None]]

_KEY: Final = "reactor.systemdOomd"
_UNIT: Final = "/system.slice/systemd-oomd.service"
_COMM: Final = "systemd-oomd"
_RUNS_ITSELF: Final = (
    "systemd-oomd itself is running, and kills beside reactor: systemctl disable --now systemd-oomd, then "
    'put reactor in its place (see "Instead of systemd-oomd" in pressure.md)'
)


def rule_findings(
    settings: Settings, tree: CgroupTree | None, *, proc: Path = PROC, pressure: Path = PRESSURE
) -> Iterator[tuple[str, str]]:
    """Yield where a rule is in the document and what to say of it: it can't act, or would at the start."""
    if tree is None:
        if settings.rules:
            yield "reactor.rules", "no effect on this machine: no cgroup memory controller is mounted"
        return
    observer = RuleObserver(tree, proc=proc, pressure=pressure, clock_seconds=time.monotonic)
    parents = [PodParent(one) for one in settings.pod_parents]
    for index, rule in enumerate(settings.rules):
        path = f"reactor.rules[{index}]"
        for why in _of_rule(rule, tree, observer, parents):
            yield path, f"{rule.name}: {why}"
        for other in settings.rules[:index]:
            is_same = (other.cgroups, set(other.conditions)) == (rule.cgroups, set(rule.conditions))
            if is_same:
                yield path, f"{rule.name}: for the same cgroups and conditions as {other.name}: both act"
            for late, early in ((rule, other), (other, rule)):
                if not is_same and _comes_before(early, late):
                    yield (
                        path,
                        (
                            f"{late.name}: {early.name} ({early.action}) is for the same cgroups and acts "
                            f"wherever it would, as soon or sooner: it would {_would(late)} too late"
                        ),
                    )
        for contained, containing in _contained(rule):
            yield path, f"{rule.name}: {contained} says nothing beside {containing}"


def _comes_before(early: Rule, late: Rule) -> bool:
    """Return whether a rule evicts whenever the conditions of another one hold that would not, or not it."""
    if early.action not in EVICTING or late.action in EVICTING or early.cgroups != late.cgroups:
        return False
    return early.for_seconds <= late.for_seconds and all(
        any(_implies(one, condition) for one in late.conditions) for condition in early.conditions
    )


def _contained(rule: Rule) -> Iterator[tuple[Condition, Condition]]:
    """Yield the conditions of a rule that hold wherever another one of it does, with that one."""
    for index, one in enumerate(rule.conditions):
        for place, other in enumerate(rule.conditions):
            is_equal = one == other
            if place != index and _implies(other, one) and (not is_equal or place < index):
                yield one, other
                break


def _implies(one: Condition, other: Condition) -> bool:
    return (
        one.metric == other.metric
        and one.limit >= other.limit
        and (not one.metric.is_counter or one.within_seconds <= other.within_seconds)
    )


def _would(rule: Rule) -> str:
    return {
        RuleAction.REPORT: "report",
        RuleAction.RECLAIM: "reclaim",
        RuleAction.CONDITION: "show a condition",
        RuleAction.TAINT: "taint the node",
    }.get(rule.action, "evict")


def _of_rule(
    rule: Rule, tree: CgroupTree, observer: RuleObserver, parents: Sequence[PodParent]
) -> Iterator[str]:
    problems: dict[str, str] = {}
    selected = _all_selected(tree, rule, problems)
    yield from (f"{what}: {why}" for what, why in problems.items())
    if not selected:
        yield f"no effect on this machine now: no cgroup is or matches {', '.join(rule.cgroups)}"
        return
    some = list(selected.values())[:_MOST_READ]
    metrics = [condition.metric for condition in rule.conditions]
    values = {one.cgroup: observer.read(one.cgroup, one.directory, metrics) for one in some}
    never = list(_never_true(rule, some, values, observer, tree.version))
    yield from never
    if not never:
        yield from _at_once(rule, values)
    yield from _nobody(rule, selected, parents)
    if rule.action is RuleAction.RECLAIM and (why := unavailable_because(tree)) is not None:
        yield f"reclaims nothing on this machine: {why}"
    if rule.by is RankedBy.PGSCAN and tree.version is CgroupVersion.V1:
        yield "evicts no pod on this machine: cgroup v1 does not count what reclaim scans of each pod"


def _all_selected(tree: CgroupTree, rule: Rule, problems: dict[str, str]) -> Mapping[str, Selected]:
    return without_pause(find_selected(tree, [PodParent(one) for one in rule.cgroups], problems))


def _never_true(
    rule: Rule, some: Sequence[Selected], values: Values, observer: RuleObserver, version: CgroupVersion
) -> Iterator[str]:
    """Yield the conditions that can't be observed of any cgroup, and why not of the first one."""
    for condition in rule.conditions:
        if condition.metric.of.startswith("cpu full") and [one.cgroup for one in some] == ["/"]:
            yield f"never acts: {condition}: the kernel has no such pressure of the machine, it is always 0"
        elif all(values[one.cgroup][condition.metric] is None for one in some):
            first = some[0]
            why = why_not_observed(observer, version, first, condition.metric)
            yield f"never acts on this machine: {condition} can't be observed: {why or 'now it can'}"


def why_not_observed(
    observer: RuleObserver, version: CgroupVersion, of: Selected, metric: Metric
) -> str | None:
    """Return why a metric of a cgroup can't be observed, None if it can."""
    is_v2 = version is CgroupVersion.V2
    try:
        value = observer.value(of.cgroup, of.directory, metric)
    except FileNotFoundError as error:
        where = "" if is_v2 or metric.resource is None else " (cgroup v1 has it of / alone)"
        return f"this kernel has no {error.filename}{where}"
    except (OSError, ReactorError) as error:
        return str(error)
    if value is not None:
        return None
    return {
        Measure.USAGE: "the cgroup has no memory limit",
        Measure.SWAP_USED: "this machine has no swap (/proc/swaps)",
        Measure.SWAP_TRAFFIC: "it is counted of a cgroup on v2, since Linux 6.13",
    }.get(metric.measure, "/ does not count it" if is_v2 else "cgroup v1 does not count it")


def _at_once(rule: Rule, values: Values) -> Iterator[str]:
    """Yield in which cgroups the rule's gauges are past their limits now."""
    gauges = [one for one in rule.conditions if not one.metric.is_counter]
    holding = [
        cgroup for cgroup, seen in values.items() if gauges and all(_holds(one, seen) for one in gauges)
    ]
    if not holding:
        return
    shown = "; ".join(
        f"{cgroup} ({', '.join(f'{one}: {one.amount_text(values[cgroup][one.metric])}' for one in gauges)})"
        for cgroup in holding[:_SHOWN]
    )
    more = f" and {len(holding) - _SHOWN} more" if len(holding) > _SHOWN else ""
    also = "" if len(gauges) == len(rule.conditions) else ", if its counters grow as much"
    yield f"holds now: it would {_would(rule)} {rule.for_seconds:g} s after the start{also}: {shown}{more}"


def _holds(condition: Condition, seen: Mapping[Metric, float | None]) -> bool:
    value = seen[condition.metric]
    return value is not None and value >= condition.limit


def _nobody(rule: Rule, selected: Mapping[str, Selected], parents: Sequence[PodParent]) -> Iterator[str]:
    """Yield that no cgroup of the rule is, holds or lies in what may be a pod."""
    if rule.action not in EVICTING:
        return
    in_pods = any(parent.holds(cgroup) for cgroup in selected for parent in parents)
    if rule.action is RuleAction.EVICT and not in_pods:
        yield f"evicts no pod: none of its cgroups is a pod, or a part of one (action: {RuleAction.EVICT})"
    above = any(is_at_or_below(parent.fence, cgroup) for cgroup in selected for parent in parents)
    within = any(is_at_or_below(cgroup, parent.fence) for cgroup in selected for parent in parents)
    if rule.action is RuleAction.EVICT_WORST and not above and not within:
        yield "evicts no pod: there are no pods below its cgroups (see reactor.pods.parents)"


def managed_oom_on_this_machine(settings: Settings) -> tuple[str, ...]:
    """Return what of `systemdOomd: replace` does not count on this machine now, and why."""
    if settings.systemd_oomd is SystemdOomd.IGNORE:
        return ()
    try:
        tree = CgroupTree.discover()
    except (OSError, ReactorError):
        return ()
    return tuple(why for _, why in managed_oom_findings(settings, tree))


def managed_oom_findings(
    settings: Settings,
    tree: CgroupTree | None,
    *,
    proc: Path = PROC,
    path: Path = Path(PATH),
    root: Path = Path("/"),
) -> Iterator[tuple[str, str]]:
    """Yield where the key is in the document and what to say of it: what does not count, and why."""
    if settings.systemd_oomd is SystemdOomd.IGNORE or tree is None:
        return
    if tree.version is CgroupVersion.V1:
        why = "on cgroup v1, as on this machine, only ManagedOOMSwap= counts: units have no memory pressure"
        yield _KEY, why
    problems: dict[str, str] = {}
    defaults = oomd_defaults(problems, root=root)
    yield from ((_KEY, f"{what}: {why}; the default counts") for what, why in problems.items())
    if _is_running(tree, proc):
        yield _KEY, _RUNS_ITSELF
    report = _report(path)
    if isinstance(report, str):
        yield _KEY, f"has no effect on this machine now: {report}"
        return
    if report.problem:
        yield _KEY, f"{path}: {report.problem}"
    parents = [PodParent(one) for one in settings.pod_parents]
    refused = {
        unit.cgroup: refused_because(unit, parents) or missing_because(unit, defaults)
        for unit in report.units
    }
    shown = [f"{cgroup}: {why}" for cgroup, why in refused.items() if why is not None]
    for one in shown[:_SHOWN]:
        yield _KEY, f"does not count: {one}"
    if len(shown) > _SHOWN:
        yield _KEY, f"does not count: {len(shown) - _SHOWN} more units"


def _report(path: Path) -> ManagedOomReport | str:
    """Return what the file says, or why that can't be had."""
    try:
        return read_report_at_once(read_regular(path, LONGEST_BYTES, may_be_pipe=False))
    except FileNotFoundError:
        return f"{path} is missing: systemd-oomd.service does not run reactor"
    except PermissionError as error:
        return f"{path}: {error.strerror}"
    except (OSError, FormError) as error:
        return f"{path}: {error}"


def _is_running(tree: CgroupTree, proc: Path) -> bool:
    """Return whether a process of the unit is systemd-oomd itself."""
    try:
        pids = (Path(tree.path(_UNIT)) / "cgroup.procs").read_text(encoding="ascii").split()
        return any((proc / pid / "comm").read_text(encoding="utf-8").strip() == _COMM for pid in pids)
    except (OSError, ValueError):
        return False
