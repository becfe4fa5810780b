"""The node's history, from its journals: crossings of memory thresholds, and their outcome.

The journal holds the decisions that were news, and an eviction's is written when its pod is gone: they are
put into order by their times. MemoryPressure comes into force with the first threshold that is crossed, a
soft one before its grace period, and goes the transition period after the last. So how fast memory went is
known where a pod was evicted within ten minutes of that: what became unavailable in between, over the
time in between. It is a mean: the fastest moment was no slower.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from reactor.errors import ReactorError
from reactor.link.documents import Outcome
from reactor.model.signals import NodeCondition, Signal
from reactor.plain import open_regular
from reactor.shadow.fleet import lines_of, sources_in
from reactor.text import object_in_line, printable

_MEMORY: Final = frozenset({Signal.MEMORY_AVAILABLE, Signal.ALLOCATABLE_MEMORY_AVAILABLE})
_TOGETHER_SECONDS: Final = 600.0
_MOST_PROBLEMS: Final = 100

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """A memory threshold that was acted on; None is what the journal doesn't show.

    `killed_seconds` is from the source's wake to the last SIGKILL, `freed_seconds` from there to memory back;
    `victim_bytes` what the evicted pods used. `rate_bytes` a second is how fast memory went from the first
    threshold to this one.
    """

    time: str
    threshold: str
    is_hard: bool
    evicted: int
    wanted_bytes: int
    available_bytes: int
    killed_seconds: float | None = None
    freed_seconds: float | None = None
    victim_bytes: int | None = None
    rate_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What journals show. `read` counts their lines, `unread` those that are none of a journal's.

    `spells_seconds` are how long memory was short and then was not, without an eviction;
    `terminated_seconds` how long softly evicted pods took to end by themselves, `killed_after_grace` how many
    did not. `missed` are the kernel's own kills for want of memory on the node, `dry_runs` how many of the
    crossings evicted no pod because of a dry run.
    """

    decisions: int = 0
    first: str | None = None
    last: str | None = None
    crossings: tuple[Crossing, ...] = ()
    spells_seconds: tuple[float, ...] = ()
    terminated_seconds: tuple[float, ...] = ()
    killed_after_grace: int = 0
    missed: int = 0
    lowest_available_bytes: int | None = None
    largest_pod_bytes: int | None = None
    read: int = 0
    unread: int = 0
    dry_runs: int = 0

    @property
    def rates_bytes(self) -> tuple[float, ...]:
        """Return how fast memory went, for each crossing of which that is known."""
        return tuple(one.rate_bytes for one in self.crossings if one.rate_bytes is not None)

    @property
    def fastest_bytes(self) -> float | None:
        """Return the fastest that memory went, in bytes a second."""
        return max(self.rates_bytes, default=None)


def history_in(paths: Sequence[Path], transition_seconds: float) -> History:
    """Return what these journals show, each with the older files that it was rotated into.

    A directory has the journals of many nodes: each is a history of its own, and they are added up. What of
    it can't be read is printed on standard error. `transition_seconds` is the pressure transition period
    that was in force. Raises OSError, and ReactorError for a file that is not a regular one, or where no line
    of a journal can be read.
    """
    lines = (line for path in paths if not path.is_dir() for file in _files(path) for line in _lines(file))
    history = history_of(lines, transition_seconds)
    found = sources_in([path for path in paths if path.is_dir()])
    problems = list(found.problems)
    for source in found.sources:
        of_node = (line for file in source.journals for line in lines_of(file, problems))
        history = _together(history, history_of(of_node, transition_seconds))
    for problem in problems[:_MOST_PROBLEMS]:
        print(f"reactor: {printable(problem)}", file=sys.stderr)
    if paths and not history.read:
        raise ReactorError(f"{', '.join(map(str, paths))}: no line of a journal can be read")
    return history


