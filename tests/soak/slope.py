"""Whether a series stays flat: its slope by least squares, and what moved over its quarters."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

Series = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slope:
    """How a series moved: by hour, and the least of its first and last quarter.

    What is lost for good is missing at each instant from then on. What is taken for a while (loading eBPF
    programs takes 5 MiB, which the next load takes again) is not, and moves a median.
    """

    per_hour: float
    first_quarter: float
    last_quarter: float

    @property
    def moved(self) -> float:
        """Return by how much the least of the last quarter lies above that of the first."""
        return self.last_quarter - self.first_quarter

    def is_flat(self, tolerance: float) -> bool:
        """Tell whether it rose by no more than that. No outlier above changes that."""
        return self.moved <= tolerance


def slope(series: Series) -> Slope:
    """Return the slope of (seconds, value) pairs in the order of time. Raises ValueError for none."""
    if not series:
        raise ValueError("got an empty series; accepted: at least one (seconds, value)")
    quarter = max(1, len(series) // 4)
    return Slope(
        per_hour=3600 * _least_squares(series),
        first_quarter=min(value for _, value in series[:quarter]),
        last_quarter=min(value for _, value in series[-quarter:]),
    )


def _least_squares(series: Series) -> float:
    mean_at = statistics.fmean(at for at, _ in series)
    mean_value = statistics.fmean(value for _, value in series)
    spread = sum((at - mean_at) ** 2 for at, _ in series)
    return sum((at - mean_at) * (value - mean_value) for at, value in series) / spread if spread else 0.0
