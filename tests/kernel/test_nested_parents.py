"""Parents by pattern on real cgroups: one that comes while the daemon runs is guarded like the others."""

from __future__ import annotations

import signal

from reactor.testbed.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon, after_passes
from tests.support.processes import hold
from tests.support.waiting import eventually

HARD = {"evictionHard": {"memory.available": "64Mi"}}
SECTION = {"housekeepingInterval": "60s"}


def login(node: VirtualNode, user: str) -> str:
    """Make what systemd makes for a user, and return the name of the parent of his applications."""
    for name in (f"user-{user}.slice", f"user-{user}.slice/user@{user}.service"):
        node.add_pod(name)
    node.add_pod(f"user-{user}.slice/user@{user}.service/session.slice")
    node.add_pod(f"user-{user}.slice/user@{user}.service/app.slice")
    return f"user-{user}.slice/user@{user}.service/app.slice"


def test_who_logs_in_while_the_daemon_runs_is_guarded_and_his_hog_evicted_alone(
    node: VirtualNode, daemon: RunningDaemon
) -> None:
    old = login(node, "1000")
    survivors = [node.spawn(node.add_pod(f"{old}/mail.service"), hold(24))]
    survivors.append(node.spawn(f"{node.cgroup}/user-1000.slice/user@1000.service/session.slice", hold(24)))
    pattern = f"{node.cgroup}/user-*.slice/user@*.service/app.slice"
    daemon.configure(HARD, {"pods": {"parents": [pattern]}, **SECTION})
    daemon.start()
    assert 1 == daemon.status()["pods"]

    new = login(node, "1001")
    survivors.append(node.spawn(node.add_pod(f"{new}/shell.scope"), hold(24)))
    hog = node.add_pod(f"{new}/browser.scope")
    victim = node.spawn(hog, hold(220))

    assert -signal.SIGKILL == victim.wait(60)
    eventually(lambda: bool(daemon.evictions()), "a journal line of the eviction")
    (line,) = daemon.evictions()
    assert ["cgroup/browser.scope"] == [one["pod"] for one in line["evictions"]]
    after_passes(daemon, 2)
    assert [None] * 3 == [one.poll() for one in survivors]
    assert 0 == daemon.stop()


def test_what_lies_beside_the_matches_is_never_evicted(node: VirtualNode, daemon: RunningDaemon) -> None:
    login(node, "1000")
    hog = node.spawn(f"{node.cgroup}/user-1000.slice/user@1000.service/session.slice", hold(200))
    pattern = f"{node.cgroup}/user-*.slice/user@*.service/app.slice"
    daemon.configure(HARD, {"pods": {"parents": [pattern]}, **SECTION})
    daemon.start()
    after_passes(daemon, 3)
    assert hog.poll() is None
    assert [] == daemon.evictions()
    daemon.stop()
