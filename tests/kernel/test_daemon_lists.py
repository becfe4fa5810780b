"""The operator's lists with the whole daemon on a virtual node: the listed pod is the largest each time."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

import pytest

from reactor.testbed.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon, after_passes
from tests.support.processes import MIB, hold
from tests.support.waiting import eventually

HARD = {"evictionHard": {"memory.available": "64Mi"}}
LARGE_MIB, SMALL_MIB = 130, 60  # of 256


@pytest.mark.parametrize(
    ("lists", "victim", "preference"),
    [
        ({}, "db.service", "none"),
        ({"never": ["db*.service"]}, "web.service", "none"),
        ({"never": [{"unit": "~(db|cache)\\.service"}]}, "web.service", "none"),
        ({"avoid": ["db.service"]}, "web.service", "none"),
        ({"prefer": ["web.service"]}, "web.service", "prefer"),
        ({"prefer": ["db.service", "web.service"], "avoid": ["db.service"]}, "web.service", "prefer"),
        ({"never": ["web.service"], "avoid": ["db.service"]}, "db.service", "avoid"),
    ],
    ids=[
        "no-lists",
        "never",
        "never-by-expression",
        "avoid",
        "prefer",
        "avoid-over-prefer",
        "avoided-go-too",
    ],
)
def test_the_lists_say_who_goes_and_not_the_size_alone(
    node: VirtualNode,
    daemon: RunningDaemon,
    lists: Mapping[str, Any],
    victim: str,
    preference: str,
) -> None:
    pods = {"db.service": LARGE_MIB, "web.service": SMALL_MIB}
    cgroups = {name: node.add_pod(name) for name in pods}
    daemon.configure(HARD, {"pods": {"parents": [node.cgroup], **lists}, "housekeepingInterval": "100ms"})
    daemon.start()
    after_passes(daemon, 2)  # with the pods
    processes = {"db.service": node.spawn(cgroups["db.service"], hold(LARGE_MIB))}
    eventually(lambda: node.usage_bytes() > LARGE_MIB * MIB, "the large pod at its size")

    processes["web.service"] = node.spawn(cgroups["web.service"], hold(SMALL_MIB))
    eventually(lambda: bool(daemon.evictions()), "a journal line of the eviction")

    assert -signal.SIGKILL == processes.pop(victim).wait(60)
    after_passes(daemon, 10)
    assert [None] == [survivor.poll() for survivor in processes.values()]
    assert [victim] == daemon.evicted()
    first = daemon.evictions()[0]["ranking"][0]
    assert (f"cgroup/{victim}", preference) == (first["pod"], first["preference"])


def test_where_every_pod_is_on_the_never_list_none_is_evicted(
    node: VirtualNode, daemon: RunningDaemon
) -> None:
    cgroup = node.add_pod("db.service")
    daemon.configure(
        HARD, {"pods": {"parents": [node.cgroup], "never": ["db.service"]}, "housekeepingInterval": "100ms"}
    )
    daemon.start()
    process = node.spawn(cgroup, hold(LARGE_MIB + SMALL_MIB + 5))
    eventually(lambda: node.usage_bytes() > (256 - 64) * MIB, "a crossing")

    status = after_passes(daemon, 10)

    assert process.poll() is None
    assert daemon.evicted() == []
    assert "MemoryPressure" in {one["condition"] for one in status["conditions"] if one["in_force"]}
    assert "never evicted: pods.never: unit db.service" in daemon.ask("explain").stdout
