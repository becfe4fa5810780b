"""`reactor bench`: the figures, measured on this machine, printed, stored as one JSON object and compared.

Crossings are measured with every CPU kept busy by something else, those by source on an idle machine.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.by_source import PROBE_COST, by_source, probe_cost
from bench.floor import FloorCrossings
from reactor.errors import ReactorError, RefusedError
from reactor.kernel.bpf.objects import absent_because
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.testbed.allocator import compiled_tool
from reactor.testbed.crossing import (
    RATES,
    THRESHOLDS,
    Crossings,
    Run,
    about,
    bench_node,
    busy_cpus,
    cpu_percent,
    rss_mib,
    summary,
)
from reactor.testbed.daemon_process import DaemonProcess
from reactor.testbed.virtual_node import ended_by_signals

FLOOR: Final = "floor"
BASELINE: Final = Path("docs/figures/baseline.json")
_BY_RATE: Final = ("crossing_to_wake_ms", "crossing_to_kill_ms", "crossing_to_freed_ms")
# Of these the floor has none of its own; its kill at full speed says how fast the machine was.
_OF_THE_DAEMON: Final = ("pass_ms",)
_AS_THEY_ARE: Final = ("rss_mib", "idle_cpu_percent", "fork_storm_cpu_percent")
# What counts as moved, in percent, where the machine is quiet; a p99 of 30 runs is the worst of them.
_TOLERANCE_PERCENT: Final = {"p50": 25.0, "p99": 100.0}
_TOLERANCE_AS_THEY_ARE_PERCENT: Final = 10.0
_LEAST_SHARE_PERCENT: Final = 0.1  # of a CPU: below it a share at rest is the clock's own noise
_NOISY_PERCENT: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """One figure that is not what it was."""

    name: str
    before: float
    now: float

    @property
    def percent(self) -> float:
        """Return by how much it has grown."""
        return (self.now / self.before - 1) * 100

    def __str__(self) -> str:
        """Return it as one line; every figure here is better where it is smaller."""
        verdict = "worse" if self.now > self.before else "better"
        return f"{self.name}: {self.before:.3g} -> {self.now:.3g}, {self.percent:+.0f} %, {verdict}"


def comparable(found: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a run by name, times in multiples of the floor's: `pass_ms/110/p50`.

    Raises KeyError where the run has no floor.
    """
    floor = found[FLOOR]
    figures: dict[str, float] = {}
    for name in _BY_RATE:
        for rate, summed in found[name].items():
            figures |= _ratios(f"{name}/{rate}", summed, floor[name][rate])
    machine = floor["crossing_to_kill_ms"]["max"]["p50"]
    for name in _OF_THE_DAEMON:
        for pods, summed in found[name].items():
            figures |= _ratios(f"{name}/{pods}", summed, {"p50": machine, "p99": machine})
    return figures | {name: float(found[name]) for name in _AS_THEY_ARE}


def moved(before: Mapping[str, float], now: Mapping[str, float], spread_percent: float) -> Iterator[Moved]:
    """Yield the figures that moved by more than they do by themselves; those that only one run has, never.

    `spread_percent` is by how much the floor's own medians differed in the present run.
    """
    for name in before.keys() & now.keys():
        found = Moved(name=name, before=before[name], now=now[name])
        if name in _AS_THEY_ARE:
            is_noise = max(found.before, found.now) < _LEAST_SHARE_PERCENT
            tolerance_percent = _TOLERANCE_AS_THEY_ARE_PERCENT
        else:
            is_noise = False
            tolerance_percent = max(_TOLERANCE_PERCENT[name.rpartition("/")[2]], 2 * spread_percent)
        if found.before > 0 and not is_noise and not _is_within(found, tolerance_percent):
            yield found


