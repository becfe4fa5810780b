"""What reactor decided, paired with what others then did on the same node; for one node, and for many.

    __init__    a node's journal, read as it comes, and its decisions paired: `node_of`
    fleet       the files of many nodes, their pools, another policy over their recordings
    page        both as text, JSON values and one HTML page

Journals come from many nodes, and anything may lie beside them. So whatever is read is bounded, and what
can't be read is named and passed over.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from reactor.link.documents import NO_VICTIM, NODE, NODE_CONDITION, OOM_KILL, POD_EVICTED, Outcome
from reactor.model.kills import OomScope
from reactor.model.quantity import amount_text, duration_text
from reactor.model.signals import RESOURCE, Resource
from reactor.text import object_in_line, printable

WITHIN_SECONDS: Final = 600.0
LATER_SECONDS: Final = 1.0
"""How much later than the kubelet a decision has to be to count: its status has whole seconds."""

_IN_TIME_SECONDS: Final = 0.1  # a kill takes a millisecond, and memory comes back in tens of them
_SOON_SECONDS: Final = 2.5  # within which a status arrives, so that its arrival is the better time
_MOST_EVENTS: Final = 20_000  # of one node
_MOST_SEEN: Final = 10_000
_MOST_PLACES: Final = 64
_LONGEST_TEXT: Final = 400
_EARLIEST, _LATEST = 946_684_800.0, 4_102_444_800.0  # the years 2000 to 2100
_MANY_VALUES: Final = 250_000
_LONG_BYTES: Final = 64 << 10
_LARGEST: Final = 1 << 63
_NODE_SCOPES: Final = frozenset({OomScope.NODE, OomScope.ABOVE_NODE, OomScope.UNKNOWN})
_REAL: Final = frozenset(
    {Outcome.KILLED, Outcome.TERMINATED, Outcome.ORDERED, Outcome.PROCESS_KILLED, Outcome.PROCESS_TERMINATED}
)
_LIMIT_WORDS: Final = ("exceed", "limit")
_LOW_ON: Final = "low on resource:"
_RESOURCES: Final[Mapping[str, Resource]] = {str(signal): one for signal, one in RESOURCE.items()}


class Verdict(StrEnum):
    """What a decision was beside what others did."""

    SAME = "same"
    OTHER_POD = "other-pod"
    LATER = "later"
    OOM = "oom-kill-after"
    NOT_READY = "not-ready-after"
    EVICTED = "evicted"
    ALONE = "alone"
    MISSED = "kubelet-alone"
    OOM_MISSED = "oom-kill-alone"
    NOT_READY_MISSED = "not-ready-alone"


DISAGREEMENTS: Final = frozenset(
    {
        *(Verdict.OTHER_POD, Verdict.LATER, Verdict.ALONE),
        *(Verdict.MISSED, Verdict.OOM_MISSED, Verdict.NOT_READY_MISSED),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """An eviction that reactor decided; `order` are the heads of its ranking: uid, pod, why there.

    `available` and `wanted` are in the unit of the signal's resource. A rule or a limit has no threshold.
    """

    at: float
    is_dry: bool
    signal: str
    resource: str
    threshold: str
    pod: str
    uid: str
    available: int | None = None
    wanted: int | None = None
    order: tuple[tuple[str, str, str], ...] = ()

    @property
    def why(self) -> str:
        """Return why it was this pod, as its place in the ranking says."""
        return next((because for uid, _, because in self.order if uid == self.uid), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What another did: `what` is `kubelet`, `oom-kill` or `not-ready`. `resource` "" is not known.

    `count` is of OOM kills that were counted together; `until` when the node was ready again.
    """

    at: float
    what: str
    pod: str = ""
    uid: str = ""
    resource: str = ""
    text: str = ""
    count: int = 1
    until: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A decision and what belongs to it, or what another did without one.

    `sooner_seconds` is by how much the decision came before the kubelet's eviction. `prevented` are OOM kills
    that came after a decision of a dry run, with time enough for the kill.
    """

    verdict: Verdict
    decided: Decided | None = None
    kubelet: Done | None = None
    oom_kills: tuple[Done, ...] = ()
    not_ready: Done | None = None
    sooner_seconds: float | None = None
    prevented: int = 0
    why: str = ""

    @property
    def at(self) -> float:
        """Return when: the decision, without one what another did."""
        others = (self.kubelet, *self.oom_kills, self.not_ready)
        return next(one.at for one in (self.decided, *others) if one is not None)

    @property
    def pod(self) -> str:
        """Return which pod: the decision's, without one that of another's act."""
        return next((one.pod for one in (self.decided, self.kubelet, *self.oom_kills) if one is not None), "")


@dataclass(slots=True, kw_only=True)
class Node:
    """What one node's journals come to; `unread` are lines that are none of a journal's.

    `cut` counts events beyond those that are held of a node. `decisions` are all lines of kind decision.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    role: str | None = None
    first: float | None = None
    last: float | None = None
    lines: int = 0
    unread: int = 0
    cut: int = 0
    decisions: int = 0
    is_dry: bool | None = None
    pairs: Sequence[Pair] = ()


