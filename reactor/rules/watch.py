"""The operator's rules: their cgroups are observed in turns beside the loop, and what is due is done.

A turn takes a quarter of a millisecond, and the loop goes first after it: no crossing waits longer. How often
the cgroups of a rule are observed follows from what that costs: once in a second, or as much less often as it
takes for a thousandth of a CPU. Where a rule asks for pressure and no task of the machine stalls nothing is
read at all. A cgroup in which the conditions hold, or a counter grows, is observed each second, within a
fiftieth of a CPU: a tenant can have thousands of them grow. What is due is observed afresh before it is done.
If the kernel's own triggers report a stall, that cgroup is observed then, and not at the next second.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import islice
from typing import Any, Final, Protocol, TypeVar

import trio

from reactor.kernel.cgroup import CgroupTree, CgroupVersion
from reactor.link.documents import attributes
from reactor.model.name_patterns import PodParent
from reactor.model.pods import Pod
from reactor.model.rules import (
    Acts,
    Condition,
    Firing,
    Mark,
    Marked,
    Marks,
    Measure,
    Metric,
    PressureResource,
    RankedBy,
    Rule,
    RuleAction,
)
from reactor.policy.rules import hit_by
from reactor.rules.observe import RuleObserver, share_of_machine
from reactor.rules.policy import (
    LONGEST_GAP_SECONDS,
    RuleState,
    Sample,
    after_acting,
    cooldown_left_seconds,
    due,
    last_acted,
    marks_of,
    observed,
    started,
    why_not,
)
from reactor.rules.pressure import MOST_TRIGGERS, Fired, RulePressure, Trigger
from reactor.text import printable
from reactor.threads import with_pauses
from reactor.workloads.search import Selected, find_selected

_TICK_SECONDS: Final = 1.0
_TURN_SECONDS: Final = 0.00025
_FIND_SECONDS: Final = 10.0
_SHARE_AT_REST: Final = 0.0006
_SHARE_OF_FINDING: Final = 0.0004
_SHARE_UNDER_PRESSURE: Final = 0.02
_LOG: Final = logging.getLogger("reactor.rules")
_LONGEST_SECONDS: Final = 60.0
# Of what grows: below the gap after which the policy takes a condition for a new one.
_LONGEST_ACTIVE_SECONDS: Final = 10.0
_SHOWN: Final = 5
_MACHINE: Final = "/"
# The kernel averages what was in each such time: an average rises only while there is as much pressure in it.
_OF_AN_AVERAGE_SECONDS: Final = 2.0
# The kernel reports a window that ended a moment ago; what it reports is to hold when observed afresh.
_REPORTED_LATE_SHARE: Final = 0.9
_PODS_AT_ONCE: Final = 8
_SELECTORS_AT_ONCE: Final = 16
_MOST_CGROUPS_SHOWN: Final = 32
_ACTED_KEPT_SECONDS: Final = 3600.0
_SCANNED: Final = Metric(Measure.PAGES_SCANNED)

_Value = TypeVar("_Value")


@dataclass(slots=True, kw_only=True)
class _Group:
    """Rules for the same cgroups, whose numbers are read once for all of them.

    `floors` are the lowest limits, `required` the gauges that each of the rules asks for. The group is only
    observed while tasks stall for `resource`, by `share` of the time at least (None: always). `counters` are
    as they were at the last observation, `peaks` the highest value of a gauge in the last round, and
    `states` are by rule and cgroup.
    """

    selectors: tuple[PodParent, ...]
    rules: list[Rule]
    required: tuple[Metric, ...]
    floors: Mapping[Metric, float]
    resource: PressureResource | None
    share: float
    selected: Mapping[str, Selected] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    find_due_seconds: float = -math.inf
    due_seconds: float = 0.0
    active_due_seconds: float = 0.0
    every_seconds: float = _TICK_SECONDS
    counters: dict[str, tuple[float, dict[Metric, float]]] = field(default_factory=dict)
    peaks: dict[Metric, float] = field(default_factory=dict)
    states: dict[str, dict[str, RuleState]] = field(default_factory=dict)

    @property
    def is_of_users(self) -> bool:
        return all(rule.cooldown_per_user_slice for rule in self.rules)

    def add_peaks(self, values: Mapping[Metric, float | None]) -> None:
        """Record the highest values of gauges in this round."""
        for metric, value in values.items():
            if value is not None and not metric.is_counter:
                self.peaks[metric] = max(value, self.peaks.get(metric, value))

    def go_on_from(self, before: _Group, rule: Rule) -> None:
        """Take over what was observed for a rule when it was for other cgroups; they are found anew."""
        kept = set(rule.cgroups)
        self.selected = {**self.selected, **_only(before.selected, kept)}
        self.counters |= _only(before.counters, kept)
        self.states[rule.name] = _only(before.states[rule.name], kept)

    def forget(self, cgroup: str) -> None:
        """Forget what is known of a cgroup, which is gone or another one by now."""
        self.counters.pop(cgroup, None)
        for states in self.states.values():
            states.pop(cgroup, None)

    def active_cgroups(self) -> list[str]:
        """Return the cgroups in which a rule's conditions hold, or a counter grows."""
        return list({cgroup: None for states in self.states.values() for cgroup in states})


