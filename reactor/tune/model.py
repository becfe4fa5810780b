"""Measurements and history to thresholds, in numbers alone: no clock, no I/O.

    hard = fastest credible allocator x (reaction + freeing) + reserve

From the crossing on, the allocator goes on for as long as the reaction takes, and, where another pod is
the victim, until that one's memory is back; what must never be taken is the reserve. Reaction and freeing
are bounds of their p99.9 (`tail`). A victim frees its memory while it dies, so this errs to the safe
side, the more the larger it is.

    soft = hard + rate x (grace period of the threshold + grace period of the pods)

A soft threshold can only serve an allocator that is slow enough to let its grace periods end before it
reaches the hard one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from reactor.errors import RefusedError
from reactor.model.settings import Settings
from reactor.model.signals import Signal
from reactor.model.thresholds import Threshold
from reactor.testbed.allocator import MIB
from reactor.text import counted
from reactor.tune.history import History
from reactor.tune.latency import Freeing, Latency, freeing_of, latencies_of, reaction_bound
from reactor.tune.measured import Growth, Measured, NodeFacts

_GIB = 1024 * MIB

STEP_BYTES: Final = 10 * MIB
_LARGEST_SHARE: Final = 0.5  # what keeps more of the node than this is no threshold

_LARGEST_SOFT_SHARE: Final = 0.1  # of the node, above the hard threshold
_SMALLEST_SOFT_SHARE: Final = 0.25  # of the hard threshold: soft is to be crossed first
_ASSUMED_GRACE_SECONDS: Final = 30
_ASSUMED_POD_GRACE_SECONDS: Final = 30  # terminationGracePeriodSeconds' default
_LONGEST_GRACE_SECONDS: Final = 120
_ASSUMED_SHARE_A_MINUTE: Final = 0.01
_ROUND_SECONDS: Final = 5


def amount(size_bytes: float) -> str:
    """Return bytes with three digits: `0.41 MiB`, `212 MiB`, `1.5 GiB`."""
    if abs(size_bytes) >= 1000 * MIB:
        return f"{_three(size_bytes / _GIB)} GiB"
    return f"{_three(size_bytes / MIB)} MiB"


def rate(rate_bytes: float) -> str:
    """Return bytes a second with three digits."""
    return f"{amount(rate_bytes)}/s"


def duration(seconds: float) -> str:
    """Return a time with three digits: `0.41 ms`, `12 s`, `3.5 min`."""
    if seconds < 1:
        return f"{_three(seconds * 1e3)} ms"
    return f"{_three(seconds)} s" if seconds < 120 else f"{_three(seconds / 60)} min"


def quantity(size_bytes: int) -> str:
    """Return bytes as a threshold is written, in whole Mi: rounded up."""
    return f"{-(-size_bytes // MIB)}Mi"


def milliseconds(seconds: float) -> str:
    """Return a time in ms, for a column of them."""
    return _three(seconds * 1e3)


def _three(number: float) -> str:
    if number and abs(number) < 0.01:
        return f"{number:.2g}"
    digits = 0 if abs(number) >= 100 else 1 if abs(number) >= 10 else 2
    text = f"{number:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """`bursts` are (seconds, bytes) of runs that began from nothing; `sustained_bytes` a second go on after.

    A burst lasts no longer than it was measured: a small allocator that ran while no other task wanted its
    CPU says little about the next second.
    """

    sustained_bytes: float
    bursts: tuple[tuple[float, int], ...] = ()

    def taken_bytes(self, seconds: float) -> float:
        """Return the most that is taken in the time; it never falls with it, nor when a run was faster."""
        taken = [
            size_bytes * seconds / took
            if seconds < took
            else size_bytes + (seconds - took) * self.sustained_bytes
            for took, size_bytes in self.bursts
        ]
        return max(taken, default=self.sustained_bytes * seconds)


def pace_of(growths: Iterable[Growth]) -> Pace:
    """Return the pace of allocators by their runs; the longest go on for ever. There has to be one run."""
    runs = tuple(growths)
    most_bytes = max(run.allocators * run.size_bytes for run in runs)
    longest = [run for run in runs if run.allocators * run.size_bytes == most_bytes]
    return Pace(
        sustained_bytes=max(run.rate_bytes for run in longest),
        bursts=tuple(
            (run.allocators * run.size_bytes / run.rate_bytes, run.allocators * run.size_bytes)
            for run in runs
        ),
    )


class Assume(StrEnum):
    """Which allocator counts as the fastest credible one.

    One process at full speed; one with huge pages; as many processes as there are CPUs; the fastest in the
    history.
    """

    ONE = "one"
    HUGE = "huge"
    ALL = "all"
    SEEN = "seen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the allocator's speed is multiplied by, in seconds, and what is added."""

    reaction_seconds: float
    freeing_seconds: float
    reserve_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One assumption about the allocator, and the hard threshold that follows from it, in bytes.

    `rate_bytes` a second is its mean over reaction and freeing. `alone_bytes` would be enough if the
    allocator itself were always the victim.
    """

    kind: Assume
    name: str
    rate_bytes: float
    needed_bytes: int
    alone_bytes: int


def case(kind: Assume, name: str, pace: Pace, terms: Terms) -> Case:
    """Return what one assumption asks for."""
    seconds = terms.reaction_seconds + terms.freeing_seconds
    needed = math.ceil(pace.taken_bytes(seconds)) + terms.reserve_bytes
    return Case(
        kind=kind,
        name=name,
        rate_bytes=pace.taken_bytes(seconds) / seconds if seconds else pace.sustained_bytes,
        needed_bytes=needed,
        alone_bytes=math.ceil(pace.taken_bytes(terms.reaction_seconds)) + terms.reserve_bytes,
    )


def cases_of(measured: Measured, history: History, terms: Terms) -> tuple[Case, ...]:
    """Return the cases that were measured. Raises RefusedError where no allocator was measured."""
    single = [one for one in measured.growths if one.allocators == 1 and not one.huge_pages]
    if not single:
        raise RefusedError("no allocator was measured")
    found = [case(Assume.ONE, "one allocator at full speed", pace_of(single), terms)]
    if huge := [one for one in measured.growths if one.huge_pages]:
        found.append(case(Assume.HUGE, "one allocator with huge pages", pace_of(huge), terms))
    if together := [one for one in measured.growths if one.allocators > 1]:
        most = max(one.allocators for one in together)
        # Together they are no slower than one: a smaller figure is the machine's noise.
        pace = pace_of([*together, *single])
        name = f"{most} allocators at full speed"
        found.append(case(Assume.ALL, name, pace, terms))
    if history.fastest_bytes is not None:
        pace = Pace(sustained_bytes=history.fastest_bytes)
        found.append(case(Assume.SEEN, "the fastest in the history", pace, terms))
    return tuple(found)


def chosen(cases: Sequence[Case], assume: Assume, huge_pages: str) -> Case:
    """Return the case that the threshold is for. Raises RefusedError where it was not measured.

    One allocator is the fastest that can be had without asking for more: also what the history has seen,
    and huge pages where the kernel gives them to every process.
    """
    if assume is Assume.ONE:
        kinds = {Assume.ONE, Assume.SEEN} | ({Assume.HUGE} if huge_pages == "always" else set())
    else:
        kinds = {assume}
    credible = [one for one in cases if one.kind in kinds]
    if not credible:
        missing = {
            Assume.HUGE: "the kernel has no huge pages",
            Assume.ALL: "several allocators were not measured",
            Assume.SEEN: "the history has no rate",
        }
        raise RefusedError(f"--assume {assume}: {missing[assume]}")
    return max(credible, key=lambda one: one.needed_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """What the operator says in place of what was measured or seen; None leaves it to that."""

    assume: Assume = Assume.ONE
    victim_bytes: int | None = None
    reserve_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Soft:
    """A soft threshold: where, for how long it has to be crossed, and how long a pod may then take to end.

    `rate_bytes` a second is the fastest allocator that both grace periods serve; of the `known` crossings
    in the history whose rate is known, `served` were no faster.
    """

    threshold_bytes: int
    grace_seconds: int
    pod_grace_seconds: int
    rate_bytes: float
    grace_why: str
    pod_grace_why: str
    rate_why: str
    served: int
    known: int


def soft_for(hard_bytes: int, capacity_bytes: int, history: History) -> Soft:
    """Return the soft threshold that goes with a hard one."""
    grace_seconds, grace_why = _grace(history)
    pod_grace_seconds, pod_grace_why = _pod_grace(history)
    waited_seconds = grace_seconds + pod_grace_seconds
    most_bytes = int(capacity_bytes * _LARGEST_SOFT_SHARE)
    rates = sorted(history.rates_bytes)
    served = [rate for rate in rates if rate * waited_seconds <= most_bytes]
    if served:
        rate = served[-1]
        rate_why = f"the fastest of the {len(served)} in the history that leave their grace periods time"
    else:
        rate = capacity_bytes * _ASSUMED_SHARE_A_MINUTE / 60
        none = "no rate in the history is slow enough" if rates else "the history has no rate"
        rate_why = f"assumed: {none}, so 1 % of the node a minute"
    room_bytes = max(math.ceil(rate * waited_seconds), int(hard_bytes * _SMALLEST_SOFT_SHARE))
    room_bytes = -(-min(room_bytes, most_bytes) // STEP_BYTES) * STEP_BYTES
    return Soft(
        threshold_bytes=min(hard_bytes + room_bytes, capacity_bytes),
        grace_seconds=grace_seconds,
        pod_grace_seconds=pod_grace_seconds,
        rate_bytes=rate,
        grace_why=grace_why,
        pod_grace_why=pod_grace_why,
        rate_why=rate_why,
        served=len(served),
        known=len(rates),
    )


def _grace(history: History) -> tuple[int, str]:
    """Return for how long the threshold is to be crossed: longer than what used to pass by itself."""
    spells = sorted(history.spells_seconds)
    if not spells:
        return _ASSUMED_GRACE_SECONDS, "assumed: no shortage in the journal ended without an eviction"
    wanted = spells[math.ceil(0.9 * len(spells)) - 1]
    grace = min(_rounded_up(wanted), _LONGEST_GRACE_SECONDS)
    return (
        grace,
        f"of {len(spells)} shortages that ended without an eviction nine of ten took {wanted:.0f} s",
    )


def _pod_grace(history: History) -> tuple[int, str]:
    took = history.terminated_seconds
    if not took:
        late = history.killed_after_grace
        known = f"{late} pods did not end within theirs" if late else "no soft eviction in the journal"
        return _ASSUMED_POD_GRACE_SECONDS, f"assumed: {known}, and Kubernetes gives pods 30 s"
    grace = min(_rounded_up(max(took)), _LONGEST_GRACE_SECONDS)
    return grace, f"the slowest of {len(took)} pods that exited took {max(took):.1f} s"


def _rounded_up(seconds: float) -> int:
    return max(_ROUND_SECONDS, math.ceil(seconds / _ROUND_SECONDS) * _ROUND_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """Thresholds, and what they follow from. The whys say where a number comes from.

    `covered_rate_bytes` a second is the fastest allocator that the hard threshold answers in time;
    `is_enough` says whether the threshold is all that `chosen` asks for.
    """

    node: NodeFacts
    latencies: tuple[Latency, ...]
    cases: tuple[Case, ...]
    chosen: Case
    terms: Terms
    reaction_why: str
    freeing: Freeing
    victim_bytes: int
    victim_why: str
    hard_bytes: int
    covered_rate_bytes: float
    is_enough: bool
    soft: Soft

    @property
    def seconds(self) -> float:
        return self.terms.reaction_seconds + self.terms.freeing_seconds

    @property
    def evicts_at_once(self) -> bool:
        """Return whether a threshold is not below what was available: that is no recommendation."""
        available_bytes = self.node.available_bytes
        most_bytes = max(self.hard_bytes, self.soft.threshold_bytes)
        return available_bytes is not None and most_bytes >= available_bytes

    @property
    def practicable_bytes(self) -> int | None:
        """Return the hard threshold that leaves as much available again, None where the reserve is more."""
        half_bytes = (self.node.available_bytes or 0) // 2 // STEP_BYTES * STEP_BYTES
        return half_bytes if half_bytes > self.terms.reserve_bytes else None


def threshold_bytes(needed: int, *, reserve_bytes: int, capacity_bytes: int) -> int:
    """Return a threshold for what is needed: never below the reserve, never above the capacity.

    Up to the next 10 MiB, and to half of the node at the most, unless the reserve alone is more.
    """
    most = max(int(capacity_bytes * _LARGEST_SHARE), reserve_bytes)
    stepped = -(-max(needed, reserve_bytes) // STEP_BYTES) * STEP_BYTES
    return min(stepped, most, capacity_bytes)


def covered_rate_bytes(threshold: int, seconds: float, reserve_bytes: int) -> float:
    """Return the fastest allocator that a threshold answers before the reserve is touched."""
    return max(0.0, (threshold - reserve_bytes) / seconds)


def recommend(measured: Measured, history: History, assumptions: Assumptions) -> Recommendation:
    """Return the thresholds for what was measured. Raises RefusedError where that was too little."""
    node, latencies = measured.node, latencies_of(measured.reactions)
    reaction_seconds, reaction_why = reaction_bound(latencies, history)
    freeing = freeing_of(measured, history)
    victim_bytes, victim_why = _victim(measured, history, assumptions)
    reserve_bytes = assumptions.reserve_bytes
    terms = Terms(
        reaction_seconds=reaction_seconds,
        freeing_seconds=freeing.bound_seconds(victim_bytes),
        reserve_bytes=node.reserve.total_bytes if reserve_bytes is None else reserve_bytes,
    )
    cases = cases_of(measured, history, terms)
    taken = chosen(cases, assumptions.assume, node.huge_pages)
    seconds = terms.reaction_seconds + terms.freeing_seconds
    hard_bytes = threshold_bytes(
        taken.needed_bytes, reserve_bytes=terms.reserve_bytes, capacity_bytes=node.capacity_bytes
    )
    return Recommendation(
        node=node,
        latencies=latencies,
        cases=cases,
        chosen=taken,
        terms=terms,
        reaction_why=reaction_why,
        freeing=freeing,
        victim_bytes=victim_bytes,
        victim_why=victim_why,
        hard_bytes=hard_bytes,
        covered_rate_bytes=covered_rate_bytes(hard_bytes, seconds, terms.reserve_bytes),
        is_enough=hard_bytes >= taken.needed_bytes,
        soft=soft_for(hard_bytes, node.capacity_bytes, history),
    )


def _victim(measured: Measured, history: History, assumptions: Assumptions) -> tuple[int, str]:
    """Return the size of the victim whose memory is waited for, and where it comes from."""
    if assumptions.victim_bytes is not None:
        return assumptions.victim_bytes, "as asked for"
    seen = [
        (history.largest_pod_bytes, "the largest pod in the history"),
        (measured.node.largest_pod_bytes, "the largest pod on the node now"),
    ]
    known = [(size, why) for size, why in seen if size]
    if known:
        return max(known)
    largest = max(reaction.victim_bytes for reaction in measured.reactions)
    return largest, "assumed: no pod is known, so the size that was measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a configuration covers and what it misses, one sentence each."""

    covers: tuple[str, ...]
    misses: tuple[str, ...]


