"""`python -m bench.time_left`: the estimated time until a crossing beside the real one, as JSON and a plot.

On a virtual node allocators take memory by courses: ramps, steps, a sawtooth, page cache, bursts. The watch
of the guard samples as it does in the daemon, but nobody is evicted: the real crossing is waited for. Each
estimate is kept with the time that was really left (None: it was never crossed).
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from reactor.config.settings import load_settings
from reactor.kernel.cgroup import CgroupTree
from reactor.model.decisions import PolicyState, TimeLeft
from reactor.model.settings import Settings
from reactor.model.signals import Signal
from reactor.observe.node import NodeObserver
from reactor.testbed.allocator import compiled_tool
from reactor.testbed.virtual_node import VirtualNode
from reactor.time_left.watch import Needs, TimeLeftWatch

_MIB: Final = 1 << 20
_NODE_MIB: Final = 2048
_HARD_MIB: Final = 256
_SOFT_MIB: Final = 1280
_CROSSING_MIB: Final = _NODE_MIB - _HARD_MIB  # of use
_SOFT_USE_MIB: Final = _NODE_MIB - _SOFT_MIB
_LOOK_SECONDS: Final = 0.002
_OVER_SECONDS: Final = 1.0
_MOST_SECONDS: Final = 200.0
_MOST_RUNS: Final = 100  # of a course
_MEMORY: Final = Signal.MEMORY_AVAILABLE
# Writes a file at a rate: page cache that is not in use.
_WRITES: Final = """
import os, sys, time
path, rate, most = sys.argv[1], int(sys.argv[2]) << 20, int(sys.argv[3]) << 20
fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
began, size, piece = time.monotonic(), 0, bytes(1 << 20)
while size < most:
    if size < (time.monotonic() - began) * rate:
        size += os.pwrite(fd, piece, size)
    else:
        time.sleep(0.002)
