"""One pass as it is journaled, shown and measured: its inputs, what it decided, what became of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from reactor.act.reap import KillReport
from reactor.guard.termination import Termination
from reactor.link.documents import ORDERED, REMOVED_FROM_DECISIONS, Outcome, attributes, instant
from reactor.model.decisions import Decision, Eviction, Hold, Measured, RankedPod, Snapshot
from reactor.model.kills import HardMemoryKill, JudgedEviction, ProcessMemory, Slowdown
from reactor.model.pod_lists import Preference
from reactor.model.quantity import amount_text
from reactor.model.rules import RankedBy
from reactor.model.settings import MemoryAvailable
from reactor.model.signals import IN_BYTES, ON_DISK, RESOURCE, Resource
from reactor.model.thresholds import Observation, Threshold
from reactor.model.wakes import Wake
from reactor.policy.messages import eviction_message
from reactor.reclaim.runner import Reclaimed
from reactor.text import printable

_ORDERED_RANKING: Final = 20
_PLACES_AT_ONCE: Final = 32
_PREFERRED: Final = {Preference.PREFER: "preferred; ", Preference.NONE: "", Preference.AVOID: "avoided; "}


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """When each stage of a pass ended, on CLOCK_MONOTONIC in ns; None where the pass had no such stage.

    `woke_ns` is when the earliest source woke, or of the crossing at which the kernel itself killed;
    `started_ns` when the loop came round to it.
    """

    woke_ns: int
    started_ns: int
    observed_ns: int
    decided_ns: int
    killed_ns: int | None = None
    done_ns: int


@dataclass(slots=True, kw_only=True)
class EvictionAttempt(Termination):
    """What becomes of one eviction.

    `process` is the one of the pod that is killed in its place; the pod lives on. `whole_because`: why the
    whole pod was evicted though the configuration would have one process of it.

    Of an eviction for memory, in bytes (None: not observed): `credited_bytes` is the pod's working set when
    it was chosen and `available_bytes` what the node had then; `returned_bytes` is by how much more the node
    had at the end, below zero if others took it; `left_bytes` are still charged to the pod's cgroup,
    `left_shared_bytes` of them shared memory or tmpfs.

    `served` returns by what the kernel itself killed the pod at the crossing, as plain JSON
    values; `not_served_because` says why it did not if it may.
    """

    eviction: Eviction
    credited_bytes: int | None = None
    available_bytes: int | None = None
    returned_bytes: int | None = None
    left_bytes: int | None = None
    left_shared_bytes: int | None = None
    served: Callable[[], Mapping[str, Any]] | None = None
    not_served_because: str | None = None
    process: ProcessMemory | None = None
    whole_because: str | None = None

    def stop(self, report: KillReport | None) -> None:
        """Fill in how the pod, or its process, has stopped."""
        Termination.stop(self, report)  # a dataclass with slots has no super()
        if self.process is not None:
            self.outcome = Outcome.PROCESS_TERMINATED if report is None else Outcome.PROCESS_KILLED
        elif self.eviction.resource in ON_DISK:  # the pod's files go, even if no process was left in it
            return
        elif report is not None and report.is_empty and not report.processes:
            self.outcome, self.killed_ns = Outcome.GONE, None

    def stopped_by_kernel(self, at_ns: int) -> None:
        """Fill in that the kernel killed the pod: its only process may be gone, and its cgroup with it."""
        self.outcome = Outcome.KILLED
        self.is_empty = False
        self.killed_ns = at_ns
        self.processes = max(1, self.processes or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRecord:
    """One pass. `at_unix_seconds` is when it decided, `decision.at_seconds` the same on the pass's clock.

    `is_repeated`: it observed again, after what it saw first or after a pod that was found empty.
    """

    id: int
    at_unix_seconds: float
    wakes: tuple[Wake, ...]
    snapshot: Snapshot
    decision: Decision
    times: StageTimes
    attempts: tuple[EvictionAttempt, ...] = ()
    reclaimed: tuple[Reclaimed, ...] = ()
    dry_run: bool = False
    is_repeated: bool = False

    def as_it_stands(self) -> Self:
        """Return it with what has become of its evictions by now; of this one that goes on.

        A line of the journal is made only when the steward takes it.
        """
        return replace(self, attempts=tuple(map(replace, self.attempts)))

    def document(self, ranking_limit: int | None = None) -> dict[str, Any]:
        """Return the record as plain JSON values; `ranking_limit` cuts the ranking for display."""
        decision, lefts = self.decision, self.snapshot.time_left
        return {
            "kind": "decision",
            "id": self.id,
            "time": instant(self.at_unix_seconds),
            "monotonic_seconds": decision.at_seconds,
            "dry_run": self.dry_run,
            **({"repeated": True} if self.is_repeated else {}),
            "wakes": [attributes(one, "source", "kind", "signal", "at_ns") for one in self.wakes],
            "threshold": _threshold(decision.acted_on, self.snapshot),
            "thresholds_met": [str(threshold) for threshold in decision.thresholds_met],
            "conditions": list(decision.conditions),
            "deferred_because": _text(decision.deferred_because),
            "absurd": dict(decision.absurd),
            "slowdowns": [slowdown_document(one, decision.at_seconds) for one in decision.slowdowns],
            "unhelpful": [unhelpful_document(one, decision.at_seconds) for one in decision.unhelpful],
            "observations": {
                signal: {
                    **attributes(seen, "available", "capacity", "inactive_file_bytes", "taken_at_seconds"),
                    **counted_as(seen),
                }
                for signal, seen in self.snapshot.signals.items()
            },
            "reclaim": list(decision.reclaim),
            "reclaimed": [reclaimed_document(one) for one in self.reclaimed],
            "memory_reclaim": decision.memory_reclaim
            and attributes(decision.memory_reclaim, "wanted_bytes", "outside_bytes"),
            "soft_reclaim": _soft_reclaim(decision.soft_reclaim),
            "ranking": [
                ranked_document(place, self.resource, self.ranked_by)
                for place in decision.ranking[:ranking_limit]
            ],
            "evictions": [attempt_document(attempt) for attempt in self.attempts],
            **REMOVED_FROM_DECISIONS,
            **({"time_left": {one: left.document() for one, left in lefts.items()}} if lefts else {}),
            "rule": None if decision.rule is None else decision.rule.document(),
            "timing": self._timing(),
        }

    @classmethod
    def of_resumed(cls, attempt: EvictionAttempt, passes: int, at_seconds: float) -> Self:
        """Return the record of an eviction that an earlier run of the daemon ordered: nothing is observed."""
        now_ns = time.monotonic_ns()
        return cls(
            id=passes,
            at_unix_seconds=time.time(),
            wakes=(),
            snapshot=Snapshot(),
            decision=Decision(at_seconds=at_seconds, evictions=(attempt.eviction,)),
            times=StageTimes(
                woke_ns=now_ns, started_ns=now_ns, observed_ns=now_ns, decided_ns=now_ns, done_ns=now_ns
            ),
            attempts=(attempt,),
        )

    def ranking_documents(self) -> Iterator[list[dict[str, Any]]]:
        """Yield the places of the ranking as plain JSON values, a few at a time."""
        ranking = self.decision.ranking
        for start in range(0, len(ranking), _PLACES_AT_ONCE):
            places = ranking[start : start + _PLACES_AT_ONCE]
            yield [ranked_document(place, self.resource, self.ranked_by) for place in places]

    @property
    def resource(self) -> Resource | None:
        return self.decision.evictions[0].resource if self.decision.evictions else None

    @property
    def ranked_by(self) -> RankedBy:
        """Return what the ranking is by: memory where no rule says otherwise."""
        rule = self.decision.rule
        return RankedBy.MEMORY if rule is None else rule.rule.by

    def _timing(self) -> dict[str, int | None]:
        freed = [attempt.freed_ns for attempt in self.attempts]
        # A soft eviction's kill comes long after its pass.
        killed = [attempt.killed_ns for attempt in self.attempts if attempt.killed_ns is not None]
        return {
            **attributes(self.times, "woke_ns", "started_ns", "observed_ns", "decided_ns"),
            "killed_ns": max(killed, default=None),
            "done_ns": self.times.done_ns,
            "freed_ns": max((at for at in freed if at), default=None) if all(freed) else None,
        }


def ordered_document(record: PassRecord, *, kind: str = ORDERED) -> dict[str, Any]:
    """Return the journal's line for evictions at the moment of their order.

    It is there also where the daemon does not live to write the decision. `ordered` holds the evictions, with
    the head of the ranking alone: the decision's own line has all.
    """
    document = record.document(_ORDERED_RANKING)
    left_out = {"evictions", "id", *REMOVED_FROM_DECISIONS}
    return {
        **{key: value for key, value in document.items() if key not in left_out},
        "kind": kind,
        "decision": record.id,
        "ordered": document["evictions"],
    }


def outcome_document(record_id: int, at_unix_seconds: float, attempt: EvictionAttempt) -> dict[str, Any]:
    return {
        "kind": "outcome",
        "decision": record_id,
        "time": instant(at_unix_seconds),
        **attempt_document(attempt),
    }


def _soft_reclaim(asked: Hold | None) -> dict[str, Any] | None:
    if asked is None:
        return None
    most_seconds = round(asked.until_seconds - asked.began_seconds, 3)
    return {
        "threshold": str(asked.threshold),
        "wanted_bytes": asked.wanted_bytes,
        "most_seconds": most_seconds,
    }


def _threshold(threshold: Threshold | None, snapshot: Snapshot) -> dict[str, Any] | None:
    if threshold is None:
        return None
    seen = snapshot.signals.get(threshold.signal)
    return {
        "threshold": str(threshold),
        "signal": threshold.signal,
        "value": None if seen is None else int(threshold.value.of(seen.capacity)),
        **attributes(seen, "available", "capacity"),
        **counted_as(seen),
        "grace_period_seconds": threshold.grace_period_seconds,
        "minimum_reclaim": None if threshold.minimum_reclaim is None else threshold.minimum_reclaim.text,
    }


def counted_as(seen: Observation | None) -> Mapping[str, str]:
    """Return what memory counts as where that is not the working set, as a part of a document."""
    is_mem_available = seen is not None and seen.is_mem_available
    return {"counted_as": MemoryAvailable.MEM_AVAILABLE} if is_mem_available else {}


def ranked_document(
    place: RankedPod, resource: Resource | None, by: RankedBy = RankedBy.MEMORY
) -> dict[str, Any]:
    return {
        "pod": place.pod.key,
        **attributes(place.pod, "uid", "qos_class", "priority", "critical_because"),
        **attributes(place, "usage", "request", "swap_bytes", "exceeds_request"),
        **({} if place.measured is Measured.AT_DECISION else {"measured": place.measured.value}),
        "preference": place.pod.preference.name.lower(),
        "because": why_ranked(place, resource, by),
    }


def why_ranked(place: RankedPod, resource: Resource | None, by: RankedBy = RankedBy.MEMORY) -> str:
    """Return why a pod stands where it does in the ranking, as one clause; `by` is what a rule ranks by."""
    if place.pod.critical_because is not None:
        return f"never evicted: {printable(place.pod.critical_because)}"
    tail = f"{_PREFERRED[place.pod.preference]}priority {place.pod.priority}, {place.pod.qos_class}"
    if place.unreadable:
        return f"its usage can't be read, so last; {tail}"
    if place.is_passed_over:
        tail += "; passed over, since it holds less than minimumVictimBytes"
    if place.holds_nothing:
        tail += "; stays, since no file there is known to be removed with it"
    if resource is not None and place.pod.loses_one_process(resource):
        tail += "; one process of it is killed, not the pod"
    if place.usage is None:
        return f"without statistics, so first; {tail}"
    if by is not RankedBy.MEMORY:
        return f"{_ranked_amount(place.usage, by)}; {tail}"
    if place.swap_bytes and resource is not Resource.SWAP:
        tail += f"; {amount_text(place.swap_bytes, Resource.SWAP)} in swap"
    used = amount_text(place.usage, resource) if place.usage else "nothing"
    if place.exceeds_request is None:
        return f"uses {used}; {tail}"
    perhaps, at_most = ("perhaps ", "≤ ") if place.measured is Measured.BOUND else ("", "")
    relation = f"{perhaps}above" if place.exceeds_request else "within"
    of_request = f"{relation} its request of {amount_text(place.request, resource)}"
    return f"uses {at_most}{used}, {of_request if place.request else 'no request'}; {tail}"


def _ranked_amount(amount: int, by: RankedBy) -> str:
    if by is RankedBy.PGSCAN:
        return f"{amount} of its pages were scanned"
    if by is RankedBy.GROWTH:
        return f"grew by {amount_text(amount, Resource.MEMORY)}"
    return f"has {amount_text(amount, Resource.SWAP)} in swap"


def attempt_document(attempt: EvictionAttempt) -> dict[str, Any]:
    """Return an eviction and what became of it as plain JSON values."""
    eviction = attempt.eviction
    message, annotations = eviction_message(eviction)
    return {
        "pod": eviction.pod.key,
        **attributes(eviction.pod, "uid", "cgroup"),
        **attributes(eviction, "signal", "resource", "grace_period_seconds"),
        "message": printable(message),
        "annotations": dict(annotations),
        "outcome": attempt.outcome.value,
        **attributes(attempt, "processes", "killed_ns", "ended_ns", "freed_ns"),
        **attributes(attempt, "credited_bytes", "returned_bytes", "left_bytes", "left_shared_bytes"),
        "warrant": None if attempt.served is None else dict(attempt.served()),
        "no_warrant_because": _text(attempt.not_served_because),
        "process": None if attempt.process is None else process_document(attempt.process),
        "pod_lives": attempt.process is not None,
        "whole_because": _text(attempt.whole_because),
        **({} if eviction.time_left is None else {"in_time": eviction.time_left.document()}),
        "problems": [printable(problem) for problem in attempt.problems],
    }


def process_document(process: ProcessMemory) -> dict[str, Any]:
    """Return who a process is as plain JSON values, its name fit for people."""
    several = {"processes": process.processes} if process.processes > 1 else {}
    return {"pid": process.pid, "name": printable(process.name), "bytes": process.held_bytes, **several}


def slowdown_document(slowdown: Slowdown, now_seconds: float) -> dict[str, Any]:
    return {
        **attributes(slowdown, "signal", "reason", "message", "held_by", "held_by_bytes"),
        "for_seconds": round(now_seconds - slowdown.since_seconds, 3),
        "left_seconds": round(max(0.0, slowdown.until_seconds - now_seconds), 3),
    }


def unhelpful_document(kill: HardMemoryKill | JudgedEviction, now_seconds: float) -> Mapping[str, Any]:
    """Return an eviction that did not help as plain JSON values."""
    if isinstance(kill, JudgedEviction):
        is_in_bytes = RESOURCE[kill.signal] in IN_BYTES
        credited = {"credited_bytes": kill.credited if is_in_bytes else None}
        unit = "processes" if RESOURCE[kill.signal] is Resource.PIDS else "inodes"
        credited |= {} if is_in_bytes else {f"credited_{unit}": kill.credited}
    else:
        credited = {"credited_bytes": kill.credited_bytes}
    return {
        "uid": kill.uid,
        "signal": kill.signal,
        **credited,
        "ago_seconds": round(now_seconds - kill.at_seconds, 3),
    }


def _text(text: str | None) -> str | None:
    return None if text is None else printable(text)


def reclaimed_document(one: Reclaimed) -> dict[str, Any]:
    return {
        **attributes(one, "kind", "signal", "wanted", "freed"),
        "unit": "bytes" if one.resource in IN_BYTES else one.resource,
        "time": instant(one.at_unix_seconds),
        "took_seconds": round(one.took_seconds, 3),
        "did": [printable(line) for line in one.did],
        "problems": [printable(problem) for problem in one.problems],
    }
