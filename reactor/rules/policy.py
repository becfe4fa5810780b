"""Rules of the operator's own: from numbers of a cgroup over time to what is due. Pure.

A condition whose metric was not observed does not hold. A counter that went back belongs to another cgroup of
the name, or was reset: its growth begins there. Of a counter's growth within a window only what was observed
counts: between two observations it is taken to be even, and over more than two windows it does not count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from reactor.model.rules import Acted, Acts, Firing, Marked, Marks, Metric, Rule, RuleAction, RuleInput
from reactor.text import printable

_SAMPLES_IN_A_WINDOW = 32
# Of a window that is as long as the pause between two observations only one of them lies in it.
_WINDOWS_KEPT = 2
# If a cgroup is unobserved for longer, while a daemon is stopped for example, a condition may have ceased.
LONGEST_GAP_SECONDS: Final = 15.0
_MOST_DOUBLINGS = 6
_COOLDOWNS_KEPT = 2 << _MOST_DOUBLINGS
_EVERYWHERE: Final = ""


class Sample(NamedTuple):
    """A counter at an instant."""

    at_seconds: float
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleState:
    """How a rule stands in one cgroup, as observed at `at_seconds`.

    `samples` are of each condition's counter, none of a gauge. `inputs` are the metrics as observed last, of
    those that were, and `since_seconds` is since when all conditions hold, None where they do not; `amounts`
    is by uid what pods were ranked by then (None: not recorded).
    """

    at_seconds: float
    samples: tuple[tuple[Sample, ...], ...]
    inputs: tuple[RuleInput, ...] = ()
    since_seconds: float | None = None
    amounts: Mapping[str, int] | None = None


def observed(
    rule: Rule,
    before: RuleState | None,
    values: Mapping[Metric, float | None],
    now_seconds: float,
    earlier: Mapping[Metric, Sample] | None = None,
    *,
    reported: Mapping[Metric, Sample] | None = None,
    longest_gap_seconds: float = LONGEST_GAP_SECONDS,
) -> RuleState | None:
    """Return how a rule stands in a cgroup with what was observed now; None where nothing is worth keeping.

    A metric that is absent or None was not observed. `earlier` are counters as they were at the last
    observation, from which their growth counts if nothing was kept of it. `reported` is what the kernel
    itself reports of counters: no more than that, then. After more than `longest_gap_seconds` unobserved the
    conditions begin to hold anew.
    """
    samples, grown, grows = [], [], False
    for index, condition in enumerate(rule.conditions):
        value = values.get(condition.metric)
        kept = () if before is None else before.samples[index]
        if condition.metric.is_counter:
            if not kept and earlier is not None and condition.metric in earlier:
                kept = (earlier[condition.metric],)
                grows = grows or (value is not None and value > kept[0].value)
            if reported is not None and condition.metric in reported:
                kept = _with_reported(kept, reported[condition.metric])
            kept = _with_sample(kept, value, condition.within_seconds, now_seconds)
            growth = _growth(kept, condition.within_seconds, now_seconds)
            grows = grows or growth > 0
            value = growth if value is not None else None
        samples.append(kept)
        grown.append(value)
    inputs = tuple(
        RuleInput(condition, value, value, value)
        for condition, value in zip(rule.conditions, grown, strict=True)
        if value is not None
    )
    holds = len(inputs) == len(grown) and all(one.value >= one.condition.limit for one in inputs)
    if not holds and not grows:
        return None
    since_seconds, amounts = now_seconds if holds else None, None
    if holds and before is not None and before.since_seconds is not None:
        amounts = before.amounts
        if now_seconds - before.at_seconds <= longest_gap_seconds:
            since_seconds = before.since_seconds
            inputs = tuple(
                new._replace(lowest=min(new.lowest, old.lowest), highest=max(new.highest, old.highest))
                for new, old in zip(inputs, before.inputs, strict=True)
            )
    return RuleState(
        at_seconds=now_seconds,
        samples=tuple(samples),
        inputs=inputs,
        since_seconds=since_seconds,
        amounts=amounts,
    )


def due(rule: Rule, states: Mapping[str, RuleState], acted: Acts, now_seconds: float) -> Firing | None:
    """Return what a rule is to act for now: unless it cools down, the cgroup in which it has held longest.

    `states` is by cgroup, and so is `acted`, how the rule acted last for each.
    """
    cooling = _cooling_down(rule, acted, now_seconds)
    held = [
        (one.since_seconds, cgroup)
        for cgroup, one in states.items()
        if one.since_seconds is not None
        and now_seconds - one.since_seconds >= rule.for_seconds
        and _left_seconds(rule, cooling, cgroup) <= 0
    ]
    if not held:
        return None
    since_seconds, cgroup = min(held)
    firing = Firing(
        rule=rule,
        cgroup=cgroup,
        since_seconds=since_seconds,
        at_seconds=now_seconds,
        inputs=states[cgroup].inputs,
        others=len(held) - 1,
    )
    return replace(firing, unhelpful=_unhelpful(firing, acted.get(cgroup)))


def started(rules: Iterable[Rule], before: Mapping[str, Marked], now_seconds: float) -> dict[str, Marked]:
    """Return how the rules' marks stand when these rules begin to count: what went on before goes on.

    Of a new one it is not known whether an earlier run has put it on the Node: for its transition period
    what is there stays.
    """
    found = {}
    for rule in rules:
        if rule.mark is not None:
            kept = before.get(rule.name)
            new = Marked(rule.mark, now_seconds + rule.transition_seconds, is_known=False)
            found[rule.name] = kept if kept is not None and kept.mark == rule.mark else new
    return found


def marks_of(marked: Mapping[str, Marked], now_seconds: float) -> Marks:
    """Return what the Node is to show now; what rules show together is shown while one of them does."""
    lasting = [one for one in marked.values() if now_seconds < one.until_seconds]
    shown = tuple(one.mark for one in lasting if one.is_known)
    return Marks(shown, tuple(one.mark for one in lasting if not one.is_known))


def why_not(rule: Rule, states: Mapping[str, RuleState], acted: Acts, now_seconds: float) -> str | None:
    """Return why a rule acts for none of its cgroups now, in words; None where it is due."""
    held = {
        cgroup: now_seconds - one.since_seconds
        for cgroup, one in states.items()
        if one.since_seconds is not None
    }
    if not held:
        return "its conditions hold in none of its cgroups"
    cooling = _cooling_down(rule, acted, now_seconds)
    awake = [cgroup for cgroup in held if _left_seconds(rule, cooling, cgroup) <= 0]
    cgroup = max(awake or held, key=lambda one: held[one])
    if held[cgroup] < rule.for_seconds:
        return f"it has held in {printable(cgroup)} for {held[cgroup]:.0f} of {rule.for_seconds:g} s"
    if awake:
        return None
    where = _where(rule, cgroup)
    if where == cgroup or cooling[where] <= 0:
        own = acted[cgroup]
        return (
            f"it acted for {printable(cgroup)} {now_seconds - own.at_seconds:.0f} s ago, and rests there for "
            f"{cooling[cgroup]:.0f} s more: {own.unhelpful} times in a row it did not help"
        )
    left = f"{cooling[where]:.0f} s more"
    if where == _EVERYWHERE:
        return f"it acted {now_seconds - last_acted(acted).at_seconds:.0f} s ago, and rests for {left}"
    return f"it acted for a cgroup of {printable(where)}, and rests there for {left}"


def _cooling_down(rule: Rule, acted: Acts, now_seconds: float) -> dict[str, float]:
    """Return for how much longer a rule cools down, by where; in one cgroup longer if it did not help."""
    found: dict[str, float] = {}
    for cgroup, one in acted.items():
        own_seconds = cooldown_of_seconds(rule, one)
        for where, seconds in ((_where(rule, cgroup), rule.cooldown_seconds), (cgroup, own_seconds)):
            found[where] = max(found.get(where, 0.0), one.at_seconds + seconds - now_seconds)
    return found


def _where(rule: Rule, cgroup: str) -> str:
    """Return where a rule cools down once it has acted: in one cgroup, in all of a user's, or everywhere."""
    if rule.cooldown_per_user_slice:
        return "/".join(cgroup.split("/")[:3])  # /user.slice/user-1000.slice
    return cgroup if rule.cooldown_per_cgroup else _EVERYWHERE