def node_of(lines: Iterable[bytes], name: str, *, within_seconds: float = WITHIN_SECONDS) -> Node:
    """Return a node by its journal's lines, oldest file first. Lines in a file may be out of order."""
    reading = _Reading(name)
    for line in lines:
        reading.take(line)
    return reading.node(within_seconds)


def read_line(line: bytes, key: bytes = b"") -> Mapping[str, Any] | None:
    """Return the object in a line, None where there is none that is accepted, or none with this key."""
    if len(line) > _LONG_BYTES and line.count(b",") + line.count(b"[") + line.count(b"{") > _MANY_VALUES:
        return None
    return object_in_line(line, key)


def unix_seconds(value: object) -> float | None:
    """Return an instant of a journal, None for what is none within this century."""
    if not isinstance(value, str) or len(value) > 40:
        return None
    try:
        at = datetime.fromisoformat(value).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
    return at if _EARLIEST < at < _LATEST else None


def shown(value: object) -> str:
    """Return a text of a journal as it may be printed: what a tenant wrote is long, or moves the cursor."""
    text = value if isinstance(value, str) else "" if value is None else str(value)[:_LONGEST_TEXT]
    return printable(text[:_LONGEST_TEXT])


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a decision's line showed: which thresholds were met, and what was available of each signal."""

    at: float
    met: tuple[str, ...]
    available: Mapping[str, int]


