"""What the node has been through: crossings of memory thresholds and what came of them, from its journals.

The journal holds the decisions that were news. How fast memory went is known where two of them lie close
together, most often a soft threshold's crossing and the hard one's after it: what became unavailable in
between, over the time in between. It is the mean over that time, so the fastest moment was no slower.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from reactor.model.signals import Signal

_MEMORY: Final = frozenset({Signal.MEMORY_AVAILABLE, Signal.ALLOCATABLE_MEMORY_AVAILABLE})
_TOGETHER_SECONDS: Final = 600.0

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """A memory threshold that was acted on; None is what the journal doesn't tell.

    `killed_seconds` is from the source's wake to the last SIGKILL, `freed_seconds` from there to memory back;
    `victim_bytes` what the evicted pods used. `rate_bytes` a second is how fast memory went before.
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
    """What journals tell. `unread` counts lines that are none of a journal's.

    `spells_seconds` are how long soft thresholds stayed crossed and then were not, with nobody evicted;
    `terminated_seconds` how long softly evicted pods took to end by themselves, `killed_after_grace` how many
    did not. `rates_bytes` are how fast memory went between two decisions, whatever they decided.
    `missed` are the kernel's own kills for want of memory on the node.
    """

    decisions: int = 0
    first: str | None = None
    last: str | None = None
    crossings: tuple[Crossing, ...] = ()
    rates_bytes: tuple[float, ...] = ()
    spells_seconds: tuple[float, ...] = ()
    terminated_seconds: tuple[float, ...] = ()
    killed_after_grace: int = 0
    missed: int = 0
    lowest_available_bytes: int | None = None
    largest_pod_bytes: int | None = None
    unread: int = 0

    @property
    def fastest_bytes(self) -> float | None:
        """Return the fastest that memory went, in bytes a second."""
        return max(self.rates_bytes, default=None)


def history_in(paths: Sequence[Path]) -> History:
    """Return what these journals tell, each with the older files that it was rotated into. Raises OSError."""
    return history_of(line for path in paths for file in _files(path) for line in _lines(file))


def history_of(lines: Iterable[bytes]) -> History:
    """Return what a journal's lines tell, oldest first. What is no line of a journal is counted, no more."""
    reading = _Reading()
    for line in lines:
        try:
            reading.take(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError):
            reading.unread += 1
    return reading.history()


def _files(path: Path) -> Iterator[Path]:
    """Yield the files of a journal, oldest first: `path.2`, `path.1`, `path`."""
    number = 1
    while (older := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    yield from (path.with_name(f"{older.name.rpartition('.')[0]}.{n}") for n in range(number - 1, 0, -1))
    yield path


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):  # what a crash cut off is none
                yield line


class _Reading:
    """Reads line by line; `before` is the last decision that observed memory."""

    def __init__(self) -> None:
        self.unread = 0
        self._decisions = 0
        self._times: list[str] = []
        self._before: tuple[float, int] | None = None
        self._soft_since: float | None = None
        self._spell_evicted = False
        self._decided_at: dict[tuple[int, str], float] = {}
        self._crossings: list[Crossing] = []
        self._rates: list[float] = []
        self._spells: list[float] = []
        self._terminated: list[float] = []
        self._killed_after_grace = 0
        self._missed = 0
        self._lowest: int | None = None
        self._largest: int | None = None

    def take(self, document: Document) -> None:
        """Take one line. Raises what a line that is none of a journal's leads to."""
        kind = document["kind"]
        if kind == "decision":
            self._decision(document)
        elif kind == "outcome":
            self._ended(document, document["decision"])
        elif kind == "oom-kill" and document["scope"] == "node":
            self._missed += int(document["kills"])

    def history(self) -> History:
        return History(
            decisions=self._decisions,
            first=self._times[0] if self._times else None,
            last=self._times[-1] if self._times else None,
            crossings=tuple(self._crossings),
            rates_bytes=tuple(self._rates),
            spells_seconds=tuple(self._spells),
            terminated_seconds=tuple(self._terminated),
            killed_after_grace=self._killed_after_grace,
            missed=self._missed,
            lowest_available_bytes=self._lowest,
            largest_pod_bytes=self._largest,
            unread=self.unread,
        )

    def _decision(self, document: Document) -> None:
        seconds, time = float(document["monotonic_seconds"]), str(document["time"])
        datetime.fromisoformat(time)
        rate = self._rate(document, seconds)
        self._spell(document, seconds)
        threshold = document["threshold"]
        if threshold is not None and threshold["signal"] in _MEMORY:
            self._rank(document["ranking"])
            if document["evictions"]:
                self._crossings.append(_crossing(document, rate))
        for eviction in document["evictions"]:
            self._decided_at[document["id"], eviction["uid"]] = document["timing"]["decided_ns"] / 1e9
            self._ended(eviction, document["id"])
        self._decisions += 1
        self._times.append(time)

    def _rate(self, document: Document, seconds: float) -> float | None:
        """Return how fast memory went since the decision before; None if it did not, or that is long ago."""
        seen = document["observations"].get(Signal.MEMORY_AVAILABLE)
        if seen is None:
            return None
        available, before = int(seen["available"]), self._before
        self._before = seconds, available
        self._lowest = available if self._lowest is None else min(self._lowest, available)
        if before is None or not 0 < seconds - before[0] <= _TOGETHER_SECONDS or available >= before[1]:
            return None
        rate = (before[1] - available) / (seconds - before[0])
        self._rates.append(rate)
        return rate

    def _spell(self, document: Document, seconds: float) -> None:
        """Follow a time below a soft threshold: from the first decision there to the first not there."""
        crossed = any(str(one).partition("<")[0] in _MEMORY for one in document["thresholds_met"])
        self._spell_evicted |= bool(document["evictions"])
        if crossed and self._soft_since is None:
            self._soft_since = seconds
        elif not crossed:
            if self._soft_since is not None and seconds > self._soft_since and not self._spell_evicted:
                self._spells.append(seconds - self._soft_since)
            self._soft_since, self._spell_evicted = None, False

    def _rank(self, ranking: Sequence[Document]) -> None:
        used = [int(place["usage"]) for place in ranking if place["usage"] is not None]
        self._largest = max([*used, self._largest or 0]) or None

    def _ended(self, eviction: Document, decision: int) -> None:
        if not eviction["grace_period_seconds"]:
            return
        decided_seconds = self._decided_at.get((decision, eviction["uid"]))
        if eviction["outcome"] == "killed":
            self._killed_after_grace += 1
        elif eviction["outcome"] == "terminated" and eviction["freed_ns"] and decided_seconds is not None:
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