class Acting(Protocol):
    """Does what a rule asks for, and knows whom that may hit."""

    @property
    def pods(self) -> Sequence[Pod]:
        """Return the pods of the node, those among them that came a moment ago."""

    def held_bytes(self, uid: str) -> int | None:
        """Return what a pod holds of memory now, None if it is gone."""

    def why_waits(self, firing: Firing) -> str | None:
        """Return why a rule that is due can't act yet, None if it can."""

    def fire(self, firing: Firing) -> bool:
        """Make a pass for it; return whether the rule acted in it, and is not waiting for something."""


@dataclass(eq=False)
class RuleWatch:
    """Observes what the rules are for, and has `guard` do what they ask for.

    `acted` and `marked`, by the rules' names, outlive it: a reload ends no cool-down, and of the marks on the
    Node those of rules that are gone; `on_marks` is called with each change of what the Node is to show.
    `worked_seconds` is the CPU time that the thread has taken. `triggers` report stalls as they happen; None:
    the clock alone counts.
    """

    tree: CgroupTree
    rules: Sequence[Rule]
    guard: Acting
    acted: dict[str, Acts]
    _: KW_ONLY
    observer: RuleObserver | None = None
    clock_seconds: Callable[[], float] = time.monotonic
    worked_seconds: Callable[[], float] = time.thread_time
    triggers: RulePressure | None = None
    marked: dict[str, Marked] = field(default_factory=dict)
    on_marks: Callable[[Marks], None] = lambda _: None

    def __post_init__(self) -> None:
        self._marks: Marks | None = None
        self._observer = self.observer or RuleObserver(self.tree, clock_seconds=self.clock_seconds)
        self._cpus = os.cpu_count() or 1
        marks = started(self.rules, self.marked, self.clock_seconds())
        self.marked.clear()
        self.marked.update(marks)
        self._groups = _grouped(self.rules)
        self._own_groups = len(self._groups)
        self._to_add: tuple[tuple[Rule, ...], Mapping[str, PodParent]] | None = None
        self._of_machine = self._machine_triggers()
        self._arm_due_seconds = 0.0
        self._stalled: dict[PressureResource, tuple[float, float]] = {}
        self._stall_shares: dict[PressureResource, float] = {}
        self._waiting: dict[str, tuple[str, float]] = {}
        self._turn_began_seconds = self._turn_cost_seconds = 0.0
        for what, why in self.problems.items():
            _LOG.warning("%s: %s", what, why)

    @property
    def problems(self) -> dict[str, str]:
        """Return what the rules are for and can't be observed, which rules can never act, and why."""
        found = {f"rules: {what}": why for group in self._groups for what, why in group.problems.items()}
        own = (rule for group in self._groups[: self._own_groups] for rule in group.rules)
        return found | {
            f"rules: {printable(rule.name)}": why
            for rule in own
            if (why := self._never_because(rule)) is not None
        }

    def _never_because(self, rule: Rule) -> str | None:
        """Return why a rule can never act on this machine, None where it may."""
        for condition in rule.conditions:
            whys = [self._observer.never_because(cgroup, condition.metric) for cgroup in rule.cgroups]
            if whys and None not in whys:
                return f"never acts on this machine: {condition} can't be observed: {whys[0]}"
        return None

    async def add(self, rules: Iterable[Rule]) -> None:
        """Go by these as well from the next tick on, in the place of those that were added before.

        A rule that is for other cgroups than before goes on with those that it keeps: else a user who comes
        or goes would begin the time of all others anew.
        """
        added = tuple(rules)
        selectors: dict[str, PodParent] = {}
        for cgroup in (cgroup for rule in added for cgroup in rule.cgroups):
            selectors[cgroup] = PodParent(cgroup)
            if len(selectors) % _SELECTORS_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
        self._to_add = (added, selectors)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Observe and act until cancelled."""
        async with trio.open_nursery() as nursery:
            triggers = self.triggers
            if triggers is not None:
                await nursery.start(triggers.run)
            task_status.started()
            while True:
                await self.tick()
                until_seconds = trio.current_time() + _TICK_SECONDS
                if triggers is None:
                    await trio.sleep_until(until_seconds)
                    continue
                if self.clock_seconds() >= self._arm_due_seconds:
                    self._arm_due_seconds = self.clock_seconds() + _LONGEST_SECONDS
                    triggers.want(*self._wanted_triggers())
                while (left_seconds := until_seconds - trio.current_time()) > 0:
                    fired = await triggers.wait(left_seconds)
                    if fired:
                        pause_seconds = await self.act_on_stalls(fired)
                        await trio.sleep_until(min(until_seconds, trio.current_time() + pause_seconds))

    async def act_on_stalls(self, fired: Fired) -> float:
        """Observe the cgroups whose tasks stall, and act; return for how long no more is to be acted on.

        What the kernel has seen in a rule's own window counts as observed.
        """
        stalling = [(one, is_exact) for one, is_exact in fired.items() if one not in self._of_machine]
        is_any_closed = any(not self._is_open(group) for group in self._groups)
        if is_any_closed and len(stalling) < len(fired):
            await self.tick()  # tasks of the machine stall
        self._begin_turn()
        for group in self._groups:
            for trigger, is_exact in stalling:
                selected = group.selected.get(trigger.cgroup)
                is_ours = group.resource == trigger.resource
                if is_ours and selected is not None and selected.inode == trigger.inode:
                    self._observe(group, selected, reported=trigger if is_exact else None)
                    await self._give_way()
            for rule in group.rules:
                if group.states[rule.name]:
                    await self._act(group, rule)
        return self._turn_cost() / _SHARE_UNDER_PRESSURE

    def _is_found_unpressed(self, group: _Group, now_seconds: float) -> bool:
        """Return whether cgroups are to be found while no task stalls: for the triggers on their pressure."""
        if self.triggers is None or now_seconds < group.find_due_seconds + _LONGEST_SECONDS:
            return False
        is_v2 = self.tree.version is CgroupVersion.V2
        return is_v2 or any(one.text == _MACHINE for one in group.selectors)

    def _machine_triggers(self) -> tuple[Trigger, ...]:
        """Return the triggers that report that tasks of the machine stall enough for any rule."""
        shares: dict[PressureResource, float] = {}
        for group in self._groups:
            if group.resource is not None:
                shares[group.resource] = min(group.share, shares.get(group.resource, group.share))
        return tuple(
            Trigger(
                cgroup=_MACHINE,
                inode=0,
                path=self._observer.pressure_path(_MACHINE, "", resource),
                resource=resource,
                kind="some",
                stall_seconds=_OF_AN_AVERAGE_SECONDS * share_of_machine(share, self._cpus),
                window_seconds=_OF_AN_AVERAGE_SECONDS,
            )
            for resource, share in shares.items()
        )

    def _wanted_triggers(self) -> tuple[Iterable[Trigger], int]:
        """Return the triggers to be armed, and for how many cgroups of rules there are none to be."""
        groups = [group for group in self._groups if group.resource is not None]
        room = MOST_TRIGGERS - len(self._of_machine)
        wanted = dict.fromkeys(self._of_machine)
        left_out = 0
        for group in groups:
            each = max(1, int(room * _part(group, groups)))
            gates = list(dict.fromkeys(gate for rule in group.rules if (gate := _gate(rule)) is not None))
            cgroups: Collection[Selected] = group.selected.values()
            if self.tree.version is CgroupVersion.V1:  # it accounts pressure of the machine alone
                cgroups = [one for one in (group.selected.get(_MACHINE),) if one is not None]
            wanted |= dict.fromkeys(islice(self._triggers_of(group, cgroups, gates), each))
            left_out += max(0, len(cgroups) * len(gates) - each)
        return wanted, left_out

    def _triggers_of(
        self, group: _Group, cgroups: Iterable[Selected], gates: Iterable[Condition]
    ) -> Iterator[Trigger]:
        resource = group.resource or ""
        for selected in cgroups:
            path = self._observer.pressure_path(selected.cgroup, selected.directory, resource)
            for gate in gates:
                is_stall = gate.metric.is_counter
                yield Trigger(
                    cgroup=selected.cgroup,
                    inode=selected.inode,
                    path=path,
                    resource=resource,
                    kind="full" if gate.metric.of.split()[1] == "full" else "some",
                    stall_seconds=gate.limit if is_stall else _OF_AN_AVERAGE_SECONDS * gate.limit / 100.0,
                    window_seconds=gate.within_seconds if is_stall else _OF_AN_AVERAGE_SECONDS,
                )

    async def tick(self) -> None:
        """Observe what is due once, and act."""
        if self._to_add is not None:
            self._take_added(*self._to_add)
            self._to_add = None
        now_seconds = self.clock_seconds()
        self._note_stalls(now_seconds)
        for group in self._groups:
            self._begin_turn()
            is_open = self._is_open(group)
            if is_open and now_seconds >= group.due_seconds:
                if now_seconds >= group.find_due_seconds:
                    await self._find(group)
                group.peaks = {}
                await self._observe_all(group, group.selected)
                # All of them are observed again by what that has cost now.
                is_of_memory = group.resource is PressureResource.MEMORY
                share = _SHARE_UNDER_PRESSURE if is_of_memory else _SHARE_AT_REST
                group.every_seconds = self._pause_seconds(group, share)
                group.due_seconds = self._after(group.every_seconds)
            elif any(group.states.values()) and now_seconds >= group.active_due_seconds:
                await self._observe_all(group, group.active_cgroups())
                pause_seconds = self._pause_seconds(
                    group, _SHARE_UNDER_PRESSURE, most_seconds=_LONGEST_ACTIVE_SECONDS
                )
                group.active_due_seconds = self._after(pause_seconds)
            elif not is_open and self._is_found_unpressed(group, now_seconds):
                await self._find(group)
            for rule in group.rules:
                if group.states[rule.name]:
                    await self._act(group, rule)
        marks = marks_of(self.marked, self.clock_seconds())
        if marks != self._marks:
            self._marks = marks
            self.on_marks(marks)

    def document(self) -> list[dict[str, Any]]:
        """Return how the rules stand as plain JSON values."""
        now_seconds = self.clock_seconds()
        return [
            self._rule_document(group, rule, now_seconds) for group in self._groups for rule in group.rules
        ]

    def _take_added(self, rules: tuple[Rule, ...], selectors: Mapping[str, PodParent]) -> None:
        before = {
            _for_any_cgroup(rule): group for group in self._groups[self._own_groups :] for rule in group.rules
        }
        added = _grouped(rules, selectors)
        for index, group in enumerate(added):
            for rule in group.rules:
                other = before.get(_for_any_cgroup(rule))
                if other is not None and other.rules == group.rules:
                    added[index] = other
                elif other is not None:
                    group.go_on_from(other, rule)
        self._groups = [*self._groups[: self._own_groups], *added]
        self._of_machine, self._arm_due_seconds = self._machine_triggers(), 0.0
        present = {rule.name for group in self._groups for rule in group.rules}
        self._waiting = _only(self._waiting, present)
        # A unit that is restarted brings its rule back.
        oldest_seconds = self.clock_seconds() - _ACTED_KEPT_SECONDS
        for name in [name for name in self.acted if name not in present]:
            if last_acted(self.acted[name]).at_seconds < oldest_seconds:
                del self.acted[name]

    def _note_stalls(self, now_seconds: float) -> None:
        """Record for what share of the time since the last tick some task of the machine has stalled."""
        for resource in {group.resource for group in self._groups if group.resource is not None}:
            total_seconds = self._observer.machine_stall_seconds(resource)
            before = self._stalled.get(resource)
            if total_seconds is None:
                self._stall_shares.pop(resource, None)
                continue
            if before is not None and now_seconds > before[0]:
                self._stall_shares[resource] = (total_seconds - before[1]) / (now_seconds - before[0])
            self._stalled[resource] = (now_seconds, total_seconds)

    def _is_open(self, group: _Group) -> bool:
        if group.resource is None:
            return True
        stalls = self._stall_shares.get(group.resource)
        return stalls is not None and stalls > 0 and stalls >= share_of_machine(group.share, self._cpus)

    async def _find(self, group: _Group) -> None:
        """Find the cgroups of a group; when it is done again follows from what that has cost."""
        problems: dict[str, str] = {}
        finding = find_selected(self.tree, group.selectors, problems)
        selected = await with_pauses(finding, self._give_way)
        for cgroup, one in group.selected.items():
            if selected.get(cgroup) != one:
                group.forget(cgroup)
        if selected != group.selected:
            self._arm_due_seconds = 0.0
        group.selected, group.problems = selected, problems
        self._observer.forget_absent({cgroup for one in self._groups for cgroup in one.selected})
        # While tasks wait for memory a process that has just been started is often what they wait for.
        is_pressed = group.resource is PressureResource.MEMORY
        least_seconds = _TICK_SECONDS if is_pressed else _FIND_SECONDS
        share = _SHARE_UNDER_PRESSURE if is_pressed else _SHARE_OF_FINDING
        pause_seconds = self._pause_seconds(group, share, least_seconds=least_seconds)
        group.find_due_seconds = self._after(pause_seconds)
        self._begin_turn()

    def _pause_seconds(
        self,
        group: _Group,
        of_a_cpu: float,
        *,
        least_seconds: float = _TICK_SECONDS,
        most_seconds: float = _LONGEST_SECONDS,
    ) -> float:
        """Return the pause by which the turn just made takes no more than the group's part of a CPU."""
        share = of_a_cpu * _part(group, self._groups)
        return min(most_seconds, max(least_seconds, self._turn_cost() / share))

    async def _observe_all(self, group: _Group, cgroups: Iterable[str]) -> None:
        for cgroup in tuple(cgroups):
            selected = group.selected.get(cgroup)
            if selected is not None:
                self._observe(group, selected)
            await self._give_way()

    def _observe(self, group: _Group, selected: Selected, *, reported: Trigger | None = None) -> None:
        """Observe one cgroup for all rules of a group; `reported` is a trigger that has fired."""
        now_seconds = self.clock_seconds()
        cgroup = selected.cgroup
        is_active = any(cgroup in states for states in group.states.values())
        values = self._observer.read(cgroup, selected.directory, group.required)
        group.add_peaks(values)
        if not is_active and not all(
            value is not None and value >= group.floors[one] for one, value in values.items()
        ):
            return  # no rule holds without these
        others = [metric for metric in group.floors if metric not in values]
        values |= self._observer.read(cgroup, selected.directory, others)
        group.add_peaks(values)
        at_seconds, before = group.counters.get(cgroup, (now_seconds, {}))
        counters = {one: value for one, value in values.items() if value is not None and one.is_counter}
        if counters:
            group.counters[cgroup] = (now_seconds, counters)
        growth = {} if reported is None else _reported(reported, counters, now_seconds)
        changed = {one for one, value in counters.items() if before.get(one, value) != value} | growth.keys()
        earlier = {metric: Sample(at_seconds, value) for metric, value in before.items()}
        for rule in group.rules:
            states = group.states[rule.name]
            if cgroup not in states and not _may_hold(rule, values, changed):
                continue
            state = observed(rule, states.get(cgroup), values, now_seconds, earlier, reported=growth)
            if state is None:
                states.pop(cgroup, None)
            else:
                states[cgroup] = state

    def _after(self, seconds: float) -> float:
        """Return when so long is over, less half a tick: one may come early by its own duration."""
        return self.clock_seconds() + seconds - _TICK_SECONDS / 2

    async def _act(self, group: _Group, rule: Rule) -> None:
        states = group.states[rule.name]
        if rule.mark is not None:
            self._mark(rule, states)
            return
        if rule.action is RuleAction.EVICT_WORST and rule.by in {RankedBy.PGSCAN, RankedBy.GROWTH}:
            for cgroup, one in tuple(states.items()):  # of those in which the conditions begin to hold
                if one.since_seconds is not None and one.amounts is None:
                    states[cgroup] = replace(one, amounts=await self._amounts(rule, cgroup))
        firing = self._due(rule, states)
        if firing is None:
            return
        waits_for = (firing.cgroup, firing.since_seconds)
        if self._waiting.get(rule.name) == waits_for and self.guard.why_waits(firing):
            return  # that it waits was reported
        before = states[firing.cgroup].amounts
        now = {} if before is None else await self._amounts(rule, firing.cgroup)
        amounts = {uid: amount - (before or {}).get(uid, 0) for uid, amount in now.items()}
        selected = group.selected.get(firing.cgroup)
        if selected is None or not _is_there(selected):
            group.forget(firing.cgroup)
            return
        self._observe(group, selected)  # afresh: between this and what is done nothing is awaited
        firing = self._due(rule, states)
        if firing is None or firing.cgroup != selected.cgroup:
            return
        if self.guard.fire(replace(firing, amounts=amounts)):
            self.acted[rule.name] = after_acting(firing, self._acts(rule))
            states.pop(firing.cgroup, None)
            self._waiting.pop(rule.name, None)
        else:
            self._waiting[rule.name] = waits_for

    def _mark(self, rule: Rule, states: Mapping[str, RuleState]) -> None:
        """Have the Node show a rule's mark while the rule holds; that it begins to is recorded."""
        now_seconds = self.clock_seconds()
        fresh = {
            cgroup: one
            for cgroup, one in states.items()
            if now_seconds - one.at_seconds <= LONGEST_GAP_SECONDS
        }
        firing = due(rule, fresh, {}, now_seconds)
        if firing is None or rule.mark is None:
            return
        until_seconds = now_seconds + rule.transition_seconds
        before = self.marked.get(rule.name)
        self.marked[rule.name] = Marked(rule.mark, until_seconds, is_known=True)
        if before is None or not before.is_known or before.until_seconds <= now_seconds:
            self.guard.fire(firing)

    def _due(self, rule: Rule, states: Mapping[str, RuleState]) -> Firing | None:
        return due(rule, states, self._acts(rule), self.clock_seconds())

    def _acts(self, rule: Rule) -> Acts:
        return self.acted.get(rule.name, {})

    async def _amounts(self, rule: Rule, cgroup: str) -> dict[str, int]:
        """Return by uid what the pods below hold, or how much of them was scanned so far."""
        found: dict[str, int] = {}
        for pod in hit_by(rule, cgroup, self.guard.pods):
            if rule.by is RankedBy.GROWTH:
                amount = self.guard.held_bytes(pod.uid)
            else:
                where = pod.cgroup or "/"
                directory = f"{self.tree.memory_root}{where}"
                scanned = self._observer.read(where, directory, (_SCANNED,))[_SCANNED]
                amount = None if scanned is None else int(scanned)
            if amount is not None:
                found[pod.uid] = amount
            await self._give_way()
        return found

    def _begin_turn(self) -> None:
        self._turn_began_seconds = self.worked_seconds()
        self._turn_cost_seconds = 0.0

    def _turn_cost(self) -> float:
        return self._turn_cost_seconds + self.worked_seconds() - self._turn_began_seconds

    async def _give_way(self) -> None:
        """Let the loop go first, where it was held up for a turn."""
        if self.worked_seconds() - self._turn_began_seconds >= _TURN_SECONDS:
            self._turn_cost_seconds = self._turn_cost()
            await trio.lowlevel.checkpoint()
            self._turn_began_seconds = self.worked_seconds()

    def _rule_document(self, group: _Group, rule: Rule, now_seconds: float) -> dict[str, Any]:
        states = group.states[rule.name]
        held = {cgroup: one for cgroup, one in states.items() if one.since_seconds is not None}
        longest = sorted(held, key=lambda cgroup: held[cgroup].since_seconds or 0.0)[:_SHOWN]
        acted = self._acts(rule)
        last = last_acted(acted) if acted else None
        left_seconds = cooldown_left_seconds(rule, acted, group.selected, now_seconds)
        highest = {metric: round(value, 3) for metric, value in group.peaks.items()}
        return {
            "name": printable(rule.name),
            **attributes(rule, "action", "by", "for_seconds", "cooldown_seconds"),
            "cgroups": list(map(printable, rule.cgroups[:_MOST_CGROUPS_SHOWN])),
            "below": None if rule.below is None else list(map(printable, rule.below[:_MOST_CGROUPS_SHOWN])),
            "matched": len(group.selected),
            "every_seconds": round(group.every_seconds, 1) if self._is_open(group) else None,
            "conditions": [
                {
                    "condition": str(one),
                    "limit": one.limit,
                    "highest": highest.get(one.metric),
                }
                for one in rule.conditions
            ],
            "held_in": len(held),
            "holds": [_holding(cgroup, held[cgroup], now_seconds) for cgroup in longest],
            "acted_seconds_ago": None if last is None else round(now_seconds - last.at_seconds, 3),
            "unhelpful": 0 if last is None else last.unhelpful,
            "cooldown_left_seconds": round(left_seconds, 3),
            "why_not": self._why_not(group, rule, now_seconds),
            **({} if rule.mark is None else self._mark_document(rule, rule.mark, now_seconds)),
        }

    def _mark_document(self, rule: Rule, mark: Mark, now_seconds: float) -> dict[str, Any]:
        marked = self.marked.get(rule.name)
        left_seconds = marked.until_seconds - now_seconds if marked is not None and marked.is_known else 0.0
        return {
            "condition": mark.condition or None,
            "taint": mark.taint or None,
            "shown_seconds_left": round(max(0.0, left_seconds), 3),
            **({"why_not": "the Node shows it"} if left_seconds > 0 else {}),
        }

    def _why_not(self, group: _Group, rule: Rule, now_seconds: float) -> str:
        states, acted = group.states[rule.name], self._acts(rule)
        if not any(one.since_seconds is not None for one in states.values()):
            if group.resource is not None and group.resource not in self._stalled:
                return f"pressure of this machine ({group.resource}) can't be observed"
            never_because = self._never_because(rule)
            if never_because is not None:
                return never_because
            if not self._is_open(group):
                return f"tasks of this machine stall for {group.resource} too little, or not at all"
            if not group.selected:
                shown = map(printable, rule.cgroups[:_MOST_CGROUPS_SHOWN])
                return f"no cgroup is or matches {', '.join(shown)}"
        firing = self._due(rule, states)
        waits = None if firing is None else self.guard.why_waits(firing)
        return waits or why_not(rule, states, acted, now_seconds) or "it is due now"


