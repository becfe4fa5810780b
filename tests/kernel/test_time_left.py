"""The daemon foresees a crossing on a virtual node, and asks a pod to end in time if that is configured."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from reactor.testbed.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon
from tests.support.processes import hold
from tests.support.waiting import eventually

# Grows by so many MiB a second, and by 400 once there is a file of the last name; saves its state at SIGTERM,
# which takes a moment, and says that it has. If it gets no CPU for a while, it makes up for half a second of
# that alone: it never leaps over the thresholds.
GROWS = """
import mmap, os, signal, sys, time
start, rate, (saved, asked) = int(sys.argv[1]) << 20, int(sys.argv[2]) << 20, sys.argv[3:]
def save(*_):
    time.sleep(0.3)
    open(saved, "w").write("saved")
    os._exit(0)
signal.signal(signal.SIGTERM, save)
memory = mmap.mmap(-1, 1 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
def touch(begin, end):
    for offset in range(begin, end, 4096):
        memory[offset] = 1
touch(0, start)
size, at = start, time.monotonic()
while True:
    time.sleep(0.005)
    if asked and os.path.exists(asked):
        rate = 400 << 20
    before, at = at, time.monotonic()
    more = min(0.5, 4 * (1 << 20) / rate, at - before) * rate
    touch(int(size) // 4096 * 4096, int(size + more) // 4096 * 4096)
    size += more
"""
THRESHOLDS = {
    "evictionHard": {"memory.available": "32Mi"},
    "evictionSoft": {"memory.available": "200Mi"},
    "evictionSoftGracePeriod": {"memory.available": "10m"},
    "evictionMaxPodGracePeriod": 30,
}


def grows(start_mib: int, rate_mib: int, saved: Path, asked: Path | str = "") -> list[str]:
    return [sys.executable, "-S", "-c", GROWS, str(start_mib), str(rate_mib), str(saved), str(asked)]


@pytest.mark.parametrize("mode", ["inTime", "upstream"])
def test_a_pod_that_would_cross_within_the_grace_period_has_saved(
    node: VirtualNode, daemon: RunningDaemon, tmp_path: Path, mode: str
) -> None:
    """In time it ends by itself, with its state saved; upstream's way the crossing kills it."""
    hog, other, saved = node.add_pod("hog"), node.add_pod("other"), tmp_path / "saved"
    daemon.configure(THRESHOLDS, {"softEviction": mode})
    daemon.start()
    survivor = node.spawn(other, hold(30))
    victim = node.spawn(hog, grows(10, 10 if mode == "inTime" else 25, saved))
    eventually(lambda: bool(daemon.evictions()), "a journal line of the eviction")
    assert victim.wait(60) == (0 if mode == "inTime" else -9)
    assert saved.exists() == (mode == "inTime")
    assert survivor.poll() is None
    (line,) = daemon.evictions()
    (eviction,) = line["evictions"]
    assert eviction["pod"] == "cgroup/hog"
    assert eviction["outcome"] == ("terminated" if mode == "inTime" else "killed")
    left = line["time_left"]["memory.available"]
    if mode == "inTime":
        assert line["threshold"]["threshold"] == "memory.available<200Mi"
        assert eviction["in_time"] == left
        assert left["earliest_seconds"] <= left["seconds"] <= left["latest_seconds"] < 600
        eventually(
            lambda: daemon.status()["time_left"]["in_time"]["being_judged"] == 1,
            "the eviction is being judged",
        )
    else:
        assert line["threshold"]["threshold"] == "memory.available<32Mi"
        assert "in_time" not in eviction


def test_the_time_left_is_shown_while_memory_is_short(
    node: VirtualNode, daemon: RunningDaemon, tmp_path: Path
) -> None:
    """In `status`, by threshold and with its bounds; a pod that stands still has none."""
    hog = node.add_pod("hog")
    daemon.configure(THRESHOLDS)
    daemon.start()
    assert daemon.status()["time_left"]["signals"] == []
    victim = node.spawn(hog, grows(45, 4, tmp_path / "saved"))

    foreseen: list[dict[str, Any]] = []

    def is_foreseen() -> bool:
        foreseen[:] = [daemon.status()]  # all that is asserted is from one: the next may foresee none
        return any(one["seconds"] is not None for one in foreseen[0]["time_left"]["signals"])

    eventually(is_foreseen, "the crossing is foreseen")
    (signal,) = (one for one in foreseen[0]["signals"] if one["signal"] == "memory.available")
    hard = next(one for one in signal["thresholds"] if one["kind"] == "hard")
    assert 0 < hard["reached_in_seconds"] <= 120  # for twice as long as a fall is observed, a minute at most
    victim.kill()
    eventually(lambda: daemon.status()["time_left"]["signals"] == [], "memory is not short any more")
    still = node.spawn(hog, hold(100))

    def is_unforeseen() -> bool:
        foreseen[:] = daemon.status()["time_left"]["signals"]
        return any(one["seconds"] is None for one in foreseen)

    eventually(is_unforeseen, "memory is short, and falls no more")
    (shown,) = foreseen
    assert shown["because"]
    assert still.poll() is None


@pytest.mark.parametrize("timeout", ["2s", "60s"])
def test_a_hook_that_hangs_costs_its_time_limit_and_no_crossing_waits_for_it(
    node: VirtualNode, daemon: RunningDaemon, tmp_path: Path, timeout: str
) -> None:
    """With time the pod ends by itself after it; a crossing that comes sooner kills while the hook hangs."""
    hook, asked, saved = tmp_path / "hook", tmp_path / "asked", tmp_path / "saved"
    hook.write_text(f"#!/bin/sh\ncat > {asked}.new\nmv {asked}.new {asked}\nsleep 600\n")
    hook.chmod(0o755)
    hog = node.add_pod("hog")
    is_fast = timeout == "60s"
    section = {"softEviction": "inTime", "beforeEviction": {"commands": [str(hook)], "timeout": timeout}}
    daemon.configure(THRESHOLDS, section)
    daemon.start()
    victim = node.spawn(hog, grows(10, 10, saved, asked if is_fast else ""))
    assert victim.wait(90) == (-9 if is_fast else 0)

    def attempts_of(outcomes: set[str]) -> list[dict[str, Any]]:
        every = [one for line in daemon.evictions() for one in line["evictions"]]
        return every if outcomes & {one["outcome"] for one in every} else []

    # A soft eviction that a crossing has pre-empted may be in the journal before the kill.
    wanted = {"killed" if is_fast else "terminated"}
    eventually(lambda: attempts_of(wanted), "a journal line of the eviction")
    attempts = attempts_of(wanted)
    if is_fast:
        assert attempts[-1]["outcome"] == "killed"
        assert attempts[-1]["grace_period_seconds"] == 0
    else:
        assert saved.exists()
        assert [one["outcome"] for one in attempts] == ["terminated"]
        assert any("not done within 2 s" in problem for problem in attempts[0]["problems"])
    if asked.exists():  # a starved one is killed before it has begun
        given = json.loads(asked.read_text())
        assert (given["pod"], given["cgroup"]) == ("cgroup/hog", hog)
        assert given["time_left"]["seconds"] > 0


def test_no_pod_is_asked_to_end_if_a_hook_has_ended_the_shortage(
    node: VirtualNode, daemon: RunningDaemon, tmp_path: Path
) -> None:
    hook, other = tmp_path / "hook", tmp_path / "other"
    hook.write_text(
        f'#!/bin/sh\nother=$(cat {other})\nkill -9 "$other"\n'
        'until grep -q "^State:.Z" "/proc/$other/status"; do sleep 0.01; done\n'  # all is given back by then
    )
    hook.chmod(0o755)
    pods = [node.add_pod(name) for name in ("first", "other")]
    soft = {"evictionSoftGracePeriod": {"memory.available": "10ms"}, "evictionMaxPodGracePeriod": 60}
    section = {"beforeEviction": {"commands": [str(hook)], "timeout": "20s"}}
    daemon.configure({**THRESHOLDS, "evictionSoft": {"memory.available": "96Mi"}, **soft}, section)
    daemon.start()
    small = node.spawn(pods[1], hold(60))
    other.write_text(str(small.pid))
    large = node.spawn(pods[0], hold(120))
    eventually(lambda: bool(daemon.evictions()), "a journal line of the eviction")
    (line,) = daemon.evictions()
    assert [("cgroup/first", "called off")] == [(one["pod"], one["outcome"]) for one in line["evictions"]]
    assert (None, -9) == (large.poll(), small.wait(60))
    assert [] == daemon.status()["in_flight"]
