from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from reactor.disks.filesystems import FilesystemObserver
from reactor.kernel.filesystem import FilesystemSpace
from reactor.model.settings import EvictionSettings, Settings
from reactor.model.signals import Filesystem, Layout, Signal
from reactor.observe.filesystems import observations

MOUNTS = "1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 8:2 / /images rw - xfs /dev/sdb rw\n"
SPACE = FilesystemSpace(
    capacity_bytes=100,
    available_bytes=10,
    free_bytes=15,
    inodes=50,
    inodes_free=5,
    read_only=False,
    identity=1,
)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mountinfo").write_text(MOUNTS)
    return tmp_path


def observer(proc: Path, layout: Layout | None = None, **paths: str) -> FilesystemObserver:
    """Return an observer; without a layout the devices tell it."""
    settings = Settings(
        filesystems={Filesystem(name): path for name, path in paths.items()},
        eviction=EvictionSettings(layout=layout or Layout.SINGLE),
        by_layout={} if layout else {each: EvictionSettings(layout=each) for each in Layout},
    )
    return FilesystemObserver(settings, proc=proc)


@pytest.mark.parametrize(
    ("paths", "layout"),
    [
        ({"nodefs": "/"}, Layout.SINGLE),
        ({"nodefs": "/", "imagefs": "/var/lib/images"}, Layout.SINGLE),
        ({"nodefs": "/", "imagefs": "/images"}, Layout.DEDICATED),
        ({"nodefs": "/", "imagefs": "/images", "containerfs": "/var"}, Layout.SPLIT),
    ],
)
def test_devices_tell_the_layout(proc: Path, paths: Mapping[str, str], layout: Layout) -> None:
    found = observer(proc, **paths)
    assert layout == found.survey(found.paths).layout


def test_layout_is_another_once_the_images_filesystem_is_mounted(proc: Path) -> None:
    found = observer(proc, nodefs="/", imagefs="/images")
    (proc / "self/mountinfo").write_text(MOUNTS.splitlines()[0] + "\n")
    assert Layout.SINGLE == found.survey(found.paths).layout
    (proc / "self/mountinfo").write_text(MOUNTS)
    assert Layout.DEDICATED == found.survey(found.paths).layout


@pytest.mark.parametrize(
    ("layout", "containerfs"),
    [(Layout.DEDICATED, "/images"), (Layout.SPLIT, "/"), (Layout.SINGLE, "/"), (None, "/images")],
)
def test_writable_layers_lie_where_the_configured_layout_says_else_with_the_images(
    proc: Path, layout: Layout | None, containerfs: str
) -> None:
    found = observer(proc, layout, nodefs="/", imagefs="/images")
    assert containerfs == found.paths[Filesystem.CONTAINERFS]


def test_mount_of_each_filesystem_is_found(proc: Path) -> None:
    found = observer(proc, nodefs="/", imagefs="/images")
    mounts = found.survey(found.paths).mounts
    assert ("8:1", "8:2") == (mounts[Filesystem.NODEFS].device, mounts[Filesystem.IMAGEFS].device)


def test_survey_without_a_path_knows_no_layout_but_the_other_mounts(proc: Path) -> None:
    survey = observer(proc).survey({Filesystem.NODEFS: "/"})
    assert (None, {Filesystem.NODEFS}) == (survey.layout, set(survey.mounts))


def test_look_tells_the_path_without_symlinks(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    look = FilesystemObserver.look(str(link))
    assert os.path.realpath(tmp_path) == look.real_path
    assert os.statvfs(tmp_path).f_blocks * os.statvfs(tmp_path).f_frsize == look.space.capacity_bytes


def test_missing_filesystem_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="/nowhere"):
        FilesystemObserver.look("/nowhere")


def test_bytes_and_inodes_are_signals_of_their_own() -> None:
    seen = observations(Filesystem.IMAGEFS, SPACE)
    assert {Signal.IMAGEFS_AVAILABLE: 10, Signal.IMAGEFS_INODES_FREE: 5} == {
        signal: one.available for signal, one in seen.items()
    }


def test_filesystem_that_counts_no_inodes_has_no_inode_signal() -> None:
    assert {Signal.NODEFS_AVAILABLE} == set(
        observations(Filesystem.NODEFS, dataclasses.replace(SPACE, inodes=None, inodes_free=None))
    )


def test_read_only_filesystem_shows_nothing() -> None:
    assert {} == observations(Filesystem.NODEFS, dataclasses.replace(SPACE, read_only=True))
