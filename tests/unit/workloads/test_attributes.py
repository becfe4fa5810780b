from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.workloads.attributes import (
    Attributes,
    held_in_slices,
    names_are_trusted,
    parse_flag,
    parse_priority,
    read_attributes,
)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a directory away; run as root")


def set_attribute(path: Path, name: str, value: bytes) -> None:
    try:
        os.setxattr(path, name, value)
    except OSError as error:
        pytest.skip(f"no attribute {name} on the temporary directory ({error}); use one on ext4, as root")


def read(path: Path) -> Attributes:
    return read_attributes(str(path))


def test_cgroup_without_attributes_has_the_defaults(tmp_path: Path) -> None:
    assert Attributes() == read(tmp_path)


def test_attributes_are_read(tmp_path: Path) -> None:
    set_attribute(tmp_path, "user.reactor.priority", b"-7")
    set_attribute(tmp_path, "user.oomd_avoid", b"1")
    assert Attributes(priority=-7, avoid=True) == read(tmp_path)
    set_attribute(tmp_path, "user.oomd_omit", b"yes\n")
    assert read(tmp_path).omit


def test_trusted_twin_counts_where_the_users_is_missing(tmp_path: Path) -> None:
    set_attribute(tmp_path, "trusted.reactor.priority", b"5")
    assert 5 == read(tmp_path).priority
    set_attribute(tmp_path, "user.reactor.priority", b"6")
    assert 6 == read(tmp_path).priority


def test_wrong_attribute_counts_as_absent_and_is_named(tmp_path: Path) -> None:
    set_attribute(tmp_path, "user.reactor.priority", b"high")
    set_attribute(tmp_path, "user.oomd_omit", b"1")
    found = read(tmp_path)
    assert (0, True) == (found.priority, found.omit)
    assert "user.reactor.priority: got b'high'" in found.problems[0]


def test_who_was_given_a_cgroup_does_not_exempt_it(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to give a directory away; run as root")
    cgroup = tmp_path / "cgroup"
    cgroup.mkdir()
    set_attribute(cgroup, "user.oomd_omit", b"1")
    os.chown(cgroup, 1000, 1000)
    assert not read(cgroup).omit
    assert "user 1000" in read(cgroup).problems[0]


def test_vanished_cgroup_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="gone"):
        read(tmp_path / "gone")


@pytest.mark.parametrize(
    "raw", [b"", b"1.5", b"2147483648", b"-2147483649", b"1_0", b"\xd9\xa3", b"max", b"1 2"]
)
def test_what_is_no_priority_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match="whole number"):
        parse_priority(raw)


@given(st.integers(-(2**31), 2**31 - 1))
def test_priorities_are_read_back(priority: int) -> None:
    assert priority == parse_priority(f"{priority}\n".encode())


@given(st.binary())
def test_arbitrary_bytes_are_a_value_or_refused(raw: bytes) -> None:
    for parse in (parse_priority, parse_flag):
        try:
            parse(raw)
        except ValueError:
            continue


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