class _Reading:
    def __init__(self, name: str) -> None:
        self._node = Node(name=name)
        self._decided: dict[tuple[float, str], Decided] = {}
        self._done: list[Done] = []
        self._seen: deque[_Seen] = deque(maxlen=_MOST_SEEN)
        self._no_victims: deque[tuple[float, str]] = deque(maxlen=_MOST_SEEN)
        self._evicted: set[str] = set()
        self._by_reactor: set[str] = set()
        self._ready: list[tuple[float, float | None, str, str]] = []

    def take(self, line: bytes) -> None:
        """Take one line over."""
        node = self._node
        node.lines += 1
        document = read_line(line, b'"time"')
        at = None if document is None else unix_seconds(document.get("time"))
        if document is None or at is None:
            node.unread += 1
            return
        if len(self._decided) + len(self._done) + len(self._ready) >= _MOST_EVENTS:
            node.cut += 1
            return
        try:
            self._entry(document, at)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            node.unread += 1
            return
        node.first = at if node.first is None else min(node.first, at)
        node.last = at if node.last is None else max(node.last, at)

    def _entry(self, document: Mapping[str, Any], at: float) -> None:
        match document["kind"]:
            case "decision":
                self._decision(document, at)
            case "ordered" | "resumed":  # its decision may never have been written
                self._evictions(document, document["ordered"], at)
            case kind if kind == OOM_KILL:
                self._oom_kill(document, at)
            case kind if kind == NO_VICTIM:
                self._no_victims.append((at, shown(document["message"])))
            case kind if kind == POD_EVICTED:
                self._kubelet(document, at)
            case kind if kind == NODE_CONDITION and document["condition"] == "Ready":
                since = unix_seconds(document.get("since"))
                self._ready.append((at, since, str(document["status"]), shown(document.get("reason"))))
            case kind if kind == NODE:
                labels = document["labels"].items()
                self._node.labels = {shown(key): shown(value) for key, value in list(labels)[:_MOST_PLACES]}
                self._node.name = shown(document["node"]) or self._node.name
                self._node.role = None if document["role"] is None else shown(document["role"])

    def _decision(self, document: Mapping[str, Any], at: float) -> None:
        self._node.decisions += 1
        self._node.is_dry = bool(document["dry_run"])
        self._evictions(document, document["evictions"], at)
        available = {
            str(signal): _number(one["available"]) or 0
            for signal, one in list(document["observations"].items())[:16]
        }
        met = tuple(str(one) for one in document["thresholds_met"][:16])
        self._seen.append(_Seen(at, met, available))

    def _evictions(self, document: Mapping[str, Any], evictions: Sequence[Any], at: float) -> None:
        threshold = document["threshold"] or {}
        is_dry = bool(document["dry_run"])
        order = tuple(
            (str(place["uid"]), shown(place["pod"]), shown(place["because"]))
            for place in document["ranking"][:_MOST_PLACES]
        )
        rule = document.get("rule")
        met = threshold.get("threshold") or (f"rule {rule['name']}" if rule else "")
        for one in evictions[:_MOST_PLACES]:
            uid, outcome = str(one["uid"]), str(one["outcome"])
            if outcome != Outcome.DRY_RUN and outcome not in _REAL:
                continue  # failed, or nothing was there to be evicted
            if not is_dry:
                self._by_reactor.add(uid)
            self._decided[at, uid] = Decided(
                at=at,
                is_dry=is_dry,
                signal=shown(one["signal"]),
                resource=shown(one["resource"]),
                threshold=shown(met),
                pod=shown(one["pod"]),
                uid=uid,
                available=_number(threshold.get("available")),
                wanted=_number(threshold.get("value")),
                order=order or (self._decided[at, uid].order if (at, uid) in self._decided else ()),
            )

    def _oom_kill(self, document: Mapping[str, Any], at: float) -> None:
        if document["scope"] not in _NODE_SCOPES:
            return
        done = Done(
            at=at,
            what="oom-kill",
            pod=shown(document.get("pod")),
            uid=str(document.get("uid") or ""),
            resource=Resource.MEMORY,
            text=shown(document.get("message")),
            count=max(1, _number(document["kills"]) or 0),
        )
        self._done.append(done)

    def _kubelet(self, document: Mapping[str, Any], at: float) -> None:
        uid = str(document["uid"])
        if uid in self._evicted:  # a steward that was started again may have recorded it twice
            return
        self._evicted.add(uid)
        stated = unix_seconds(document.get("evicted_at"))
        if stated is not None and not -_SOON_SECONDS <= at - stated <= _SOON_SECONDS:
            at = stated
        text = shown(document.get("message"))
        self._done.append(
            Done(
                at=at,
                what="kubelet",
                pod=shown(document["pod"]),
                uid=uid,
                resource=resource_in(text),
                text=text,
            )
        )

    def node(self, within_seconds: float) -> Node:
        """Return the node with its pairs, in the order of their times."""
        kubelet = [one for one in self._done if one.what == "kubelet" and one.uid not in self._by_reactor]
        oom_kills = [one for one in self._done if one.what == "oom-kill"]
        pairing = _Pairing(
            list(_once(sorted(self._decided.values(), key=lambda one: one.at), within_seconds)),
            sorted(kubelet, key=lambda one: one.at),
            sorted(oom_kills, key=lambda one: one.at),
            list(_outages(sorted(self._ready, key=lambda one: one[0]))),
            seen=sorted(self._seen, key=lambda one: one.at),
            no_victims=tuple(self._no_victims),
            within_seconds=within_seconds,
        )
        self._node.pairs = sorted(pairing.pairs(), key=lambda one: one.at)
        return self._node


