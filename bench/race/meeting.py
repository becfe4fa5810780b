"""Rounds of heats: every contestant has its turn in each, in another order, on a node made again for it."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.race.contestants import AnyCourse, Contestant, Entrant
from bench.race.enclosure import Enclosure
from bench.race.heat import STEP, Finish, Track
from bench.race.pressed import PressedCourse, measured_under_pressure, pressed_heat
from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree
from reactor.testbed.allocator import MIB
from reactor.testbed.crossing import busy_cpus, cpu_percent, rss_mib
from reactor.testbed.virtual_node import VirtualNode

# Any point of a peer's longest sleep: a second far from its threshold, a tenth of one near it.
_PAUSE_MS: Final = {True: (300, 1300), False: (200, 500)}
_SETTLE_SECONDS: Final = 0.3  # what a peer does after a kill, and a daemon to be armed again
_HEAT_SECONDS: Final = 2.5  # one heat with what is around it, natively
_AT_REST_SECONDS: Final = 2.0
_PATIENCE_SECONDS: Final = 30.0
_MISSES: Final = 2  # after so many on one course a contestant runs it no more
_OTHERS: Final = 2  # pods of the node that take no part; a course under pressure has its own
_TRACE_BEFORE_MS: Final = 100.0
_TRACE_AFTER_MS: Final = 700.0
_TRACE_STEP_MIB: Final = 2.0
_TRACE_STEP_MS: Final = 20.0

Trace = list[tuple[float, float]]


@dataclass(slots=True, kw_only=True)
class Seen:
    """What one contestant has shown besides its heats."""

    rss_mib: float | None = None
    at_rest_cpu_percent: float | None = None
    misses: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


class Meeting:
    """Has the contestants take turns; every turn leaves the machine as it was."""

    def __init__(self, tree: CgroupTree, tool: Path, directory: Path, seed: int) -> None:
        self._tree = tree
        self._tool = tool
        self._directory = directory
        self._random = random.Random(seed)  # noqa: S311 - for pauses and turns
        self.heats: list[dict[str, Any]] = []
        self.seen: dict[str, Seen] = {}
        self.planned = 0
        self._traces: dict[tuple[str, str], list[tuple[float, Trace]]] = {}

    def run(
        self, contestants: Sequence[Contestant], courses: Sequence[AnyCourse], rounds: int, heats_a_turn: int
    ) -> None:
        """Have every contestant run every course."""
        turns = [course for one in contestants for course in courses if one.takes_part(course)]
        self.planned = heats = rounds * heats_a_turn * len(turns)
        seconds = rounds * heats_a_turn * sum(map(_longest_seconds, turns))
        _say(f"{heats} heats, about {seconds / 60:.0f} minutes at most on an idle machine")
        for number in range(1, rounds + 1):
            for contestant in self._random.sample(contestants, len(contestants)):
                _say(f"round {number} of {rounds}: {contestant.name}")
                seen = self.seen.setdefault(contestant.name, Seen())
                try:
                    self._turn(contestant, seen, courses, number, heats_a_turn)
                except (ReactorError, OSError, subprocess.SubprocessError) as error:
                    _say(f"{contestant.name}: {error}")
                    seen.problems.append(str(error))

    def traces(self) -> dict[str, dict[str, Trace]]:
        """Return course -> contestant -> the node's usage in the heat that was nearest to the median."""
        found: dict[str, dict[str, Trace]] = {}
        for (course, contestant), traces in self._traces.items():
            ranked = sorted(traces, key=lambda trace: trace[0])
            found.setdefault(course, {})[contestant] = ranked[(len(ranked) - 1) // 2][1]
        return found

    def _turn(
        self, contestant: Contestant, seen: Seen, courses: Sequence[AnyCourse], number: int, heats: int
    ) -> None:
        ground = contestant.ground
        with (
            ground.within() as above,
            VirtualNode(
                self._tree,
                ground.memory_bytes,
                f"{above}reactor-race-{os.getpid()}",
                swap_bytes=ground.swap_bytes,
            ) as node,
            Enclosure(node, self._directory) as inside,
        ):
            for other in range(_OTHERS if ground.is_plain else 0):
                node.spawn(node.add_pod(f"other-{other}"), [str(self._tool), "idle"])
            track = Track(node, inside, self._tool, self._directory)
            with contestant.enter(track) as entrant:
                if entrant.pid is not None and seen.at_rest_cpu_percent is None:
                    percent = cpu_percent(entrant.pid, lambda: time.sleep(_AT_REST_SECONDS))
                    seen.at_rest_cpu_percent = round(percent, 3)
                for course in courses:
                    if contestant.takes_part(course) and seen.misses[course.name] < _MISSES:
                        self._course(track, contestant, entrant, course, number, heats)
                if entrant.pid is not None and entrant.problem() is None:
                    seen.rss_mib = max(seen.rss_mib or 0.0, rss_mib(entrant.pid))

    def _course(
        self,
        track: Track,
        contestant: Contestant,
        entrant: Entrant,
        course: AnyCourse,
        number: int,
        heats: int,
    ) -> None:
        seen = self.seen[contestant.name]
        for _ in range(heats):
            found = self._heat(track, contestant, entrant, course)
            if problem := entrant.problem():
                raise ReactorError(problem)
            self.heats.append(
                {"contestant": contestant.name, "course": course.name, "round": number, **found}
            )
            if found["kill_ms"] is None and not found["early"]:
                seen.misses[course.name] += 1
                return
            time.sleep(_SETTLE_SECONDS)

    def _heat(
        self, track: Track, contestant: Contestant, entrant: Entrant, course: AnyCourse
    ) -> Mapping[str, Any]:
        if isinstance(course, PressedCourse):
            pause_ms = self._random.randint(*_PAUSE_MS[True])
            pressed = measured_under_pressure(pressed_heat(track, course, pause_ms))
            return {**pressed, "decisions": list(entrant.decisions())}
        pause_ms = self._random.randint(*_PAUSE_MS[course.pace == STEP])
        with busy_cpus(self._tool) if course.is_busy else nullcontext():
            finish = track.heat(course, entrant.arm, pause_ms, _PATIENCE_SECONDS)
        found = measured(finish)
        if (kill_ms := found["kill_ms"]) is not None and finish.crossed_ns is not None:
            trace = thinned(finish.samples, finish.crossed_ns)
            self._traces.setdefault((course.name, contestant.name), []).append((kill_ms, trace))
        return found


def measured(finish: Finish) -> Mapping[str, float | None]:
    """Return a heat's figures: ms from the crossing, MiB past the level; None for what did not happen.

    A kill before the crossing has no latency and is `early`: by a wrong word, or where there is page cache
    because the kernel's statistics know of it to some hundred KiB only (64 pages for each CPU and cgroup).
    """
    kill_ms = _since(finish.crossed_ns, finish.dead_ns)
    back_ms = _since(finish.crossed_ns, finish.back_ns)
    overshoot_mib = (finish.peak_bytes - finish.level_bytes) / MIB
    return {
        "kill_ms": kill_ms,
        "early": finish.dead_ns is not None and kill_ms is None,
        "back_ms": back_ms if kill_ms is not None else None,
        "overshoot_mib": round(overshoot_mib, 3) if finish.crossed_ns is not None else None,
    }


def thinned(samples: Iterable[tuple[int, int]], crossed_ns: int) -> Trace:
    """Return the samples around the crossing, as ms since it and MiB, without those that tell nothing new."""
    trace: Trace = []
    for at_ns, used_bytes in samples:
        at_ms, used_mib = (at_ns - crossed_ns) / 1e6, used_bytes / MIB
        if not -_TRACE_BEFORE_MS <= at_ms <= _TRACE_AFTER_MS:
            continue
        last_ms, last_mib = trace[-1] if trace else (float("-inf"), 0.0)
        if at_ms - last_ms >= _TRACE_STEP_MS or abs(used_mib - last_mib) >= _TRACE_STEP_MIB:
            trace.append((round(at_ms, 1), round(used_mib, 1)))
    return trace


def _since(start_ns: int | None, end_ns: int | None) -> float | None:
    if start_ns is None or end_ns is None or end_ns < start_ns:
        return None
    return round((end_ns - start_ns) / 1e6, 4)


def _longest_seconds(course: AnyCourse) -> float:
    return course.patience_seconds if isinstance(course, PressedCourse) else _HEAT_SECONDS


def _say(what: str) -> None:
    print(f"reactor bench race: {what}", file=sys.stderr, flush=True)
