#!/usr/bin/env python3
"""Measure how late the cluster hears: after an outage of the API server, and of a reason that was dropped.

usage: .venv/bin/python tests/kube/delays.py [--outages N] [--seconds S] [--watched S]      (root)

- told: a pod is evicted while the API server is gone; from the server's return to the pod's status.
- missing: a kubelet before 1.22 drops the reason of each evicted pod again and again; for how long it was
  missing each time, and what share of the time.

Prints both. Exit status 0, 3 where the cluster was lost.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from cluster import LOGS, Cluster, Pods, is_evicted, namespaced
from machine import LostError, wait_until
from reactor_daemon import HARD, Reactor, grant_rights

_POLL_SECONDS = 0.01


def main() -> int:
    """Measure both."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--outages", type=int, default=5, help="how often the server goes (5)")
    parser.add_argument("--seconds", type=float, default=45.0, help="for how long each time (45)")
    parser.add_argument("--watched", type=float, default=120.0, help="how long the reason is watched (120)")
    arguments = parser.parse_args()
    try:
        with Cluster(LOGS) as cluster, tempfile.TemporaryDirectory(prefix="reactor-delays-") as directory:
            grant_rights(cluster)
            reactor = Reactor(cluster, Path(directory))
            reactor.configure({"evictionHard": HARD})
            reactor.start()
            told = [
                after_outage(cluster, reactor, number, arguments.seconds)
                for number in range(arguments.outages)
            ]
            gaps, watched_seconds = missing(cluster, arguments.watched)
            reactor.stop()
    except LostError as error:
        print(f"delays: LOST: {error}", file=sys.stderr)
        return 3
    print(f"told after an outage of {arguments.seconds:g} s: {shown(told)}")
    share = 100 * sum(gaps) / watched_seconds
    print(f"reason missing: {shown(gaps)}; in {watched_seconds:.0f} s, {share:.1f} % of the time")
    return 0


def after_outage(cluster: Cluster, reactor: Reactor, number: int, seconds: float) -> float:
    """Return how long after the server's return an eviction of the outage stood in the pod's status."""
    pods = namespaced(cluster, f"outage-{number}")
    pods.run("hog", ["grow", "600", "15"])
    evictions = len(reactor.evictions())
    with cluster.without(server=True):
        gone = time.monotonic()
        wait_until(lambda: len(reactor.evictions()) > evictions, "the hog is evicted", 90)
        time.sleep(max(0.0, gone + seconds - time.monotonic()))
    back = time.monotonic()  # the server is ready
    wait_until(lambda: is_evicted(pods.get("hog")), "the status says so", 120, pause=_POLL_SECONDS)
    delay_seconds = time.monotonic() - back
    pods.remove()
    return delay_seconds


def missing(cluster: Cluster, seconds: float) -> tuple[list[float], float]:
    """Return for how long an evicted pod's reason was missing each time, and how long it was watched."""
    pods: Pods = namespaced(cluster, "reason")
    pods.create("hog", ["grow", "600", "200"])
    pods.wait("hog", is_evicted, "is evicted")
    began = time.monotonic()
    gaps: list[float] = []
    lost_at: float | None = None
    while (now := time.monotonic()) < began + seconds:
        has_reason = is_evicted(pods.get("hog"))
        if not has_reason and lost_at is None:
            lost_at = now
        elif has_reason and lost_at is not None:
            gaps.append(now - lost_at)
            lost_at = None
        time.sleep(_POLL_SECONDS)
    pods.remove()
    return gaps, time.monotonic() - began


def shown(seconds: list[float]) -> str:
    """Return median and largest of durations."""
    if not seconds:
        return "never"
    return f"median {statistics.median(seconds):.2f} s, longest {max(seconds):.2f} s of {len(seconds)}"


if __name__ == "__main__":
    sys.exit(main())
