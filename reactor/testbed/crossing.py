"""One measured crossing: a hog passes the level of a virtual node, the daemon has it ended.

The clock is the C program's, from the instant before the page that crosses to the death of a canary beside
the hog; the daemon is believed only about when it woke and how long a pass took.
"""

from __future__ import annotations

import math
import os
import platform
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import reactor
from reactor.errors import RefusedError
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.procfs import read_meminfo
from reactor.testbed.allocator import MIB, HogPlan, HogTimes, Record, hog
from reactor.testbed.daemon_process import DaemonProcess, wait_until
from reactor.testbed.virtual_node import VirtualNode


def summary(values: Iterable[float]) -> dict[str, float | int]:
    """Return p50, p99, max and n of the values, by nearest rank: each is a value that was measured.

    Raises ValueError for no values.
    """
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values to sum up")

    def rank(percent: float) -> float:
        return round(ordered[math.ceil(len(ordered) * percent / 100) - 1], 3)

    return {"p50": rank(50), "p99": rank(99), "max": round(ordered[-1], 3), "n": len(ordered)}


def cpu_ns(pid: int) -> int:
    """Return the CPU time that the process has taken, threads that have ended included, in ns.

    By its CPU clock, as clock_getcpuclockid(3) names it: the ticks of /proc/PID/stat are too coarse for a
    daemon that sleeps, and schedstat forgets a thread that has ended. Raises OSError without the process.
    """
    return time.clock_gettime_ns(~pid << 3 | _SCHED_CLOCK)


def rss_mib(pid: int, proc: Path = Path("/proc")) -> float:
    """Return the process's resident memory in MiB. Raises OSError, and ValueError for a kernel thread."""
    for line in (proc / str(pid) / "status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return round(int(line.split()[1]) / 1024, 1)
    raise ValueError(f"process {pid} has no VmRSS")


def about(cgroup_version: str, proc: Path = Path("/proc")) -> Mapping[str, object]:
    """Return when, with what and on what the figures are measured."""
    models = {
        line.partition(":")[2].strip()
        for line in (proc / "cpuinfo").read_text(errors="replace").splitlines()
        if line.startswith("model name")
    }
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "reactor": reactor.__version__,
        "kernel": platform.release(),
        "cgroup": cgroup_version,
        "cpu": ", ".join(sorted(models)) or platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
    }


CAPACITY_BYTES: Final = 1024 * MIB
THRESHOLD_BYTES: Final = 500 * MIB  # room for a late kill, so that lateness is measured and not an OOM kill
LEVEL_BYTES: Final = CAPACITY_BYTES - THRESHOLD_BYTES
THRESHOLDS: Final = {"evictionHard": {"memory.available": f"{THRESHOLD_BYTES // MIB}Mi"}}
RATES: Final = {"100": 100 * MIB, "1000": 1000 * MIB, "max": 0}  # MiB/s to bytes/s
HOG: Final = "hog"
_RAMP_BYTES: Final = 60 * MIB
_SLOW_RAMP_BYTES: Final = 6 * MIB  # before the nearer early level, and seconds even at 1 MiB/s
_SLOW: Final = 60 * MIB  # a second
_TIMEOUT_SECONDS: Final = 30.0
_SETTLE_SECONDS: Final = 0.05
_SCHED_CLOCK: Final = 2  # CPUCLOCK_SCHED


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One hog's end: its own instants, and the daemon's stages from the journal (ns on the same clock).

    `woken_by` are the sources whose wakes led to the pass.
    """

    times: HogTimes
    timing: Mapping[str, int]
    woken_by: frozenset[str] = frozenset()

    @property
    def to_wake_ms(self) -> float:
        return (self.timing["woke_ns"] - (self.times.crossed_ns or 0)) / 1e6

    @property
    def to_loop_ms(self) -> float:
        """Return from the crossing to the loop awake and about to observe: the same instant for every source.

        A source's own is not: eBPF's is taken in the kernel, at the crossing, before the loop is awake.
        """
        return (self.timing["started_ns"] - (self.times.crossed_ns or 0)) / 1e6

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
    def wake_to_kill_ms(self) -> float:
        """Return from the wake to the last SIGKILL, both by who killed."""
        return (self.timing["killed_ns"] - self.timing["woke_ns"]) / 1e6


class Crossings:
    """Has hogs evicted from a node by a daemon, both of them there already."""

    def __init__(self, node: VirtualNode, daemon: DaemonProcess, tool: Path, directory: Path) -> None:
        self._node = node
        self._daemon = daemon
        self._tool = tool
        self._directory = directory

    def run(self, rate_bytes: int) -> Run:
        """Have one evicted. Raises RefusedError where anything else happens, or nothing."""
        run = self.run_if_seen(rate_bytes, _TIMEOUT_SECONDS)
        if run is None:
            raise RefusedError(f"a run failed: no pod was evicted; the daemon's log ends:\n{self._log()}")
        return run

    def run_if_seen(self, rate_bytes: int, timeout_seconds: float) -> Run | None:
        """Have one evicted, or return None where the daemon lets it be for this long."""
        cgroup, plan = prepared_hog(self._node, rate_bytes)
        with hog(self._node, cgroup, self._tool, self._directory, plan) as running:
            decision = self._daemon.next_eviction(timeout_seconds)
            if decision is None:
                return None
            times = running.times()
        run = self._checked(times, decision)
        time.sleep(_SETTLE_SECONDS)  # the falling usage wakes the daemon once more, to arm again
        return run

    def _checked(self, times: HogTimes, decision: Mapping[str, Any]) -> Run:
        evicted = [eviction["pod"].rpartition("/")[2] for eviction in decision["evictions"]]
        missing = [name for name in ("crossed_ns", "dead_ns", "back_ns") if getattr(times, name) is None]
        if missing or evicted != [HOG]:
            raise RefusedError(
                f"a run failed: evicted {', '.join(evicted)}; not seen: {', '.join(missing) or 'nothing'}; "
                f"the daemon's log ends:\n{self._log()}"
            )
        woken_by = frozenset(wake["source"] for wake in decision["wakes"])
        return Run(times=times, timing=decision["timing"], woken_by=woken_by)

    def _log(self) -> str:
        return self._daemon.log()[-2000:]


def prepared_hog(node: VirtualNode, rate_bytes: int) -> tuple[str, HogPlan]:
    """Return a new pod in the place of the last hog's, and what a hog is to do in it."""
    node.remove_pod(f"{node.cgroup}/{HOG}")
    ramp_bytes = _SLOW_RAMP_BYTES if 0 < rate_bytes < _SLOW else _RAMP_BYTES
    prefill_bytes = max(0, LEVEL_BYTES - ramp_bytes - node.usage_bytes())
    plan = HogPlan(
        level_bytes=LEVEL_BYTES, prefill_bytes=prefill_bytes, rate_bytes=rate_bytes, with_canary=True
    )
    return node.add_pod(HOG), plan


