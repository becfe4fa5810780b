from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reactor.act.empty_dirs import EmptyDirs, empty_directory, empty_dirs
from reactor.config.pod import pod_from_document
from reactor.model.pods import Pod, StorageKind, StoragePlace

if TYPE_CHECKING:
    from tests.unit.conftest import FakeTree


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    spec = {
        "containers": [{"name": "main"}],
        "volumes": [{"name": "scratch", "emptyDir": {}}, {"name": "data", "hostPath": {"path": "/srv"}}],
    }
    found = pod_from_document({"metadata": {"name": "batch"}, "spec": spec}, cgroup="/batch")
    places = []
    for name, kind in (
        ("scratch", StorageKind.VOLUME),
        ("data", StorageKind.VOLUME),
        ("main", StorageKind.LOGS),
    ):
        (tmp_path / name / "deep" / "deeper").mkdir(parents=True)
        (tmp_path / name / "deep" / "file").write_text("x")
        path = str(tmp_path / name)
        places.append(StoragePlace(kind=kind, name=name, path=path, ends_with_pod=name == "scratch"))
    return dataclasses.replace(found, storage=tuple(places))


async def test_emptydir_of_a_pod_is_emptied_and_nothing_else(
    fake: FakeTree, pod: Pod, tmp_path: Path
) -> None:
    fake.add("/batch")
    assert () == await EmptyDirs(fake.tree).empty(pod)
    assert [] == os.listdir(tmp_path / "scratch")
    assert (tmp_path / "data/deep/file").exists()
    assert (tmp_path / "main/deep/file").exists()


async def test_pod_whose_cgroup_is_gone_is_emptied_too(fake: FakeTree, pod: Pod, tmp_path: Path) -> None:
    assert () == await EmptyDirs(fake.tree).empty(pod)
    assert [] == os.listdir(tmp_path / "scratch")


async def test_pod_that_runs_again_keeps_its_files(fake: FakeTree, pod: Pod, tmp_path: Path) -> None:
    fake.add("/batch")
    fake.file("/batch", "cgroup.procs", "42\n")
    (problem,) = await EmptyDirs(fake.tree).empty(pod)
    assert "runs again" in problem
    assert (tmp_path / "scratch/deep/file").exists()


def test_only_emptydirs_are_ever_meant(pod: Pod, tmp_path: Path) -> None:
    assert [str(tmp_path / "scratch")] == list(empty_dirs(pod))


def test_symlinks_go_and_what_they_point_at_stays(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/file").write_text("x")
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir/link").symlink_to(tmp_path / "kept")
    (tmp_path / "dir/file").symlink_to(tmp_path / "kept/file")
    assert empty_directory(str(tmp_path / "dir")) is None
    assert [] == os.listdir(tmp_path / "dir")
    assert (tmp_path / "kept/file").exists()


def test_directory_that_is_a_symlink_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    assert empty_directory(str(tmp_path / "link")) is not None
    assert (tmp_path / "kept/file").exists()


def test_missing_directory_is_empty(tmp_path: Path) -> None:
    assert empty_directory(str(tmp_path / "nowhere")) is None


def test_nesting_without_end_is_told_and_survived(tmp_path: Path) -> None:
    at = os.open(tmp_path, os.O_RDONLY)
    for _ in range(250):
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    before = sorted(os.listdir("/proc/self/fd"))
    assert "nested more than 200 deep" in (empty_directory(str(tmp_path)) or "")
    assert before == sorted(os.listdir("/proc/self/fd"))
