"""A decision as plain values, of which what is empty is left out: records of many thousands stay small."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reactor.model.decisions import Decision, Eviction, RankedPod
from reactor.model.kills import HardMemoryKill, JudgedEviction, Slowdown
from reactor.policy.messages import eviction_message


def decision_document(decision: Decision) -> dict[str, Any]:
    """Return everything that a decision holds."""
    memory, soft, rule = decision.memory_reclaim, decision.soft_reclaim, decision.rule
    found: Mapping[str, Any] = {
        "conditions": list(decision.conditions),
        "met": list(map(str, decision.thresholds_met)),
        "actedOn": None if decision.acted_on is None else str(decision.acted_on),
        "reclaim": list(decision.reclaim),
        "evictions": list(map(_eviction, decision.evictions)),
        "deferredBecause": decision.deferred_because,
        "deferred": list(map(str, decision.deferred)),
        "absurd": dict(decision.absurd),
        "memoryReclaim": None
        if memory is None or memory.threshold is None
        else [memory.threshold.signal, memory.until_seconds, memory.wanted_bytes, memory.outside_bytes],
        "softReclaim": None if soft is None else [str(soft.threshold), soft.until_seconds, soft.wanted_bytes],
        "slowdowns": list(map(_slowdown, decision.slowdowns)),
        "unhelpful": list(map(_unhelpful, decision.unhelpful)),
        "rule": None if rule is None else rule.rule.name,
        "waits": decision.waits,
        "noVictim": decision.no_victim,
        "ranking": list(map(_place, decision.ranking)),
    }
    return {"at": decision.at_seconds, **{key: value for key, value in found.items() if value}}


def _eviction(eviction: Eviction) -> dict[str, Any]:
    message, annotations = eviction_message(eviction)
    return {
        "pod": eviction.pod.uid,
        "signal": eviction.signal,
        "resource": eviction.resource,
        "grace": eviction.grace_period_seconds,
        "threshold": None if eviction.threshold is None else str(eviction.threshold),
        "message": message,
        "annotations": dict(annotations),
    }


def _place(place: RankedPod) -> str:
    flags = {
        ">": place.exceeds_request,
        "?": place.unreadable,
        "-": place.is_passed_over,
        "0": place.holds_nothing,
        "!": not place.evictable,
    }
    marks = "".join(mark for mark, is_so in flags.items() if is_so)
    return f"{place.pod.uid} {place.usage}/{place.request}/{place.swap_bytes}{marks}"


def _slowdown(one: Slowdown) -> list[Any]:
    return [one.signal, one.reason, one.since_seconds, one.until_seconds, one.message, one.held_by]


def _unhelpful(one: HardMemoryKill | JudgedEviction) -> list[Any]:
    return [one.uid, one.signal, one.at_seconds]