def _left_seconds(rule: Rule, cooling: Mapping[str, float], cgroup: str) -> float:
    return max(cooling.get(_where(rule, cgroup), 0.0), cooling.get(cgroup, 0.0))


def last_acted(acted: Acts) -> Acted:
    return max(acted.values(), key=lambda one: one.at_seconds)


def cooldown_left_seconds(rule: Rule, acted: Acts, cgroups: Collection[str], now_seconds: float) -> float:
    """Return for how long a rule acts for none of these cgroups: it cools down in all or in each of them."""
    cooling = _cooling_down(rule, acted, now_seconds)
    in_each = min((_left_seconds(rule, cooling, cgroup) for cgroup in cgroups), default=0.0)
    return max(cooling.get(_EVERYWHERE, 0.0), in_each)


def cooldown_of_seconds(rule: Rule, acted: Acted) -> float:
    """Return for how long a rule cools down in a cgroup: twice as long for each time that it did not help."""
    return float(rule.cooldown_seconds * (1 << min(acted.unhelpful, _MOST_DOUBLINGS)))


def after_acting(firing: Firing, before: Acts) -> dict[str, Acted]:
    """Return how a rule acted last for each cgroup once it has acted for this.

    What is older than the longest two cool-downs is forgotten.
    """
    own = Acted(firing.at_seconds, _unhelpful(firing, before.get(firing.cgroup)))
    oldest_seconds = firing.at_seconds - _COOLDOWNS_KEPT * firing.rule.cooldown_seconds
    kept = {cgroup: one for cgroup, one in before.items() if one.at_seconds >= oldest_seconds}
    return {**kept, firing.cgroup: own}


