"""`reactor bench`: the figures, measured on this machine, printed and stored as one JSON object.

Crossings are measured with every CPU kept busy by something else. The clock is the C program's, from the
instant before the page that crosses to the death of a canary beside the hog; the daemon is believed only
about when it woke and how long a pass took.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from reactor.errors import ReactorError, RefusedError
from reactor.kernel.cgroup import CgroupTree
from reactor.lab.daemon_process import DaemonProcess
from reactor.lab.hog import MIB, HogPlan, HogTimes, hog
from reactor.lab.measure import about, cpu_ns, rss_mib, summary
from reactor.lab.tool import compiled_tool
from reactor.lab.virtual_node import VirtualNode, ended_by_signals

CAPACITY_BYTES: Final = 1024 * MIB
THRESHOLD_BYTES: Final = 500 * MIB  # room for a late kill, so that lateness is measured and not an OOM kill
LEVEL_BYTES: Final = CAPACITY_BYTES - THRESHOLD_BYTES
RAMP_BYTES: Final = 60 * MIB
RATES: Final = {"100": 100 * MIB, "1000": 1000 * MIB, "max": 0}  # MiB/s to bytes/s
POD_COUNTS: Final = (10, 110, 1000)
FORKS_PER_SECOND: Final = 20_000
_STORM_SECONDS: Final = 10.0
_RUN_TIMEOUT_SECONDS: Final = 30.0
_SETTLE_SECONDS: Final = 0.05
_THRESHOLDS: Final = {"evictionHard": {"memory.available": f"{THRESHOLD_BYTES // MIB}Mi"}}
HOG: Final = "hog"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One hog's end: its own instants, and the daemon's stages from the journal (ns on the same clock)."""

    times: HogTimes
    timing: Mapping[str, int]

    @property
    def to_wake_ms(self) -> float:
        """Return from the crossing to the source's wake."""
        return (self.timing["woke_ns"] - (self.times.crossed_ns or 0)) / 1e6

    @property
    def to_kill_ms(self) -> float:
        """Return from the crossing to the canary's death."""
        return ((self.times.dead_ns or 0) - (self.times.crossed_ns or 0)) / 1e6

    @property
    def to_freed_ms(self) -> float:
        """Return from the crossing to the node's usage as it was before the hog."""
        return ((self.times.back_ns or 0) - (self.times.crossed_ns or 0)) / 1e6

    @property
    def overshoot_mib(self) -> float:
        """Return how far the node's usage went past the level."""
        return (self.times.peak_bytes - LEVEL_BYTES) / MIB

    @property
    def pass_ms(self) -> float:
        """Return from the pass's begin to its decision."""
        return (self.timing["decided_ns"] - self.timing["started_ns"]) / 1e6

    @property
    def kill_call_ms(self) -> float:
        """Return from the decision to the last SIGKILL."""
        return (self.timing["killed_ns"] - self.timing["decided_ns"]) / 1e6


class Bench:
    """Measures; every method leaves the machine as it was."""

    def __init__(self, tree: CgroupTree, tool: Path, directory: Path) -> None:
        self._tree = tree
        self._tool = tool
        self._directory = directory

    def crossings(self, rate_bytes: int, runs: int, pods: int = 3) -> list[Run]:
        """Have a hog evicted `runs` times, among `pods` pods, and return the runs."""
        with (
            self._node(pods) as node,
            DaemonProcess(self._tool, self._directory, node.cgroup, _THRESHOLDS, {}) as daemon,
            _busy_cpus(self._tool),
        ):
            return [self._run(node, daemon, rate_bytes) for _ in range(runs)]

    def at_rest(self, seconds: float, pods: int = 110) -> tuple[float, float]:
        """Return the daemon's CPU share in percent over `seconds` without events, and its RSS in MiB.

        As configured by default (metrics served, ticks of 10 s), after a few evictions.
        """
        section = {"metrics": "127.0.0.1:0"}
        with (
            self._node(pods) as node,
            DaemonProcess(self._tool, self._directory, node.cgroup, _THRESHOLDS, section) as daemon,
        ):
            for _ in range(5):
                self._run(node, daemon, 0)
            time.sleep(1)
            percent = _cpu_percent(daemon.pid, lambda: time.sleep(seconds))
            return percent, rss_mib(daemon.pid)

    def fork_storm(self, seconds: float = _STORM_SECONDS) -> tuple[float, float]:
        """Return the daemon's CPU share in percent under a fork storm, and the storm's forks a second."""
        thresholds = {"evictionHard": {**_THRESHOLDS["evictionHard"], "pid.available": "5%"}}
        with (
            self._node(3) as node,
            DaemonProcess(self._tool, self._directory, node.cgroup, thresholds, {}) as daemon,
        ):
            forked: list[str] = []

            def storm() -> None:
                command = [str(self._tool), "fork", str(FORKS_PER_SECOND), str(seconds)]
                forked.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

            percent = _cpu_percent(daemon.pid, storm)
            forks, took_ns = map(int, forked[0].split())
            return percent, forks / took_ns * 1e9

    def _run(self, node: VirtualNode, daemon: DaemonProcess, rate_bytes: int) -> Run:
        prefill_bytes = max(0, LEVEL_BYTES - RAMP_BYTES - node.usage_bytes())
        plan = HogPlan(
            level_bytes=LEVEL_BYTES, prefill_bytes=prefill_bytes, rate_bytes=rate_bytes, with_canary=True
        )
        with hog(node, f"{node.cgroup}/{HOG}", self._tool, self._directory, plan) as running:
            decision = daemon.next_eviction(_RUN_TIMEOUT_SECONDS)
            times = running.times()
        run = _checked(times, decision, daemon)
        time.sleep(_SETTLE_SECONDS)  # the falling usage wakes the daemon once more, to arm anew
        return run

    @contextmanager
    def _node(self, pods: int) -> Iterator[VirtualNode]:
        """Make a virtual node with an empty pod for the hog and `pods` - 1 idle ones."""
        with VirtualNode(self._tree, CAPACITY_BYTES, f"reactor-bench-{os.getpid()}") as node:
            node.add_pod(HOG)
            for number in range(pods - 1):
                node.spawn(node.add_pod(f"pod-{number:04}"), [str(self._tool), "idle"])
            yield node


