"""A rule about thrashing, and its firing; the documented rule for the system partition."""

from __future__ import annotations

from typing import Any

from reactor.model.rules import Condition, Firing, Measure, Metric, Rule, RuleAction, RuleInput

FULL = Metric(Measure.PRESSURE, "memory full avg10")
THRASHES = Condition(FULL, 60.0)


def make_rule(*conditions: Condition, for_seconds: float = 10.0, **others: Any) -> Rule:
    named = {"name": "thrash", "cgroups": ("/apps/*",), "cooldown_seconds": 60.0, **others}
    return Rule(conditions=conditions or (THRASHES,), for_seconds=for_seconds, **named)


def firing_of(cgroup: str = "/apps", **rule: Any) -> Firing:
    written = make_rule(**{"action": RuleAction.EVICT_WORST, **rule})
    inputs = (RuleInput(THRASHES, 71.234, 60.0, 80.0),)
    return Firing(rule=written, cgroup=cgroup, since_seconds=0.0, at_seconds=12.0, inputs=inputs)


def partition_rule(partition: str) -> dict[str, Any]:
    """Return what a configuration says to guard a partition by its own limit."""
    return {
        "name": "system-partition",
        "cgroups": [partition],
        "when": [{"usage": "80%"}],
        "for": "0s",
        "action": "evictWorst",
    }
