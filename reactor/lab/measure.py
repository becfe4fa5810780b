"""What a process costs, what a run of numbers comes down to, and what they were measured on."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import reactor


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


def cpu_ns(pid: int, proc: Path = Path("/proc")) -> int:
    """Return the CPU time that the process's present threads have taken, in ns.

    From /proc/PID/task/TID/schedstat, whose first field is nanoseconds: the ticks of /proc/PID/stat are
    too coarse for a daemon that sleeps.
    """
    total_ns = 0
    for task in (proc / str(pid) / "task").iterdir():
        try:
            total_ns += int((task / "schedstat").read_bytes().split()[0])
        except FileNotFoundError:  # a thread that ended meanwhile
            continue
    return total_ns


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
