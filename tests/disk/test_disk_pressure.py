"""The kubelet's end-to-end scenarios of disk and inode pressure, on real filesystems of a plain node."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.daemon import after_housekeeping
from tests.support.disks import Guarded, leave, occupied_bytes
from tests.support.processes import MIB, PAUSE, fill
from tests.support.waiting import eventually

LOW_SPACE = {"evictionHard": {"nodefs.available": "100Mi"}}


def test_disk_hog_is_evicted_and_the_innocent_lives(guarded: Guarded) -> None:
    innocent, hog = guarded.add_pod("innocent"), guarded.add_pod("hog")
    guarded.start(LOW_SPACE)
    quiet = guarded.run("innocent", fill(innocent, mib=30))
    loud = guarded.run("hog", fill(hog, mib=1000, pause_seconds=0.002))

    loud.wait(60)

    eventually(lambda: guarded.evicted() == ["hog"], "the hog's line in the journal")
    assert guarded.messages()[0].startswith("The node was low on resource: ephemeral-storage.")
    eventually(lambda: not guarded.under_pressure(), "the end of the pressure")
    assert quiet.poll() is None
    assert [] == os.listdir(hog)  # an emptyDir ends with its pod
    assert os.stat(innocent / "file").st_size == 30 * MIB
    after_housekeeping(guarded.daemon, 2)
    assert guarded.evicted() == ["hog"]


@pytest.mark.parametrize("kind", ["ext4"], indirect=False)
@pytest.mark.parametrize("where", ["reactor/volumes", "reactor/rootfs"])
def test_inode_hog_is_evicted_whether_in_a_volume_or_in_its_container(guarded: Guarded, where: str) -> None:
    innocent, hog = guarded.add_pod("innocent"), guarded.add_pod("hog", where=where)
    guarded.start({"evictionHard": {"nodefs.inodesFree": "1000"}})
    quiet = guarded.run("innocent", fill(innocent, mib=50))
    guarded.run("hog", fill(hog, files=10_000, pause_seconds=0.05)).wait(60)

    eventually(lambda: guarded.evicted() == ["hog"], "the hog's line in the journal")
    assert guarded.messages()[0].startswith("The node was low on resource: inodes.")
    assert quiet.poll() is None


def test_soft_threshold_evicts_after_its_grace_period_and_not_before(guarded: Guarded) -> None:
    hog = guarded.add_pod("hog")
    guarded.start(
        {
            "evictionHard": {"nodefs.available": "1Mi"},
            "evictionSoft": {"nodefs.available": "150Mi"},
            "evictionSoftGracePeriod": {"nodefs.available": "4s"},
            "evictionMaxPodGracePeriod": 1,
        }
    )
    # xfs takes more than is written for a while: the hard threshold must stay out of its reach.
    guarded.run("hog", fill(hog, mib=220)).wait(60)
    eventually(lambda: guarded.evicted() == ["hog"], "the hog's line in the journal")
    pressed = next(line for line in guarded.daemon.lines() if "DiskPressure" in line["conditions"])
    (eviction,) = guarded.daemon.evictions()
    assert eviction["threshold"]["grace_period_seconds"] == 4
    assert eviction["timing"]["decided_ns"] / 1e9 - pressed["monotonic_seconds"] >= 4


def test_low_priority_goes_before_high_and_within_its_request_last(guarded: Guarded) -> None:
    paths = {
        "low": guarded.add_pod("low"),
        "high": guarded.add_pod("high", priority=1000),
        "modest": guarded.add_pod("modest", requests={"ephemeral-storage": "200Mi"}),
    }
    # Each goes only when what the one before left is not enough.
    running = {
        name: guarded.run(name, fill(path, mib=mib))
        for (name, path), mib in zip(paths.items(), (20, 60, 40), strict=True)
    }
    for name, path in paths.items():
        wanted = {"low": 20, "high": 60, "modest": 40}[name] * MIB
        file = path / "file"
        eventually(lambda file=file, wanted=wanted: occupied_bytes(file) >= wanted, f"what {name} writes")
    leave(guarded.disk, 60)
    guarded.start(
        {"evictionHard": {"nodefs.available": "130Mi"}},
        {"inFlightDeadline": "2s"},
    )
    eventually(lambda: guarded.evicted() == ["low", "high"], "both, the low one first")
    eventually(lambda: not guarded.under_pressure(), "the end of the pressure")
    assert running["modest"].poll() is None


def test_what_a_command_frees_spares_everybody_and_is_told(guarded: Guarded, tmp_path: Path) -> None:
    writer = guarded.add_pod("writer")
    cache = guarded.disk / "cache"
    cache.mkdir()
    (cache / "old").write_bytes(bytes(150 * MIB))
    leave(guarded.disk, 160)
    guarded.start(LOW_SPACE, {"reclaim": {"nodefs": ["/bin/rm", "-r", str(cache)]}})
    process = guarded.run("writer", fill(writer, mib=100, pause_seconds=0.001))

    eventually(lambda: bool(guarded.daemon.status()["reclaimed"]), "the reclaim")
    eventually(lambda: not guarded.under_pressure(), "the end of the pressure")
    (given,) = guarded.daemon.status()["reclaimed"]
    assert (given["kind"], given["unit"], given["problems"]) == ("commands", "bytes", [])
    assert given["freed"] > given["wanted"] >= 0  # of 150 MiB, while the writer wrote on
    assert process.poll() is None
    assert guarded.evicted() == []
    assert "RECLAIMED LAST" in guarded.daemon.ask("status").stdout
    assert [line["reclaimed"][0]["kind"] for line in guarded.daemon.lines() if line.get("reclaimed")] == [
        "commands"
    ]


def test_command_that_frees_too_little_is_followed_by_an_eviction(guarded: Guarded) -> None:
    hog = guarded.add_pod("hog")
    guarded.start(LOW_SPACE, {"reclaim": {"nodefs": [["/bin/true"], ["/bin/false"]]}})
    guarded.run("hog", fill(hog, mib=1000, pause_seconds=0.002)).wait(60)

    eventually(lambda: guarded.evicted() == ["hog"], "the hog's line in the journal")
    (line,) = guarded.daemon.evictions()
    assert line["reclaimed"][0]["problems"] == ["/bin/false: exit status 1"]


def test_no_pod_is_evicted_for_a_full_disk_on_which_none_holds_anything(guarded: Guarded) -> None:
    services = {name: guarded.run(name, PAUSE) for name in map(_service_of(guarded), ("a", "b", "c"))}
    logging = guarded.run("logging", fill(guarded.add_pod("logging", where="reactor/logs"), mib=30))
    ballast = leave(guarded.disk, 50)
    guarded.start(LOW_SPACE, {"inFlightDeadline": "1s"})

    eventually(lambda: "nodefs.available<100Mi: no pod" in guarded.problem(), "the problem")
    after_housekeeping(guarded.daemon, 5)
    assert guarded.evicted() == []
    assert {None} == {process.poll() for process in (*services.values(), logging)}
    (slowdown,) = guarded.daemon.status()["slowdowns"]
    assert ("nodefs.available", "outside-pods") == (slowdown["signal"], slowdown["reason"])
    assert "no evictable pod" not in guarded.daemon.status()["problems"]  # one fact is reported once

    ballast.unlink()
    eventually(lambda: not guarded.problem(), "the end of the problem")


def _one_goes_and_not_the_next(guarded: Guarded, names: str, mib: int, where: str | None = None) -> None:
    """Have pods hold so much each on a disk that is full then, and of which evicting frees too little."""
    pods = {}
    for name in names:
        path = guarded.add_pod(name) if where is None else guarded.add_pod(name, where=where)
        pods[name] = guarded.run(name, fill(path, mib=mib))
        eventually(lambda path=path: occupied_bytes(path / "file") >= mib * MIB, f"what {name} writes")
    leave(guarded.disk, 50)
    guarded.start(LOW_SPACE, {"inFlightDeadline": "1s"})

    eventually(lambda: "evicting does not help" in guarded.problem(), "the problem")
    after_housekeeping(guarded.daemon, 5)
    (gone,) = guarded.evicted()
    assert {name for name, process in pods.items() if process.poll() is not None} == {gone}


def test_one_pod_goes_and_not_the_next_where_what_it_held_is_not_removed(guarded: Guarded) -> None:
    """Nobody removes it: no runtime has made it."""
    _one_goes_and_not_the_next(guarded, "abc", 30, where="reactor/rootfs")
    unhelpful = [one for line in guarded.daemon.lines() for one in line.get("unhelpful", ())]
    assert [("nodefs.available", 30)] == [(one["signal"], one["credited_bytes"] // MIB) for one in unhelpful]


def test_of_pods_that_hold_little_beside_what_fills_the_disk_one_goes_and_not_the_next(
    guarded: Guarded,
) -> None:
    """Each frees all that it holds, and all of them together less than is missing."""
    _one_goes_and_not_the_next(guarded, "abcd", 2)


def _service_of(guarded: Guarded) -> Callable[[str], str]:
    def add(name: str) -> str:
        guarded.node.add_pod(name)
        return name

    return add
