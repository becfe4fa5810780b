"""`python -m tests.soak.in_time`: when pods are asked to end in time, over thousands of simulated courses.

The watch of the guard samples, and the policy decides, as in the daemon; memory and clock are simulated. A
pod takes the time `way_seconds` from the soft threshold to the hard one and needs up to half of it to end.
How long is known from an ending before, or not. A course either crosses, or it stops at a random point, or
comes back. A pod that is asked to end grows on until it has ended: if it had the time that it needed, it has
saved its state. Who wants almost all of them to save has to ask each at the latest when no more is left than
it needs: of a fall that stops after that moment nobody can know that it will.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from reactor.model.decisions import Eviction, PolicyState, Snapshot, TimeLeft
from reactor.model.pods import Pod, PodUsage
from reactor.model.settings import EvictionSettings
from reactor.model.signals import Signal
from reactor.model.thresholds import Observation
from reactor.policy.decide import decide
from reactor.policy.in_time import with_ending
from reactor.time_left.watch import Needs, TimeLeftWatch
from tests.support.builders import make_threshold

_MIB: Final = 1 << 20
_NODE_MIB: Final = 2560
_HARD_MIB: Final = 256
_GRACE_SECONDS: Final = 30.0
_ALLOWED_SECONDS: Final = 20
_NOISE_MIB: Final = 1.0
_PIECE_MIB: Final = 0.25
_LATE_SECONDS: Final = (0.0, 0.03)  # a sample, on a busy machine
_WAYS: Final = {1: 24, 4: 48, 16: 128, 64: 384, 256: 1536, 1024: 1536}  # MiB between thresholds, by MiB/s
_MEMORY: Final = Signal.MEMORY_AVAILABLE
_HALF: Final = "needs exactly half"
_SPARE: Final = 1.25
_EARLY: Final = "that much before the threshold that a quarter more is left than it needs"


class Known(StrEnum):
    """What the guard knows of how long the pod takes to end."""

    TIME = "known"
    NOTHING = "not known"
    CUT = "never ended in time"  # so that it is asked as soon as is foreseen that it has to be


class Shape(StrEnum):
    """How a pod takes memory past the soft threshold."""

    RAMP = "ramp"
    STEPS = "steps"
    LEAKING = "sawtooth that leaks"
    CACHE = "ramp beside page cache that becomes used"
    LAST_BURST = "bursts, the last of which goes on"
    STOPS = "ramp that stops at a random point"
    STEPS_STOP = "steps that stop at a random point"
    SAWTOOTH = "sawtooth"
    BURSTS = "bursts of 1 to 2 s that come back"


CROSSING: Final = (Shape.RAMP, Shape.STEPS, Shape.LEAKING, Shape.CACHE, Shape.LAST_BURST)
STOPPING: Final = (Shape.STOPS, Shape.STEPS_STOP)
BACK: Final = (Shape.SAWTOOTH, Shape.BURSTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What is taken beyond the soft threshold, in shares of the way, by seconds since it was met."""

    shape: Shape
    rate_mib: int
    way_seconds: float
    need_seconds: float
    points: Sequence[tuple[float, float]]

    def taken(self, at_seconds: float) -> float:
        """Return the share of the way that is taken by then; above 1 the hard threshold is crossed."""
        before = (0.0, 0.0)
        for point in self.points:
            if at_seconds < point[0]:
                share = (at_seconds - before[0]) / (point[0] - before[0])
                return before[1] + share * (point[1] - before[1])
            before = point
        return before[1]

    @property
    def farthest(self) -> float:
        return max(share for _, share in self.points)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of a course: `asked_seconds` is when the pod was asked to end (None: it was not)."""

    course: Course
    known: Known
    crossed_seconds: float | None
    asked_seconds: float | None
    given_seconds: int = 0

    @property
    def saved(self) -> bool:
        if self.asked_seconds is None or self.crossed_seconds is None:
            return False
        had_seconds = min(self.crossed_seconds - self.asked_seconds, self.given_seconds)
        return had_seconds >= self.course.need_seconds

    @property
    def spare(self) -> float:
        """How much time was left where the course was farthest, as a multiple of what the pod needs."""
        left_seconds = (1 - self.course.farthest) * self.course.way_seconds
        return left_seconds / self.course.need_seconds


def course(shape: Shape, rate_mib: int, drawn: random.Random, half: float | None = None) -> Course:
    """Return a course at such a mean rate; the pod needs so much of half the way, or a random part of it."""
    way = _WAYS[rate_mib] / rate_mib
    need = way / 2 * (drawn.uniform(0.3, 1.0) if half is None else half)
    points = _POINTS[shape](way, drawn)
    return Course(shape=shape, rate_mib=rate_mib, way_seconds=way, need_seconds=need, points=points)


def _stops(way: float, drawn: random.Random) -> _Points:
    stop = drawn.uniform(0, 1)
    return [(stop * way, stop)]


def _leaking(way: float, _: random.Random) -> _Points:
    points = [(0.0, 0.05)]
    for tooth in range(1, 30):
        low = tooth / 20
        points += [(tooth * way / 20, low + 0.05), (tooth * way / 20 + 0.02, low)]
    return points


def _beside_cache(way: float, drawn: random.Random) -> _Points:
    turn = drawn.uniform(0.5, 0.8)
    return [(turn * way, turn), (turn * way + 0.3 * (1 - turn) * way, 1.1)]


def _sawtooth(way: float, drawn: random.Random) -> _Points:
    high = drawn.uniform(0.1, 0.5)
    turns = [(tooth + 1) * high * way for tooth in range(6)]
    return [point for at in turns for point in ((at, high), (at + 0.02, 0.0))]


def _bursts(_: float, drawn: random.Random) -> _Points:
    points, at = [], 0.0
    for _turn in range(drawn.randint(1, 4)):
        seconds, high = drawn.uniform(1, 2), drawn.uniform(0.1, 0.4)
        points += [(at + seconds, high), (at + seconds + 0.2, 0.0), (at + seconds + 2, 0.0)]
        at += seconds + 2
    return points


def _last_burst(way: float, drawn: random.Random) -> _Points:
    points = _bursts(way, drawn)
    return [*points, (points[-1][0] + 1.1 * way, 1.1)]


def _steps(way: float, drawn: random.Random, stop: float = 1.1) -> _Points:
    points, taken, number = [], 0.0, drawn.randint(10, 30)
    for step in range(1, 2 * number):
        if step / number >= stop:
            break
        at = step * way / number
        points += [(at - 0.01, taken), (at, step / number)]
        taken = step / number
    return points or [(0.01, 0.0)]


_Points = list[tuple[float, float]]
_POINTS: Final[Mapping[Shape, Callable[[float, random.Random], _Points]]] = {
    Shape.RAMP: lambda way, _: [(1.1 * way, 1.1)],
    Shape.STEPS: _steps,
    Shape.LEAKING: _leaking,
    Shape.CACHE: _beside_cache,
    Shape.LAST_BURST: _last_burst,
    Shape.STOPS: _stops,
    Shape.STEPS_STOP: lambda way, drawn: _steps(way, drawn, drawn.uniform(0, 1)),
    Shape.SAWTOOTH: _sawtooth,
    Shape.BURSTS: _bursts,
}


class _Memory:
    """The simulated node's memory, clock and policy."""

    def __init__(self, one: Course, drawn: random.Random, endings: Mapping[str, tuple[float, ...]]) -> None:
        self._course = one
        self._drawn = drawn
        self._way_bytes = _WAYS[one.rate_mib] * _MIB
        self.now_seconds = 1000.0
        soft = _HARD_MIB + _WAYS[one.rate_mib]
        self.settings = EvictionSettings(
            thresholds=(
                make_threshold(_HARD_MIB * _MIB),
                make_threshold(soft * _MIB, grace_period_seconds=_GRACE_SECONDS),
            ),
            max_pod_grace_period_seconds=_ALLOWED_SECONDS,
            soft_in_time=True,
        )
        self.state = PolicyState(endings=endings)
        self.lefts: Mapping[Signal, TimeLeft] = {}
        self.asked: Eviction | None = None
        self.watch = TimeLeftWatch(
            self.settings,
            state=lambda: self.state,
            observe=self.observe,
            held_bytes=lambda _: 0,
            report=self._report,
            wake=lambda _: self.make_pass(),
            needs=Needs(),
            clock_seconds=lambda: self.now_seconds,
        )

    def _report(self, lefts: Mapping[Signal, TimeLeft]) -> None:
        self.lefts = lefts

    def taken(self) -> float:
        return self._course.taken(self.now_seconds - 1000.0)

    def observe(self) -> Mapping[Signal, Observation]:
        taken = self.taken() * self._way_bytes // (_PIECE_MIB * _MIB) * _PIECE_MIB * _MIB
        noise = self._drawn.uniform(0, min(_NOISE_MIB * _MIB, self._way_bytes / 100))
        available = _HARD_MIB * _MIB + self._way_bytes - 4096 - taken - noise
        return {_MEMORY: Observation(available=max(0, int(available)), capacity=_NODE_MIB * _MIB)}

    def make_pass(self) -> None:
        snapshot = Snapshot(
            signals=self.observe(),
            pods={POD.uid: PodUsage(memory_working_set_bytes=1 << 30)},
            time_left=self.lefts,
        )
        self.state, decision = decide(self.settings, self.state, snapshot, (POD,), self.now_seconds)
        for eviction in decision.evictions:
            if not (eviction.threshold is not None and eviction.threshold.is_hard):
                self.asked = eviction