def verdict(settings: Settings, found: Recommendation, history: History) -> Verdict:
    """Return what the configuration covers and misses on this node."""
    hard = _threshold(settings, hard=True)
    soft = _threshold(settings, hard=False)
    if hard is None:
        return Verdict(
            covers=(),
            misses=("no hard threshold for memory.available: the kernel's OOM killer is the only answer",),
        )
    hard_bytes = int(hard.value.of(found.node.capacity_bytes))
    misses = [
        *_general(settings, history),
        *_hard_misses(hard, hard_bytes, found),
        *_history_misses(hard_bytes, found, history),
        *_soft_misses(settings, soft, hard_bytes, found, history),
    ]
    covers = _covers(hard, hard_bytes, found, settings.housekeeping_interval_seconds)
    return Verdict(covers=tuple(covers), misses=tuple(misses))


def _threshold(settings: Settings, *, hard: bool) -> Threshold | None:
    fitting = [
        threshold
        for threshold in settings.eviction.thresholds
        if threshold.signal is Signal.MEMORY_AVAILABLE and threshold.is_hard is hard
    ]
    return fitting[0] if fitting else None


def _covers(
    hard: Threshold, hard_bytes: int, found: Recommendation, interval_seconds: float
) -> Iterator[str]:
    if hard_bytes <= found.terms.reserve_bytes:
        return
    covered = covered_rate_bytes(hard_bytes, found.seconds, found.terms.reserve_bytes)
    yield f"{hard} answers allocators of up to {rate(covered)} before the reserve is touched"
    for one in found.cases:
        if one.needed_bytes <= hard_bytes:
            yield f"{one.name} ({rate(one.rate_bytes)})"
    ticked = covered_rate_bytes(hard_bytes, found.seconds + interval_seconds, found.terms.reserve_bytes)
    yield f"with polling alone (every {interval_seconds:g} s): {rate(ticked)}"


