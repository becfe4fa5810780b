"""What others do on this node, as lines of the journal: what `reactor shadow` compares decisions with.

    pod-evicted      a pod's status says Evicted, and it was not reactor that evicted it; one that was never
                     admitted says so as well, and is none
    node-condition   Ready, and beside a kubelet its pressure conditions, when one changes
    node             whose journal this is: name, labels, role; at the start, when one of them changes, and
                     every six hours, so that a rotated journal has it, and a gap shows

Tenants and controllers can cause such lines: there are 120 in an hour at the most. `skipped` of the next
line counts those beyond.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from reactor.config.lenient import decode_leniently
from reactor.config.scalars import Timestamp
from reactor.kube.pods import KnownPod
from reactor.kube.watch import Sink
from reactor.link.documents import NODE, NODE_CONDITION, POD_EVICTED, instant
from reactor.model.settings import Role
from reactor.model.signals import NodeCondition
from reactor.text import printable

_READY: Final = "Ready"
_MOST_LINES: Final = 120.0
_PER_SECONDS: Final = 3600.0
_AGAIN_SECONDS: Final = 6 * 3600.0
_BEFORE_SECONDS: Final = 600.0  # what of the first list was evicted longer ago is an earlier run's to record
_MOST_LABELS: Final = 64
_LONGEST_LABEL: Final = 317 + 63  # a key with its prefix, and a value
_LONGEST_TEXT: Final = 1024
_REFUSED: Final = "The node had condition: ["  # of a pod that was not admitted: its status says Evicted, too

Write = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Condition:
    type: str = ""
    status: str = ""
    reason: str = ""
    last_transition_time: Timestamp | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Status:
    conditions: tuple[_Condition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Metadata:
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    metadata: _Metadata = field(default_factory=_Metadata)
    status: _Status = field(default_factory=_Status)


class Others:
    """Takes the node's object and its pods, and writes lines; a Sink that hands all on to `node`.

    `is_own` returns whether reactor evicted a pod, by the uid of the API server's object.
    """

    def __init__(
        self,
        write: Write,
        node: Sink,
        *,
        name: str,
        role: Role,
        is_own: Callable[[str], bool],
        clock_unix_seconds: Callable[[], float] = time.time,
    ) -> None:
        self._write = write
        self._node = node
        self._name = name
        self._role = role
        self._is_own = is_own
        self._clock_unix_seconds = clock_unix_seconds
        self._evicted: frozenset[str] | None = None
        self._conditions: dict[str, _Condition] = {}
        self._about: tuple[Mapping[str, str], bool] | None = None
        self._written_at = 0.0
        self._left = _MOST_LINES
        self._left_at = clock_unix_seconds()
        self._skipped = 0
        self.dry_run = False
        self._followed = {_READY} if role is Role.SOLE else {_READY, *map(str, NodeCondition)}

    def pods_changed(self, known: Mapping[str, KnownPod]) -> None:
        """Record pods that are newly evicted by another; `known` is complete."""
        evicted = {one.api_uid: one for one in known.values() if one.is_evicted}
        before, self._evicted = self._evicted, frozenset(evicted)
        now = self._clock_unix_seconds()
        for uid, one in evicted.items():
            is_old = before is None and (one.evicted_at is None or now - one.evicted_at > _BEFORE_SECONDS)
            if is_old or uid in (before or ()) or _REFUSED in one.message:
                continue
            if not self._is_own(uid):
                self._line(_evicted_document(one, now))

    def listing(self) -> None:
        """Note that a list begins."""
        self._node.listing()

    def take(self, document: Any) -> None:
        """Note the node as it is now."""
        self._node.take(document)
        read = decode_leniently(document, _Node)
        now = self._clock_unix_seconds()
        about = (dict(read.metadata.labels), self.dry_run)
        if about != self._about or now - self._written_at >= _AGAIN_SECONDS:
            line = _node_document(
                self._name, read.metadata.labels, role=self._role, dry_run=self.dry_run, at_unix_seconds=now
            )
            if self._line(line):
                self._about, self._written_at = about, now
        for condition in read.status.conditions:
            if condition.type in self._followed:
                self._condition(condition, now)

    def drop(self, document: Any) -> None:
        """Note that the node object was deleted."""
        self._node.drop(document)

    def listed(self) -> None:
        """Note that the list has ended."""
        self._node.listed()

    def _condition(self, condition: _Condition, now: float) -> None:
        """Record a condition that has changed, also there and back while the watch was away."""
        before = self._conditions.get(condition.type)
        self._conditions[condition.type] = condition
        if before is None:  # since when it is so shows what happened before this run
            is_news = condition.type == _READY
        else:
            is_news = (before.status, before.last_transition_time) != (
                condition.status,
                condition.last_transition_time,
            )
        if is_news:
            self._line(_condition_document(condition, now))

    def _line(self, document: Mapping[str, Any]) -> bool:
        """Write a line if there are not too many; return whether it was."""
        now = self._clock_unix_seconds()
        refilled = max(0.0, now - self._left_at) * _MOST_LINES / _PER_SECONDS
        self._left, self._left_at = min(_MOST_LINES, self._left + refilled), now
        if self._left < 1.0:
            self._skipped += 1
            return False
        self._left -= 1.0
        self._write({**document, **({"skipped": self._skipped} if self._skipped else {})})
        self._skipped = 0
        return True


def _evicted_document(known: KnownPod, now: float) -> dict[str, Any]:
    return {
        "kind": POD_EVICTED,
        "time": instant(now),
        "evicted_at": None if known.evicted_at is None else instant(known.evicted_at),
        "pod": printable(known.pod.key),
        "uid": printable(known.pod.uid),
        "message": printable(known.message[:_LONGEST_TEXT]),
    }


def _condition_document(condition: _Condition, now: float) -> dict[str, Any]:
    since = condition.last_transition_time
    return {
        "kind": NODE_CONDITION,
        "time": instant(now),
        "condition": condition.type,
        "status": printable(condition.status[:_LONGEST_TEXT]),
        "since": None if since is None else instant(since),
        "reason": printable(condition.reason[:_LONGEST_TEXT]),
    }


def _node_document(
    name: str, labels: Mapping[str, str], *, role: str | None, dry_run: bool, at_unix_seconds: float
) -> dict[str, Any]:
    """Return the journal's line of whose journal it is; of very many labels the first by name."""
    kept = sorted(item for item in labels.items() if sum(map(len, item)) <= _LONGEST_LABEL)[:_MOST_LABELS]
    return {
        "kind": NODE,
        "time": instant(at_unix_seconds),
        "node": printable(name),
        "role": role,
        "dry_run": dry_run,
        "labels": {printable(key): printable(value) for key, value in kept},
    }
