"""What a sweep varies: one threshold, hard or soft, or one rule, over several values and times."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from reactor.config.duration import ACCEPTED as ACCEPTED_DURATION
from reactor.config.duration import parse_duration
from reactor.config.kubelet import KubeletConfiguration, hard_values, threshold_value
from reactor.config.scalars import Seconds, as_quantity
from reactor.errors import ConfigError, Problem, Refused
from reactor.model.rules import Condition, Measure, Rule
from reactor.model.signals import RESOURCE, Signal
from reactor.model.thresholds import ThresholdValue
from reactor.policy.messages import format_amount

ACCEPTED: Final = (
    "SIGNAL<VALUE,... or SIGNAL<FROM..TO/STEP, and for soft thresholds @GRACE,... after it; "
    "of a rule rule:NAME>=LIMIT,... and @FOR,..., one of them or both"
)
MOST_COMBINATIONS: Final = 10_000
_DERIVED: Final = frozenset({Signal.CONTAINERFS_AVAILABLE, Signal.CONTAINERFS_INODES_FREE})
_SYNTAX: Final = re.compile(r"\s*(?P<signal>[^<@\s]+)\s*<(?P<values>[^@<]*)(?:@(?P<graces>[^@]*))?")
_RULE: Final = re.compile(r"\s*rule:(?P<rule>[^<>@\s]+)\s*(?:>=(?P<limits>[^@]*))?(?:@(?P<times>[^@]*))?")
_RANGE: Final = re.compile(r"(?P<first>[^./]*(?:\.[^./]+)*?)\.\.(?P<last>[^/]*)/(?P<step>.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One threshold of a combination; `grace_seconds` None is hard."""

    signal: Signal
    value: ThresholdValue
    grace_seconds: float | None = None

    @property
    def kind(self) -> str:
        return "hard" if self.grace_seconds is None else "soft"

    def __str__(self) -> str:
        """Return it as it could have been asked for."""
        grace = "" if self.grace_seconds is None else f"@{self.grace_seconds:g}s"
        return f"{self.signal}<{self.value.text}{grace}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSetting:
    """One rule of a combination: the limit of its first condition, and its time; None is the rule's own."""

    rule: str
    limit: str | None = None
    for_seconds: float | None = None

    def __str__(self) -> str:
        """Return it as it could have been asked for."""
        limit = "" if self.limit is None else f">={self.limit}"
        time = "" if self.for_seconds is None else f"@{self.for_seconds:g}s"
        return f"rule:{self.rule}{limit}{time}"

    @property
    def text(self) -> str:
        """Return the limit and the time."""
        time = None if self.for_seconds is None else f"for {self.for_seconds:g} s"
        return " ".join(part for part in (self.limit, time) if part is not None)


