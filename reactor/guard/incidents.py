"""What befalls the node: each is logged and journaled once, when it begins, and is a problem while it lasts.

The lines of the journal are what operators are notified by.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from reactor.guard.node import Node
from reactor.guard.outbox import NO_VICTIM as NO_EVICTABLE_POD
from reactor.guard.outbox import SLOWED_DOWN
from reactor.guard.record import PassRecord
from reactor.link.documents import NO_VICTIM, OOM_KILL, SOURCE_LOST, Outcome, attributes, instant
from reactor.model.kills import OomKill, OomScope, Slowdown, SlowReason
from reactor.model.pods import Pod
from reactor.model.quantity import amount_text
from reactor.model.signals import RESOURCE, Resource, Signal
from reactor.model.thresholds import Threshold
from reactor.model.wakes import SourceHealth, SourceState
from reactor.sources.catalogue import BY_NAME
from reactor.text import printable

_EVICT_LOG: Final = logging.getLogger("reactor.evict")
_OOM_LOG: Final = logging.getLogger("reactor.oom")
_IN_VAIN: Final = frozenset({Outcome.FAILED, Outcome.GONE})
_LOST: Final = frozenset({SourceHealth.DEGRADED, SourceHealth.FAILED})
_SAYS: Final = {
    OomScope.NODE: "the kernel's OOM killer was faster than us",
    OomScope.OWN_LIMIT: "at the limit of a pod or container, not for the node's sake",
    OomScope.ABOVE_NODE: "memory ran out above the guarded node",
    OomScope.UNKNOWN: "the kernel's counters do not say at whose limit",
}

Document = Mapping[str, Any]
Write = Callable[[Callable[[], Document]], object]  # journals; it may not block
Befell = Callable[[str, str], None]  # reports to the cluster what has befallen the node: its kind, and a text


class Slowdowns:
    """Evictions that are slowed down, from pass to pass; `befell` is called for each that is new."""

    def __init__(self, befell: Befell = lambda *_: None) -> None:
        self._befell = befell
        self._in_force: dict[tuple[Signal, SlowReason], Slowdown] = {}

    def passed(self, slowdowns: Iterable[Slowdown]) -> None:
        """Take over those that a pass found in force."""
        found = {(one.signal, one.reason): one for one in slowdowns}
        for kind in found.keys() - self._in_force.keys():
            _EVICT_LOG.warning("evictions for %s are slowed down: %s", kind[0], found[kind].message)
            self._befell(SLOWED_DOWN, found[kind].message)
        for signal, reason in self._in_force.keys() - found.keys():
            _EVICT_LOG.info("evictions for %s are not slowed down any more (%s)", signal, reason)
        self._in_force = found

    @property
    def problem(self) -> str | None:
        return "; ".join(dict.fromkeys(one.message for one in self._in_force.values())) or None


class NoVictims:
    """Thresholds that are met while no pod can be evicted, from pass to pass.

    `befell` is called for each that is new, `write` journals its line. Each lasts until its threshold is not
    met any more, or a pod is evicted for it.
    """

    def __init__(self, write: Write, befell: Befell = lambda *_: None) -> None:
        self._write = write
        self._befell = befell
        self._present: dict[Threshold, str] = {}

    def passed(self, record: PassRecord) -> None:
        """Take over what a pass has found."""
        decision = record.decision
        if decision.rule is not None:
            return
        for one in self._present.keys() - set(decision.thresholds_met):
            del self._present[one]
            _EVICT_LOG.info("%s is not met any more", one)
        threshold = decision.acted_on
        if threshold is None:
            return
        if any(one.outcome not in _IN_VAIN and not one.is_empty for one in record.attempts):
            self._present.pop(threshold, None)
        if (message := decision.no_victim) is None:
            return
        is_new = threshold not in self._present
        self._present[threshold] = message
        if is_new:
            _EVICT_LOG.warning("%s", message)
            self._write(partial(_no_victim_document, record, threshold, message, time.time()))
            self._befell(NO_EVICTABLE_POD, message)

    def by_signal(self, thresholds: Iterable[Threshold]) -> dict[str, bool]:
        """Return of each signal with a threshold whether one is met while no pod can be evicted."""
        present = {threshold.signal for threshold in self._present}
        return {signal: signal in present for signal in sorted({one.signal for one in thresholds})}

    @property
    def problem(self) -> str | None:
        return "; ".join(self._present.values()) or None


def _no_victim_document(
    record: PassRecord, threshold: Threshold, message: str, at_unix_seconds: float
) -> Mapping[str, Any]:
    seen = record.snapshot.signals.get(threshold.signal)
    return {
        "kind": NO_VICTIM,
        "time": instant(at_unix_seconds),
        "decision": record.id,
        "dry_run": record.dry_run,
        "signal": threshold.signal,
        "resource": RESOURCE[threshold.signal],
        "threshold": str(threshold),
        **attributes(seen, "available", "capacity"),
        "message": printable(message),
    }


class SourceLosses:
    """Sources that are lost: another stands in for one, or none does; until it is armed again.

    Chains, retries and reloads report again and again how a source stands.
    """

    def __init__(self, write: Write) -> None:
        self._write = write
        self._lost: set[str] = set()

    def changed(self, state: SourceState) -> None:
        """Record how a source stands now."""
        if state.health in _LOST:
            if state.name not in self._lost:
                self._lost.add(state.name)
                document = _source_document(state, time.time())
                self._write(lambda: document)
        elif state.health is SourceHealth.ARMED:
            self._lost.discard(state.name)


def _source_document(state: SourceState, at_unix_seconds: float) -> Document:
    known = BY_NAME.get(state.name)
    purpose = "" if known is None else f" ({known.purpose})"
    return {
        "kind": SOURCE_LOST,
        "time": instant(at_unix_seconds),
        "source": state.name,
        "health": state.health,
        "detail": printable(state.detail),
        "message": printable(f"source {state.name}{purpose} is {state.health}: {state.detail}"),
    }


@dataclass(eq=False)
class OomKills:
    """The kernel's own OOM kills: a journal line, a log line, a count.

    A kill at a limit that reactor guards means that the kernel was faster. One at a pod's own limit is the
    kernel doing what that limit asks for. `refresh_pods` brings the known pods up to date: a pod that meets
    its limit at its start is younger than the last housekeeping.
    """

    known: Node
    write: Write
    refresh_pods: Callable[[], object]

    def __post_init__(self) -> None:
        self.counted = dict.fromkeys(OomScope, 0)

    def record(self, kill: OomKill) -> None:
        """Record one kill, or several that were only counted."""
        document = self._document(kill)
        self.counted[kill.scope] += kill.kills
        self.write(lambda: document)
        level = logging.ERROR if kill.scope is OomScope.NODE else logging.WARNING
        _OOM_LOG.log(level, "%s; scope=%s decision=%d", document["message"], kill.scope, document["decision"])

    def _document(self, kill: OomKill) -> Document:
        pod = self._victim(kill.victim_cgroup)
        evicting = pod is not None and self.known.under_way.at(pod.uid, kill.at_ns)
        return {
            "kind": OOM_KILL,
            "time": instant(time.time() - (time.monotonic_ns() - kill.at_ns) / 1e9),
            "at_ns": kill.at_ns,
            "decision": self.known.passes,  # the last one before it was reported
            **attributes(kill, "source", "scope", "kills", "pid", "comm", "victim_bytes", "victim_cgroup"),
            "pod": None if pod is None else pod.key,
            "uid": None if pod is None else pod.uid,
            "being_evicted": evicting,
            **attributes(kill, "limit_cgroup", "limit_bytes", "usage_bytes"),
            "message": _message(kill, pod, evicting=evicting),
        }

    def _victim(self, cgroup: str | None) -> Pod | None:
        if cgroup is None:
            return None
        if (pod := self.known.pod_in(cgroup)) is None:
            self.refresh_pods()
            pod = self.known.pod_in(cgroup)
        return pod


def _message(kill: OomKill, pod: Pod | None, *, evicting: bool) -> str:
    where = ""
    if kill.limit_bytes is not None:
        limit = amount_text(kill.limit_bytes, Resource.MEMORY)
        where = f" at the limit of {limit} of {kill.limit_cgroup or 'the machine'}"
    if kill.pid is None:
        victim = f"{kill.kills} process{'es' if kill.kills > 1 else ''}, by the kernel's count"
    else:
        size = amount_text(kill.victim_bytes or 0, Resource.MEMORY)
        home = pod.key if pod is not None else kill.victim_cgroup or "a cgroup that is not known"
        victim = (
            f"{kill.comm} (pid {kill.pid}, {size}) of {home}{', which was being evicted' if evicting else ''}"
        )
    return printable(f"OOM kill of {victim}{where}: {_SAYS[kill.scope]}")