def resource_in(message: str) -> str:
    """Return what a pod was evicted for, by upstream's message; "" where it does not say.

    Source: nodeConditionMessageFmt, containerMessageFmt and others in pkg/kubelet/eviction/helpers.go.
    """
    lower = message.lower()
    if _LOW_ON in lower:
        named = lower.partition(_LOW_ON)[2].strip().partition(".")[0].strip()
        return next((one.value for one in Resource if one.value == named), "")
    if any(word in lower for word in _LIMIT_WORDS):
        return Resource.EPHEMERAL_STORAGE
    return ""


def _outages(ready: Sequence[tuple[float, float | None, str, str]]) -> Iterator[Done]:
    """Yield when the node was not ready, also where only its end was seen: Ready has a new time."""
    began: tuple[float, str] | None = None
    last_since: float | None = None
    for at, since, status, reason in ready:
        when = at if since is None else since
        if status != "True":
            began = began or (when, reason)
        elif began is not None:
            yield Done(at=began[0], what="not-ready", text=began[1], until=when)
            began = None
        elif last_since is not None and since is not None and since > last_since:
            yield Done(at=since, what="not-ready", text=f"seen when it was over: {reason}", until=since)
        if status == "True":
            last_since = since
    if began is not None:
        yield Done(at=began[0], what="not-ready", text=began[1])


