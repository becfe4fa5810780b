"""Podman's images on a plain node, given back before anybody is evicted; by podman itself."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.disk.real_podman import Podman, serving
from tests.support.disks import Guarded, leave, occupied_bytes
from tests.support.processes import MIB, fill
from tests.support.waiting import eventually

LOW_SPACE = {"evictionHard": {"nodefs.available": "100Mi"}, "imageMinimumGCAge": "1ms"}
AGAIN = "registry.example/again"
USED = "registry.example/used"
MINE = "localhost/mine"


@pytest.fixture
def kind() -> str:
    return "ext4"


@pytest.fixture
def podman(disk: Path) -> Iterator[Podman]:
    """Return a podman with images on the node's disk: one that may go, one in use, one that was made here."""
    with serving(disk / "podman") as found:
        for name in (AGAIN, USED, MINE):
            found.make_image(name, 30)
        found.ask("create", "--name", "keeper", USED, "/content")
        yield found


def section(socket: Path, **more: Any) -> dict[str, Any]:
    return {"podman": {"socket": str(socket), **more}}


def test_images_that_can_be_fetched_again_go_and_everybody_is_spared(
    guarded: Guarded, podman: Podman
) -> None:
    podman.ask("tag", AGAIN, "registry.example/other:2")
    guarded.start(LOW_SPACE, section(podman.socket))
    eventually(lambda: "3 images" in (guarded.daemon.status()["runtime"] or ""), "the first look")
    writer = guarded.add_pod("writer")
    process = guarded.run("writer", fill(writer, mib=10))
    eventually(lambda: occupied_bytes(writer / "file") >= 10 * MIB, "what it writes")
    leave(guarded.disk, 85)

    eventually(lambda: bool(guarded.daemon.status()["reclaimed"]), "the reclaim")
    eventually(lambda: not guarded.under_pressure(), "the end of the pressure")
    (given,) = guarded.daemon.status()["reclaimed"]
    assert ("images", []) == (given["kind"], given["problems"])
    assert given["freed"] >= 30 * MIB
    assert {USED, MINE} == podman.images()
    assert process.poll() is None
    assert guarded.evicted() == []
    assert "podman" in guarded.daemon.ask("status").stdout
    assert guarded.daemon.rss_mib() < 40


def test_where_only_images_in_use_and_made_here_are_left_a_pod_goes(guarded: Guarded, podman: Podman) -> None:
    podman.ask("rmi", AGAIN)
    hog = guarded.add_pod("hog")
    process = guarded.run("hog", fill(hog, mib=10))
    leave(guarded.disk, 85)
    guarded.start(LOW_SPACE, section(podman.socket))
    eventually(lambda: guarded.evicted() == ["hog"], "the eviction")
    assert process.wait(60) == -signal.SIGKILL
    assert {USED, MINE} == podman.images()


@pytest.mark.parametrize("more", [{"images": False}, {}])
def test_images_stay_where_that_is_configured_and_where_they_lie_on_another_filesystem(
    guarded: Guarded, tmp_path: Path, more: dict[str, Any]
) -> None:
    root = guarded.disk / "podman" if more else tmp_path / "elsewhere"
    with serving(root) as podman:
        podman.make_image(AGAIN, 30)
        guarded.add_pod("hog")
        guarded.run("hog", fill(guarded.disk / "hog", mib=10))
        leave(guarded.disk, 85)
        guarded.start(LOW_SPACE, section(podman.socket, **more))
        eventually(lambda: guarded.evicted() == ["hog"], "the eviction")
        assert {AGAIN} == podman.images()


def test_podman_that_does_not_answer_is_told_and_delays_no_eviction_for_good(
    guarded: Guarded, tmp_path: Path
) -> None:
    guarded.add_pod("hog")
    guarded.run("hog", fill(guarded.disk / "hog", mib=10))
    leave(guarded.disk, 85)
    guarded.start(LOW_SPACE, section(tmp_path / "none.sock"))
    eventually(lambda: guarded.evicted() == ["hog"], "the eviction")
    (line,) = guarded.daemon.evictions()
    assert "No such file or directory" in line["reclaimed"][0]["problems"][0]
    assert "none.sock" in guarded.daemon.status()["problems"]["podman"]
