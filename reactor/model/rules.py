"""Rules of the operator's own: for which cgroups, on what conditions, for how long, and what is done then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import Any, Final, NamedTuple

from reactor.model.quantity import bytes_text
from reactor.model.thresholds import ThresholdValue
from reactor.text import printable


class Measure(StrEnum):
    """What a condition is about; the first three are gauges in percent, the others are counters.

    `PRESSURE`: the kernel's average of pressure. `USAGE`: the working set of the cgroup's limit, of the
    machine what is not available of its memory. `SWAP_USED`: what is swapped out of the swap that the cgroup
    may have. `STALL`: seconds of stall. `EVENTS`: of memory.events. `PAGES_SCANNED`: pages that reclaim has
    scanned. `SWAP_TRAFFIC`: bytes to swap and back. `REFAULTS`: pages of files, read again soon after
    reclaim had dropped them: they show a thrashing page cache where its pressure does not.
    """

    PRESSURE = "pressure"
    USAGE = "usage"
    SWAP_USED = "swapUsed"
    STALL = "stall"
    EVENTS = "events"
    PAGES_SCANNED = "pagesScanned"
    SWAP_TRAFFIC = "swapTraffic"
    REFAULTS = "refaults"


COUNTERS = frozenset(
    {Measure.STALL, Measure.EVENTS, Measure.PAGES_SCANNED, Measure.SWAP_TRAFFIC, Measure.REFAULTS}
)
OF_PRESSURE = frozenset({Measure.PRESSURE, Measure.STALL})


class PressureResource(StrEnum):
    """The resources whose pressure the kernel accounts."""

    MEMORY = "memory"
    IO = "io"
    CPU = "cpu"


class MemoryEvent(StrEnum):
    """The events that a cgroup counts: throttled at `memory.high`, at its limit, out of memory."""

    HIGH = "high"
    MAX = "max"
    OOM = "oom"


class Metric(NamedTuple):
    """One number of a cgroup. `of` says which one: `memory full avg10`, `memory some`, `max`; or nothing.

    `machine` is the machine's, whatever the cgroup: so a rule asks for both in one cgroup.
    """

    measure: Measure
    of: str = ""

    @property
    def is_counter(self) -> bool:
        """Return whether the number only grows, and by how much within a window is what counts."""
        return self.measure in COUNTERS

    @property
    def resource(self) -> PressureResource | None:
        return PressureResource(self.of.split()[0]) if self.measure in OF_PRESSURE else None


MACHINE_SWAP: Final = Metric(Measure.SWAP_USED, "machine")


class Condition(NamedTuple):
    """A metric is at `limit` or above: in percent, or of a counter the growth within `within_seconds`."""

    metric: Metric
    limit: float
    within_seconds: float = 0.0

    def __str__(self) -> str:
        """Return it in words for an operator."""
        name = {
            Measure.PRESSURE: f"pressure {self.metric.of}",
            Measure.USAGE: "usage of the limit",
            Measure.SWAP_USED: f"swap used {self.metric.of}".rstrip(),
            Measure.STALL: f"stall {self.metric.of}",
            Measure.EVENTS: f"memory.events {self.metric.of}",
            Measure.PAGES_SCANNED: "pages scanned",
            Measure.SWAP_TRAFFIC: "swap traffic",
            Measure.REFAULTS: "refaults of files",
        }[self.metric.measure]
        within = f" within {self.within_seconds:g} s" if self.metric.is_counter else ""
        return f"{name} >= {self.amount_text(self.limit)}{within}"

    def amount_text(self, value: float | None) -> str:
        """Return an amount of the metric with its unit."""
        if value is None:
            return "unknown"
        if self.metric.measure is Measure.SWAP_TRAFFIC:
            return bytes_text(round(value))
        if self.metric.measure is Measure.REFAULTS:
            return f"{value / self.within_seconds:.0f}/s"
        unit = {Measure.STALL: " s", Measure.EVENTS: "", Measure.PAGES_SCANNED: ""}
        return f"{round(value, 2):g}{unit.get(self.metric.measure, ' %')}"


class RuleAction(StrEnum):
    """What a rule that has held for its time does.

    `EVICT`: the pod that the cgroup is, or is a part of. `EVICT_WORST`: the first of the pods below the
    cgroup, in an order of the rule's. `RECLAIM`: memory of the cgroup, and no pod ends. `CONDITION`,
    `TAINT`: the Node shows it for as long as the rule holds and its transition period lasts.
    """

    REPORT = "report"
    EVICT = "evict"
    EVICT_WORST = "evictWorst"
    RECLAIM = "reclaim"
    CONDITION = "condition"
    TAINT = "taint"


EVICTING: Final = frozenset({RuleAction.EVICT, RuleAction.EVICT_WORST})
MARKING: Final = frozenset({RuleAction.CONDITION, RuleAction.TAINT})
DEFAULT_TRANSITION_SECONDS: Final = 300.0
DEFAULT_RECLAIM: Final = ThresholdValue(text="10%", percent=Fraction(10))


class RankedBy(StrEnum):
    """Which of several pods is the worst.

    `MEMORY` and `SWAP`: as for thresholds of these signals. `PGSCAN` and `GROWTH`: by the pages that reclaim
    has scanned of a pod, and by how much its working set has grown, since the rule's conditions hold.
    """

    MEMORY = "memory"
    SWAP = "swap"
    PGSCAN = "pgscan"
    GROWTH = "growth"


class Mark(NamedTuple):
    """What a rule shows on the Node: a condition by its name, a taint as `KEY:EFFECT`; "" where it does not.

    `because` is the condition's message.
    """

    condition: str = ""
    taint: str = ""
    because: str = ""


class Marks(NamedTuple):
    """What the Node is to show by rules. What is only in `left` stays as it is, whichever way that is."""

    shown: tuple[Mark, ...] = ()
    left: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule. `cgroups` are paths or patterns; all of `conditions` hold for `for_seconds` before it acts.

    It acts once in `cooldown_seconds`, whichever of its cgroups it is for, and less often for a cgroup that
    this does not help. To reclaim is of `amount`, a share of which is of what the cgroup holds, for
    `reclaim_seconds` at the most. If its conditions are the machine's, `below` are the cgroups whose pods it
    may hit; None: those of the cgroup in which the conditions hold. With `cooldown_per_cgroup` the cool-down
    itself is each cgroup's own: it is a setting of units that have nothing to do with each other. With
    `cooldown_per_user_slice` it is each user's: a user can make cgroups without end. `mark` is what the Node
    shows (None: nothing), until `transition_seconds` after the conditions held last. With `holders_go` a pod
    that holds memory, but has none of what `by` ranks pods by, may be evicted too.
    """

    name: str
    cgroups: tuple[str, ...]
    conditions: tuple[Condition, ...]
    for_seconds: float
    action: RuleAction = RuleAction.REPORT
    by: RankedBy = RankedBy.MEMORY
    cooldown_seconds: float = 60.0
    amount: ThresholdValue = DEFAULT_RECLAIM
    reclaim_seconds: float = 5.0
    below: tuple[str, ...] | None = None
    cooldown_per_cgroup: bool = False
    cooldown_per_user_slice: bool = False
    mark: Mark | None = None
    transition_seconds: float = DEFAULT_TRANSITION_SECONDS
    holders_go: bool = False


