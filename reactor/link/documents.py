"""What the guard's documents and the steward's readers of them share: kinds of lines, words, histograms."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from reactor.model.quantity import amount_text
from reactor.model.signals import RESOURCE_IN, Resource
from reactor.text import counted, printable

# Kinds of the journal's lines, beside "decision" and "outcome".
ORDERED: Final = "ordered"
RESUMED: Final = "resumed"
OOM_KILL: Final = "oom-kill"
NO_VICTIM: Final = "no-victim"
SOURCE_LOST: Final = "source-lost"
# What others did, and on which node: what `reactor shadow` reads.
POD_EVICTED: Final = "pod-evicted"
NODE_CONDITION: Final = "node-condition"
NODE: Final = "node"
UNASKED: Final = "glance"  # the source of a wake: the loop has found a crossing that it was near

CONFIGURATION: Final = "configuration"  # the problem: its file is refused
# Keys of what was removed, for readers that expect them: of `status`, and of decisions in the journal.
REMOVED_FROM_STATUS: Final[Mapping[str, Any]] = {
    "brake": {"mode": "off", "on": [], "times": 0, "seconds": 0.0}
}
REMOVED_FROM_DECISIONS: Final[Mapping[str, Any]] = {"brake": []}
# What reading a line raises that a disk, or another's hand, has made odd.
ODD_LINE: Final = (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError)


def odd_line_text(error: Exception) -> str:
    """Return why a line of the journal can't be shown."""
    return f"of another form than reactor's: {type(error).__name__}: {error}"


def evictions_of(decision: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return a decision's evictions, those that can be read."""
    found = decision.get("evictions")
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


class Outcome(StrEnum):
    """What becomes of a pod, or of one process of it, that is to end; in the journal's words.

    An eviction in its grace period is pre-empted if a hard eviction of the same pod takes over. It is called
    off if a dry run is configured, if no pressure is left, its pod is spared, or a shutdown is cancelled.
    """

    ORDERED = "ordered"
    KILLED = "killed"
    TERMINATED = "terminated"  # it ended by itself, within its grace period
    PRE_EMPTED = "pre-empted"
    CALLED_OFF = "called off"
    GONE = "gone"  # no process was left in its cgroup, or another has its path
    SPARED = "spared"  # by a shutdown: reactor's own, init's
    FAILED = "failed"
    DRY_RUN = "dry-run"
    PROCESS_KILLED = "process-killed"  # the pod lives on
    PROCESS_TERMINATED = "process-terminated"


# From 100 us: a crossing is answered in less than a millisecond when all is well, in seconds when not.
BUCKETS_SECONDS: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)


# Of a pass that evicts, in their order.
STAGES: Final = ("wake", "observe", "decide", "kill", "free")


def instant(unix_seconds: float) -> str:
    return datetime.fromtimestamp(unix_seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def attributes(of: object, *names: str) -> dict[str, Any]:
    """Return attributes of a value by their names, None of None: keys of a document that are called so."""
    return {name: None if of is None else getattr(of, name) for name in names}


class Durations:
    """A histogram: how many observations were at most as long as each bound, and their sum."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS_SECONDS) + 1)
        self._sum_seconds = 0.0

    def observe(self, seconds: float) -> None:
        """Count one."""
        self._counts[bisect_left(BUCKETS_SECONDS, seconds)] += 1
        self._sum_seconds += seconds

    def document(self) -> Mapping[str, Any]:
        """Return it as plain JSON values: `counts` by bucket, the last above all bounds."""
        return {"counts": list(self._counts), "sum_seconds": self._sum_seconds}


def as_decision(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the line of an order as its decision, as it stands until that is written itself."""
    kind = "decision" if document["kind"] == ORDERED else document["kind"]
    of_decision = {"kind": kind, "id": document.get("decision"), "evictions": document.get("ordered", [])}
    return {**REMOVED_FROM_DECISIONS, **document, **of_decision}


def what_was_done(decision: Mapping[str, Any]) -> str:
    """Return what a decision, as `reactor status` has it, came to; `-` where that is nothing."""
    woke_ns = decision["timing"]["woke_ns"]
    done = [
        f"{one['outcome']} {_of_whom(one)}{after('', woke_ns, one['killed_ns'])}"
        f"{after(', memory back', woke_ns, one['freed_ns'])}"
        for one in decision["evictions"]
    ]
    if decision["reclaim"]:
        done.insert(0, f"reclaim of {', '.join(decision['reclaim'])}")
    rule = decision["rule"]
    if rule and rule["action"] == "report":
        done.append(f"reported {rule['cgroup']}")
    if rule and rule["action"] == "reclaim" and decision["dry_run"] and not decision["deferred_because"]:
        done.append(f"dry-run reclaim of {rule['amount']} from {rule['cgroup']}")
    done += [
        f"reclaimed {amount_text(one['freed'], RESOURCE_IN[one['unit']])} from {rule['cgroup']}"
        for one in decision["reclaimed"]
        if rule
    ]
    if decision["deferred_because"]:
        done.append(f"waiting: {decision['deferred_because']}")
    return "; ".join(done) or "-"


def _of_whom(eviction: Mapping[str, Any]) -> str:
    process = eviction["process"]
    return str(eviction["pod"]) if process is None else f"{process_text(process)} of {eviction['pod']}"


def process_text(process: object) -> str:
    """Return which process it was, as a record has it."""
    if not isinstance(process, Mapping):
        return "a process"
    size = amount_text(process.get("bytes"), Resource.MEMORY)
    others = int(process.get("processes") or 1) - 1
    more = f" and {counted(others, 'other')}" if others else ""
    return f"{printable(str(process.get('name')))} (process {process.get('pid')}{more}, {size})"


def woken_by(wakes: Iterable[Mapping[str, Any]]) -> str:
    """Return the sources of a pass's wakes as people read them; without any it is a loop's first pass."""
    names = sorted({str(wake.get("source")) for wake in wakes})
    return ", ".join(names).replace(UNASKED, "the 10 ms check") or "the start or a reload"


def after(what: str, from_ns: int, to_ns: int | None) -> str:
    return "" if to_ns is None else f"{what} after {(to_ns - from_ns) / 1e6:.1f} ms"
