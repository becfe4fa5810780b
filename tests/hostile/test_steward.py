"""The process that tells is killed, stopped or never there: hogs are evicted, no line is lost uncounted."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from reactor.errors import NoDaemonError
from reactor.tell.status_socket import ask
from reactor.testbed.virtual_node import VirtualNode
from tests.support.daemon import (
    RunningDaemon,
    after_housekeeping,
    with_lying_steward,
    with_steward_of_another_version,
    without_steward,
)
from tests.support.disks import Guarded, occupied_bytes
from tests.support.mounting import mounted
from tests.support.processes import MIB, descendants_called, fill, hold
from tests.support.trials import Trial
from tests.support.waiting import PATIENCE, eventually

pytestmark = pytest.mark.suite("crash-only")

HARD = {"evictionHard": {"memory.available": "64Mi"}}
_HOGS = 20
# By which module's messages are of another version: what the guard says, or what the steward does.
REFUSALS = {
    "frames": "a message of the guard's is refused: got ",
    "requests": "steward: a request is refused: got ",
}


def steward_pids(daemon: RunningDaemon) -> list[int]:
    """Return the processes that the daemon has to tell by: one, or none for a moment."""
    assert daemon.process is not None
    return descendants_called(daemon.process.pid, "reactor.steward")


def evict(node: VirtualNode, name: str) -> None:
    """Have a hog evicted."""
    assert -signal.SIGKILL == node.spawn(node.add_pod(name), hold(470)).wait(30 * PATIENCE)


@contextmanager
def killed_every_200_ms(daemon: RunningDaemon) -> Iterator[list[int]]:
    """Kill the steward again and again inside the block; give the killed."""
    ended, killed = threading.Event(), []

    def kill() -> None:
        while not ended.wait(0.2):
            for pid in steward_pids(daemon):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        ended.set()
        thread.join()


def assert_no_line_is_lost_uncounted_or_written_twice(daemon: RunningDaemon) -> None:
    steward = daemon.status()["processes"]["steward"]
    places = [line["seq"] for line in daemon.lines()]
    assert len(set(places)) == len(places)
    assert max(places) - len(places) <= steward["lost_records"]


def test_every_hog_is_evicted_while_the_steward_is_killed_every_200_ms(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial
) -> None:
    trial.must_live([node.spawn(node.add_pod("calm", request_bytes=32 << 20), hold(16))])
    daemon.configure(HARD)
    daemon.start()
    trial.rounds, trial.right = _HOGS, {f"hog-{number}" for number in range(_HOGS)}
    with killed_every_200_ms(daemon) as killed:
        for number in range(_HOGS):
            evict(node, f"hog-{number}")
            time.sleep(0.1)
    eventually(lambda: len(daemon.evicted()) == _HOGS, "all in the journal")
    eventually(lambda: daemon.status()["processes"]["steward"]["waiting_records"] == 0, "all handed over")
    print(f"steward killed {len(killed)} times beside {_HOGS} evictions")

    assert len(killed) >= 3
    assert_no_line_is_lost_uncounted_or_written_twice(daemon)
    assert daemon.stop() == 0


def test_hogs_are_evicted_while_the_steward_is_stopped_and_told_once_it_goes_on(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial
) -> None:
    daemon.configure(HARD)
    daemon.start()
    eventually(lambda: daemon.status()["processes"]["steward"]["pid"], "a steward")
    (steward,) = steward_pids(daemon)
    trial.right = {"first", "second", "third"}
    os.kill(steward, signal.SIGSTOP)
    try:
        for name in ("first", "second", "third"):
            evict(node, name)
        assert [] == daemon.evictions()
    finally:
        os.kill(steward, signal.SIGCONT)
    eventually(lambda: len(daemon.evicted()) == 3, "all in the journal")

    assert [steward] == steward_pids(daemon)
    assert_no_line_is_lost_uncounted_or_written_twice(daemon)
    assert daemon.stop() == 0


def test_guard_that_is_killed_is_followed_by_another_though_its_steward_is_stopped(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial
) -> None:
    daemon.configure(HARD)
    daemon.start()
    trial.right = {"before", "after"}
    evict(node, "before")
    eventually(lambda: len(daemon.evicted()) == 1, "the first in the journal")
    (orphan,) = steward_pids(daemon)
    os.kill(orphan, signal.SIGSTOP)
    try:
        daemon.signal(signal.SIGKILL)
        daemon.kill()
        daemon.start()
        evict(node, "after")
        eventually(lambda: len(daemon.evicted()) == 2, "the second in the journal")
        assert [] == [name for name in daemon.status()["problems"] if name.startswith("socket")]
    finally:
        os.kill(orphan, signal.SIGCONT)
    eventually(lambda: not Path(f"/proc/{orphan}").exists(), "the end of what the first guard has left")
    assert daemon.status()["pods"] == 2
    assert daemon.stop() == 0


def test_daemon_that_can_start_no_steward_evicts_and_ends_as_it_is_asked_to(
    node: VirtualNode,
    daemon: RunningDaemon,
    trial: Trial,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_steward(tmp_path, monkeypatch)
    daemon.configure(HARD)
    daemon.start()
    trial.right, trial.needed = {"first", "second"}, 0  # no journal tells of them
    for name in ("first", "second"):
        evict(node, name)

    eventually(lambda: "steward: ended with status 3" in daemon.log(), "why there is none")
    assert [] == daemon.lines()
    assert daemon.stop() == 0


@pytest.mark.parametrize("version", [1, 3], ids=["older", "newer"])
@pytest.mark.parametrize("module", list(REFUSALS))
def test_guard_and_steward_of_another_version_take_nothing_of_each_other_and_pods_are_evicted(
    node: VirtualNode,
    daemon: RunningDaemon,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    trial: Trial,
    module: str,
    version: int,
) -> None:
    """As while an upgrade replaces the program under a guard that runs."""
    with_steward_of_another_version(
        tmp_path, monkeypatch, module=module, version=version, ends_at=tmp_path / "same"
    )
    trial.right, trial.needed = {"first", "second"}, 2
    daemon.configure(HARD)
    daemon.start()
    evict(node, "first")
    eventually(lambda: REFUSALS[module] in daemon.log(), "the refusal")
    evict(node, "second")
    with pytest.raises(NoDaemonError):  # what one may say to the other is not known
        ask(daemon.socket_path, {"command": "status"}, patience_seconds=1)

    (tmp_path / "same").touch()
    for pid in steward_pids(daemon):
        os.kill(pid, signal.SIGKILL)

    eventually(lambda: {"first", "second"} <= set(daemon.evicted()), "both in the journal")
    assert ["first", "second"] == daemon.evicted()
    assert_no_line_is_lost_uncounted_or_written_twice(daemon)
    assert daemon.stop() == 0


def test_no_pod_is_evicted_for_a_disk_that_only_the_steward_calls_full(
    node: VirtualNode,
    daemon: RunningDaemon,
    trial: Trial,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_lying_steward(tmp_path, monkeypatch, lie_is_at=tmp_path / "lie")
    (tmp_path / "pods").mkdir()
    with mounted(tmp_path, "ext4", 400) as disk:
        guarded = Guarded(node, daemon, disk, tmp_path / "pods")
        pods = [guarded.run(name, fill(guarded.add_pod(name), mib=30)) for name in ("a", "b")]
        trial.must_live(pods)
        trial.right, trial.needed = set(), 0
        for name in ("a", "b"):
            eventually(lambda name=name: occupied_bytes(disk / name / "file") >= 30 * MIB, "its files")
        guarded.start({"evictionHard": {"nodefs.available": "100Mi", "nodefs.inodesFree": "100"}})
        after_housekeeping(daemon, 2)
        (tmp_path / "lie").touch()

        eventually(lambda: "check of nodefs" in daemon.status()["problems"], "the problem")
        after_housekeeping(daemon, 10)
        assert [] == guarded.evicted()
        assert [None, None] == [process.poll() for process in pods]
        said = daemon.status()["problems"]["check of nodefs"]
        assert said.startswith("no pod is evicted for nodefs.available<100Mi: statvfs(2) shows ")
        assert said.endswith("available, the steward reports 0")
        assert daemon.stop() == 0