def _general(settings: Settings, history: History) -> Iterator[str]:
    if settings.dry_run:
        yield "dryRun is on: no pod is evicted at all"
    if history.missed:
        killed = counted(history.missed, "process", "processes")
        yield f"the kernel's OOM killer has killed {killed}: the node was out of memory"


def _hard_misses(hard: Threshold, hard_bytes: int, found: Recommendation) -> Iterator[str]:
    terms = found.terms
    if hard_bytes < terms.reserve_bytes:
        yield (
            f"{hard} is below the reserve of {amount(terms.reserve_bytes)}: the kernel reclaims in the "
            "allocators' own time before it is crossed"
        )
    for one in found.cases:
        wanted = one.needed_bytes
        if wanted > hard_bytes:
            yield (
                f"{one.name}: takes {amount(wanted - terms.reserve_bytes)} at {rate(one.rate_bytes)} before "
                f"memory is back, with the reserve {amount(wanted)}: {amount(wanted - hard_bytes)} more than "
                f"{hard} keeps"
            )


def _history_misses(hard_bytes: int, found: Recommendation, history: History) -> Iterator[str]:
    covered = covered_rate_bytes(hard_bytes, found.seconds, found.terms.reserve_bytes)
    faster = [one for one in history.rates_bytes if one > covered]
    if faster:
        yield (
            f"memory grew faster than that {len(faster)} times of the {len(history.rates_bytes)} that the "
            f"history has, by up to {rate(max(faster))}"
        )