class _Pairing:
    def __init__(
        self,
        decided: Sequence[Decided],
        kubelet: Sequence[Done],
        oom_kills: Sequence[Done],
        outages: Sequence[Done],
        *,
        seen: Sequence[_Seen],
        no_victims: Sequence[tuple[float, str]],
        within_seconds: float,
    ) -> None:
        self._decided = decided
        self._kubelet = kubelet
        self._within = within_seconds
        self._seen = seen
        self._seen_at = [one.at for one in seen]
        self._no_victim_near = self._first_near(no_victims, [*kubelet, *oom_kills, *outages])
        self._partner: dict[int, int] = {}  # of decisions, in `kubelet`
        self._taken: set[int] = set()
        self._times = [one.at for one in decided]
        # Places in order: of decisions by kind ("": all) and those in force by resource, of `seen` by what
        # was met. A node may have all its events within minutes, and each is searched for.
        self._of_kind: dict[str, list[int]] = {}
        self._in_force: dict[str, list[int]] = {}
        self._met: dict[str, list[int]] = {}
        for place, mine in enumerate(decided):
            for kind in {"", _kind(mine.resource)}:
                self._of_kind.setdefault(kind, []).append(place)
            if not mine.is_dry:
                self._in_force.setdefault(mine.resource, []).append(place)
        for place, line in enumerate(seen):
            for threshold in set(line.met):
                self._met.setdefault(threshold, []).append(place)
        self._ooms = self._by_decision(oom_kills)
        self._outages = self._by_decision(outages)
        self._orphans = (
            [one for one in oom_kills if self._before(one) is None],
            [one for one in outages if self._before(one) is None],
        )

    def pairs(self) -> Iterator[Pair]:
        """Yield every decision once, and what others did that belongs to none."""
        self._match(lambda mine: {mine.uid}, lambda other: other.uid)
        self._match(lambda mine: {mine.pod} - {""}, lambda other: other.pod)
        self._match(lambda mine: {"", _kind(mine.resource)}, lambda other: other.resource)
        for place in range(len(self._decided)):
            yield self._pair(place)
        for number, other in enumerate(self._kubelet):
            if number not in self._taken:
                yield Pair(verdict=Verdict.MISSED, kubelet=other, why=self._why_missed(other))
        for other in self._orphans[0]:
            yield Pair(verdict=Verdict.OOM_MISSED, oom_kills=(other,), why=self._why_missed(other))
        for other in self._orphans[1]:
            yield Pair(verdict=Verdict.NOT_READY_MISSED, not_ready=other, why=self._why_missed(other))

    def _match(self, keys_of: Callable[[Decided], set[str]], key_of: Callable[[Done], str]) -> None:
        """Pair those of a common key that are within the time, each with the nearest that is left."""
        left: dict[str, list[tuple[float, int]]] = {}
        for number, other in enumerate(self._kubelet):
            if number not in self._taken:
                left.setdefault(key_of(other), []).append((other.at, number))
        for place, mine in enumerate(self._decided):
            if place in self._partner:
                continue
            near = [one for key in keys_of(mine) for one in self._beside(mine.at, left.get(key, ()))]
            if near:
                _, number = found = min(near, key=lambda one: (abs(one[0] - mine.at), one[1]))
                self._partner[place] = number
                self._taken.add(number)
                of_key = left[key_of(self._kubelet[number])]
                del of_key[bisect.bisect_left(of_key, found)]

    def _beside(self, at: float, others: Sequence[tuple[float, int]]) -> Iterator[tuple[float, int]]:
        """Yield the last before and the first from a moment on; of several at one time, the first of them."""
        after = bisect.bisect_left(others, (at,))
        before = bisect.bisect_left(others, others[after - 1][:1]) if after else after
        for one in (*others[before : before + 1], *others[after : after + 1]):
            if at - self._within <= one[0] <= at + self._within:
                yield one

    def _first_near(self, lines: Sequence[tuple[float, str]], others: Sequence[Done]) -> dict[float, str]:
        """Return the text of the first line within the time of what others did, by the time of that."""
        found: dict[float, str] = {}
        left = sorted({other.at for other in others})
        for line_at, text in lines:
            after_line = line_at.__rsub__  # how long after the line a moment is
            low = bisect.bisect_left(left, -self._within, key=after_line)
            high = bisect.bisect_right(left, self._within, key=after_line)
            found.update(dict.fromkeys(left[low:high], text))
            del left[low:high]
        return found

    def _before(self, other: Done) -> int | None:
        """Return the last decision within the time before what another did, of memory for an OOM kill."""
        places = self._of_kind.get(other.resource, ())
        after = bisect.bisect_right(places, other.at, key=self._times.__getitem__)
        if after and other.at - self._times[places[after - 1]] <= self._within:
            return places[after - 1]
        return None

    def _by_decision(self, others: Sequence[Done]) -> dict[int, list[Done]]:
        found: dict[int, list[Done]] = {}
        for other in others:
            place = self._before(other)
            if place is not None:
                found.setdefault(place, []).append(other)
        return found

    def _pair(self, place: int) -> Pair:
        mine = self._decided[place]
        other = self._kubelet[self._partner[place]] if place in self._partner else None
        ooms = tuple(self._ooms.get(place, ()))
        outage = next(iter(self._outages.get(place, ())), None)
        prevented = sum(one.count for one in ooms if mine.is_dry and one.at - mine.at >= _IN_TIME_SECONDS)
        sooner = None if other is None else other.at - mine.at
        if other is None:
            alone = Verdict.ALONE if mine.is_dry else Verdict.EVICTED
            verdict = Verdict.OOM if ooms else Verdict.NOT_READY if outage else alone
            why = self._why_alone(mine) if verdict is Verdict.ALONE else ""
        elif other.uid != mine.uid and other.pod != mine.pod:
            verdict, why = Verdict.OTHER_POD, _why_other(mine, other)
        elif sooner is not None and sooner < -LATER_SECONDS:
            verdict, why = Verdict.LATER, self._why_missed(other)
        else:
            verdict, why = Verdict.SAME, ""
        return Pair(
            verdict=verdict,
            decided=mine,
            kubelet=other,
            oom_kills=ooms,
            not_ready=outage,
            sooner_seconds=sooner,
            prevented=prevented,
            why=why,
        )

    def _why_alone(self, mine: Decided) -> str:
        """Return what the node was short of, and how that ended."""
        parts = []
        if mine.threshold and mine.available is not None:
            resource = _RESOURCES.get(mine.signal)
            parts.append(f"{mine.threshold} with {amount_text(mine.available, resource)} available")
        elif mine.threshold:
            parts.append(mine.threshold)
        ended = self._ended(mine)
        forced = self._forced_after(mine)
        if ended is None:
            parts.append("no end of the shortage is in the journal")
        elif forced is not None and forced.at - mine.at <= ended:
            parts.append(f"reactor in force evicted {forced.pod} after {duration_text(forced.at - mine.at)}")
        else:
            parts.append(f"the shortage ended by itself within {duration_text(ended)}")
        return "; ".join(parts)

    def _forced_after(self, mine: Decided) -> Decided | None:
        """Return the first later eviction in force for the same resource."""
        in_force = self._in_force.get(mine.resource, ())
        after = bisect.bisect_right(in_force, mine.at, key=self._times.__getitem__)
        return self._decided[in_force[after]] if after < len(in_force) else None

    def _ended(self, mine: Decided) -> float | None:
        """Return after how long the threshold was not met any more, None where no line shows it."""
        met = self._met.get(mine.threshold, ())
        first = bisect.bisect_right(self._seen_at, mine.at)
        start = bisect.bisect_left(met, first)
        # The places from the first on that follow each other are those at which it was still met.
        end = bisect.bisect_right(range(len(met)), first - start, start, key=lambda one: met[one] - one)
        over = first + end - start
        return self._seen_at[over] - mine.at if over < len(self._seen) else None

    def _why_missed(self, other: Done) -> str:
        """Return what reactor had seen last before what another did."""
        if other.at in self._no_victim_near:
            return f"reactor had no pod to evict: {self._no_victim_near[other.at]}"
        place = bisect.bisect_right(self._seen_at, other.at) - 1
        if place < 0:
            return "the journal has no decision before it"
        seen = self._seen[place]
        ago = duration_text(other.at - seen.at)
        if seen.met:
            return f"reactor's last record, {ago} before, has {', '.join(seen.met)} met and no eviction then"
        amounts = ", ".join(
            f"{signal} {amount_text(amount, _RESOURCES.get(signal))}"
            for signal, amount in seen.available.items()
            if other.resource in {"", _kind(str(_RESOURCES.get(signal, "")))}
        )
        return f"no threshold of reactor's was met; its last record, {ago} before, has {amounts or 'nothing'}"