def report(found: Mapping[str, Any], path: Path) -> list[str]:
    """Return what a run says against the baseline in the file, as lines. Raises RefusedError."""
    stored = _stored(path)
    kind = kind_of(found)
    noise = (
        f"noise: the floor's medians differed by {found[FLOOR]['spread_percent']:.0f} % within the run"
        f"{'; that is much: the run shows only large differences' if is_noisy(found) else ''}"
    )
    if kind not in stored:
        known = ", ".join(sorted(stored)) or "none"
        return [
            f"no baseline for {kind} in {path} (there: {known}); --update-baseline makes this run it",
            noise,
        ]
    before = stored[kind]
    now = comparable(found)
    lines = [
        str(one)
        for one in sorted(
            moved(before["figures"], now, found[FLOOR]["spread_percent"]), key=lambda one: -one.percent
        )
    ]
    still = "nothing moved" if not lines else f"{len(now) - len(lines)} others did not move"
    about = f"against {path}, {before['about']['date']}, times as multiples of the C floor's in the same run:"
    return [about, *lines, still, noise]


def update(found: Mapping[str, Any], path: Path) -> None:
    """Make a run the baseline for its kind of machine. Raises RefusedError, OSError."""
    stored = _stored(path)
    entry = {
        "about": found["about"],
        "floor_ms": {name: found[FLOOR][name] for name in _BY_RATE},
        "spread_percent": found[FLOOR]["spread_percent"],
        "figures": {name: round(value, 3) for name, value in comparable(found).items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**stored, kind_of(found): entry}, indent=2) + "\n", encoding="utf-8")


def kind_of(found: Mapping[str, Any]) -> str:
    """Return the kind of machine that a run was made on: only runs of one kind compare."""
    about = found["about"]
    return f"cgroup {about['cgroup']}, {about['cpus']} CPUs"


def is_noisy(found: Mapping[str, Any]) -> bool:
    """Return whether the machine was too busy with other things for small differences to mean anything."""
    return bool(found[FLOOR]["spread_percent"] > _NOISY_PERCENT)


def _ratios(name: str, summed: Mapping[str, float], floor: Mapping[str, float]) -> dict[str, float]:
    return {f"{name}/{rank}": summed[rank] / floor[rank] for rank in _TOLERANCE_PERCENT if floor[rank] > 0}


def _is_within(found: Moved, tolerance_percent: float) -> bool:
    factor = 1 + tolerance_percent / 100
    return found.before / factor <= found.now <= found.before * factor


