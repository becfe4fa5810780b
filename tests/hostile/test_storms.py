"""Shortages that evicting does not end: few pods die of them, and what is seen is said."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from reactor.kernel.cgroup import CgroupVersion
from reactor.kernel.cgroup_memory import MemoryCounters
from reactor.testbed.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon, after_housekeeping, after_passes
from tests.support.processes import MIB, hold, read_often, write_out
from tests.support.processes import PAUSE as WAITING
from tests.support.trials import Trial
from tests.support.waiting import PATIENCE, eventually

pytestmark = pytest.mark.suite("storms")

HARD = {"evictionHard": {"memory.available": "100Mi"}}
# Longer than any of these tests takes on however slow a machine: once it is over, one more pod may go.
PAUSE = {"unhelpfulEvictionPause": "1h"}
WRITER_PAUSE_SECONDS = 0.002 * (PATIENCE - 1)  # after each MiB: an emulated guard is that much slower, too
INNOCENTS = 12
PASSES = 30
INNOCENT_BYTES = 12 * MIB
NODE_MIB = 512
LEVEL_BYTES = (NODE_MIB - 100) * MIB
OTHERS = 8
OTHER_MIB = 28
FILES_MIB = 330
RESTARTS = 3  # more of them would reach the node's limit
# Takes memory MiB for MiB, with a pause after each; then it stays as it is.
LEAK = """
import mmap, signal, sys, time
held = []
for _ in range(int(sys.argv[1])):
    memory = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for offset in range(0, 1 << 20, 4096):
        memory[offset] = 1
    held.append(memory)
    time.sleep(float(sys.argv[2]))
