from __future__ import annotations

import os
from pathlib import Path

import pytest

from reactor.workloads.trusted_names import held_in_slices, names_are_trusted

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a directory away; run as root")


@pytest.mark.parametrize("cgroup", ["/", "/system.slice", "/user.slice/user-1000.slice", "/lab/node"])
def test_names_in_roots_own_slices_are_roots(tmp_path: Path, cgroup: str) -> None:
    assert names_are_trusted(cgroup, str(tmp_path))


@pytest.mark.parametrize(
    "cgroup",
    [
        "/user.slice/user-1000.slice/user@1000.service",
        "/user.slice/user-1000.slice/user@1000.service/app.slice",
        "/machine.slice/libpod-1.scope/container/system.slice",
    ],
)
def test_names_below_a_unit_of_processes_are_its_own(tmp_path: Path, cgroup: str) -> None:
    assert not names_are_trusted(cgroup, str(tmp_path))


@needs_root
def test_names_in_a_directory_that_another_user_owns_are_his(tmp_path: Path) -> None:
    os.chown(tmp_path, 1000, 1000)
    assert not names_are_trusted("/given", str(tmp_path))


@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_names_in_a_directory_that_others_may_write_are_theirs(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    assert not names_are_trusted("/open", str(tmp_path))


def test_names_in_a_directory_that_is_gone_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        names_are_trusted("/gone", str(tmp_path / "gone"))


def test_a_slice_holds_its_units_and_those_of_the_slices_below(tmp_path: Path) -> None:
    for inside in ("a.service/inner.service", "b.slice/c.slice/d.service", "e.scope"):
        (tmp_path / inside).mkdir(parents=True)
    (tmp_path / "cgroup.procs").touch()
    (tmp_path / "link.slice").symlink_to(tmp_path / "b.slice")
    expected = {"/s.slice/a.service", "/s.slice/b.slice", "/s.slice/b.slice/c.slice", "/s.slice/e.scope"}
    expected.add("/s.slice/b.slice/c.slice/d.service")
    assert expected == set(held_in_slices("/s.slice", str(tmp_path)))


def test_what_is_no_slice_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / "sshd.service").mkdir()
    assert [] == list(held_in_slices("/a.service", str(tmp_path)))
    assert [] == list(held_in_slices("/gone.slice", str(tmp_path / "gone")))


@needs_root
def test_what_a_user_makes_in_a_slice_of_his_is_not_listed(tmp_path: Path) -> None:
    (tmp_path / "app.slice" / "sshd.service").mkdir(parents=True)
    os.chown(tmp_path / "app.slice", 1000, 1000)
    assert ["/s.slice/app.slice"] == list(held_in_slices("/s.slice", str(tmp_path)))


def test_of_an_enormous_slice_only_the_beginning_is_listed(tmp_path: Path) -> None:
    for number in range(600):
        (tmp_path / f"{number}.slice").mkdir()
    assert 512 == len(list(held_in_slices("/s.slice", str(tmp_path))))
