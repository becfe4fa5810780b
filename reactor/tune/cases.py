"""Who may be allocating: each assumption, the hard threshold that it asks for, and which one is taken."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from reactor.errors import RefusedError
from reactor.tune.history import History
from reactor.tune.measured import Growth, Measured


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
