#!/usr/bin/env python3
"""Race the kubelet's own eviction against the reactor's: the same hog, the same node, the same threshold.

usage: .venv/bin/python tests/kube/race.py [--runs N] [--rate MIB] [--results DIRECTORY]      (root)

Each contender has the node to itself for N runs: the kubelet as it comes (a look every ten seconds), the
kubelet with kernelMemcgNotification (an eventfd of cgroup v1), and the reactor with the kubelet's eviction
off. The hog grows at a steady rate through the level at which the pods' memory crosses the threshold, and
goes on until it is stopped. All instants are the hog's and an observer's own (reactor/testbed/allocator.c),
none is a contender's word:
- stopped: the hog has touched its last page;
- killed: a second container of the pod, with nothing to tear down, has died;
- back: the pods' memory is what it was before;
- overshoot: the most that was used past the level, as the kernel's own watermark says.

Prints a table and stores race-kube.json. Exit status 0, 1 where a run found no eviction, 3 where the cluster
was lost.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from cluster import LOGS, Cluster
from machine import LostError
from node import MIB
from racing import Course, Lap
from reactor_daemon import Reactor, grant_rights

# Far enough below the limit that the slowest contender is not overtaken by the kernel's OOM killer.
NODE_BYTES: Final = 3200 * MIB
PODS_BYTES: Final = 3072 * MIB
LEVEL_BYTES: Final = 512 * MIB
PREFILL_BYTES: Final = 384 * MIB
THRESHOLD: Final = {"memory.available": str(PODS_BYTES - LEVEL_BYTES)}
OFF: Final[Mapping[str, str]] = {
    "nodefs.available": "0%",
    "nodefs.inodesFree": "0%",
    "imagefs.available": "0%",
    "pid.available": "0%",
}
_CALM_SECONDS: Final = 90.0


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A name, and how it is put in charge of the node, and relieved."""

    name: str
    in_charge: Callable[[], Any]


def main() -> int:
    """Run the race."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5, help="runs for each contender (5)")
    parser.add_argument("--rate", type=int, default=64, help="MiB a second at which the hog grows (64)")
    parser.add_argument("--results", type=Path, default=Path("bench-results"), help="where the JSON goes")
    arguments = parser.parse_args()
    try:
        with Cluster(LOGS, node_bytes=NODE_BYTES, pods_bytes=PODS_BYTES) as cluster:
            laps = race(cluster, arguments.runs, arguments.rate * MIB)
    except LostError as error:
        print(f"race: LOST: {error}", file=sys.stderr)
        return 3
    arguments.results.mkdir(parents=True, exist_ok=True)
    path = arguments.results / "race-kube.json"
    path.write_text(json.dumps(document(laps, arguments.runs, arguments.rate), indent=2) + "\n")
    print(table(laps))
    print(path)
    return 0 if all(lap.killed_ms is not None for found in laps.values() for lap in found) else 1


def race(cluster: Cluster, runs: int, rate_bytes: int) -> dict[str, list[Lap]]:
    """Return each contender's laps."""
    grant_rights(cluster)
    contenders = (
        Contender(name="kubelet, 10 s poll", in_charge=partial(kubelet, cluster, notified=False)),
        Contender(name="kubelet, memcg notification", in_charge=partial(kubelet, cluster, notified=True)),
        Contender(name="reactor", in_charge=partial(reactor, cluster)),
    )
    course = Course(cluster, level_bytes=LEVEL_BYTES, prefill_bytes=PREFILL_BYTES, rate_bytes=rate_bytes)
    laps: dict[str, list[Lap]] = {}
    for contender in contenders:
        with contender.in_charge():
            for run in range(runs):
                course.calm(_CALM_SECONDS)
                lap = course.run()
                laps.setdefault(contender.name, []).append(lap)
                print(f"race: {contender.name}, run {run + 1}: {lap}", file=sys.stderr)
    return laps


@contextmanager
def kubelet(cluster: Cluster, *, notified: bool) -> Iterator[None]:
    """Let the kubelet evict."""
    cluster.node.restart_kubelet(
        {
            "evictionHard": {**OFF, **THRESHOLD},
            "kernelMemcgNotification": notified,
            "evictionPressureTransitionPeriod": "1s",
        }
    )
    yield
    cluster.node.restart_kubelet()


@contextmanager
def reactor(cluster: Cluster) -> Iterator[None]:
    """Let the reactor evict."""
    directory = cluster.machine.state / "reactor"
    directory.mkdir()
    daemon = Reactor(cluster, directory)
    daemon.configure(
        {
            "evictionHard": {**OFF, **THRESHOLD},
            "evictionPressureTransitionPeriod": "1s",
        }
    )
    daemon.start()
    yield
    daemon.stop()
    daemon.keep_log()


def document(laps: Mapping[str, Sequence[Lap]], runs: int, rate_mib: int) -> dict[str, Any]:
    """Return the result as it is stored."""
    return {
        "what": "crossing of the pods' memory threshold to kill, to memory back, and overshoot",
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg()[0],
        "runs": runs,
        "rate_mib_per_second": rate_mib,
        "level_mib": LEVEL_BYTES // MIB,
        "contenders": {
            name: {"laps": [asdict(lap) for lap in found], "summary": summary(found)}
            for name, found in laps.items()
        },
    }


def summary(laps: Sequence[Lap]) -> dict[str, dict[str, float | None]]:
    """Return median and maximum of each figure; None where a lap had none."""
    figures = {
        "crossing_to_stop_ms": [lap.stopped_ms for lap in laps],
        "crossing_to_kill_ms": [lap.killed_ms for lap in laps],
        "crossing_to_memory_back_ms": [lap.back_ms for lap in laps],
        "overshoot_mib": [lap.overshoot_mib for lap in laps],
    }
    return {
        name: {
            "p50": round(statistics.median(known), 1) if known else None,
            "max": round(max(known), 1) if len(known) == len(values) else None,
        }
        for name, values in figures.items()
        for known in [[value for value in values if value is not None]]
    }


def table(laps: Mapping[str, Sequence[Lap]]) -> str:
    """Return the result for people."""
    heads = ("hog stopped, ms", "pod dead, ms", "memory back, ms", "overshoot, MiB")
    lines = [
        "From the crossing:".ljust(30) + "".join(f"{head:>22}" for head in heads),
        " " * 30 + f"{'p50':>12}{'max':>10}" * len(heads),
    ]
    for name, found in laps.items():
        cells = [
            f"{_cell(figure['p50']):>12}{_cell(figure['max']):>10}" for figure in summary(found).values()
        ]
        lines.append(f"{name:30}{''.join(cells)}")
    return "\n".join(lines)


def _cell(value: float | None) -> str:
    return "none" if value is None else f"{value:,.1f}"


if __name__ == "__main__":
    sys.exit(main())