def _why_other(mine: Decided, other: Done) -> str:
    """Return where the kubelet's victim stood in reactor's order, and why the other was before it."""
    chosen = f"reactor's: {mine.why}" if mine.why else "reactor's order is not in the journal"
    for place, (uid, pod, because) in enumerate(mine.order, 1):
        if uid == other.uid or pod == other.pod:
            return f"{chosen}; the kubelet's is place {place} of reactor's order: {because}"
    return f"{chosen}; the kubelet's is not in reactor's order"


def _once(decided: Iterable[Decided], within_seconds: float) -> Iterator[Decided]:
    """Yield the decisions without those of a dry run that chose a pod again: in force it would be gone.

    A shortage may meet two thresholds, one after the other: the pods' limit and the node's.
    """
    chosen: dict[tuple[str, str], float] = {}
    for one in decided:
        key = one.uid, _kind(one.resource)
        before = chosen.get(key)
        if one.is_dry and before is not None and one.at - before <= within_seconds:
            continue
        chosen[key] = one.at
        yield one


def _kind(resource: str) -> str:
    """Return what a resource counts as: inodes and bytes of a disk are one."""
    return Resource.EPHEMERAL_STORAGE if resource == Resource.INODES else resource


def _number(value: object) -> int | None:
    """Return a whole number, None for what is none, or is longer than any that a node counts."""
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= _LARGEST:
        return None
    return value