POD: Final = Pod(name="hog", namespace="default", uid="hog")


def run(one: Course, drawn: random.Random, known: Known) -> Result:
    """Follow a course until the pod is asked to end, or crosses, or nothing more comes."""
    seconds = one.need_seconds * drawn.uniform(0.9, 1.1) if known is Known.TIME else float(_ALLOWED_SECONDS)
    endings = with_ending({}, POD, seconds, was_cut=known is Known.CUT)
    memory = _Memory(one, drawn, {} if known is Known.NOTHING else endings)
    memory.make_pass()
    over_seconds = min(_GRACE_SECONDS - 0.5, one.points[-1][0] + 3)
    asked: float | None = None
    given = 0
    while (at := memory.now_seconds - 1000.0) < over_seconds:
        if memory.taken() >= 1:
            break
        pause_seconds = memory.watch.sample()
        if memory.asked is not None:
            asked, given = at, memory.asked.grace_period_seconds
            break
        memory.now_seconds += min(pause_seconds, 0.25) + drawn.uniform(*_LATE_SECONDS)
    crossed = None
    if one.farthest >= 1:
        low, high = 0.0, one.points[-1][0]
        for _ in range(60):  # of a course that comes back the last way up
            middle = (low + high) / 2
            low, high = (middle, high) if one.taken(middle) < 1 else (low, middle)
        crossed = high
    return Result(course=one, known=known, crossed_seconds=crossed, asked_seconds=asked, given_seconds=given)


