"""The steward is killed every 200 ms while hogs cross: every hog is killed, no record is lost uncounted.

How long a crossing then takes to its kill is measured, in turns with crossings beside a steward that is left
alone, and kept as JSON in .cache/chaos.json, with the stages of the slowest; it is not asserted.
REACTOR_CHAOS_SECONDS is for how long, 20 by default.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from reactor.testbed.crossing import THRESHOLDS, bench_node
from reactor.testbed.virtual_node import VirtualNode
from tests.hostile.test_steward import assert_no_line_is_lost_uncounted_or_written_twice, killed_every_200_ms
from tests.support.crossings import PATIENCE_SECONDS, SECONDS, Hogs, keep
from tests.support.daemon import RunningDaemon
from tests.support.this_machine import cgroup_tree
from tests.support.trials import Trial
from tests.support.waiting import eventually

pytestmark = [pytest.mark.suite("crash-only"), pytest.mark.timeout(PATIENCE_SECONDS)]

_AT_A_TIME: Final = 5


@pytest.fixture
def node(tool: Path) -> Iterator[VirtualNode]:
    with bench_node(cgroup_tree(), tool, pods=3) as made:
        yield made


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
    hogs = Hogs(node, daemon, tool, tmp_path)
    killed: list[int] = []
    until = time.monotonic() + SECONDS
    while time.monotonic() < until or not killed:
        hogs.cross("steward left alone", _AT_A_TIME)
        with killed_every_200_ms(daemon) as stewards:
            hogs.cross("steward killed every 200 ms", _AT_A_TIME)
        killed += stewards
        eventually(lambda: daemon.status()["processes"]["steward"]["waiting_records"] == 0, "all told")
    eventually(lambda: len(daemon.evicted()) == hogs.crossed, "all in the journal")

    trial.rounds, trial.right = hogs.count, {"hog"}
    lost = daemon.status()["processes"]["steward"]["lost_records"]
    figures = {**hogs.document(), "stewards_killed": len(killed), "lost_records": lost}
    keep("chaos", figures, pytestconfig.rootpath)

    assert hogs.not_killed == 0
    assert hogs.count == hogs.crossed
    assert killed
    assert_no_line_is_lost_uncounted_or_written_twice(daemon)
    assert daemon.stop() == 0
