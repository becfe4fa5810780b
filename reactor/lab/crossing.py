"""One measured crossing: a hog passes the level of a virtual node, the daemon has it ended.

The clock is the C program's, from the instant before the page that crosses to the death of a canary beside
the hog; the daemon is believed only about when it woke and how long a pass took.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from reactor.errors import RefusedError
from reactor.kernel.cgroup import CgroupTree
from reactor.lab.daemon_process import DaemonProcess
from reactor.lab.hog import MIB, HogPlan, HogTimes, hog
from reactor.lab.measure import cpu_ns
from reactor.lab.virtual_node import VirtualNode

CAPACITY_BYTES: Final = 1024 * MIB
THRESHOLD_BYTES: Final = 500 * MIB  # room for a late kill, so that lateness is measured and not an OOM kill
LEVEL_BYTES: Final = CAPACITY_BYTES - THRESHOLD_BYTES
THRESHOLDS: Final = {"evictionHard": {"memory.available": f"{THRESHOLD_BYTES // MIB}Mi"}}
RATES: Final = {"100": 100 * MIB, "1000": 1000 * MIB, "max": 0}  # MiB/s to bytes/s
HOG: Final = "hog"
_RAMP_BYTES: Final = 60 * MIB
_TIMEOUT_SECONDS: Final = 30.0
_SETTLE_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One hog's end: its own instants, and the daemon's stages from the journal (ns on the same clock).

    `woken_by` are the sources whose wakes led to the pass; `braked_ns` is when memory.high was pulled down.
    """

    times: HogTimes
    timing: Mapping[str, int]
    woken_by: frozenset[str] = frozenset()
    braked_ns: int | None = None

    @property
    def to_wake_ms(self) -> float:
        """Return from the crossing to the source's wake."""
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
    def pass_ms(self) -> float:
        """Return from the pass's begin to its decision."""
        return (self.timing["decided_ns"] - self.timing["started_ns"]) / 1e6

    @property
    def kill_call_ms(self) -> float:
        """Return from the decision to the last SIGKILL."""
        return (self.timing["killed_ns"] - self.timing["decided_ns"]) / 1e6


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
        braked_ns = min((one["engaged_ns"] for one in decision["brake"] if one["engaged_ns"]), default=None)
        return Run(times=times, timing=decision["timing"], woken_by=woken_by, braked_ns=braked_ns)

    def _log(self) -> str:
        return self._daemon.log()[-2000:]


def prepared_hog(node: VirtualNode, rate_bytes: int) -> tuple[str, HogPlan]:
    """Return a new pod in the place of the last hog's, and what a hog is to do in it."""
    node.remove_pod(f"{node.cgroup}/{HOG}")
    prefill_bytes = max(0, LEVEL_BYTES - _RAMP_BYTES - node.usage_bytes())
    plan = HogPlan(
        level_bytes=LEVEL_BYTES, prefill_bytes=prefill_bytes, rate_bytes=rate_bytes, with_canary=True
    )
    return node.add_pod(HOG), plan


@contextmanager
def bench_node(tree: CgroupTree, tool: Path, pods: int) -> Iterator[VirtualNode]:
    """Make a virtual node with an empty pod for the hog and `pods` - 1 idle ones."""
    with VirtualNode(tree, CAPACITY_BYTES, f"reactor-bench-{os.getpid()}") as node:
        node.add_pod(HOG)
        for number in range(pods - 1):
            node.spawn(node.add_pod(f"pod-{number:04}"), [str(tool), "idle"])
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
