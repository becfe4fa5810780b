from __future__ import annotations

from pathlib import Path

import pytest
import trio

from reactor.cluster import runtime_watch as runtime
from reactor.cluster.runtime_watch import RuntimeWatch
from reactor.cri.messages import FilesystemIdentifier, FilesystemUsage, ImageFilesystems
from reactor.errors import RuntimeUnavailableError
from reactor.model.signals import Filesystem


def usage(path: Path | str) -> FilesystemUsage:
    return FilesystemUsage(filesystem=FilesystemIdentifier(mountpoint=str(path)))


def test_the_runtimes_filesystems_are_taken_where_they_are_seen(tmp_path: Path) -> None:
    images, layers = tmp_path / "images", tmp_path / "layers"
    images.mkdir()
    told = ImageFilesystems(
        image_filesystems=(FilesystemUsage(), usage("/not/seen/here"), usage(images)),
        container_filesystems=(usage(layers),),
    )
    assert {Filesystem.IMAGEFS: str(images)} == runtime._paths(told)
    layers.mkdir()
    assert {
        Filesystem.IMAGEFS: str(images),
        Filesystem.CONTAINERFS: str(layers),
    } == runtime._paths(told)
    assert runtime._paths(ImageFilesystems()) == {}


async def test_a_runtime_that_was_never_there_is_a_problem_that_names_its_endpoint(
    tmp_path: Path, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    watch = RuntimeWatch(endpoint=str(tmp_path / "none.sock"), interval_seconds=10)
    await nursery.start(watch.run)
    assert "none.sock" in (watch.state.problem or "")
    assert (watch.inventory, watch.state.description) == ({}, None)
    await trio.sleep(300)
    assert watch.state.problem is not None


def test_without_any_known_socket_the_key_that_would_name_one_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runtime, "find_endpoint", lambda: None)
    with pytest.raises(RuntimeUnavailableError, match=r"reactor\.runtime\.endpoint"):
        _ = RuntimeWatch(endpoint=None, interval_seconds=10).client