Combination = tuple[Setting | RuleSetting, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """All that one `--sweep` asks for: settings of one threshold, or rule; a combination has one of them."""

    text: str
    settings: Combination

    @property
    def name(self) -> str:
        """Return what is varied, `hard memory.available`."""
        first = self.settings[0]
        return f"rule {first.rule}" if isinstance(first, RuleSetting) else f"{first.kind} {first.signal}"


def axes_of(texts: Sequence[str]) -> tuple[Axis, ...]:
    """Return the axes that the texts describe. Raises ConfigError with all that is wrong."""
    axes: list[Axis] = []
    problems: list[Problem] = []
    for text in texts:
        try:
            axis = _axis(text, [other.name for other in axes])
        except Refused as error:
            problems.append(Problem(path=f"--sweep {text!r}", got=error.got, accepted=error.accepted))
        else:
            axes.append(axis)
    count = 1
    for axis in axes:
        count *= len(axis.settings)
    if count > MOST_COMBINATIONS:
        accepted = f"{MOST_COMBINATIONS} at the most; take a larger step"
        problems.append(Problem(path="--sweep", got=f"{count} combinations", accepted=accepted))
    if problems:
        raise ConfigError(problems)
    return tuple(axes)


def combinations(axes: Sequence[Axis]) -> Iterator[Combination]:
    return itertools.product(*(axis.settings for axis in axes))


def configured(configuration: KubeletConfiguration, combination: Combination) -> KubeletConfiguration:
    """Return the configuration with these thresholds in the place of its own.

    Its other thresholds stay in force, the defaults too.
    """
    hard = hard_values(
        configuration.eviction_hard, merge_defaults=configuration.merge_default_eviction_settings
    )
    soft = dict(configuration.eviction_soft)
    graces = dict(configuration.eviction_soft_grace_period)
    for setting in combination:
        if isinstance(setting, RuleSetting):
            continue
        if setting.grace_seconds is None:
            hard[setting.signal] = setting.value
        else:
            soft[setting.signal] = setting.value
            graces[setting.signal] = Seconds(setting.grace_seconds)
    return dataclasses.replace(
        configuration,
        eviction_hard=hard,
        eviction_soft=soft,
        eviction_soft_grace_period=graces,
        merge_default_eviction_settings=False,
    )


def ruled(rules: Sequence[Rule], combination: Combination) -> tuple[Rule, ...]:
    """Return a scenario's rules with these limits and times in the place of their own.

    Raises ConfigError where there is no such rule, or a limit is none of its first condition's.
    """
    by_name = {rule.name: rule for rule in rules}
    for setting in combination:
        if not isinstance(setting, RuleSetting):
            continue
        rule = by_name.get(setting.rule)
        if rule is None:
            accepted = f"a rule of the scenario: {', '.join(by_name) or 'it has none'}"
            raise ConfigError([Problem(path="--sweep", got=repr(setting.rule), accepted=accepted)])
        first, *others = rule.conditions
        if setting.limit is not None:
            first = first._replace(limit=_limit(first, setting.limit, setting))
        seconds = rule.for_seconds if setting.for_seconds is None else setting.for_seconds
        by_name[rule.name] = dataclasses.replace(rule, conditions=(first, *others), for_seconds=seconds)
    return tuple(by_name.values())


def _limit(condition: Condition, text: str, setting: RuleSetting) -> float:
    measure = condition.metric.measure
    try:
        if measure is Measure.STALL:
            limit, accepted = parse_duration(text), "a duration such as 500ms, up to the window's"
            is_accepted = 0 < limit <= condition.within_seconds
        elif condition.metric.is_counter:
            limit, accepted = as_quantity(text).value, "an amount above 0"
            is_accepted = limit > 0
        else:
            limit, accepted = float(threshold_value(text).percent or 0), "a share above 0%, such as 60%"
            is_accepted = limit > 0
    except (Refused, ValueError):
        is_accepted, accepted = False, f"a limit as that of {condition}"
    if not is_accepted:
        raise ConfigError([Problem(path=f"--sweep {setting}", got=repr(text), accepted=accepted)])
    return limit


def _rule_axis(text: str, found: re.Match[str], taken: Collection[str]) -> Axis:
    limits: list[str | None] = [None]
    if found["limits"] is not None:
        limits = [limit for part in found["limits"].split(",") for limit in _limits(part.strip())]
    times: list[float | None] = [None]
    if found["times"] is not None:
        times = [_time(part.strip()) for part in found["times"].split(",")]
    if found["limits"] is None and found["times"] is None:
        raise Refused(text, ACCEPTED)
    settings = dict.fromkeys(
        RuleSetting(rule=found["rule"], limit=limit, for_seconds=seconds)
        for seconds in times
        for limit in limits
    )
    axis = Axis(text=text, settings=tuple(settings))
    if axis.name in taken:
        raise Refused(f"{axis.name} again", "each rule in one --sweep, with a list of values")
    return axis


def _limits(part: str) -> Iterator[str]:
    if ".." not in part:
        if not part:
            raise Refused(part, ACCEPTED)
        yield part
        return
    for value in _values(part, Signal.MEMORY_AVAILABLE):
        yield value.text


def _time(text: str) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError:
        raise Refused(text, ACCEPTED_DURATION) from None
    if seconds < 0:
        raise Refused(text, f"{ACCEPTED_DURATION}, not negative")
    return seconds


def _axis(text: str, taken: Collection[str]) -> Axis:
    of_rule = _RULE.fullmatch(text)
    if of_rule is not None:
        return _rule_axis(text, of_rule, taken)
    found = _SYNTAX.fullmatch(text)
    if found is None:
        raise Refused(text, ACCEPTED)
    signal = _signal(found["signal"])
    values = [value for part in found["values"].split(",") for value in _values(part.strip(), signal)]
    graces = (
        [None] if found["graces"] is None else [_grace(part.strip()) for part in found["graces"].split(",")]
    )
    # What was asked for twice is tried once.
    settings = dict.fromkeys(
        Setting(signal=signal, value=value, grace_seconds=grace) for grace in graces for value in values
    )
    axis = Axis(text=text, settings=tuple(settings))
    if axis.name in taken:
        raise Refused(f"{axis.name} again", "each threshold in one --sweep, with a list of values")
    return axis


def _signal(text: str) -> Signal:
    own = [signal for signal in Signal if signal not in _DERIVED]
    if text not in own:
        raise Refused(text, f"one of {', '.join(own)}")
    return Signal(text)


def _grace(text: str) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError:
        raise Refused(text, ACCEPTED_DURATION) from None
    if seconds <= 0:
        raise Refused(text, f"{ACCEPTED_DURATION}, above 0; without @ the threshold is hard")
    return seconds


def _values(part: str, signal: Signal) -> Iterator[ThresholdValue]:
    if ".." not in part:
        yield threshold_value(part)
        return
    found = _RANGE.fullmatch(part)
    if found is None:
        raise Refused(part, "FROM..TO/STEP, such as 100Mi..1Gi/50Mi or 5%..20%/5%")
    first, last, step = (threshold_value(found[name].strip()) for name in ("first", "last", "step"))
    shares = [value.percent is not None for value in (first, last, step)]
    if any(shares) and not all(shares):
        raise Refused(part, "three amounts, or three shares with %")
    start, end, by = (value.percent or value.amount or Fraction(0) for value in (first, last, step))
    if by <= 0 or end < start:
        raise Refused(part, "FROM..TO/STEP with TO not below FROM and STEP above 0")
    count = (end - start) // by + 1
    if count > MOST_COMBINATIONS:
        raise Refused(f"{count} values", f"{MOST_COMBINATIONS} at the most; take a larger step")
    for number in range(count):
        yield _value(start + number * by, signal, is_share=all(shares))


def _value(amount: Fraction, signal: Signal, *, is_share: bool) -> ThresholdValue:
    if is_share:
        return threshold_value(f"{float(amount):g}%")
    if amount.denominator == 1:
        return ThresholdValue(text=format_amount(int(amount), RESOURCE[signal]), amount=amount)
    return ThresholdValue(text=str(float(amount)), amount=amount)
