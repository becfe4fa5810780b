"""The black box of a whole daemon on a virtual node: what a record says of the minute before it."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
import urllib.request
from collections.abc import Mapping
from typing import Any

from reactor.blackbox.record import MOST_BYTES
from reactor.testbed.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon
from tests.support.processes import MIB, PAUSE, hold
from tests.support.prometheus import free_port
from tests.support.waiting import eventually

HARD = {"evictionHard": {"memory.available": "64Mi"}}
HIDDEN = "hunter2hunter2"
# Takes so many MiB in steps of one, each after a pause in seconds, and at a third number of MiB waits for
# SIGUSR1; what else it is given it ignores.
CLIMB = """
import mmap, signal, sys, time
size, pause_seconds, rests_at = int(sys.argv[1]) << 20, float(sys.argv[2]), int(sys.argv[3]) << 20
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for offset in range(0, size, 4096):
    memory[offset] = 1
    if offset == rests_at > 0:
        signal.sigwait({signal.SIGUSR1})
    if offset % (1 << 20) == 0:
        time.sleep(pause_seconds)
signal.pause()
"""


def test_record_has_the_minute_before_and_what_the_victim_ran(
    node: VirtualNode, daemon: RunningDaemon
) -> None:
    web, hog = node.add_pod("web"), node.add_pod("hog")
    lives = node.spawn(web, hold(40))
    port = free_port()
    daemon.configure(HARD, {"blackBox": True, "metrics": f"127.0.0.1:{port}"})
    _start(daemon)

    began_seconds = time.monotonic()
    victim = node.spawn(hog, _climb(190, 0.01, rests_at_mib=130))
    # On a starved machine the steward may look but once in a while, and shows what it has seen.
    eventually(lambda: _shown_mib(port, "cgroup/hog") > 120, "the hog on the page", pause_seconds=0.5)
    victim.send_signal(signal.SIGUSR1)
    eventually(lambda: bool(daemon.evictions()), "a journal line of the eviction")

    assert -signal.SIGKILL == victim.wait(60)
    assert lives.poll() is None
    (line,) = daemon.evictions()
    box = line["black_box"]
    assert box["missing_because"] is None
    assert box["text"].startswith("memory was taken by cgroup/hog (+")
    assert "never evicted" not in box["text"]
    available = box["node"]["available_bytes"]
    assert available[0][0] < 0 < available[-1][0] + 60
    assert min(value for _, value in available) < 110 * MIB
    pods = {one["pod"]: one for one in box["pods"]}
    assert pods["cgroup/hog"]["grew_bytes"] > 80 * MIB
    assert pods["cgroup/hog"]["kinds"]["anonymous_bytes"] > 50 * MIB
    (seen,) = (one for one in box["processes"] if one["pod"] == "cgroup/hog")
    assert [victim.pid] == [one["pid"] for one in seen["largest"]]
    (process,) = seen["largest"]
    assert process["command"].startswith(f"{sys.executable} -S -c …")
    assert process["anonymous_bytes"] > 16 * MIB  # as it was looked at last, which may be early in the climb
    assert 0 <= process["age_seconds"] <= time.monotonic() - began_seconds + 1  # it is rounded
    assert HIDDEN not in json.dumps(line)
    assert len(json.dumps(box).encode()) <= MOST_BYTES


def test_record_names_who_grew_though_it_is_never_evicted(node: VirtualNode, daemon: RunningDaemon) -> None:
    database, batch = node.add_pod("database"), node.add_pod("batch")
    victim = node.spawn(batch, hold(24))
    daemon.configure(HARD, {"blackBox": True, "pods": {"never": ["database"]}})
    _start(daemon)

    grows = node.spawn(database, _climb(170, 0.005))
    eventually(lambda: bool(daemon.evictions()), "a journal line of the eviction")

    assert -signal.SIGKILL == victim.wait(60)
    assert grows.poll() is None
    line = daemon.evictions()[0]
    assert ["cgroup/batch"] == [one["pod"] for one in line["evictions"]]
    text = line["black_box"]["text"]
    assert text.startswith("memory was taken by cgroup/database (+")
    assert text.endswith("), which is never evicted")
    assert line["black_box"]["took_memory"]["never_evicted"] is True


def test_record_of_a_steward_that_has_just_been_started_says_so(
    node: VirtualNode, daemon: RunningDaemon
) -> None:
    hog = node.add_pod("hog")
    daemon.configure(HARD, {"blackBox": True})
    _start(daemon)
    steward = daemon.status()["processes"]["steward"]["pid"]
    os.kill(steward, signal.SIGSTOP)
    victim = node.spawn(hog, hold(220))
    assert -signal.SIGKILL == victim.wait(60)
    os.kill(steward, signal.SIGKILL)
    eventually(lambda: bool(daemon.evictions()), "a journal line of the eviction")
    box = daemon.evictions()[0]["black_box"]
    assert box["missing_because"].startswith("the steward was started ")
    assert box["text"] is None


def test_without_it_no_line_has_one_and_no_process_is_looked_at(
    node: VirtualNode, daemon: RunningDaemon
) -> None:
    hog = node.add_pod("hog")
    daemon.configure(HARD)
    _start(daemon)
    victim = node.spawn(hog, _climb(220, 0.002))
    eventually(lambda: bool(daemon.evictions()), "a journal line of the eviction")
    assert -signal.SIGKILL == victim.wait(60)
    assert not [line for line in daemon.lines() if "black_box" in line]


def test_pod_that_is_killed_at_its_own_limit_has_one_too(node: VirtualNode, daemon: RunningDaemon) -> None:
    small = node.add_pod("small", limit_bytes=64 * MIB)
    node.spawn(node.add_pod("other"), PAUSE)
    daemon.configure(HARD, {"blackBox": True, "housekeepingInterval": "1s"})
    _start(daemon)
    victim = node.spawn(small, _climb(100, 0.1))
    assert -signal.SIGKILL == victim.wait(60)
    eventually(lambda: bool(_oom_kills(daemon)), "a journal line of the OOM kill")
    line = _oom_kills(daemon)[0]
    assert line["pod"] == "cgroup/small"
    box = line["black_box"]
    assert box["text"].startswith("memory was taken by cgroup/small (")
    (seen,) = (one for one in box["processes"] if one["pod"] == "cgroup/small")
    assert [victim.pid] == [one["pid"] for one in seen["largest"]]


def _start(daemon: RunningDaemon) -> None:
    """Start the daemon, and wait for the steward, which answers: it starts beside the guard."""
    daemon.start()
    daemon.status()


def _oom_kills(daemon: RunningDaemon) -> list[Mapping[str, Any]]:
    return [line for line in daemon.lines() if line["kind"] == "oom-kill"]


def _climb(mib: int, pause_seconds: float, rests_at_mib: int = 0) -> list[str]:
    numbers = map(str, (mib, pause_seconds, rests_at_mib))
    return [sys.executable, "-S", "-c", CLIMB, *numbers, f"--token={HIDDEN}", HIDDEN]


def _shown_mib(port: int, pod: str) -> float:
    """Return what the page of the last hour says that a pod holds, 0 where it is not named."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60) as answer:
        found = re.search(rf"<td>([\d.]+)Mi</td><td>{pod}</td>", answer.read().decode())
    return 0.0 if found is None else float(found[1])