signal.pause()
"""
# Takes so many MiB in steps of 32 KiB, with a pause after each; then it stays as it is.
CREEP = """
import mmap, signal, sys, time
memory = mmap.mmap(-1, int(sys.argv[1]) << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for offset in range(0, len(memory), 4096):
    memory[offset] = 1
    if offset % (32 << 10) == 0:
        time.sleep(float(sys.argv[2]))
signal.pause()
"""
# Takes memory MiB for MiB, with a pause after each, for as long as the node's working set is below a bound.
REFILL = """
import mmap, sys, time
usage, stat, bound, pause = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
held = []
while True:
    counted = dict(line.split() for line in open(stat))
    cached = int(counted.get("total_inactive_file") or counted["inactive_file"])
    if int(open(usage).read()) - cached < bound:
        memory = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for offset in range(0, 1 << 20, 4096):
            memory[offset] = 1
        held.append(memory)
    time.sleep(pause)
"""
# Takes so many MiB and gives them back, over and over.
BREATHING = """
import mmap, sys, time
memory = mmap.mmap(-1, int(sys.argv[1]) << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
while True:
    for offset in range(0, len(memory), 4096):
        memory[offset] = 1
    time.sleep(0.02)
    memory.madvise(mmap.MADV_DONTNEED)
    time.sleep(0.02)
"""
# Starts so many processes that wait.
FORKS = """
import os, signal, sys
for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        signal.pause()
signal.pause()
"""
WRITER = """
import signal, sys, time
with open(sys.argv[1], "wb") as file:
    for _ in range(int(sys.argv[2])):
        file.write(b"1" * (1 << 20))
        file.flush()
        time.sleep(float(sys.argv[3]))
signal.pause()
"""
SHARED = """
import mmap, signal, sys
memory = mmap.mmap(-1, int(sys.argv[1]) << 20, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
for offset in range(0, len(memory), 4096):
    memory[offset] = 1
signal.pause()
"""
LOCKED = """
import ctypes, mmap, signal, sys
size = int(sys.argv[1]) << 20
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
libc = ctypes.CDLL(None, use_errno=True)
if libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(size)):
    raise OSError(ctypes.get_errno(), "mlock")
signal.pause()
"""


@pytest.fixture
def pods(node: VirtualNode, daemon: RunningDaemon) -> str:
    """Return the cgroup whose children are the pods; beside it on the node lies what is no pod's."""
    cgroup = node.add_pod("pods")
    node.add_pod("system")
    daemon.configure(HARD, {"pods": {"parents": [cgroup]}, **PAUSE})
    return cgroup


@pytest.fixture
def innocents(node: VirtualNode, trial: Trial, pods: str) -> list[subprocess.Popen[bytes]]:
    """Return a dozen pods of 12 MiB each."""
    del pods
    made = [node.spawn(node.add_pod(f"pods/innocent-{number}"), hold(8)) for number in range(INNOCENTS)]
    trial.must_live(made)
    return made


def python(program: str, *arguments: object) -> list[str]:
    return [sys.executable, "-S", "-c", program, *map(str, arguments)]


@contextmanager
def tmpfs(path: Path, size_mib: int = 480) -> Iterator[Path]:
    path.mkdir()
    options = f"size={size_mib}m"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "reactor-test", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


def alive(processes: Sequence[subprocess.Popen[bytes]]) -> int:
    return sum(process.poll() is None for process in processes)


@pytest.mark.parametrize("pause_seconds", [0.0005, 0.01])
def test_leak_outside_the_pods_costs_two_innocents_at_the_most(
    node: VirtualNode,
    daemon: RunningDaemon,
    trial: Trial,
    innocents: list[subprocess.Popen[bytes]],
    pause_seconds: float,
) -> None:
    """Each eviction ends the shortage, until the leak has taken what it brought: no crossing without that."""
    trial.futile_at_most = 2
    daemon.start()
    counters = (node.usage_path(), node.tree.path(node.cgroup) / "memory.stat")
    bound_bytes = LEVEL_BYTES + INNOCENT_BYTES // 2
    leak = node.spawn(f"{node.cgroup}/system", python(REFILL, *counters, bound_bytes, pause_seconds))
    eventually(lambda: bool(daemon.status()["slowdowns"]), "evictions slowed down", 30)

    status = after_passes(daemon, PASSES)

    assert alive(innocents) >= INNOCENTS - trial.futile_at_most
    assert leak.poll() is None
    assert "outside the pods" in status["problems"]["evictions"]
    (slowdown, *_) = status["slowdowns"]
    assert slowdown["reason"] in {"unhelpful", "outside-pods"}
    assert "are slowed down" in daemon.log()
    assert any(line["slowdowns"] for line in daemon.lines() if line["kind"] == "decision")
    assert "are slowed down" in daemon.ask("explain").stdout


def test_slow_leak_outside_pods_that_hold_next_to_nothing_costs_a_third_of_them_at_the_most(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial, pods: str
) -> None:
    trial.futile_at_most = 10
    made = [node.spawn(node.add_pod(f"pods/innocent-{number}"), ["sleep", "inf"]) for number in range(30)]
    mib = (LEVEL_BYTES - node.usage_bytes()) // MIB - 14  # an interpreter takes 10
    node.spawn(f"{node.cgroup}/system", hold(mib))
    eventually(lambda: node.usage_bytes() > LEVEL_BYTES - 14 * MIB, "what is almost all")
    daemon.start()
    leak = node.spawn(f"{node.cgroup}/system", python(CREEP, 16, 0.01 * PATIENCE))
    eventually(lambda: bool(daemon.status()["slowdowns"]), "evictions slowed down")
    eventually(lambda: node.usage_bytes() > LEVEL_BYTES + 4 * MIB, "what all pods together hold, and more")

    after_passes(daemon, PASSES)

    assert alive(made) >= 20
    assert leak.poll() is None
    assert "outside the pods" in daemon.status()["problems"]["evictions"]


def test_leak_outside_the_pods_costs_one_innocent_in_a_pause_also_in_time(
    node: VirtualNode,
    daemon: RunningDaemon,
    trial: Trial,
    innocents: list[subprocess.Popen[bytes]],
    pods: str,
) -> None:
    """Each of them would have been asked to end in turn: an eviction in time waits for no pause."""
    trial.futile_at_most = 10
    soft = {"memory.available": "200Mi"}
    daemon.configure(
        {**HARD, "evictionSoft": soft, "evictionSoftGracePeriod": {"memory.available": "10m"}}
        | {"evictionMaxPodGracePeriod": 30},
        {"softEviction": "inTime", "pods": {"parents": [pods]}, **PAUSE},
    )
    daemon.start()
    free_mib = (node.memory_bytes - node.usage_bytes()) // MIB
    node.spawn(f"{node.cgroup}/system", python(LEAK, free_mib - 40, 0.1))
    eventually(lambda: bool(daemon.status()["slowdowns"]), "evictions slowed down", 90)

    status = after_passes(daemon, PASSES)

    assert alive(innocents) >= INNOCENTS - trial.futile_at_most
    assert "outside the pods" in status["problems"]["evictions"]


@pytest.mark.parametrize("where", ["system", "pods/keeper"])
def test_leak_that_is_seen_once_it_has_taken_all_costs_one_innocent(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial, pods: str, where: str
) -> None:
    """As kernel memory on cgroup v1: three pods would bring back what is missing, before one is judged."""
    daemon.configure(HARD, {"pods": {"parents": [pods], "never": ["keeper"]}, **PAUSE})
    node.add_pod("pods/keeper")
    trial.futile_at_most = 1
    made = [node.spawn(node.add_pod(f"pods/innocent-{number}"), hold(35)) for number in range(6)]
    trial.must_live(made)
    eventually(lambda: node.usage_bytes() > 6 * 35 * MIB, "the innocents")
    daemon.start()
    after_passes(daemon, 1)
    daemon.signal(signal.SIGSTOP)
    mib = (node.memory_bytes - node.usage_bytes()) // MIB - 14  # an interpreter takes 10
    leak = node.spawn(f"{node.cgroup}/{where}", hold(mib))
    eventually(lambda: node.memory_bytes - node.usage_bytes() < 20 * MIB, "a node that is full")
    daemon.signal(signal.SIGCONT)
    eventually(lambda: bool(daemon.status()["slowdowns"]), "evictions slowed down")

    after_passes(daemon, PASSES)

    assert alive(made) == 5
    assert leak.poll() is None


NEVER_EVICTED = {
    "never list": ("keeper", {"never": ["keeper"]}, {}),
    "built-in list": ("docker.service", {}, {}),
    "oomd_omit": ("omitted", {}, {}),
    "priority in a manifest": ("critical", {}, {}),
    "static pod in a manifest": ("static", {}, {}),
    "with a least size of a victim": ("keeper", {"never": ["keeper"]}, {"minimumVictimBytes": "16Mi"}),
}


def never_evicted_pod(node: VirtualNode, daemon: RunningDaemon, kind: str) -> str:
    """Configure the daemon, and make a pod that it never evicts; return its name."""
    name, lists, section = NEVER_EVICTED[kind]
    cgroup = node.add_pod(name)
    if kind == "oomd_omit":
        space = "user" if node.tree.version is CgroupVersion.V2 else "trusted"
        os.setxattr(node.tree.path(cgroup), f"{space}.oomd_omit", b"1")
    specs: Mapping[str, Any] = {}
    if kind.endswith("manifest"):
        manifests = daemon.directory / "manifests"
        manifests.mkdir()
        metadata: dict[str, Any] = {"name": name, "annotations": {"reactor/cgroup": cgroup}}
        spec: dict[str, Any] = {"containers": []}
        if kind.startswith("priority"):
            spec["priority"] = 2_000_001_000
        else:
            metadata["annotations"]["kubernetes.io/config.source"] = "file"
        (manifests / "pod.json").write_text(json.dumps({"metadata": metadata, "spec": spec}))
        specs = {"manifests": str(manifests)}
    daemon.configure(HARD, {"pods": {"parents": [node.cgroup], **lists, **specs}, **section, **PAUSE})
    return name


def test_processes_outside_the_pods_cost_two_innocents_at_the_most(
    node: VirtualNode, trial: Trial, pods: str, daemon: RunningDaemon
) -> None:
    if node.tree.pids_root is None:
        pytest.skip("no pids controller; mount one")
    trial.futile_at_most = 2
    (node.tree.path(node.cgroup, "pids") / "pids.max").write_text("300")
    made = [node.spawn(node.add_pod(f"pods/innocent-{number}"), WAITING) for number in range(INNOCENTS)]
    daemon.configure({"evictionHard": {"pid.available": "100"}}, {"pods": {"parents": [pods]}, **PAUSE})
    daemon.start()
    node.spawn(node.add_pod("system/forks"), python(FORKS, 240))

    def is_slowed() -> bool:
        return any(one["signal"] == "pid.available" for one in daemon.status()["slowdowns"])

    eventually(is_slowed, "a slowdown")
    after_housekeeping(daemon, 2)  # once all have forked nothing else wakes it
    assert alive(made) >= INNOCENTS - 2
    (slowdown,) = daemon.status()["slowdowns"]
    assert "processes are outside the pods" in slowdown["message"]


@pytest.mark.parametrize("kind", NEVER_EVICTED)
def test_leak_in_a_pod_that_is_never_evicted_costs_one_innocent_at_the_most(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial, kind: str
) -> None:
    trial.futile_at_most = 1
    name = never_evicted_pod(node, daemon, kind)
    innocents = [node.spawn(node.add_pod(f"innocent-{number}"), hold(14)) for number in range(OTHERS)]
    trial.must_live(innocents)
    eventually(lambda: node.usage_bytes() > OTHERS * 14 * MIB, "the innocents are there")
    daemon.start()

    leak = node.spawn(f"{node.cgroup}/{name}", python(LEAK, 330, 0.0005))
    eventually(lambda: bool(daemon.status()["slowdowns"]), "evictions slowed down", 30)
    status = after_passes(daemon, PASSES)

    assert alive(innocents) >= OTHERS - 1
    assert leak.poll() is None
    pod = f"{'default' if kind.endswith('manifest') else 'cgroup'}/{name}"
    held = f"are held by {pod}, which is never evicted"
    assert held in status["problems"]["evictions"]
    (slowdown, *_) = status["slowdowns"]
    assert pod == slowdown["held_by"]
    assert 250 * MIB < slowdown["held_by_bytes"]
    assert held in daemon.log()
    decided = [one for line in daemon.lines() for one in line.get("slowdowns", ())]
    assert pod in {one["held_by"] for one in decided}
    assert held in daemon.ask("explain").stdout


def test_slow_leak_in_a_pod_that_is_never_evicted_makes_of_each_kill_one_that_did_not_help(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial
) -> None:
    """What a kill brings back is taken over seconds, long after it looked like one that helped."""
    trial.futile_at_most = 1
    name = never_evicted_pod(node, daemon, "never list")
    innocents = [node.spawn(node.add_pod(f"innocent-{number}"), hold(14)) for number in range(OTHERS)]
    trial.must_live(innocents)
    daemon.start()
    leak = node.spawn(f"{node.cgroup}/{name}", python(LEAK, 240, 0.0005))
    eventually(lambda: node.usage_bytes() > (OTHERS * 14 + 240) * MIB, "the first part of the leak")
    node.spawn(f"{node.cgroup}/{name}", python(LEAK, 90, 0.05 * PATIENCE))
    eventually(lambda: bool(daemon.status()["slowdowns"]), "evictions slowed down", 60)

    after_passes(daemon, PASSES)

    assert alive(innocents) >= OTHERS - 1
    assert leak.poll() is None


@pytest.mark.parametrize("breathing_mib", [0, 30])
def test_hogs_beside_a_large_pod_that_is_never_evicted_are_killed_at_once_each(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial, breathing_mib: int
) -> None:
    trial.right |= {"hog-1", "hog-2", "hog-3"}
    name = never_evicted_pod(node, daemon, "never list")
    innocents = [node.spawn(node.add_pod(f"innocent-{number}"), hold(8)) for number in range(4)]
    trial.must_live(innocents)
    keeper = [node.spawn(f"{node.cgroup}/{name}", hold(200))]
    eventually(lambda: node.usage_bytes() > 232 * MIB, "the large pod and the innocents")
    if breathing_mib:
        keeper.append(node.spawn(f"{node.cgroup}/{name}", python(BREATHING, breathing_mib)))
    daemon.start()
    hogs = [node.spawn(node.add_pod(f"hog-{number}"), python(LEAK, 200, 0)) for number in (1, 2, 3)]
    for hog in hogs[1:]:
        hog.wait(20 * PATIENCE)
    eventually(lambda: len(daemon.evictions()) >= 2, "two evictions")

    status = after_passes(daemon, 2)

    assert alive(innocents) == 4
    assert alive(keeper) == len(keeper)
    assert status["oom_kills"]["recent"] == []


@contextmanager
def left_in_memory(node: VirtualNode, daemon: RunningDaemon, path: Path, mib: int) -> Iterator[Path]:
    """Start the daemon beside a pod that has written so much to a tmpfs, and dies of it; return the file.

    The file stays, and evictions are slowed down for it.
    """
    with tmpfs(path) as mounted:
        file = mounted / "file"
        writer = node.spawn(node.add_pod("pods/writer"), python(WRITER, file, mib, WRITER_PAUSE_SECONDS))
        eventually(lambda: file.exists() and file.stat().st_size == mib * MIB, f"a file of {mib} MiB")
        daemon.start()
        assert -signal.SIGKILL == writer.wait(20 * PATIENCE)
        eventually(lambda: bool(daemon.status()["slowdowns"]), "evictions slowed down")
        yield file


def test_memory_of_a_tmpfs_that_outlives_its_writer_costs_no_innocent(
    node: VirtualNode,
    daemon: RunningDaemon,
    trial: Trial,
    innocents: list[subprocess.Popen[bytes]],
    tmp_path: Path,
) -> None:
    trial.right |= {"writer", "hog"}
    with left_in_memory(node, daemon, tmp_path / "tmpfs", 310) as file:
        after_passes(daemon, PASSES)

        assert INNOCENTS == alive(innocents)
        eventually(lambda: ["writer"] == daemon.evicted(), "the eviction in the journal")
        (line,) = daemon.evictions()
        (eviction,) = line["evictions"]
        assert eviction["credited_bytes"] > 200 * MIB
        assert abs(eviction["returned_bytes"]) < 40 * MIB
        assert eviction["left_shared_bytes"] > 200 * MIB
        assert eviction["freed_ns"] is None
        file.unlink()
        eventually(lambda: not daemon.status()["signals"][0]["thresholds"][0]["met"], "no threshold met")
        hog = node.spawn(node.add_pod("pods/hog"), hold(400))
        assert -signal.SIGKILL == hog.wait(20 * PATIENCE)
        assert INNOCENTS == alive(innocents)


def test_page_cache_that_a_victim_leaves_spares_the_next_pod_until_it_is_gone(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial, pods: str, tmp_path: Path
) -> None:
    """A minimum reclaim makes one shortage of it: the next pod goes for what is missing then."""
    trial.right |= {"reader", "next"}
    hard, reclaim = {"memory.available": "200Mi"}, {"memory.available": "60Mi"}
    daemon.configure(
        {"evictionHard": hard, "evictionMinimumReclaim": reclaim},
        {"pods": {"parents": [pods]}, "housekeepingInterval": "100ms", **PAUSE},
    )
    file = tmp_path / "file"
    assert 0 == node.spawn(f"{node.cgroup}/system", write_out(file, mib=40)).wait(60 * PATIENCE)
    node.spawn(node.add_pod("pods/reader"), read_often(file))
    with closing(MemoryCounters(node.tree, f"{pods}/reader")) as reader:
        eventually(lambda: reader.active_file_bytes() > 39 * MIB, "the cache is active")
    system_mib = NODE_MIB - 192 - node.usage_bytes() // MIB
    node.spawn(f"{node.cgroup}/system", hold(system_mib))
    eventually(lambda: node.usage_bytes() > (40 + system_mib) * MIB, "what crosses the threshold")
    daemon.start()
    eventually(lambda: bool(daemon.status()["slowdowns"]), "evictions slowed down")
    after = node.spawn(node.add_pod("pods/next"), hold(24))
    eventually(lambda: node.usage_bytes() > (40 + system_mib + 24) * MIB, "what the next pod takes")
    after_passes(daemon, PASSES)
    assert after.poll() is None

    file.unlink()
    assert -signal.SIGKILL == after.wait(20 * PATIENCE)
    status = after_passes(daemon, PASSES)
    assert [] == status["slowdowns"]
    assert ["reader", "next"] == daemon.evicted()


def test_writer_to_a_tmpfs_that_is_started_again_each_time_costs_no_innocent(
    node: VirtualNode,
    daemon: RunningDaemon,
    trial: Trial,
    pods: str,
    innocents: list[subprocess.Popen[bytes]],
    tmp_path: Path,
) -> None:
    """As a unit with Restart=always whose files stay. A minimum reclaim makes one shortage of it."""
    trial.right.add("writer")
    trial.rounds = RESTARTS
    daemon.configure(
        {**HARD, "evictionMinimumReclaim": {"memory.available": "20Mi"}},
        {"pods": {"parents": [pods]}, **PAUSE},
    )
    daemon.start()
    with tmpfs(tmp_path / "tmpfs") as mounted:
        for number in range(RESTARTS):
            writer = node.spawn(
                node.add_pod("pods/writer"), python(WRITER, mounted / str(number), 300, WRITER_PAUSE_SECONDS)
            )
            assert -signal.SIGKILL == writer.wait(20 * PATIENCE)
            node.remove_pod(f"{pods}/writer")

        status = after_passes(daemon, 5)

        assert INNOCENTS == alive(innocents)
        eventually(lambda: ["writer"] * RESTARTS == daemon.evicted(), "all evictions in the journal")
        assert status["slowdowns"]
        assert status["oom_kills"]["recent"] == []


def test_writer_that_is_started_again_at_once_costs_no_innocent_more_than_its_files_need_room_for(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial, pods: str, tmp_path: Path
) -> None:
    """As a unit with Restart=always whose files stay; by the ranking larger pods go before its young run.

    The files take the room, and nothing but their removal brings it back. Each of the other pods brings back
    what it held, and the kernel's OOM killer finds nothing to do.
    """
    # As the usual configuration has it: one eviction in 10 s where evicting does not help.
    daemon.configure(HARD, {"pods": {"parents": [pods]}})
    others = [node.spawn(node.add_pod(f"pods/other-{number}"), hold(OTHER_MIB)) for number in range(OTHERS)]
    eventually(lambda: node.usage_bytes() >= OTHERS * OTHER_MIB * MIB, "all that the others take")
    before_mib = node.usage_bytes() / MIB
    missing_mib = (
        before_mib + FILES_MIB + OTHER_MIB - (NODE_MIB - 100)
    )  # one run of the writer takes room, too
    needed = math.ceil(missing_mib / OTHER_MIB)
    trial.right |= {"writer", *(f"other-{number}" for number in range(OTHERS))}
    trial.needed = 1 + needed
    daemon.start()
    with tmpfs(tmp_path / "tmpfs", size_mib=FILES_MIB) as mounted:
        trial.rounds = 0
        status = -signal.SIGKILL
        while status == -signal.SIGKILL:  # until its files have all the room that there is for them
            trial.rounds += 1
            file = mounted / str(trial.rounds)
            writer = node.spawn(
                node.add_pod("pods/writer"), python(WRITER, file, 2 * FILES_MIB, 0.02 * PATIENCE)
            )
            status = writer.wait(60 * PATIENCE)
            node.remove_pod(f"{pods}/writer")
        document = after_passes(daemon, PASSES)

        eventually(lambda: daemon.status()["in_flight"] == [], "the end of all evictions")
        dead = OTHERS - alive(others)
        print(f"{trial.rounds} runs of the writer, {dead} of {OTHERS} others dead, {needed} needed")
        assert trial.rounds >= RESTARTS
        assert dead <= needed
        assert document["oom_kills"]["recent"] == []
        evictions = [one for line in daemon.evictions() for one in line["evictions"]]
        assert dead == sum(one["pod"] != "cgroup/writer" for one in evictions)
        helped = [(one["pod"], 4 * one["returned_bytes"] > one["credited_bytes"]) for one in evictions]
        assert ("cgroup/writer", False) == helped[0]
        assert all(is_helpful for pod, is_helpful in helped if pod != "cgroup/writer"), helped
        assert "restart loop cgroup/writer" in daemon.status()["problems"]
        assert "are slowed down" in daemon.log()


def test_hog_that_grows_while_another_memory_stays_is_faster_than_no_pause(
    node: VirtualNode,
    daemon: RunningDaemon,
    trial: Trial,
    innocents: list[subprocess.Popen[bytes]],
    tmp_path: Path,
) -> None:
    """Somebody who lets one pod die for a tmpfs does not protect the next."""
    trial.right |= {"writer", "hog"}
    with left_in_memory(node, daemon, tmp_path / "tmpfs", 280):
        hog = node.spawn(node.add_pod("pods/hog"), python(LEAK, 300, 0))

        assert -signal.SIGKILL == hog.wait(20 * PATIENCE)
        eventually(lambda: ["writer", "hog"] == daemon.evicted(), "both evictions in the journal")
        assert INNOCENTS == alive(innocents)
        assert daemon.status()["oom_kills"]["recent"] == []


def test_crash_amid_a_storm_forgets_nothing_of_it(
    node: VirtualNode,
    daemon: RunningDaemon,
    trial: Trial,
    innocents: list[subprocess.Popen[bytes]],
    tmp_path: Path,
) -> None:
    trial.right |= {"writer"}
    with left_in_memory(node, daemon, tmp_path / "tmpfs", 310):
        state = daemon.directory / "state.json"
        eventually(lambda: state.exists() and "slowdowns" in state.read_text(), "a saved state")

        daemon.kill()
        daemon.start()
        status = after_passes(daemon, 10)

        assert INNOCENTS == alive(innocents)
        assert ["unhelpful"] == sorted({one["reason"] for one in status["slowdowns"]})


def test_victim_that_can_not_die_takes_no_other_pod_with_it(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial, innocents: list[subprocess.Popen[bytes]]
) -> None:
    """Its cgroup is frozen from above, and it is given up and chosen again, past several deadlines.

    Its memory is shared: any other, locked or not, is freed in the daemon's own context.
    """
    trial.right |= {"hog"}
    if node.tree.freezer_root is None or node.tree.version is CgroupVersion.V2:
        pytest.skip("needs cgroup v1's freezer: on v2 what is frozen dies of SIGKILL")
    daemon.configure(
        HARD, {"pods": {"parents": [f"{node.cgroup}/pods"]}, "inFlightDeadline": "500ms", **PAUSE}
    )
    daemon.start()
    hog = node.spawn(node.add_pod("pods/hog"), python(SHARED, 250))
    eventually(lambda: node.usage_bytes() > 380 * MIB, "all that the pods take")
    freezer = node.tree.path(f"{node.cgroup}/pods", "freezer") / "freezer.state"
    freezer.write_text("FROZEN")
    try:
        node.spawn(f"{node.cgroup}/system", hold(60))
        eventually(lambda: len(daemon.evictions()) >= 3, "three evictions")

        assert {"hog"} == set(daemon.evicted())
        problems = daemon.status()["problems"]
        assert ["kill of cgroup/hog"] == [one for one in problems if one.endswith("cgroup/hog")]
        assert "still listed 0.5 s after the kill" in problems["kill of cgroup/hog"]
    finally:
        freezer.write_text("THAWED")
    assert -signal.SIGKILL == hog.wait(20 * PATIENCE)
    assert INNOCENTS == alive(innocents)


def test_locked_memory_comes_back_like_any_other(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial, innocents: list[subprocess.Popen[bytes]]
) -> None:
    trial.right |= {"one", "two"}
    daemon.start()
    for name in ("one", "two"):
        hog = node.spawn(node.add_pod(f"pods/{name}"), python(LOCKED, 290))
        assert -signal.SIGKILL == hog.wait(20 * PATIENCE)

    status = after_passes(daemon, 2)

    assert INNOCENTS == alive(innocents)
    eventually(lambda: ["one", "two"] == daemon.evicted(), "both evictions in the journal")
    assert status["slowdowns"] == []


def test_second_hog_is_killed_at_once_however_soon_it_crosses(
    node: VirtualNode,
    daemon: RunningDaemon,
    trial: Trial,
    innocents: list[subprocess.Popen[bytes]],
    tool: Path,
) -> None:
    trial.right |= {f"hog-{number}" for number in range(4)}
    del tool
    daemon.start()
    hogs = [node.spawn(node.add_pod(f"pods/hog-{number}"), python(LEAK, 300, 0)) for number in range(4)]
    for hog in hogs[1:]:
        hog.wait(20 * PATIENCE)
    eventually(lambda: len(daemon.evictions()) >= 3, "three evictions")

    status = after_passes(daemon, 2)

    assert INNOCENTS == alive(innocents)
    assert status["slowdowns"] == []
    assert not any(line["slowdowns"] for line in daemon.lines() if line["kind"] == "decision")
    killed = [one["killed_ns"] for line in daemon.evictions() for one in line["evictions"]]
    assert killed == sorted(killed)
