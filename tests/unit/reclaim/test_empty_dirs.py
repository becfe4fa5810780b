from __future__ import annotations

import dataclasses
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from reactor.config.pod import pod_from_document
from reactor.guard import filesystem_facts
from reactor.model.pods import Pod, StorageKind, StoragePlace
from reactor.reclaim.empty_dirs import empty, empty_directory
from tests.support.this_machine import open_descriptors

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


class Steward:
    """Empties what the guard asks for, as the steward does; `asked` are the directories."""

    def __init__(self, fake: FakeTree) -> None:
        self.asked: list[str] = []
        self._tree = fake.tree

    async def ask(self, _: Any, *, path: str, cgroup: str | None) -> SimpleNamespace:
        self.asked.append(path)
        why = await empty(self._tree, path, cgroup)
        return SimpleNamespace(problems=() if why is None else (why,))


async def emptied(fake: FakeTree, pod: Pod) -> list[str]:
    """Empty all that is to be emptied of a pod; return the directories."""
    steward = Steward(fake)
    assert () == await filesystem_facts.empty(steward, pod)  # type: ignore[arg-type]
    return steward.asked


async def test_emptydir_of_a_pod_is_emptied_and_nothing_else(
    fake: FakeTree, pod: Pod, tmp_path: Path
) -> None:
    fake.add("/batch")
    await emptied(fake, pod)
    assert [] == os.listdir(tmp_path / "scratch")
    assert (tmp_path / "data/deep/file").exists()
    assert (tmp_path / "main/deep/file").exists()


async def test_pod_whose_cgroup_is_gone_is_emptied_too(fake: FakeTree, pod: Pod, tmp_path: Path) -> None:
    await emptied(fake, pod)
    assert [] == os.listdir(tmp_path / "scratch")


async def test_pod_that_runs_again_keeps_its_files(fake: FakeTree, pod: Pod, tmp_path: Path) -> None:
    fake.add("/batch")
    fake.file("/batch", "cgroup.procs", "42\n")
    assert "the pod runs again" == await empty(fake.tree, str(tmp_path / "scratch"), pod.cgroup)
    assert (tmp_path / "scratch/deep/file").exists()


async def test_only_emptydirs_are_ever_meant(fake: FakeTree, pod: Pod, tmp_path: Path) -> None:
    assert [str(tmp_path / "scratch")] == await emptied(fake, pod)


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


def _nest(top: Path, depth: int, *, with_files: bool = False) -> None:
    at = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=at)
        if with_files:
            os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=at))
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """Return a directory that is gone after the test, also where it fails: pytest's own removal recurses."""
    made = tmp_path / "volume"
    made.mkdir()
    yield made
    subprocess.run(["rm", "-rf", made], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [31, 32, 33, 250, 3000])
def test_a_deep_tree_is_removed_with_few_descriptors(volume: Path, depth: int) -> None:
    _nest(volume, depth, with_files=True)
    before = open_descriptors()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 80, hard))
    try:
        problem = empty_directory(str(volume))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (None, []) == (problem, os.listdir(volume))
    assert before == open_descriptors()


class _Renames:
    """The names to which directories are moved, as audited. An audit hook stays for good."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.is_on = True
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.is_on and event == "os.rename":
            self.names.append(str(arguments[1]))


def test_a_tenant_can_take_no_name_that_a_moved_directory_would_get(tmp_path: Path) -> None:
    taken = {f".emptied-{os.getpid()}-{number}" for number in range(200)}
    for name in taken:
        (tmp_path / name).touch()
    _nest(tmp_path, 100)
    renames = _Renames()
    try:
        assert empty_directory(str(tmp_path)) is None
    finally:
        renames.is_on = False
    assert [] == os.listdir(tmp_path)
    assert renames.names
    assert taken.isdisjoint(renames.names)
    assert len(renames.names) == len(set(renames.names)) < 10  # each at the first try


def test_a_path_with_a_symlink_in_its_middle_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "kept/scratch").mkdir(parents=True)
    (tmp_path / "kept/scratch/file").write_text("x")
    (tmp_path / "tenant").symlink_to(tmp_path / "kept")
    assert "a symlink lies in the path" == empty_directory(str(tmp_path / "tenant/scratch"))
    assert (tmp_path / "kept/scratch/file").exists()


def test_names_of_any_bytes_are_removed(tmp_path: Path) -> None:
    for name in (b"\xff\xfe", b"\n", b"\x1b[2J", b"x" * 255):
        os.mkdir(os.path.join(os.fsencode(tmp_path), name))
        os.close(os.open(os.path.join(os.fsencode(tmp_path), name, name), os.O_CREAT | os.O_WRONLY))
    os.mkfifo(tmp_path / "fifo")
    assert empty_directory(str(tmp_path)) is None
    assert [] == os.listdir(tmp_path)


def test_without_openat2_nothing_is_emptied_and_the_reason_is_reported(tmp_path: Path) -> None:
    """In a child, whose seccomp filter answers ENOSYS to openat2 as an older kernel does."""
    (tmp_path / "file").touch()
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_OPENAT2, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "the kernel lacks openat2(2)" in done.stdout
    assert (tmp_path / "file").exists()


_WITHOUT_OPENAT2 = """
import ctypes, struct, sys
from reactor.reclaim.empty_dirs import empty_directory
# BPF_LD nr; if it is 437, SECCOMP_RET_ERRNO | ENOSYS, else SECCOMP_RET_ALLOW
program = ((0x20, 0, 0, 0), (0x15, 0, 1, 437), (0x06, 0, 0, 0x00050000 | 38), (0x06, 0, 0, 0x7FFF0000))
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in program))
filters = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
assert libc.prctl(22, 2, filters, 0, 0) == 0  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
print(empty_directory(sys.argv[1]))
"""