def _together(one: History, other: History) -> History:
    """Return what two nodes' histories show together."""
    crossings = sorted((*one.crossings, *other.crossings), key=lambda crossing: crossing.time)
    lowest = [found for each in (one, other) if (found := each.lowest_available_bytes) is not None]
    largest = [found for each in (one, other) if (found := each.largest_pod_bytes) is not None]
    return History(
        decisions=one.decisions + other.decisions,
        first=min(filter(None, (one.first, other.first)), default=None),
        last=max(filter(None, (one.last, other.last)), default=None),
        crossings=tuple(crossings),
        spells_seconds=(*one.spells_seconds, *other.spells_seconds),
        terminated_seconds=(*one.terminated_seconds, *other.terminated_seconds),
        killed_after_grace=one.killed_after_grace + other.killed_after_grace,
        missed=one.missed + other.missed,
        lowest_available_bytes=min(lowest, default=None),
        largest_pod_bytes=max(largest, default=None),
        read=one.read + other.read,
        unread=one.unread + other.unread,
        dry_runs=one.dry_runs + other.dry_runs,
    )


def history_of(lines: Iterable[bytes], transition_seconds: float = 300.0) -> History:
    """Return what a journal's lines show. What is no line of a journal is counted, no more."""
    (entries, unread), read = _entries(lines), 0
    reading = _Reading(transition_seconds)
    for _, entry in sorted(entries, key=lambda timed: timed[0]):
        try:
            reading.take(entry)
            read += 1
        except (ValueError, KeyError, TypeError, AttributeError):
            unread += 1
    return replace(reading.history(), read=read, unread=unread)


def _entries(lines: Iterable[bytes]) -> tuple[list[tuple[float, Document]], int]:
    """Return the lines with their times, and how many are none of a journal's."""
    entries: list[tuple[float, Document]] = []
    unread = 0
    for line in lines:
        try:
            entry = object_in_line(line, b'"time"')
            if entry is None:
                unread += 1
                continue
            entries.append((datetime.fromisoformat(entry["time"]).timestamp(), entry))
        except (ValueError, KeyError, TypeError, OverflowError):
            unread += 1
    return entries, unread


