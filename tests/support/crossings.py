"""Crossings one after the other, timed by the test bed's C program, and what the guard did in the slowest.

For tests that compare how long a crossing takes to its kill under different circumstances, in turns: what the
machine does beside them is then the same for all.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from reactor.testbed.allocator import HogTimes, hog
from reactor.testbed.crossing import RATES, about, prepared_hog, summary
from reactor.testbed.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon

SECONDS: Final = float(os.environ.get("REACTOR_CHAOS_SECONDS", "20"))
PATIENCE_SECONDS: Final = 5 * SECONDS + 600  # of the test as a whole
_SLOWEST: Final = 3
_STAGES: Final = ("woke_ns", "started_ns", "observed_ns", "decided_ns", "killed_ns")


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """One hog's crossing. `place` counts those that crossed, as the journal's evictions do.

    `guard_waited_ms` is how long the guard's main thread was ready meanwhile and had no CPU.
    """

    place: int
    times: HogTimes
    guard_waited_ms: float
    load: float

    @property
    def to_kill_ms(self) -> float | None:
        """Return from the crossing to the canary's death, None where either did not happen."""
        if self.times.crossed_ns is None or self.times.dead_ns is None:
            return None
        return (self.times.dead_ns - self.times.crossed_ns) / 1e6


class Hogs:
    """Has one hog after the other cross at 1000 MiB/s; `crossings` are kept by what they were made beside."""

    def __init__(self, node: VirtualNode, daemon: RunningDaemon, tool: Path, directory: Path) -> None:
        self._node = node
        self._daemon = daemon
        self._tool = tool
        self._directory = directory
        self.crossings: dict[str, list[Crossing]] = {}
        self.crossed = 0

    def cross(self, beside: str, times: int) -> None:
        """Have so many cross, beside what is named."""
        self.crossings.setdefault(beside, []).extend(self._cross() for _ in range(times))

    @property
    def count(self) -> int:
        return sum(map(len, self.crossings.values()))

    @property
    def not_killed(self) -> int:
        return sum(one.to_kill_ms is None for some in self.crossings.values() for one in some)

    def document(self) -> dict[str, Any]:
        """Return the figures, and the slowest kills with the guard's own stages, in ms from the crossing.

        `wake_to_kill_ms` is what of it is the guard's: before its wake the kernel has told nothing. It checks
        a threshold only when the hog, which waits for a CPU like every process, has charged 128 pages more.
        """
        evictions = sorted(self._daemon.evictions(), key=lambda line: line["seq"])
        return {
            "about": {**about(self._node.tree.version), "load": [round(one, 1) for one in os.getloadavg()]},
            "crossing_to_kill_ms": {
                beside: _spread([one.to_kill_ms for one in some if one.to_kill_ms is not None])
                for beside, some in self.crossings.items()
            },
            "wake_to_kill_ms": {
                beside: _spread(
                    [_wake_to_kill_ms(evictions[one.place]) for one in some if one.place < len(evictions)]
                )
                for beside, some in self.crossings.items()
            },
            "not_killed": self.not_killed,
            "slowest": {beside: _slowest(some, evictions) for beside, some in self.crossings.items()},
        }

    def _cross(self) -> Crossing:
        assert self._daemon.process is not None
        cgroup, plan = prepared_hog(self._node, RATES["1000"])
        waited_ns = _waited_ns(self._daemon.process.pid)
        with hog(self._node, cgroup, self._tool, self._directory, plan) as running:
            times = running.times()
        waited_ns = _waited_ns(self._daemon.process.pid) - waited_ns
        place = self.crossed
        self.crossed += times.crossed_ns is not None
        return Crossing(
            place=place, times=times, guard_waited_ms=waited_ns / 1e6, load=round(os.getloadavg()[0], 1)
        )


def keep(name: str, figures: Mapping[str, Any], root: Path) -> None:
    """Keep figures as JSON in .cache of the checkout, and print what they come down to."""
    path = root / ".cache" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(figures, indent=1) + "\n")
    print(json.dumps({key: value for key, value in figures.items() if key != "slowest"}, indent=1))


def _spread(values: Sequence[float]) -> dict[str, float | int]:
    """Return p50, p90, p99, max and n by nearest rank. Raises ValueError for no values."""
    whole = summary(values)
    return {"p50": whole["p50"], "p90": round(sorted(values)[math.ceil(0.9 * len(values)) - 1], 3), **whole}


def _slowest(crossings: Sequence[Crossing], evictions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    killed = [one for one in crossings if one.to_kill_ms is not None]
    slowest = sorted(killed, key=lambda one: one.to_kill_ms or 0.0, reverse=True)[:_SLOWEST]
    return [
        {
            "to_kill_ms": one.to_kill_ms,
            "stages_ms": _stages_ms(one, evictions[one.place]),
            "woken_by": [wake["source"] for wake in evictions[one.place]["wakes"]],
            "guard_waited_for_a_cpu_ms": round(one.guard_waited_ms, 3),
            "load": one.load,
        }
        for one in slowest
        if one.place < len(evictions)
    ]


def _wake_to_kill_ms(eviction: Mapping[str, Any]) -> float:
    timing = eviction["timing"]
    return float(timing["killed_ns"] - timing["woke_ns"]) / 1e6


def _stages_ms(crossing: Crossing, eviction: Mapping[str, Any]) -> dict[str, float | None]:
    timing = eviction["timing"]
    return {
        name.removesuffix("_ns"): None
        if timing[name] is None
        else round((timing[name] - (crossing.times.crossed_ns or 0)) / 1e6, 3)
        for name in _STAGES
    }


def _waited_ns(pid: int) -> int:
    """Return how long a process's main thread has been ready without a CPU (the second of its schedstat)."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[1])