@contextmanager
def bench_node(tree: CgroupTree, tool: Path, pods: int, held_bytes: int = 0) -> Iterator[VirtualNode]:
    """Make a virtual node with an empty pod for the hog and `pods` - 1 idle ones that hold so much each."""
    with ExitStack() as stack:
        node = stack.enter_context(VirtualNode(tree, CAPACITY_BYTES, f"reactor-bench-{os.getpid()}"))
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        node.add_pod(HOG)
        holding = []
        for number in range(pods - 1):
            cgroup, words = node.add_pod(f"pod-{number:04}"), ["idle"]
            if held_bytes:
                record = stack.enter_context(Record(directory, f"{number}"))
                holding.append(record)
                words = ["fill", str(record.path), str(held_bytes), "small"]
            node.spawn(cgroup, [str(tool), *words])
        for record in holding:
            record.go()
        if not wait_until(lambda: all(record.is_filled() for record in holding), _TIMEOUT_SECONDS):
            raise RefusedError(f"the pods did not take {held_bytes} bytes each in {_TIMEOUT_SECONDS:g} s")
        yield node


@contextmanager
def busy_cpus(tool: Path) -> Iterator[None]:
    """Keep every CPU busy at normal priority."""
    spinners = [subprocess.Popen([str(tool), "spin"]) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def cpu_percent(pid: int, work: Callable[[], object]) -> float:
    """Return the share of one CPU that the process takes while `work` is done."""
    before_ns, began_ns = cpu_ns(pid), time.monotonic_ns()
    work()
    return (cpu_ns(pid) - before_ns) / (time.monotonic_ns() - began_ns) * 100


_ROOM_BYTES: Final = 256 * MIB
_MOST_PRESSURE_PERCENT: Final = 5.0
_SCARCE_SHARE: Final = 0.25


def check_machine(proc: Path = Path("/proc")) -> None:
    """Raise RefusedError where there is no room for a virtual node, or memory is scarce and waited for."""
    machine = read_meminfo(proc)
    available_bytes = machine.free_bytes if machine.available_bytes is None else machine.available_bytes
    wanted_bytes = CAPACITY_BYTES + _ROOM_BYTES
    if available_bytes < wanted_bytes:
        raise RefusedError(
            f"the machine has {available_bytes // MIB} MiB of memory available, and measuring may take "
            f"{wanted_bytes // MIB} MiB: a virtual node of {CAPACITY_BYTES // MIB} MiB, and room beside it"
        )
    pressure = memory_pressure_percent(proc)
    # With memory left, what stalls is a cgroup at a limit of its own, and no concern of the machine.
    if pressure > _MOST_PRESSURE_PERCENT and available_bytes < machine.total_bytes * _SCARCE_SHARE:
        raise RefusedError(
            f"the machine is in memory pressure: {available_bytes // MIB} MiB are available, and tasks were "
            f"stalled {pressure:g} % of the last ten seconds (/proc/pressure/memory, some avg10; up to "
            f"{_MOST_PRESSURE_PERCENT:g} % is taken)"
        )


def memory_pressure_percent(proc: Path = Path("/proc")) -> float:
    """Return how much of the last ten seconds some task was stalled for memory; 0 where it is not known."""
    with suppress(OSError):
        found = re.search(r"^some avg10=([0-9.]+)", (proc / "pressure/memory").read_text(), re.MULTILINE)
        return float(found[1]) if found else 0.0
    return 0.0