class RuleInput(NamedTuple):
    """A condition of a rule that acts: the metric now, and its extremes since all conditions hold."""

    condition: Condition
    value: float
    lowest: float
    highest: float

    def document(self) -> dict[str, Any]:
        return {
            "condition": str(self.condition),
            "limit": self.condition.limit,
            "value": round(self.value, 3),
            "lowest": round(self.lowest, 3),
            "highest": round(self.highest, 3),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Firing:
    """A rule that acts, for a cgroup in which its conditions have held since `since_seconds`.

    `others` counts its further cgroups that it could act for, and `unhelpful` how often in a row what it did
    for this one has not helped. `amounts` is by uid what RankedBy.PGSCAN and GROWTH rank pods by.
    """

    rule: Rule
    cgroup: str
    since_seconds: float
    at_seconds: float
    inputs: tuple[RuleInput, ...]
    amounts: Mapping[str, int] = field(default_factory=dict)
    others: int = 0
    unhelpful: int = 0

    @property
    def held_seconds(self) -> float:
        return self.at_seconds - self.since_seconds

    def document(self) -> dict[str, Any]:
        """Return it with its inputs over the time that it has held, as plain JSON values."""
        rule, of_reclaim = self.rule, {}
        if rule.action is RuleAction.RECLAIM:
            of_reclaim = {"amount": rule.amount.text, "most_seconds": rule.reclaim_seconds}
        return {
            "name": printable(rule.name),
            "action": rule.action,
            "by": rule.by,
            "cgroup": printable(self.cgroup),
            "held_seconds": round(self.held_seconds, 3),
            "for_seconds": rule.for_seconds,
            "other_cgroups": self.others,
            "unhelpful": self.unhelpful,
            **of_reclaim,
            "inputs": [one.document() for one in self.inputs],
        }

    def __str__(self) -> str:
        """Return it as the log has it."""
        inputs = (f"({one.condition}: {one.condition.amount_text(one.value)})" for one in self.inputs)
        return (
            f"rule {printable(self.rule.name)} action={self.rule.action} cgroup={printable(self.cgroup)} "
            f"held_seconds={self.held_seconds:.1f} {'; '.join(inputs)}"
        )


class Acted(NamedTuple):
    """When a rule acted last, and for which cgroup; `unhelpful` times in a row its conditions came back."""

    at_seconds: float
    unhelpful: int = 0


Acts = Mapping[str, Acted]
"""How a rule acted last for each cgroup."""


class Marked(NamedTuple):
    """Until when a rule's mark is on the Node. `is_known`: it held; else it may have, before the start."""

    mark: Mark
    until_seconds: float
    is_known: bool
