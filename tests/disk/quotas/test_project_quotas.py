"""Project quotas: what the filesystem counts by itself, on kernels that have them.

The virtual machines run this directory too: many a kernel is built without quotas.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.disk import LooksHere
from reactor.disks.usage import DiskUsage
from reactor.kernel.filesystem import project_of, project_usage
from reactor.link.orders import CountedPlace
from reactor.model.pods import FilesystemUsage
from tests.support.mounting import mounted
from tests.support.processes import MIB

OPTIONS = {"ext4": ("-O", "project,quota"), "xfs": ()}


@pytest.fixture(params=OPTIONS)
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def with_quotas(tmp_path: Path, kind: str) -> Iterator[Path]:
    with mounted(tmp_path, kind, 400, *OPTIONS[kind], mount="loop,prjquota") as point:
        yield point


def with_project(directory: Path, project: int) -> Path:
    directory.mkdir()
    subprocess.run(["chattr", "-p", str(project), "+P", str(directory)], check=True)
    return directory


def counted(*directories: Path) -> list[FilesystemUsage]:
    """Return what is counted in each of these directories."""
    usage = DiskUsage()
    usage.know(
        CountedPlace(number=number, uid=directory.name, pod=directory.name, path=str(directory))
        for number, directory in enumerate(directories, 1)
    )
    LooksHere(usage).look()
    found = {one.place: one for usages in usage.news() for one in usages.places}
    return [
        FilesystemUsage(used_bytes=one.used_bytes, inodes_used=one.inodes) for _, one in sorted(found.items())
    ]


def du(path: Path) -> FilesystemUsage:
    def figure(unit: str) -> int:
        done = subprocess.run(["du", "-sx", unit, str(path)], capture_output=True, text=True, check=True)
        return int(done.stdout.split()[0])

    return FilesystemUsage(used_bytes=figure("-B1"), inodes_used=figure("--inodes"))


def test_project_is_counted_as_du_counts_it(with_quotas: Path) -> None:
    directory = with_project(with_quotas / "pod", 4711)
    (directory / "below").mkdir()
    for number in range(50):
        (directory / "below" / str(number)).write_bytes(bytes(number * 10_000))
    os.sync()
    fd = os.open(directory, os.O_RDONLY)
    try:
        assert project_of(fd) == 4711
        assert du(directory) == project_usage(fd, 4711)
    finally:
        os.close(fd)


def test_place_with_a_project_of_its_own_is_counted_without_being_walked(
    with_quotas: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = with_project(with_quotas / "pod", 4712)
    (directory / "file").write_bytes(bytes(5 * MIB))
    os.sync()
    monkeypatch.setattr("reactor.disks.tree.read_entries", None)
    assert [du(directory)] == counted(directory)


def test_places_that_share_a_project_are_walked_each(with_quotas: Path) -> None:
    directories = []
    for name, mib in (("one", 3), ("two", 7)):
        directory = with_project(with_quotas / name, 4713)
        (directory / "file").write_bytes(bytes(mib * MIB))
        directories.append(directory)
    os.sync()
    assert [*map(du, directories)] == counted(*directories)
