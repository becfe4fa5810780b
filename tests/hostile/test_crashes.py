"""Every process but the guard is killed again and again, and the guard itself: hogs are evicted still."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.testbed.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon, after_housekeeping
from tests.support.disks import Guarded, occupied_bytes
from tests.support.mounting import mounted
from tests.support.processes import MIB, PAUSE, descendants, descendants_called, fill, hold
from tests.support.trials import Trial
from tests.support.waiting import PATIENCE, eventually

pytestmark = pytest.mark.suite("crash-only")

HARD = {"evictionHard": {"memory.available": "64Mi", "nodefs.available": "1Mi"}}
ROUNDS = 6
KILL_SECONDS = 0.1
AMID_AT_MOST = 20
POLL_SECONDS = 0.0001
PIDS_LIMIT = "400"
# Each process forks on and on, and holds 2 MiB.
BOMB = """
import mmap, os
held = []
while True:
    try:
        if os.fork() == 0:
            memory = mmap.mmap(-1, 2 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            held.append(memory)
            for offset in range(0, 2 << 20, 4096):
                memory[offset] = 1
    except OSError:
        pass
"""


class HeldPod:
    """A pod in which a kill stops forks and freezes for some milliseconds (v1)."""

    def __init__(self, node: VirtualNode, name: str) -> None:
        self.cgroup = node.add_pod(name)
        self._directories = [node.tree.path(self.cgroup, one) for one in ("pids", "freezer", "cpu")]
        pids, freezer, _ = self._directories
        self._limit, self._count = pids / "pids.max", pids / "pids.current"
        self._state = freezer / "freezer.state"
        self._limit.write_text(PIDS_LIMIT)

    def is_held(self) -> bool:
        """Return whether it can't fork, or is frozen."""
        return [PIDS_LIMIT, "THAWED"] != [one.read_text().strip() for one in (self._limit, self._state)]

    def is_empty(self) -> bool:
        return "0" == self._count.read_text().strip()

    def notes(self) -> list[str]:
        """Return what kills have noted at it and not removed."""
        return [name for one in self._directories for name in os.listxattr(one) if "reactor.before" in name]

    def wait_held(self, first: subprocess.Popen[bytes]) -> None:
        """Return as soon as it is held, or has been killed; `first` is its first process, to be reaped."""
        fd = os.open(self._limit, os.O_RDONLY)
        try:
            # In real time, since hundreds of processes run on the same CPUs; with pauses, for them to fork.
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
            while os.pread(fd, 64, 0) != b"0\n" and (first.poll() is None or not self.is_empty()):
                time.sleep(POLL_SECONDS)
        finally:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
            os.close(fd)


@contextmanager
def killed_all_the_time(daemon: RunningDaemon, *, spared: Sequence[str] = ()) -> Iterator[Callable[[], int]]:
    """Kill what the daemon has started, all the time; yield what tells how many that were.

    What has one of `spared` in its command line lives.
    """
    over, killed = threading.Event(), [0]

    def kill() -> None:
        while not over.wait(KILL_SECONDS):
            assert daemon.process is not None
            pid_of_guard = daemon.process.pid
            alive = {pid for name in spared for pid in descendants_called(pid_of_guard, name)}
            for pid in set(descendants(pid_of_guard)) - alive:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed[0] += 1

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield lambda: killed[0]
    finally:
        over.set()
        killer.join()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Return a filesystem of 128 MiB."""
    with mounted(tmp_path, "ext4", 128) as point:
        yield point


def evicts(node: VirtualNode, trial: Trial, name: str) -> None:
    """Have a hog evicted."""
    trial.right.add(name)
    victim = node.spawn(node.add_pod(name), hold(470))
    assert -signal.SIGKILL == victim.wait(30 * PATIENCE)


def test_hogs_are_evicted_while_every_process_but_the_guard_is_killed_again_and_again(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial, tmp_path: Path
) -> None:
    for name in ("volumes", "pods"):
        (tmp_path / name).mkdir()
    guarded = Guarded(node, daemon, tmp_path / "volumes", tmp_path / "pods")
    volume = guarded.add_pod("innocent")
    for number in range(200):  # what the walker has to do
        (volume / str(number)).mkdir()
    innocent = guarded.run("innocent", PAUSE)
    trial.must_live([innocent])
    trial.rounds = ROUNDS
    guarded.start(HARD)
    with killed_all_the_time(daemon) as killed:
        for number in range(ROUNDS):
            evicts(node, trial, f"hog-{number}")
        eventually(lambda: killed() >= ROUNDS, "processes of the daemon to kill")
    evicts(node, trial, "last")
    # What writes the journal was among the killed.
    eventually(lambda: trial.right == set(daemon.evicted()), "all evictions in the journal")
    assert innocent.poll() is None
    assert 0 == daemon.stop()


def test_a_disk_hog_and_memory_hogs_are_evicted_while_every_command_and_walker_is_killed_again_and_again(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial, disk: Path, tmp_path: Path
) -> None:
    """No command comes to its end, and no walker: what was counted before stands."""
    (tmp_path / "pods").mkdir()
    guarded = Guarded(node, daemon, disk, tmp_path / "pods")
    trial.rounds = 2
    innocent, hog = guarded.add_pod("innocent"), guarded.add_pod("disk-hog")
    calm = guarded.run("innocent", fill(innocent, mib=4))
    trial.must_live([calm])
    leading = guarded.run("disk-hog", fill(hog, mib=40))
    eventually(lambda: occupied_bytes(hog / "file") >= 40 * MIB, "a file of 40 MiB")
    guarded.start(
        {"evictionHard": {"memory.available": "64Mi", "nodefs.available": "50Mi"}},
        {"reclaim": {"nodefs": ["/bin/sleep", "20"]}},
    )
    after_housekeeping(daemon, 3)  # what the pods take is counted
    with killed_all_the_time(daemon, spared=("reactor.steward", "reactor.privileged")) as killed:
        (hog / "more").write_bytes(bytes(45 * MIB))
        assert -signal.SIGKILL == leading.wait(30 * PATIENCE)
        trial.right.add("disk-hog")
        eventually(lambda: not guarded.under_pressure(), "the end of the pressure")
        evicts(node, trial, "memory-hog")
        assert killed() >= 2
    eventually(lambda: trial.right == set(daemon.evicted()), "all evictions in the journal")
    (line,) = (one for one in daemon.evictions() if one["threshold"]["signal"] == "nodefs.available")
    assert any("killed by signal 9" in problem for problem in line["reclaimed"][0]["problems"])
    assert (innocent / "file").exists()
    assert 0 == daemon.stop()


def test_a_guard_that_is_killed_at_any_moment_has_a_successor_that_evicts_the_hog_and_no_other_pod(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial, record_property: Callable[[str, object], None]
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    record_property("seed", seed)
    print(f"seed {seed}")
    moments = random.Random(seed)
    innocents = [node.spawn(node.add_pod(f"innocent-{number}"), hold(10)) for number in range(3)]
    trial.must_live(innocents)
    trial.rounds = ROUNDS
    daemon.configure({"evictionHard": {"memory.available": "64Mi"}})
    for number in range(ROUNDS):
        trial.right.add(f"hog-{number}")
        daemon.start()
        victim = node.spawn(node.add_pod(f"hog-{number}"), hold(440))
        filled = int(moments.uniform(0.3, 0.92) * 512) << 20
        eventually(
            lambda filled=filled, victim=victim: victim.poll() is not None or node.usage_bytes() > filled,
            "the moment",
        )
        daemon.kill()
        daemon.start()
        assert -signal.SIGKILL == victim.wait(30 * PATIENCE)
        assert 0 == daemon.stop()
    assert [None] * 3 == [innocent.poll() for innocent in innocents]


@pytest.mark.parametrize("descriptors", [20, 25, 30, 40])
def test_a_guard_whose_descriptors_are_taken_away_evicts_the_hog_or_nobody(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial, descriptors: int
) -> None:
    """By `prlimit --nofile`, below what it has open: then it can list no pod, or read none.

    If it evicts nobody, the kernel's OOM killer takes the hog.
    """
    trial.right.add("hog")
    innocents = [node.spawn(node.add_pod(f"innocent-{number}"), hold(30)) for number in range(4)]
    trial.must_live(innocents)
    daemon.configure({"evictionHard": {"memory.available": "100Mi"}})
    daemon.start()
    after_housekeeping(daemon, 1)  # the steward has started, and all is open
    assert daemon.process is not None
    resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, (descriptors, descriptors))
    hog = node.spawn(node.add_pod("hog"), hold(440))
    assert -signal.SIGKILL == hog.wait(30 * PATIENCE)
    assert [None] * 4 == [innocent.poll() for innocent in innocents]


def test_a_pod_that_is_frozen_by_a_guard_which_is_killed_then_is_thawed_and_dies_under_the_next_one(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial, record_property: Callable[[str, object], None]
) -> None:
    tree = node.tree
    if tree.version is CgroupVersion.V2 or tree.freezer_root is None or tree.pids_root is None:
        pytest.skip("needs the freezer and the pids controller on v1")
    daemon.configure({"evictionHard": {"memory.available": "64Mi"}})
    for number in range(1, AMID_AT_MOST + 1):
        trial.rounds = number
        trial.right.add(f"bomb-{number}")
        daemon.start()
        pod = HeldPod(node, f"bomb-{number}")
        bomb = node.spawn(pod.cgroup, [sys.executable, "-S", "-c", BOMB])
        pod.wait_held(bomb)
        daemon.kill()
        left = pod.is_held()
        daemon.start()
        assert -signal.SIGKILL == bomb.wait(30 * PATIENCE)
        eventually(
            lambda pod=pod: pod.is_empty() and not pod.is_held() and not pod.notes(),
            "a pod that is dead and as before, with no note of what it was",
        )
        assert 0 == daemon.stop()
        if left:
            record_property("rounds", number)
            print(f"left held in round {number}")
            return
    pytest.fail(f"in {AMID_AT_MOST} rounds no guard was killed while a pod was frozen or could not fork")