def _files(path: Path) -> Iterator[Path]:
    """Yield the files of a journal, oldest first: `path.2`, `path.1`, `path`."""
    number = 1
    while (older := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    yield from (path.with_name(f"{older.name.rpartition('.')[0]}.{n}") for n in range(number - 1, 0, -1))
    yield path


def _lines(path: Path) -> Iterator[bytes]:
    with open_regular(path) as file:
        for line in file:
            if line.endswith(b"\n"):  # what a crash cut off is none
                yield line


@dataclass(slots=True, kw_only=True)
class _Spell:
    """A time of MemoryPressure: since when (the daemon's clock), with what available, and whether it cost."""

    since_seconds: float
    available_bytes: int
    evicted: bool = False


class _Reading:
    """Reads entry by entry, in the order of their times."""

    def __init__(self, transition_seconds: float) -> None:
        self._transition_seconds = transition_seconds
        self._times: list[str] = []
        self._spell: _Spell | None = None
        self._decided_at: dict[tuple[int, str], float] = {}
        self._crossings: list[Crossing] = []
        self._spells: list[float] = []
        self._terminated: list[float] = []
        self._killed_after_grace = 0
        self._missed = 0
        self._dry_runs = 0
        self._lowest: int | None = None
        self._largest: int | None = None

    def take(self, document: Document) -> None:
        """Take one entry. Raises what an entry that is none of a journal's leads to."""
        kind = document["kind"]
        if kind == "decision":
            self._decision(document)
        elif kind == "outcome":
            self._ended(document, document["decision"])
        elif kind == "oom-kill" and document["scope"] == "node":
            self._missed += int(document["kills"])

    def history(self) -> History:
        return History(
            decisions=len(self._times),
            first=self._times[0] if self._times else None,
            last=self._times[-1] if self._times else None,
            crossings=tuple(self._crossings),
            spells_seconds=tuple(self._spells),
            terminated_seconds=tuple(self._terminated),
            killed_after_grace=self._killed_after_grace,
            missed=self._missed,
            lowest_available_bytes=self._lowest,
            largest_pod_bytes=self._largest,
            dry_runs=self._dry_runs,
        )

    def _decision(self, document: Document) -> None:
        seconds, threshold = float(document["monotonic_seconds"]), document["threshold"]
        seen = document["observations"].get(Signal.MEMORY_AVAILABLE)
        if seen is not None:
            available = int(seen["available"])
            self._lowest = available if self._lowest is None else min(self._lowest, available)
            self._follow(document, seconds, available)
        if threshold is not None and threshold["signal"] in _MEMORY:
            self._rank(document["ranking"])
            if document["evictions"]:
                self._crossings.append(_crossing(document, self._rate(document, seconds)))
                self._dry_runs += bool(document.get("dry_run"))
        for eviction in document["evictions"]:
            self._decided_at[document["id"], eviction["uid"]] = document["timing"]["decided_ns"] / 1e9
            self._ended(eviction, document["id"])
        self._times.append(str(document["time"]))

    def _follow(self, document: Document, seconds: float, available: int) -> None:
        """Follow the spells of MemoryPressure."""
        spell, is_short = self._spell, NodeCondition.MEMORY_PRESSURE in document["conditions"]
        if is_short and spell is None:
            self._spell = _Spell(since_seconds=seconds, available_bytes=available)
        elif not is_short and spell is not None:
            took_seconds = seconds - spell.since_seconds - self._transition_seconds
            if took_seconds > 0 and not spell.evicted:
                self._spells.append(took_seconds)
            self._spell = None

    def _rate(self, document: Document, seconds: float) -> float | None:
        """Return how fast memory went to the first eviction of a spell; None where that is not known."""
        spell = self._spell
        if spell is None or spell.evicted:
            return None
        spell.evicted = True
        seen = document["observations"].get(Signal.MEMORY_AVAILABLE)
        took_seconds = seconds - spell.since_seconds
        if seen is None or not 0 < took_seconds <= _TOGETHER_SECONDS:
            return None
        gone_bytes = spell.available_bytes - int(seen["available"])
        return gone_bytes / took_seconds if gone_bytes > 0 else None

    def _rank(self, ranking: Sequence[Document]) -> None:
        used = [int(place["usage"]) for place in ranking if place["usage"] is not None]
        self._largest = max([*used, self._largest or 0]) or None

    def _ended(self, eviction: Document, decision: int) -> None:
        if not eviction["grace_period_seconds"]:
            return
        decided_seconds = self._decided_at.get((decision, eviction["uid"]))
        if eviction["outcome"] == Outcome.KILLED:
            self._killed_after_grace += 1
        elif (
            eviction["outcome"] == Outcome.TERMINATED and eviction["freed_ns"] and decided_seconds is not None
        ):
            self._terminated.append(max(0.0, eviction["freed_ns"] / 1e9 - decided_seconds))


def _crossing(document: Document, rate: float | None) -> Crossing:
    threshold, timing, evictions = document["threshold"], document["timing"], document["evictions"]
    used = {place["uid"]: place["usage"] for place in document["ranking"]}
    victims = [used.get(eviction["uid"]) for eviction in evictions]
    is_hard = not threshold["grace_period_seconds"]
    killed_ns, freed_ns = timing["killed_ns"], timing["freed_ns"]
    return Crossing(
        time=document["time"],
        threshold=threshold["threshold"],
        is_hard=is_hard,
        evicted=len(evictions),
        wanted_bytes=int(threshold["value"]),
        available_bytes=int(threshold["available"]),
        killed_seconds=_between(timing["woke_ns"], killed_ns) if is_hard else None,
        freed_seconds=_between(killed_ns, freed_ns) if is_hard else None,
        victim_bytes=None if None in victims else sum(int(used_bytes or 0) for used_bytes in victims),
        rate_bytes=rate,
    )


def _between(from_ns: int | None, to_ns: int | None) -> float | None:
    return None if from_ns is None or to_ns is None else max(0.0, (to_ns - from_ns) / 1e9)
