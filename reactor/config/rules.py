"""Rules as they are written: for which cgroups, when, for how long, and what to do then."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NewType

from reactor.config import duration
from reactor.config.decode import CONVERTER, check_document, register_scalar, strict
from reactor.config.kubelet import threshold_value
from reactor.config.scalars import Seconds, as_quantity, enumeration
from reactor.errors import Refused
from reactor.model.rules import (
    MARKING,
    Condition,
    Measure,
    MemoryEvent,
    Metric,
    PressureResource,
    RankedBy,
    RuleAction,
)
from reactor.model.signals import NodeCondition
from reactor.model.thresholds import ThresholdValue

RuleName = NewType("RuleName", str)
PressureKind = NewType("PressureKind", str)
Share = NewType("Share", float)
Window = NewType("Window", float)
Amount = NewType("Amount", int)
Bytes = NewType("Bytes", int)
ReclaimAmount = NewType("ReclaimAmount", ThresholdValue)
ReclaimTime = NewType("ReclaimTime", float)
MarkedCondition = NewType("MarkedCondition", str)
MarkedTaint = NewType("MarkedTaint", str)
TransitionTime = NewType("TransitionTime", float)

MOST_CGROUPS: Final = 32
_SHORTEST_SECONDS, _LONGEST_SECONDS = 1.0, 600.0
_KINDS: Final = tuple(f"{resource} {kind}" for resource in PressureResource for kind in ("some", "full"))
_MEASURES: Final = ("pressure", "events", "usage", "swapUsed", "pagesScanned", "swapTraffic", "refaults")
_NEEDS_A_WINDOW: Final = ("stall", "events", "pagesScanned", "swapTraffic", "refaults")
_RANKED_IN_TIME: Final = (RankedBy.PGSCAN, RankedBy.GROWTH)
_BEFORE_RANKED_SECONDS: Final = 2.0
_LONGEST_RECLAIM_SECONDS: Final = 60.0
_SHORTEST_TRANSITION_SECONDS: Final = 10.0
# Of reactor's own.
_OWN_CONDITIONS: Final = frozenset({*NodeCondition, "NodeShutdown"})
_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule")
_TAINT: Final = re.compile(
    r"((?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?){0,15}/)?"
    r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)(?::([A-Za-z]{1,32}))?"
)
# Set and removed by the node controller, cloud providers or operators; or reactor's own.
_OTHERS_TAINTS: Final = (
    frozenset(
        f"node.kubernetes.io/{name}"
        for name in (
            *("memory-pressure", "disk-pressure", "pid-pressure", "network-unavailable", "unschedulable"),
            *("not-ready", "unreachable", "out-of-service"),
        )
    )
    | {"node.cloudprovider.kubernetes.io/uninitialized", "node.cloudprovider.kubernetes.io/shutdown"}
    | {"reactor/node-shutdown"}
)


def _name(raw: Any, _: type) -> RuleName:
    if (
        not isinstance(raw, str)
        or re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,62}[A-Za-z0-9])?", raw) is None
    ):
        raise Refused(raw, "a name of 64 letters, digits, -, _ and . at most, such as desktop-stalls")
    return RuleName(raw)


def _kind(raw: Any, _: type) -> PressureKind:
    if raw not in _KINDS:
        raise Refused(raw, f"one of {', '.join(_KINDS)}")
    return PressureKind(raw)


def _share(raw: Any, _: type) -> Share:
    found = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,2})?)%", raw) if isinstance(raw, str) else None
    if found is None or not 0 < float(found[1]) <= 100:
        raise Refused(raw, "a share above 0% and up to 100%, such as 60%")
    return Share(float(found[1]))


def _window(raw: Any, _: type) -> Window:
    seconds = CONVERTER.structure(raw, Seconds)
    if not _SHORTEST_SECONDS <= seconds <= _LONGEST_SECONDS:
        raise Refused(raw, f"{duration.ACCEPTED}, from 1s to 10m")
    return Window(seconds)


def _amount(raw: Any, _: type) -> Amount:
    if isinstance(raw, bool) or not isinstance(raw, int) or not 1 <= raw <= 10**12:
        raise Refused(raw, "a whole number from 1 to 1000000000000")
    return Amount(raw)


def _bytes(raw: Any, _: type) -> Bytes:
    amount = as_quantity(raw).value
    if amount < 1:
        raise Refused(raw, "an amount above 0, such as 100Mi")
    return Bytes(amount)


def _reclaim_amount(raw: Any, _: type) -> ReclaimAmount:
    accepted = "an amount above 0 such as 64Mi, or a share above 0% and up to 100% of what the cgroup holds"
    try:
        value = threshold_value(raw)
    except Refused:
        raise Refused(raw, accepted) from None
    if value.percent == 0:
        raise Refused(raw, accepted)
    return ReclaimAmount(value)


def _reclaim_time(raw: Any, _: type) -> ReclaimTime:
    seconds = CONVERTER.structure(raw, Seconds)
    if not 0 < seconds <= _LONGEST_RECLAIM_SECONDS:
        raise Refused(raw, f"{duration.ACCEPTED}, above 0s and up to 1m")
    return ReclaimTime(seconds)


def _transition_time(raw: Any, _: type) -> TransitionTime:
    seconds = CONVERTER.structure(raw, Seconds)
    if seconds < _SHORTEST_TRANSITION_SECONDS:
        raise Refused(raw, f"{duration.ACCEPTED}, from 10s on: each change is a write to the API server")
    return TransitionTime(seconds)


def _marked_condition(raw: Any, _: type) -> MarkedCondition:
    if not isinstance(raw, str) or re.fullmatch(r"[A-Za-z][A-Za-z0-9]{0,62}", raw) is None:
        raise Refused(raw, "a name of 63 letters and digits at most, such as MemoryContention")
    if raw in _OWN_CONDITIONS:
        raise Refused(raw, f"none of reactor's own: {', '.join(sorted(_OWN_CONDITIONS))}")
    return MarkedCondition(raw)


def _marked_taint(raw: Any, _: type) -> MarkedTaint:
    found = _TAINT.fullmatch(raw) if isinstance(raw, str) and len(raw) <= 320 else None
    if found is None:
        raise Refused(raw, "a key, and an effect after a colon, such as example.com/contention:NoSchedule")
    key, effect = found[1], found[2] or _EFFECTS[0]
    if effect not in _EFFECTS:
        accepted = f"the effect {' or '.join(_EFFECTS)}: NoExecute would evict pods without a choice"
        raise Refused(raw, accepted)
    if key in _OTHERS_TAINTS:
        raise Refused(raw, "a key that is neither Kubernetes' own nor reactor's")
    return MarkedTaint(f"{key}:{effect}")


for _scalar, _hook in (
    (MarkedCondition, _marked_condition),
    (MarkedTaint, _marked_taint),
    (TransitionTime, _transition_time),
    (RuleName, _name),
    (PressureKind, _kind),
    (Share, _share),
    (Window, _window),
    (Amount, _amount),
    (Bytes, _bytes),
    (ReclaimAmount, _reclaim_amount),
    (ReclaimTime, _reclaim_time),
    (MemoryEvent, enumeration(MemoryEvent)),
    (RuleAction, enumeration(RuleAction)),
    (RankedBy, enumeration(RankedBy)),
):
    register_scalar(CONVERTER, _scalar, _hook)


@strict
@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenCondition:
    """One condition: what it is about, and from which amount on it holds."""

    pressure: PressureKind | None = None
    avg10: Share | None = None
    avg60: Share | None = None
    stall: Seconds | None = None
    events: MemoryEvent | None = None
    at_least: Amount | None = None
    usage: Share | None = None
    swap_used: Share | None = None
    pages_scanned: Amount | None = None
    swap_traffic: Bytes | None = None
    refaults: Amount | None = None
    within: Window | None = None

    def condition(self) -> Condition:
        """Return it as the policy has it."""
        events, pressure = self.events or "", self.pressure or ""
        refaults = (
            None if self.refaults is None else self.refaults * (self.within or 0.0)
        )  # they are a second's
        by_amount = (
            (self.stall, Metric(Measure.STALL, pressure)),
            (self.avg10, Metric(Measure.PRESSURE, f"{pressure} avg10")),
            (self.avg60, Metric(Measure.PRESSURE, f"{pressure} avg60")),
            (self.pages_scanned, Metric(Measure.PAGES_SCANNED)),
            (self.swap_traffic, Metric(Measure.SWAP_TRAFFIC)),
            (refaults, Metric(Measure.REFAULTS)),
            (self.usage, Metric(Measure.USAGE)),
            (self.swap_used, Metric(Measure.SWAP_USED)),
            (self.at_least or 1, Metric(Measure.EVENTS, events)),
        )
        limit, metric = next((limit, metric) for limit, metric in by_amount if limit is not None)
        return Condition(metric, limit, self.within or 0.0)


def _condition_problems(raw: Mapping[str, Any]) -> Iterator[Refused]:
    given = {key for key, value in raw.items() if value is not None}
    about = [key for key in _MEASURES if key in given]
    if len(about) != 1:
        yield Refused(" and ".join(about) or "none of them", f"one of {', '.join(_MEASURES)}")
        return
    amounts = [key for key in ("avg10", "avg60", "stall") if key in given]
    if about == ["pressure"] and len(amounts) != 1:
        got = " and ".join(amounts) or "neither avg10 nor avg60 nor stall"
        yield Refused(got, "one of avg10, avg60 and stall beside pressure")
    if about != ["pressure"]:
        for key in amounts:
            yield Refused(raw[key], "only beside pressure", at=key)
    if "atLeast" in given and about != ["events"]:
        yield Refused(raw["atLeast"], "only beside events", at="atLeast")
    stall, within = (_seconds(raw.get(key)) for key in ("stall", "within"))
    if stall is not None and not 0 < stall <= (within or _LONGEST_SECONDS):
        yield Refused(raw["stall"], "a duration above 0s and up to the window's", at="stall")
    needs_window = any(key in given for key in _NEEDS_A_WINDOW)
    if needs_window and "within" not in given:
        yield Refused("nothing", "a window such as 10s: what is counted is the growth within it", at="within")
    if not needs_window and "within" in given:
        yield Refused(raw["within"], f"only beside {', '.join(_NEEDS_A_WINDOW)}", at="within")


check_document(WrittenCondition, _condition_problems)


def rule_problems(raw: Mapping[str, Any]) -> Iterator[Refused]:
    """Yield what is wrong with a rule as a whole."""
    by, action = raw.get("by"), raw.get("action")
    if by is not None and action != RuleAction.EVICT_WORST:
        yield Refused(by, f"only with action: {RuleAction.EVICT_WORST}", at="by")
    seconds = _seconds(raw.get("for"))
    if by in _RANKED_IN_TIME and seconds is not None and seconds < _BEFORE_RANKED_SECONDS:
        yield Refused(raw.get("for"), f"2s or more with by: {by}, which is counted in that time", at="for")
    if action == RuleAction.RECLAIM:
        yield from _not_the_machine(raw.get("cgroups"))
    else:
        for key in ("amount", "timeout"):
            if raw.get(key) is not None:
                yield Refused(raw[key], f"only with action: {RuleAction.RECLAIM}", at=key)
    yield from _mark_problems(raw, action)
    for key, most in (("cgroups", MOST_CGROUPS), ("when", MOST_CGROUPS)):
        value = raw.get(key)
        if isinstance(value, list) and not 1 <= len(value) <= most:
            yield Refused(f"{len(value)} of them", f"1 to {most}", at=key)


def _mark_problems(raw: Mapping[str, Any], action: Any) -> Iterator[Refused]:
    """Yield what is wrong with a rule's condition, taint and transition period beside its action."""
    if action in MARKING and raw.get(action) is None:
        yield Refused("nothing", f"what the Node is to show with action: {action}", at=str(action))
    if action in MARKING and raw.get("cooldown") is not None:
        accepted = f"transitionPeriod with action: {action}, which holds and does not repeat"
        yield Refused(raw["cooldown"], accepted, at="cooldown")
    if action != RuleAction.TAINT and raw.get("taint") is not None:
        yield Refused(raw["taint"], f"only with action: {RuleAction.TAINT}", at="taint")
    if action not in MARKING:
        for key in ("condition", "transitionPeriod"):
            if raw.get(key) is not None:
                yield Refused(raw[key], f"only with action: {' or '.join(sorted(MARKING))}", at=key)


def _not_the_machine(cgroups: Any) -> Iterator[Refused]:
    for index, cgroup in enumerate(cgroups if isinstance(cgroups, list) else ()):
        if cgroup == "/":
            accepted = f"cgroups below / with action: {RuleAction.RECLAIM}"
            yield Refused(cgroup, accepted, at=f"cgroups[{index}]")


def _seconds(raw: Any) -> float | None:
    """Return a duration, None where it is absent or none, which is said of the value itself."""
    try:
        return None if raw is None else float(CONVERTER.structure(raw, Seconds))
    except Refused:
        return None
