"""How much an allocator takes in a time: bursts as they were measured, and what it goes on at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from reactor.tune.measured import Growth


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
