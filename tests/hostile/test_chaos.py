"""The steward is killed every 200 ms while hogs cross: every hog is killed, no record is lost uncounted.

How long a crossing then takes to its kill is measured, in turns with crossings beside a steward that is left
alone, and kept as JSON in .cache/chaos.json; it is not asserted. REACTOR_CHAOS_SECONDS is for how long, 20 by
default.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from reactor.lab.crossing import RATES, THRESHOLDS, bench_node, prepared_hog
from reactor.lab.hog import hog
from reactor.lab.measure import about, summary
from reactor.lab.virtual_node import VirtualNode
from tests.hostile.test_steward import assert_no_line_is_lost_uncounted_or_written_twice, killed_every_200_ms
from tests.support.daemon import RunningDaemon
from tests.support.this_machine import cgroup_tree
from tests.support.trials import Trial
from tests.support.waiting import eventually

pytestmark = pytest.mark.suite("crash-only")

SECONDS: Final = float(os.environ.get("REACTOR_CHAOS_SECONDS", "20"))
AT_A_TIME: Final = 5


@pytest.fixture
def node(tool: Path) -> Iterator[VirtualNode]:
    with bench_node(cgroup_tree(), tool, pods=3) as made:
        yield made


class Hogs:
    """Has one hog after the other cross; `to_kill_ms` is from each crossing to the kill, None without one."""

    def __init__(self, node: VirtualNode, tool: Path, directory: Path) -> None:
        self._node = node
        self._tool = tool
        self._directory = directory
        self.crossings = 0

    def cross(self) -> list[float | None]:
        """Have some cross, at 1000 MiB/s."""
        return [self._cross() for _ in range(AT_A_TIME)]

    def _cross(self) -> float | None:
        cgroup, plan = prepared_hog(self._node, RATES["1000"])
        with hog(self._node, cgroup, self._tool, self._directory, plan) as running:
            times = running.times()
        self.crossings += times.crossed_ns is not None
        if times.crossed_ns is None or times.dead_ns is None:
            return None
        return (times.dead_ns - times.crossed_ns) / 1e6


def test_every_crossing_is_killed_while_the_steward_is_killed_every_200_ms(
    node: VirtualNode,
    daemon: RunningDaemon,
    trial: Trial,
    tool: Path,
    tmp_path: Path,
    pytestconfig: pytest.Config,
) -> None:
    daemon.configure(THRESHOLDS)
    daemon.start()
    hogs, killed = Hogs(node, tool, tmp_path), []
    to_kill_ms: dict[str, list[float | None]] = {"left alone": [], "killed every 200 ms": []}
    until = time.monotonic() + SECONDS
    while time.monotonic() < until or not killed:
        to_kill_ms["left alone"] += hogs.cross()
        with killed_every_200_ms(daemon) as stewards:
            to_kill_ms["killed every 200 ms"] += hogs.cross()
        killed += stewards
        eventually(lambda: daemon.status()["processes"]["steward"]["waiting_records"] == 0, "all told")
    eventually(lambda: len(daemon.evicted()) == hogs.crossings, "all in the journal")

    every = [one for some in to_kill_ms.values() for one in some]
    trial.rounds, trial.right = len(every), {"hog"}
    figures = {
        "about": about(node.tree.version),
        "stewards_killed": len(killed),
        "crossing_to_kill_ms": {
            name: summary(one for one in some if one is not None) for name, some in to_kill_ms.items()
        },
        "not_killed": every.count(None),
        "lost_records": daemon.status()["processes"]["steward"]["lost_records"],
    }
    path = pytestconfig.rootpath / ".cache" / "chaos.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(figures, indent=1) + "\n")
    print(json.dumps(figures["crossing_to_kill_ms"], indent=1))

    assert None not in every
    assert len(every) == hogs.crossings
    assert killed
    assert_no_line_is_lost_uncounted_or_written_twice(daemon)
    assert daemon.stop() == 0