def _stored(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise RefusedError(f"{path}: {error}; accepted: what --update-baseline wrote") from error
    if not isinstance(document, dict):
        raise RefusedError(f"{path}: got {type(document).__name__}; accepted: what --update-baseline wrote")
    return document


POD_COUNTS: Final = (10, 110, 1000)
TURNS: Final = 3  # of the daemon and the C floor at each rate
FORKS_PER_SECOND: Final = 20_000
_STORM_SECONDS: Final = 10.0

Figures = Iterator[
    dict[str, Any]
]  # some by their names at a time; a later one of a name replaces the earlier


class Bench:
    """Measures; every method leaves the machine as it was."""

    def __init__(self, tree: CgroupTree, tool: Path, directory: Path) -> None:
        self._tree = tree
        self._tool = tool
        self._directory = directory

    def crossings(self, rate_bytes: int, runs: int, pods: int = 3) -> list[Run]:
        """Have a hog evicted `runs` times, among `pods` pods, and return the runs."""
        with (
            bench_node(self._tree, self._tool, pods) as node,
            DaemonProcess(self._tool, self._directory, node.cgroup, THRESHOLDS, {}) as daemon,
            busy_cpus(self._tool),
        ):
            crossings = Crossings(node, daemon, self._tool, self._directory)
            return [crossings.run(rate_bytes) for _ in range(runs)]

    def floor_crossings(self, rate_bytes: int, runs: int, pods: int = 3) -> list[Run]:
        """Have a hog killed `runs` times by the C floor in the daemon's place, and return the runs."""
        with bench_node(self._tree, self._tool, pods) as node, busy_cpus(self._tool):
            crossings = FloorCrossings(node, self._tool, self._directory)
            return [crossings.run(rate_bytes) for _ in range(runs)]

    def at_rest(self, seconds: float, pods: int = 110) -> tuple[float, float]:
        """Return the daemon's CPU share in percent over `seconds` without events, and its RSS in MiB.

        As configured by default (metrics served, ticks of 10 s), after a few evictions.
        """
        section = {"metrics": "127.0.0.1:0"}
        with (
            bench_node(self._tree, self._tool, pods) as node,
            DaemonProcess(self._tool, self._directory, node.cgroup, THRESHOLDS, section) as daemon,
        ):
            crossings = Crossings(node, daemon, self._tool, self._directory)
            for _ in range(5):
                crossings.run(0)
            time.sleep(1)
            percent = cpu_percent(daemon.pid, lambda: time.sleep(seconds))
            return percent, rss_mib(daemon.pid)

    def fork_storm(self, seconds: float = _STORM_SECONDS) -> tuple[float, float]:
        """Return the daemon's CPU share in percent under a fork storm, and the storm's forks a second."""
        thresholds = {"evictionHard": {**THRESHOLDS["evictionHard"], "pid.available": "5%"}}
        with (
            bench_node(self._tree, self._tool, 3) as node,
            DaemonProcess(self._tool, self._directory, node.cgroup, thresholds, {}) as daemon,
        ):
            forked: list[str] = []

            def storm() -> None:
                command = [str(self._tool), "fork", str(FORKS_PER_SECOND), str(seconds)]
                forked.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

            percent = cpu_percent(daemon.pid, storm)
            forks, took_ns = map(int, forked[0].split())
            return percent, forks / took_ns * 1e9


def bench(
    results: Path = Path("bench-results"),
    *,
    runs: int = 30,
    idle_seconds: float = 60.0,
    baseline: Path = BASELINE,
    is_update: bool = False,
) -> int:
    """Measure everything, print it, store it below `results`, say what moved; return the exit status.

    With `is_update` it becomes the baseline for its kind of machine.
    """
    return _measured(
        results,
        lambda tree, tool, directory: figures(Bench(tree, tool, directory), runs, idle_seconds),
        _compared(baseline, is_update=is_update),
    )


def bench_by_source(
    results: Path = Path("bench-results"), *, rounds: int = 5, skip: Sequence[str] = ()
) -> int:
    """Measure each source of wakes beside the others, and on v2 what the eBPF probes cost; as `bench`."""
    return _measured(results, lambda tree, tool, directory: _sources(tree, tool, directory, rounds, skip))


def _sources(tree: CgroupTree, tool: Path, directory: Path, rounds: int, skip: Sequence[str]) -> Figures:
    for found in by_source(tree, tool, directory, rounds, skip):
        yield {"by_source": found}
    if tree.version is CgroupVersion.V2 and absent_because("memory") is None and PROBE_COST not in skip:
        _say("the probes' cost")
        with bench_node(tree, tool, pods=1) as node:
            cost = probe_cost(node, tool, directory, rounds=max(2, 4 * rounds))
        yield {"probe_cost_percent": cost}


def _measured(
    results: Path,
    measure: Callable[[CgroupTree, Path, Path], Figures],
    compare: Callable[[Mapping[str, Any]], None] = lambda _: None,
) -> int:
    """Measure, print, store, compare; return the exit status.

    0 when measured (goals are goals), 1 where a run failed, 2 where this machine can't do it, 130 when
    interrupted: what was measured until then is printed and stored all the same.
    """
    if os.geteuid() != 0:
        print("reactor bench: needs root, to make cgroups: sudo reactor bench", file=sys.stderr)
        return 2
    try:
        tree, tool = CgroupTree.discover(), compiled_tool()
    except ReactorError as error:
        print(f"reactor bench: {error}", file=sys.stderr)
        return 2
    try:
        with ended_by_signals(), tempfile.TemporaryDirectory(prefix="reactor-bench-") as directory:
            found = collected(about(tree.version), measure(tree, tool, Path(directory)))
        print(json.dumps(found, indent=2))
        print(f"stored as {_store(found, results)}", file=sys.stderr)
        interrupted = found["about"].get("interrupted")
        if interrupted is not None:
            _say(f"interrupted {interrupted}; everything is cleaned up; compared with nothing")
            return 130
        compare(found)
    except KeyboardInterrupt:
        _say("interrupted; everything is cleaned up")
        return 130
    except (ReactorError, OSError) as error:
        _say(str(error))
        return 1
    return 0


def collected(facts: Mapping[str, object], measured: Figures) -> dict[str, Any]:
    """Return the figures together, below `about` what they were measured on.

    If the measuring is interrupted, `about` has `interrupted`, and the figures are those until then.
    Raises KeyboardInterrupt if there are none.
    """
    found: dict[str, Any] = {"about": dict(facts)}
    started = time.monotonic()
    try:
        for figures_so_far in measured:
            found |= figures_so_far
    except KeyboardInterrupt:
        if found.keys() == {"about"}:
            raise
        found["about"]["interrupted"] = f"after {time.monotonic() - started:.0f} s"
    return found


def figures(bench: Bench, runs: int, idle_seconds: float) -> Figures:
    """Yield the figures by their names as they become known, those of turns after each turn."""
    by_rate: dict[str, list[Run]] = {}
    floors: dict[str, list[list[Run]]] = {}
    for name, rate_bytes in RATES.items():
        _say(f"{runs} crossings at {name} MiB/s, and as many of the C floor's, in {TURNS} turns")
        for turn in range(TURNS):
            share = len(range(turn, runs, TURNS))
            by_rate.setdefault(name, []).extend(bench.crossings(rate_bytes, share) if share else ())
            floors.setdefault(name, []).append(bench.floor_crossings(rate_bytes, share) if share else [])
            yield {**_crossing_figures(by_rate), FLOOR: floor_figures(floors)}
    yield {"kill_call_ms": summary(run.kill_call_ms for runs_of in by_rate.values() for run in runs_of)}
    by_pods: dict[str, dict[str, float | int]] = {}
    for pods in POD_COUNTS:
        _say(f"{runs} passes with {pods} pods")
        by_pods[str(pods)] = summary(run.pass_ms for run in bench.crossings(RATES["1000"], runs, pods))
        yield {"pass_ms": dict(by_pods)}
    _say(f"{idle_seconds:g} s at rest")
    idle_percent, resident_mib = bench.at_rest(idle_seconds)
    yield {"idle_cpu_percent": round(idle_percent, 3), "rss_mib": resident_mib}
    _say(f"{FORKS_PER_SECOND} forks a second for {_STORM_SECONDS:g} s")
    storm_percent, forks_per_second = bench.fork_storm()
    yield {
        "fork_storm_cpu_percent": round(storm_percent, 2),
        "fork_storm_forks_per_second": round(forks_per_second),
    }


def _crossing_figures(by_rate: Mapping[str, Sequence[Run]]) -> dict[str, Any]:
    return {
        "crossing_to_wake_ms": {name: summary(run.to_wake_ms for run in by_rate[name]) for name in by_rate},
        "crossing_to_kill_ms": {name: summary(run.to_kill_ms for run in by_rate[name]) for name in by_rate},
        "crossing_to_freed_ms": {name: summary(run.to_freed_ms for run in by_rate[name]) for name in by_rate},
        "overshoot_mib": {name: summary(run.overshoot_mib for run in by_rate[name]) for name in by_rate},
    }


def floor_figures(turns_by_rate: Mapping[str, Sequence[Sequence[Run]]]) -> dict[str, Any]:
    """Return the C floor's figures, and by how much it differed from turn to turn.

    `spread_percent` is between the lowest and the highest median of its kills at one rate, the median of all
    rates: the daemon's figures can't be told apart by less than the machine itself changed meanwhile.
    """
    spreads = []
    for turns in turns_by_rate.values():
        medians = [statistics.median(run.to_kill_ms for run in turn) for turn in turns if turn]
        spreads.append((max(medians) / min(medians) - 1) * 100)
    together = {name: [run for turn in turns for run in turn] for name, turns in turns_by_rate.items()}
    return {**_crossing_figures(together), "spread_percent": round(statistics.median(spreads), 1)}


def _compared(baseline: Path, *, is_update: bool) -> Callable[[Mapping[str, Any]], None]:
    """Return what says how a run stands to the baseline, and makes it the next one if wanted."""

    def compare(found: Mapping[str, Any]) -> None:
        for line in report(found, baseline):
            _say(line)
        if is_update:
            update(found, baseline)
            _say(f"now the baseline for {kind_of(found)}: {baseline}")

    return compare


def _store(found: Mapping[str, Any], results: Path) -> Path:
    results.mkdir(parents=True, exist_ok=True)
    when = str(found["about"]["date"]).replace(":", "").partition("+")[0]
    path = results / f"{when}.json"
    path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return path


def _say(what: str) -> None:
    print(f"reactor bench: {what}", file=sys.stderr, flush=True)