def _unhelpful(firing: Firing, before: Acted | None) -> int:
    """Return how often in a row acting for this cgroup has not helped.

    Where a rule evicted or reclaimed for it before, and its conditions began to hold again in the cool-down
    that followed, that did not help.
    """
    rule = firing.rule
    if before is None or rule.action is RuleAction.REPORT:
        return 0
    came_back = firing.since_seconds - before.at_seconds < rule.cooldown_seconds
    return before.unhelpful + 1 if came_back else 0


def _with_sample(
    kept: tuple[Sample, ...], value: float | None, within_seconds: float, now_seconds: float
) -> tuple[Sample, ...]:
    """Return a counter's samples within the window with a new one, and the last one before it.

    At most so many are kept of a window; none that is older than two.
    """
    begins_seconds = now_seconds - within_seconds
    before = sum(one.at_seconds < begins_seconds for one in kept)
    recent = kept[max(0, before - 1) :]
    if recent and now_seconds - recent[0].at_seconds > _WINDOWS_KEPT * within_seconds:
        recent = recent[1:]
    if value is None:
        return recent
    if recent and value < recent[-1].value:
        recent = ()
    if (
        len(recent) > 1
        and recent[-1].at_seconds - recent[-2].at_seconds < within_seconds / _SAMPLES_IN_A_WINDOW
    ):
        recent = recent[:-1]
    return (*recent, Sample(now_seconds, value))


def _with_reported(kept: tuple[Sample, ...], reported: Sample) -> tuple[Sample, ...]:
    """Return a counter's samples with one that the kernel reports, if that is news.

    It is not where the counter was lower even later: what was observed has grown by more.
    """
    later = tuple(one for one in kept if one.at_seconds >= reported.at_seconds)
    if later and later[0].value < reported.value:
        return kept
    before = (one for one in kept if one.at_seconds < reported.at_seconds and one.value <= reported.value)
    return (*before, reported, *later)


def _growth(samples: Sequence[Sample], within_seconds: float, now_seconds: float) -> float:
    """Return how much a counter has grown within the window, with a share of what began before it."""
    begins_seconds = now_seconds - within_seconds
    within = [one for one in samples if one.at_seconds >= begins_seconds]
    if not within:
        return 0.0
    first, last = within[0], within[-1]
    if len(within) == len(samples):
        return last.value - first.value
    before = samples[-1 - len(within)]
    share = (first.at_seconds - begins_seconds) / (first.at_seconds - before.at_seconds)
    return last.value - first.value + share * (first.value - before.value)