def results(
    seeds: Sequence[int], shapes: Sequence[Shape] = tuple(Shape), half: float | None = None
) -> Iterator[Result]:
    """Yield results of each shape at each rate, with the need known and not, by seeds."""
    for seed in seeds:
        for shape in shapes:
            for rate in _WAYS:
                for known in Known:
                    drawn = random.Random(f"{seed} {shape} {rate}")
                    yield run(course(shape, rate, drawn, half), drawn, known)


def summary(found: Sequence[Result]) -> dict[str, Any]:
    """Return the figures by shape, `known` and `unknown`."""
    cells: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for one in found:
        is_half = 2 * one.course.need_seconds == one.course.way_seconds
        cells[f"{one.course.shape}, {_HALF}" if is_half else one.course.shape, one.known].append(one)
        if one.course.shape in STOPPING and one.spare > _SPARE:
            cells[f"{one.course.shape}, {_EARLY}", one.known].append(one)
    return {
        f"{shape}|{known}": {
            "courses": len(some),
            "saved": sum(one.saved for one in some),
            "asked": sum(one.asked_seconds is not None for one in some),
            "too_late_to_know": sum(0 < one.spare <= 1 for one in some),
        }
        for (shape, known), some in cells.items()
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate, and print the figures as a table in Markdown."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.in_time", description=__doc__)
    parser.add_argument("--seeds", type=int, default=50, help="how many (50)")
    parser.add_argument("--out", type=Path, help="the file for the figures, JSON")
    asked = parser.parse_args(arguments)
    seeds = range(asked.seeds)
    found = summary([*results(seeds), *results(seeds, CROSSING, half=1.0)])
    if asked.out is not None:
        asked.out.write_text(json.dumps(found, indent=1) + "\n")
    print(f"| course | {' | '.join(Known)} |\n|---|--:|--:|--:|")
    for shape in dict.fromkeys(key.split("|")[0] for key in found):
        of = "saved" if shape.removesuffix(f", {_HALF}") in CROSSING else "asked"
        cells = [found[f"{shape}|{known}"] for known in Known]
        shares = [f"{100 * one[of] / one['courses']:.1f} %" for one in cells]
        if late := cells[0]["too_late_to_know"]:
            of += f" ({100 * late / cells[0]['courses']:.1f} % stop too late to know)"
        print(f"| {shape}: {of}, of {cells[0]['courses']} | {' | '.join(shares)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
