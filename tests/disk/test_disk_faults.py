"""Filesystems that misbehave under the daemon: it lives, says so, evicts nobody for it, and goes on."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from reactor.testbed.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon, after_housekeeping
from tests.support.disks import Guarded, leave
from tests.support.mounting import mounted
from tests.support.processes import MIB, PAUSE, fill, hold
from tests.support.waiting import eventually

LOW_SPACE = {"evictionHard": {"nodefs.available": "100Mi"}}


def problem_of(daemon: RunningDaemon, what: str) -> str:
    return next((why for name, why in daemon.status()["problems"].items() if what in name), "")


def available(daemon: RunningDaemon, signal_name: str) -> int | None:
    return next(one["available"] for one in daemon.status()["signals"] if one["signal"] == signal_name)


def test_read_only_filesystem_is_reported_and_no_pod_is_evicted_until_it_is_writable_again(
    guarded: Guarded,
) -> None:
    pod = guarded.add_pod("pod")
    (pod / "file").write_bytes(bytes(50 * MIB))
    guarded.run("pod", PAUSE)
    # Too full and read-only, as a filesystem is that has found an error in itself.
    leave(guarded.disk, 50)
    subprocess.run(["mount", "-o", "remount,ro", str(guarded.disk)], check=True)
    guarded.start(LOW_SPACE)
    eventually(lambda: "read-only" in problem_of(guarded.daemon, "nodefs"), "the problem")
    assert available(guarded.daemon, "nodefs.available") is None
    after_housekeeping(guarded.daemon, 3)
    assert guarded.evicted() == []
    assert not guarded.under_pressure()
    subprocess.run(["mount", "-o", "remount,rw", str(guarded.disk)], check=True)
    eventually(lambda: guarded.evicted() == ["pod"], "the eviction")
    assert not problem_of(guarded.daemon, "nodefs")


def test_emptied_filesystem_ends_the_pressure(guarded: Guarded) -> None:
    guarded.start(LOW_SPACE)
    ballast = leave(guarded.disk, 50)
    eventually(guarded.under_pressure, "the pressure")
    ballast.unlink()
    eventually(lambda: not guarded.under_pressure(), "its end")
    assert guarded.daemon.stop() == 0


@pytest.mark.parametrize("kind", ["ext4"], indirect=True)
def test_filesystem_that_disappears_is_told_and_the_daemon_goes_on_and_takes_it_up_again(
    guarded: Guarded, tmp_path: Path
) -> None:
    pod = guarded.add_pod("pod")
    images = guarded.disk
    guarded.start(
        {"evictionHard": {"imagefs.available": "350Mi"}, "evictionSoft": {}},
        {"filesystems": {"nodefs": str(tmp_path), "imagefs": str(images)}},
    )
    eventually(lambda: guarded.daemon.status()["layout"] == "dedicated", "the layout")
    image = next(tmp_path.glob("*.image"))
    subprocess.run(["umount", str(images)], check=True)
    eventually(lambda: guarded.daemon.status()["layout"] == "single", "the other layout")
    assert "now lies on" in guarded.daemon.log()
    assert guarded.daemon.status()["signals"]
    subprocess.run(["mount", "-o", "loop", str(image), str(images)], check=True)
    eventually(lambda: guarded.daemon.status()["layout"] == "dedicated", "the layout as before")
    assert guarded.evicted() == []
    assert pod.exists()


@pytest.fixture
def hung(tmp_path: Path) -> Iterator[Path]:
    """Return a mounted filesystem that never answers: FUSE without anybody behind it."""
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("needs root and /dev/fuse; run as root, modprobe fuse")
    point = tmp_path / "hung"
    point.mkdir()
    fuse = os.open("/dev/fuse", os.O_RDWR)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0".encode()
    if libc.mount(b"none", os.fsencode(point), b"fuse.hung", 0, options):
        os.close(fuse)
        pytest.skip(f"no FUSE mount: {os.strerror(ctypes.get_errno())}; run with CAP_SYS_ADMIN")
    try:
        yield point
    finally:
        os.close(fuse)  # every call that waits is answered with ENOTCONN
        subprocess.run(["umount", "-l", str(point)], check=True)


@pytest.mark.parametrize("kind", ["ext4"], indirect=True)
def test_filesystem_that_hangs_makes_no_other_one_late_and_memory_is_guarded(
    guarded: Guarded, hung: Path
) -> None:
    hog = guarded.add_pod("hog")
    guarded.start(
        {"evictionHard": {"nodefs.available": "100Mi", "memory.available": "64Mi"}},
        {"filesystems": {"nodefs": str(guarded.disk), "imagefs": str(hung)}},
    )
    eventually(lambda: "no answer" in problem_of(guarded.daemon, "imagefs"), "the problem")
    guarded.run("hog", fill(hog, mib=1000, pause_seconds=0.002)).wait(60)
    eventually(lambda: guarded.evicted() == ["hog"], "the disk hog's line")
    guarded.add_pod("eater")
    assert guarded.run("eater", hold(500)).wait(60) == -signal.SIGKILL
    eventually(lambda: guarded.evicted() == ["hog", "eater"], "the memory hog's line")


@pytest.mark.parametrize("kind", ["ext4"], indirect=True)
def test_volume_that_hangs_is_told_and_the_others_are_counted(guarded: Guarded, hung: Path) -> None:
    over = guarded.add_pod("over", volume={"sizeLimit": "10Mi"})
    guarded.add_pod("stuck", path=hung)
    guarded.start({"evictionHard": {"nodefs.available": "1Mi"}})
    guarded.run("over", fill(over, mib=20)).wait(120)
    eventually(lambda: guarded.evicted() == ["over"], "the line in the journal")


def write_until_full(path: Path, chunk_bytes: int) -> None:
    with path.open("wb", buffering=0) as file:
        while True:
            try:
                file.write(bytes(chunk_bytes))
            except OSError as error:
                assert error.errno == errno.ENOSPC  # noqa: PT017 - what it is waited for
                return


@pytest.mark.parametrize("kind", ["ext4"], indirect=True)
def test_full_disk_under_state_and_journal_is_survived_and_pods_are_evicted(
    node: VirtualNode, daemon: RunningDaemon, disk: Path, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    with mounted(own, "ext4", 8) as full:
        (full / "state").mkdir()
        daemon.configure(
            {"evictionHard": {"memory.available": "64Mi"}},
            {
                "journal": {"path": str(full / "journal.jsonl")},
                "stateFile": str(full / "state/state.json"),
                "housekeepingInterval": "1s",
            },
        )
        write_until_full(full / "ballast", MIB)
        write_until_full(full / "rest", 512)
        daemon.start()
        assert -signal.SIGKILL == node.spawn(node.add_pod("hog"), hold(480)).wait(60)
        eventually(lambda: "No space left" in problem_of(daemon, "journal"), "the journal's problem")
        eventually(lambda: "No space left" in problem_of(daemon, "state"), "the state's problem")
        (full / "ballast").unlink()
        assert -signal.SIGKILL == node.spawn(node.add_pod("again"), hold(480)).wait(60)
        eventually(lambda: not problem_of(daemon, "journal"), "the end of the journal's problem")
        eventually(lambda: not problem_of(daemon, "state"), "the end of the state's problem")
        assert daemon.stop() == 0


def test_time_to_threshold_is_shown_while_a_disk_fills(guarded: Guarded) -> None:
    writer = guarded.add_pod("writer")
    guarded.start(LOW_SPACE)
    process = guarded.run("writer", fill(writer, mib=250, pause_seconds=0.1))

    def shown() -> bool:
        (nodefs,) = (one for one in guarded.daemon.status()["filesystems"] if one["filesystem"] == "nodefs")
        return nodefs["fills_by_bytes_per_second"] > 0 and nodefs["seconds_to_threshold"] is not None

    eventually(shown, "the rate")
    assert "FILESYSTEM (single)" in guarded.daemon.ask("status").stdout
    process.kill()
