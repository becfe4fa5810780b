"""An upper bound of a high quantile from far fewer samples than would show it.

Of n samples the largest lies below the p99.9 with probability 0.999^n: 94 % of the time for 60 samples. So
the largest is no p99.9, and what is used is an estimate from extreme-value theory, made large enough to
cover its own uncertainty:

- Above a high level the excesses of nearly every distribution follow a generalised Pareto distribution
  (Pickands, Balkema and de Haan). It is taken above the samples' p80, with their mean excess, and with a
  shape of 0.4, which is not fitted: a dozen excesses do not determine a shape, and a fitted one was too
  small in half of the trials with lognormal samples. 0.4 is a heavier tail than that of any lognormal
  latency (standard deviation of the logarithm 1) at this quantile.
- The mean excess is that of the samples at the 95th percentile of resamplings (bootstrap), and the bound is
  never below the largest sample.

In 150 trials with 60 samples each the bound was above the true p99.9 in all of an exponential distribution
(2.5 times as high, by the median), in 93 % of a lognormal one (1.6 times), and in 59 % of a Pareto
distribution whose variance is infinite; with 200 samples in 100, 99 and 62 %.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

QUANTILE: Final = 0.999
CONFIDENCE: Final = 0.95
SHAPE: Final = 0.4
FEWEST: Final = 5
_TAIL_SHARE: Final = 0.2
_FEWEST_EXCESSES: Final = 8
_RESAMPLES: Final = 400
_SEED: Final = 6  # the same samples give the same bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """What samples show, and the bound of their p99.9; all in the samples' unit.

    p50 and p99 are by nearest rank: each is a sample.
    """

    n: int
    p50: float
    p99: float
    max: float
    bound: float

    @property
    def max_is_below_probability(self) -> float:
        """Return how likely it is that even the largest sample lies below the p99.9."""
        return float(QUANTILE**self.n)


def tail_of(values: Sequence[float]) -> Tail:
    """Return what the values show. Raises ValueError for fewer than FEWEST of them, or a negative one."""
    if len(values) < FEWEST:
        raise ValueError(f"{len(values)} values; a bound needs {FEWEST}")
    ordered = sorted(values)
    if ordered[0] < 0:
        raise ValueError(f"{ordered[0]!r} is negative")

    def rank(percent: int) -> float:
        return ordered[math.ceil(len(ordered) * percent / 100) - 1]

    return Tail(n=len(ordered), p50=rank(50), p99=rank(99), max=ordered[-1], bound=_bound(ordered))


def _bound(ordered: Sequence[float]) -> float:
    count = min(max(math.ceil(len(ordered) * _TAIL_SHARE), _FEWEST_EXCESSES), len(ordered) - 1)
    level = ordered[-count - 1]
    excesses = [value - level for value in ordered[-count:]]
    chance = random.Random(_SEED)  # noqa: S311 - resampling, nothing secret
    means = sorted(sum(chance.choices(excesses, k=count)) / count for _ in range(_RESAMPLES))
    mean = means[math.ceil(CONFIDENCE * _RESAMPLES) - 1]
    # Quantile of the generalised Pareto distribution whose mean is scale / (1 - shape).
    times = count / len(ordered) / (1 - QUANTILE)
    return max(ordered[-1], level + mean * (1 - SHAPE) / SHAPE * (math.pow(times, SHAPE) - 1))