def bench(results: Path = Path("bench-results"), *, runs: int = 30, idle_seconds: float = 60.0) -> int:
    """Measure everything, print it and store it below `results`; return the exit status.

    0 when measured (goals are goals), 1 where a run failed, 2 where this machine can't do it, 130 when
    interrupted.
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
            found = {
                "about": about(tree.version),
                **figures(Bench(tree, tool, Path(directory)), runs, idle_seconds),
            }
        print(json.dumps(found, indent=2))
        print(f"stored as {_store(found, results)}", file=sys.stderr)
    except KeyboardInterrupt:
        print("reactor bench: interrupted; everything is cleaned up", file=sys.stderr)
        return 130
    except (ReactorError, OSError) as error:
        print(f"reactor bench: {error}", file=sys.stderr)
        return 1
    return 0


def figures(bench: Bench, runs: int, idle_seconds: float) -> dict[str, Any]:
    """Return the figures by their names."""
    by_rate: dict[str, Sequence[Run]] = {}
    for name, rate_bytes in RATES.items():
        _say(f"{runs} crossings at {name} MiB/s")
        by_rate[name] = bench.crossings(rate_bytes, runs)
    by_pods: dict[str, Sequence[Run]] = {}
    for pods in POD_COUNTS:
        _say(f"{runs} passes with {pods} pods")
        by_pods[str(pods)] = bench.crossings(RATES["1000"], runs, pods)
    _say(f"{idle_seconds:g} s at rest")
    idle_percent, resident_mib = bench.at_rest(idle_seconds)
    _say(f"{FORKS_PER_SECOND} forks a second for {_STORM_SECONDS:g} s")
    storm_percent, forks_per_second = bench.fork_storm()
    return {
        "crossing_to_wake_ms": {name: summary(run.to_wake_ms for run in by_rate[name]) for name in by_rate},
        "crossing_to_kill_ms": {name: summary(run.to_kill_ms for run in by_rate[name]) for name in by_rate},
        "crossing_to_freed_ms": {name: summary(run.to_freed_ms for run in by_rate[name]) for name in by_rate},
        "overshoot_mib": {name: summary(run.overshoot_mib for run in by_rate[name]) for name in by_rate},
        "pass_ms": {name: summary(run.pass_ms for run in by_pods[name]) for name in by_pods},
        "kill_call_ms": summary(run.kill_call_ms for runs in by_rate.values() for run in runs),
        "idle_cpu_percent": round(idle_percent, 3),
        "rss_mib": resident_mib,
        "fork_storm_cpu_percent": round(storm_percent, 2),
        "fork_storm_forks_per_second": round(forks_per_second),
    }


def _checked(times: HogTimes, decision: Mapping[str, Any] | None, daemon: DaemonProcess) -> Run:
    evicted = [] if decision is None else [eviction["pod"] for eviction in decision["evictions"]]
    missing = [name for name in ("crossed_ns", "dead_ns", "back_ns") if getattr(times, name) is None]
    if decision is None or missing or [name.rpartition("/")[2] for name in evicted] != [HOG]:
        raise RefusedError(
            f"a run failed: evicted {evicted or 'nobody'}; not seen: {', '.join(missing) or 'nothing'}; "
            f"the daemon's log ends:\n{daemon.log()[-2000:]}"
        )
    return Run(times=times, timing=decision["timing"])


@contextmanager
def _busy_cpus(tool: Path) -> Iterator[None]:
    """Keep every CPU busy at normal priority."""
    spinners = [subprocess.Popen([str(tool), "spin"]) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def _cpu_percent(pid: int, work: Any) -> float:
    before_ns, began_ns = cpu_ns(pid), time.monotonic_ns()
    work()
    return (cpu_ns(pid) - before_ns) / (time.monotonic_ns() - began_ns) * 100


def _store(found: Mapping[str, Any], results: Path) -> Path:
    results.mkdir(parents=True, exist_ok=True)
    when = str(found["about"]["date"]).replace(":", "").partition("+")[0]
    path = results / f"{when}.json"
    path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return path


def _say(what: str) -> None:
    print(f"reactor bench: {what}", file=sys.stderr, flush=True)