time.sleep(3600)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What is taken: segments for course.c, and files that are written beside it by so many MiB a second."""

    name: str
    segments: Sequence[tuple[float, float]] = ()
    writes_mib_per_second: int = 0


@dataclass(slots=True, kw_only=True)
class Seen:
    """One run: `estimates` are (real time left, likely, earliest, latest) where a time was foreseen."""

    course: str
    seconds_to_crossing: float | None = None
    samples: int = 0
    estimates: list[tuple[float | None, float, float, float]] = field(default_factory=list)
    first_foreseen_left: float | None = None


def ramp(mib_per_second: float, seconds: float) -> Course:
    """Return a ramp that crosses after so long, from what is taken at once before."""
    start = max(64.0, _CROSSING_MIB - mib_per_second * seconds)
    rise = _CROSSING_MIB + 64 - start
    unit = f"{mib_per_second:g} MiB/s" if mib_per_second < 1024 else f"{mib_per_second / 1024:g} GiB/s"
    return Course(name=f"ramp {unit}", segments=((0, start), (rise / mib_per_second, start + rise)))


def courses() -> Iterator[Course]:
    """Yield the courses: those that cross, and those that do not."""
    yield ramp(1, 90)
    yield ramp(10, 60)
    yield ramp(50, 30)
    yield ramp(200, 10)
    yield ramp(1024, 4)
    yield Course(name="full speed", segments=((0, 64), (1, 64), (0, _CROSSING_MIB + 64)))
    steps = [(0.0, 800.0)]
    while steps[-1][1] < _CROSSING_MIB + 64:
        steps += [(1.0, steps[-1][1]), (0, steps[-1][1] + 64)]
    yield Course(name="steps of 64 MiB each second", segments=steps)
    teeth = [(0.0, 800.0)]
    for _ in range(12):
        teeth += [(2.0, 1300.0), (0.1, 800.0)]
    yield Course(name="sawtooth of 500 MiB", segments=[*teeth, (1.0, 800.0)])
    leak = [(0.0, 800.0)]
    for tooth in range(40):
        low = 800.0 + 40 * (tooth + 1)
        leak += [(1.0, low + 60), (0.05, low)]
    yield Course(name="sawtooth of 100 MiB that leaks 40 MiB/s", segments=leak)
    beside = ramp(25, 30)
    yield Course(
        name="ramp 25 MiB/s beside page cache 50 MiB/s", segments=beside.segments, writes_mib_per_second=50
    )
    bursts = [(0.0, 800.0)]
    for seconds in (1.0, 2.0, 1.5, 1.0, 2.0):
        bursts += [(seconds, 1200.0), (0.5, 1200.0), (0.2, 800.0), (3.0, 800.0)]
    yield Course(name="bursts of 400 MiB in 1 to 2 s", segments=bursts)
    yield Course(name="bursts, the last of which crosses", segments=[*bursts, (4.0, _CROSSING_MIB + 64.0)])


def run(tree: CgroupTree, course: Course, directory: Path) -> Seen:
    """Have a course happen on a node of its own."""
    with VirtualNode(tree, (_NODE_MIB + 512) * _MIB, "reactor-time-left") as node:
        hog = node.add_pod("hog")
        node.tree.set_memory_limit(node.cgroup, _NODE_MIB * _MIB)
        config = directory / "reactor.json"
        config.write_text(
            json.dumps(
                {
                    "evictionHard": {"memory.available": f"{_HARD_MIB}Mi"},
                    "evictionSoft": {"memory.available": f"{_SOFT_MIB}Mi"},
                    "evictionSoftGracePeriod": {"memory.available": "90s"},
                    "reactor": {"nodeCgroup": node.cgroup},
                }
            )
        )
        settings = load_settings(config)
        observer = NodeObserver(tree, settings)
        try:
            record = directory / "record"
            record.unlink(missing_ok=True)
            segments = [f"{seconds:.6f}:{mib:.3f}" for seconds, mib in course.segments]
            if course.writes_mib_per_second:
                rate = str(course.writes_mib_per_second)
                path = str(directory / "file")
                writer = [sys.executable, "-S", "-c", _WRITES, path, rate, str(_NODE_MIB)]
                node.spawn(node.add_pod("writer"), writer)
            tool = str(compiled_tool("course", package="bench"))
            process = node.spawn(hog, [tool, str(record), "0", *segments])
            seen = _follow(settings, observer, course, lambda: _is_over(record, process.poll))
        finally:
            observer.close()
    (directory / "file").unlink(missing_ok=True)
    return seen


def _is_over(record: Path, poll: Callable[[], int | None]) -> bool:
    with suppress(FileNotFoundError):
        return "done" in record.read_text()
    return poll() is not None


def _follow(settings: Settings, observer: NodeObserver, course: Course, is_over: Callable[[], bool]) -> Seen:
    estimated: list[tuple[float, TimeLeft]] = []

    def report(lefts: Mapping[Signal, TimeLeft]) -> None:
        if _MEMORY in lefts:
            estimated.append((time.monotonic(), lefts[_MEMORY]))

    watch = TimeLeftWatch(
        settings.eviction,
        state=PolicyState,
        observe=observer.memory,
        held_bytes=lambda _: None,
        report=report,
        wake=lambda _: None,
        needs=Needs(),
    )
    began_short, crossed = _until_crossed(watch, observer, is_over)
    seen = Seen(course=course.name, samples=len(estimated))
    if crossed is not None and began_short is not None:
        seen.seconds_to_crossing = round(crossed - began_short, 3)
    for at, left in estimated:
        if left.seconds is None or (crossed is not None and at >= crossed):
            continue
        real = None if crossed is None else round(crossed - at, 3)
        bounds = (left.seconds, left.earliest_seconds or 0.0, left.latest_seconds or 0.0)
        seen.estimates.append((real, *(round(one, 3) for one in bounds)))  # type: ignore[arg-type]
        if seen.first_foreseen_left is None:
            seen.first_foreseen_left = real
    return seen


def _until_crossed(
    watch: TimeLeftWatch, observer: NodeObserver, is_over: Callable[[], bool]
) -> tuple[float | None, float | None]:
    """Sample as the daemon does; return when memory was short first, and when the threshold was crossed."""
    began_short: float | None = None
    due = 0.0
    deadline = time.monotonic() + _MOST_SECONDS
    while (now := time.monotonic()) < deadline:
        memory = observer.memory()
        if memory[_MEMORY].available < _HARD_MIB * _MIB:
            return began_short, now
        if watch.is_short(memory):
            began_short = began_short or now
            if now >= due:
                due = now + watch.sample()
        if is_over():
            deadline = min(deadline, now + _OVER_SECONDS) if deadline - now > _OVER_SECONDS else deadline
        time.sleep(_LOOK_SECONDS)
    return began_short, None


def summary(runs: Sequence[Seen]) -> dict[str, Any]:
    """Return how good the estimates of one course were."""
    known = [
        (real, likely, earliest, latest)
        for one in runs
        for real, likely, earliest, latest in one.estimates
        if real is not None
    ]
    crossing = [one.seconds_to_crossing for one in runs if one.seconds_to_crossing is not None]
    first = [one.first_foreseen_left for one in runs if one.first_foreseen_left is not None]
    errors = [abs(likely - real) / max(real, 0.1) for real, likely, _, _ in known]
    within = [earliest - 0.1 <= real <= latest + 0.1 for real, _, earliest, latest in known]
    return {
        "runs": len(runs),
        "crossed": len(crossing),
        "seconds_to_crossing": round(statistics.median(crossing), 2) if crossing else None,
        "first_foreseen_seconds_before": round(statistics.median(first), 2) if first else None,
        "estimates": len(known),
        "median_error_percent": round(100 * statistics.median(errors), 1) if errors else None,
        "within_bounds_percent": round(100 * sum(within) / len(within), 1) if within else None,
        "samples": sum(one.samples for one in runs),
        "foreseen_in_vain": sum(1 for one in runs for real, *_ in one.estimates if real is None),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, store and print the figures."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.time_left",
        description="Measure the estimated time until a crossing beside the real one (root, ten minutes).",
        epilog="example: python -m bench.time_left --runs 3 --out time-left.json",
    )
    parser.add_argument("--runs", type=int, default=3, help="runs of each course (3)")
    parser.add_argument("--out", type=Path, help="the file for the figures")
    parser.add_argument("--plot", type=Path, help="the file for the plot, SVG")
    parser.add_argument("--from", dest="stored", type=Path, help="plot stored figures, measure nothing")
    parser.add_argument("--only", help="courses whose name has this in it")
    parser.add_argument(
        "--least", type=int, default=0, help="more runs of a course until it has so many estimates"
    )
    parser.add_argument("--add", type=Path, help="stored figures that the runs are added to")
    asked = parser.parse_args(arguments)
    if asked.stored is not None:
        document = json.loads(asked.stored.read_text())
    else:
        stored = {} if asked.add is None else json.loads(asked.add.read_text())["runs"]
        document = _measured(asked.runs, asked.only or "", asked.least, stored)
    if asked.out is not None:
        asked.out.write_text(json.dumps(document) + "\n")
    if asked.plot is not None:
        from bench.time_left_plot import write_plot  # noqa: PLC0415 - needs the extra

        write_plot(document, asked.plot)
    print("| course | crosses after, s | first foreseen, s before | median error | within bounds | in vain |")
    print("|---|--:|--:|--:|--:|--:|")
    for name, one in document["summary"].items():
        print(
            f"| {name} | {_cell(one['seconds_to_crossing'])} | {_cell(one['first_foreseen_seconds_before'])} "
            f"| {_cell(one['median_error_percent'], ' %')} | {_cell(one['within_bounds_percent'], ' %')} "
            f"| {one['foreseen_in_vain']} of {one['samples']} |"
        )
    return 0


def _cell(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{value:g}{unit}"


def _measured(
    runs: int, only: str, least: int, stored: Mapping[str, Sequence[Mapping[str, Any]]]
) -> dict[str, Any]:
    tree = CgroupTree.discover()
    seen = {name: [Seen(**one) for one in found] for name, found in stored.items()}
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        for number in range(_MOST_RUNS):
            for course in courses():
                found = seen.setdefault(course.name, [])
                if only in course.name and (number < runs or _is_wanted(found, least)):
                    found.append(run(tree, course, Path(directory)))
                    print(f"{course.name}: {summary(found[-1:])}", file=sys.stderr)
    return {
        "kernel": platform.release(),
        "cgroups": str(tree.version.name),
        "node_mib": _NODE_MIB,
        "soft_mib": _SOFT_MIB,
        "hard_mib": _HARD_MIB,
        "summary": {name: summary(found) for name, found in seen.items() if found},
        "runs": {name: [asdict(one) for one in found] for name, found in seen.items() if found},
    }


def _is_wanted(found: Sequence[Seen], least: int) -> bool:
    """Return whether a course has fewer estimates than are wanted, or samples if it never crosses."""
    crosses = any(one.seconds_to_crossing is not None for one in found)
    return sum(len(one.estimates) if crosses else one.samples for one in found) < least


if __name__ == "__main__":
    sys.exit(main())
