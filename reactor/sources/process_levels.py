"""How many tasks there may be before a threshold on pid.available is crossed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from reactor.model.thresholds import Threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLevels:
    """The thresholds on pid.available, and the number of tasks (threads included) to compare with them.

    `cgroup` is the one whose tasks are counted, "/" the machine; `used` is the last observation of their
    number, `limit` the most there can be.
    """

    cgroup: str
    limit: int
    used: int
    thresholds: tuple[Threshold, ...]

    def fire(self, threshold: Threshold) -> int:
        """Return the smallest number of tasks that leaves less than the threshold."""
        return max(0, math.floor(self.limit - threshold.value.of(self.limit)) + 1)

    @property
    def fires(self) -> tuple[int, ...]:
        """Return for each threshold the number of tasks at which it is crossed."""
        return tuple(map(self.fire, self.thresholds))

    @property
    def margin(self) -> int | None:
        """Return how many more there may be before the nearest threshold is met; None without thresholds."""
        return min((max(0, self.fire(one) - 1 - self.used) for one in self.thresholds), default=None)