def _reported(trigger: Trigger, counters: Mapping[Metric, float], now_seconds: float) -> dict[Metric, Sample]:
    """Return what the counter of a trigger was at its window's beginning, or less: so much has it grown."""
    metric = Metric(Measure.STALL, f"{trigger.resource} {trigger.kind}")
    if metric not in counters:
        return {}
    at_seconds = now_seconds - _REPORTED_LATE_SHARE * trigger.window_seconds
    return {metric: Sample(at_seconds, counters[metric] - trigger.stall_seconds)}


def _grouped(rules: Iterable[Rule], selectors: Mapping[str, PodParent] | None = None) -> list[_Group]:
    """Return the rules by the cgroups that they are for, and by the pressure that has to be there.

    `selectors` are by what is written; those that it has not are made.
    """
    by_key: dict[tuple[tuple[str, ...], PressureResource | None], list[Rule]] = {}
    for rule in rules:
        gate = _gate(rule)
        by_key.setdefault((rule.cgroups, None if gate is None else gate.metric.resource), []).append(rule)
    made = selectors or {}
    return [
        _group(tuple(made.get(one) or PodParent(one) for one in cgroups), resource, some)
        for (cgroups, resource), some in by_key.items()
    ]


def _group(selectors: tuple[PodParent, ...], resource: PressureResource | None, rules: list[Rule]) -> _Group:
    conditions = [condition for rule in rules for condition in rule.conditions]
    asked = [{condition.metric for condition in rule.conditions} for rule in rules]
    floors: dict[Metric, float] = {}
    for one in conditions:
        floors[one.metric] = min(one.limit, floors.get(one.metric, one.limit))
    gates = [gate for rule in rules if (gate := _gate(rule)) is not None]
    return _Group(
        selectors=selectors,
        rules=rules,
        required=tuple(one for one in floors if not one.is_counter and all(one in each for each in asked)),
        floors=floors,
        resource=resource,
        share=min(map(_share, gates), default=0.0),
        states={rule.name: {} for rule in rules},
    )


