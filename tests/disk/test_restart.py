"""A daemon that ends while a disk is being given back: the next one goes on, and ends nobody else for it."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon import after_housekeeping
from tests.support.disks import Guarded, leave, occupied_bytes
from tests.support.processes import MIB, fill
from tests.support.waiting import eventually

LOW_SPACE = {"evictionHard": {"nodefs.available": "100Mi"}}
PATIENT = {"inFlightDeadline": "60s"}


@pytest.fixture
def kind() -> str:
    return "ext4"


@pytest.fixture
def held(guarded: Guarded) -> Iterator[Path]:
    """Return a file of a hog that has been evicted, which can't be removed: the daemon waits for its space.

    Beside the hog there is an innocent, who would have to go next.
    """
    hog, innocent = guarded.add_pod("hog"), guarded.add_pod("innocent")
    (innocent / "kept").write_bytes(bytes(40 * MIB))
    guarded.run("innocent", fill(innocent, mib=1))
    process = guarded.run("hog", fill(hog, mib=120))
    file = hog / "file"
    eventually(lambda: occupied_bytes(file) >= 120 * MIB, "the hog's file")
    subprocess.run(["chattr", "+i", str(file)], check=True)
    try:
        leave(guarded.disk, 50)
        guarded.start(LOW_SPACE, PATIENT)
        assert process.wait(60) == -signal.SIGKILL
        state = guarded.daemon.directory / "state.json"
        eventually(lambda: state.exists() and bool(in_flight(state)), "the eviction in the state file")
        yield file
    finally:
        subprocess.run(["chattr", "-f", "-i", str(file)], check=False)


def in_flight(state: Path) -> list[object]:
    found: list[object] = json.loads(state.read_text())["state"]["claims"]
    return found


@pytest.mark.parametrize("has_cgroup", [True, False], ids=["its cgroup is there", "its cgroup is gone"])
def test_files_of_an_evicted_pod_are_awaited_and_removed_by_the_next_daemon(
    guarded: Guarded, held: Path, *, has_cgroup: bool
) -> None:
    guarded.daemon.kill()
    if not has_cgroup:
        guarded.node.remove_pod(f"{guarded.node.cgroup}/hog")
    guarded.daemon.start()
    # At each of these turns the innocent would be the next.
    after_housekeeping(guarded.daemon, 4)
    assert "innocent" not in guarded.evicted()
    assert [one["resource"] for one in guarded.daemon.status()["in_flight"]] == ["ephemeral-storage"]

    guarded.daemon.kill()
    subprocess.run(["chattr", "-i", str(held)], check=True)
    guarded.daemon.start()
    eventually(lambda: not guarded.under_pressure(), "the end of the pressure")
    assert not held.exists()
    # That nothing is left of them is known once they have been counted again.
    eventually(lambda: guarded.daemon.status()["in_flight"] == [], "the end of the eviction")
    assert "innocent" not in guarded.evicted()


def test_pod_that_runs_in_a_cgroup_of_that_name_now_keeps_its_files_and_lives(
    guarded: Guarded, held: Path
) -> None:
    guarded.daemon.kill()
    guarded.node.remove_pod(f"{guarded.node.cgroup}/hog")
    guarded.node.add_pod("hog")
    again = guarded.run("hog", ["/bin/sleep", "600"])
    subprocess.run(["chattr", "-i", str(held)], check=True)
    guarded.daemon.start()
    eventually(lambda: "the pod runs again" in guarded.daemon.log(), "the warning")
    assert held.exists()
    assert again.poll() is None


def test_commands_that_a_restart_cut_short_are_run_again_before_anybody_goes(
    guarded: Guarded, tmp_path: Path
) -> None:
    pod = guarded.add_pod("pod")
    process = guarded.run("pod", fill(pod, mib=10))
    cache = guarded.disk / "cache"
    cache.write_bytes(bytes(100 * MIB))
    begun = tmp_path / "begun"
    # The first time it hangs, the second time it frees.
    script = f"if test -e {begun}; then rm {cache}; else touch {begun}; sleep 60; fi"
    leave(guarded.disk, 50)
    guarded.start(LOW_SPACE, {"reclaim": {"nodefs": ["/bin/sh", "-c", script]}})
    eventually(begun.exists, "the command")
    assert guarded.daemon.stop() == 0
    guarded.daemon.start()
    # Until the filesystem is observed again nothing is known of it, no pressure either.
    eventually(lambda: not cache.exists(), "the command's second run")
    eventually(lambda: not guarded.under_pressure(), "the end of the pressure")
    assert guarded.evicted() == []
    assert process.poll() is None