def _soft_misses(
    settings: Settings, soft: Threshold | None, hard_bytes: int, found: Recommendation, history: History
) -> Iterator[str]:
    if soft is None:
        yield "no soft threshold for memory.available: no pod is ever given time to exit by itself"
        return
    room_bytes = int(soft.value.of(found.node.capacity_bytes)) - hard_bytes
    if room_bytes <= 0:
        yield f"{soft} is not above the hard threshold, which therefore always comes first"
        return
    pod_seconds = settings.eviction.max_pod_grace_period_seconds
    if pod_seconds == 0:
        yield "evictionMaxPodGracePeriod is 0: pods evicted for the soft threshold are killed at once"
    if 0 <= pod_seconds < max(history.terminated_seconds, default=0.0):
        slowest = duration(max(history.terminated_seconds))
        yield f"pods took up to {slowest} to exit, and are given {pod_seconds} s"
    seconds = soft.grace_period_seconds + max(0, pod_seconds)
    served = room_bytes / seconds
    if served < found.soft.rate_bytes:
        yield (
            f"{soft} leaves {amount(room_bytes)} above the hard threshold: enough for its grace periods of "
            f"{seconds:g} s up to {rate(served)}; {rate(found.soft.rate_bytes)} have to be expected"
        )
    early = [spell for spell in history.spells_seconds if spell >= soft.grace_period_seconds]
    if early:
        yield (
            f"{len(early)} of {len(history.spells_seconds)} shortages that ended without an eviction lasted "
            f"longer than its grace period of {soft.grace_period_seconds:g} s"
        )