def _part(group: _Group, groups: Sequence[_Group]) -> float:
    """Return which part of what all of these groups may take is one's.

    All groups of users share one part: a user who adds rules does not make the others rarer.
    """
    of_users = sum(one.is_of_users for one in groups)
    parts = len(groups) - of_users + (1 if of_users else 0)
    return 1.0 / (parts * (of_users if group.is_of_users else 1))


def _for_any_cgroup(rule: Rule) -> Rule:
    return replace(rule, cgroups=(), below=None)


def _only(found: Mapping[str, _Value], kept: Collection[str]) -> dict[str, _Value]:
    return {key: value for key, value in found.items() if key in kept}


def _may_hold(rule: Rule, values: Mapping[Metric, float | None], changed: Collection[Metric]) -> bool:
    """Return whether all gauges of a rule are past their limits, and any of its counters has changed."""
    gauges = [(values.get(metric), limit) for metric, limit, _ in rule.conditions if not metric.is_counter]
    grows = len(gauges) == len(rule.conditions) or any(one.metric in changed for one in rule.conditions)
    return grows and all(value is not None and value >= limit for value, limit in gauges)


def _gate(rule: Rule) -> Condition | None:
    """Return the first condition on pressure: without it none of the others matter."""
    return next((one for one in rule.conditions if one.metric.resource is not None), None)


def _share(gate: Condition) -> float:
    """Return for what share of the time tasks of the cgroup stall at the least where a condition holds."""
    if gate.metric.is_counter:
        return min(1.0, gate.limit / gate.within_seconds)
    return gate.limit / 100.0


def _is_there(selected: Selected) -> bool:
    try:
        return os.stat(selected.directory, follow_symlinks=False).st_ino == selected.inode
    except OSError:
        return False


def _holding(cgroup: str, state: RuleState, now_seconds: float) -> dict[str, Any]:
    since_seconds = state.since_seconds or now_seconds
    return {
        "cgroup": printable(cgroup),
        "for_seconds": round(now_seconds - since_seconds, 3),
        "values": {str(one.condition): round(one.value, 3) for one in state.inputs},
    }
