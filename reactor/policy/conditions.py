"""Node conditions: reported while a threshold is met, and for the transition period after."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from reactor.model.signals import CONDITION, NodeCondition
from reactor.model.thresholds import Threshold


def conditions_last_observed(
    thresholds: Iterable[Threshold], before: Mapping[NodeCondition, float], now_seconds: float
) -> dict[NodeCondition, float]:
    """Return when each condition was observed last; those of the given thresholds are observed now."""
    return {**before, **{CONDITION[threshold.signal]: now_seconds for threshold in thresholds}}


def conditions_observed_since(
    last_observed: Mapping[NodeCondition, float], period_seconds: float, now_seconds: float
) -> tuple[NodeCondition, ...]:
    """Return the conditions observed less than the period ago, in the order in which they are reported."""
    return tuple(
        condition
        for condition in NodeCondition
        if condition in last_observed and now_seconds - last_observed[condition] < period_seconds
    )


def conditions_since(
    conditions: Iterable[NodeCondition], before: Mapping[NodeCondition, float], now_seconds: float
) -> dict[NodeCondition, float]:
    """Return since when each condition has been in force without a gap."""
    return {condition: before.get(condition, now_seconds) for condition in conditions}
