from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reactor.workloads.attributes import UNKNOWN, MainProcess, MainProcessFiles


@pytest.fixture
def cgroup(tmp_path: Path) -> Path:
    directory = tmp_path / "cgroup"
    directory.mkdir()
    for pid, name, score in (("7", "nginx", "-1000"), ("8", "worker", "0")):
        process = tmp_path / "proc" / pid
        process.mkdir(parents=True)
        (process / "comm").write_text(f"{name}\n")
        (process / "oom_score_adj").write_text(f"{score}\n")
    return directory


def read(cgroup: Path, *, with_name: bool = True) -> MainProcess:
    return files(cgroup, with_name=with_name).main


def files(cgroup: Path, *, with_name: bool = True) -> MainProcessFiles:
    return MainProcessFiles(cgroup.parent / "proc", str(cgroup), 0.0, with_name=with_name)


def test_first_process_of_a_cgroup_is_the_main_one(cgroup: Path) -> None:
    (cgroup / "cgroup.procs").write_text("7\n8\n")
    assert MainProcess("nginx", is_unkillable=True) == read(cgroup)
    assert MainProcess(None, is_unkillable=True) == read(cgroup, with_name=False)
    (cgroup / "cgroup.procs").write_text("8\n7\n")
    assert MainProcess("worker", is_unkillable=False) == read(cgroup)


@pytest.mark.parametrize("listed", ["", "0\n", "0\n7\n"])
def test_cgroup_without_a_process_of_this_namespace_has_none(cgroup: Path, listed: str) -> None:
    (cgroup / "cgroup.procs").write_text(listed)
    assert MainProcess("") == read(cgroup)


@pytest.mark.parametrize("listed", ["9\n", "nonsense\n", "7", "-7\n", "7" * 40])
def test_what_cannot_be_read_is_not_known(cgroup: Path, listed: str) -> None:
    (cgroup / "cgroup.procs").write_text(listed)
    assert UNKNOWN == read(cgroup)


def test_cgroup_that_is_gone_is_not_known(cgroup: Path) -> None:
    assert UNKNOWN == read(cgroup)


def test_of_a_long_list_only_the_beginning_is_read(cgroup: Path) -> None:
    (cgroup / "cgroup.procs").write_text("7\n" + "nonsense\n" * 100_000)
    assert MainProcess("nginx", is_unkillable=True) == read(cgroup)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("cgroup/cgroup.procs", "8\n7\n"),
        ("cgroup/cgroup.procs", ""),
        ("proc/7/comm", "sshd\n"),
        ("proc/7/oom_score_adj", "0\n"),
    ],
)
def test_files_held_open_show_that_a_main_process_is_another_or_has_changed(
    cgroup: Path, file: str, text: str
) -> None:
    (cgroup / "cgroup.procs").write_text("7\n8\n")
    found = files(cgroup)
    assert found.are_as_read(10.0)
    (cgroup.parent / file).write_text(text)
    assert not found.are_as_read(20.0)


def test_a_list_that_a_reading_before_may_have_left_shows_nothing(cgroup: Path) -> None:
    """On cgroup v1 the kernel repeats it within a second."""
    (cgroup / "cgroup.procs").write_text("7\n")
    found = files(cgroup)
    assert not found.are_as_read(1.0)
    assert found.are_as_read(10.0)


@pytest.mark.parametrize("listed", ["9\n", "nonsense\n"])
def test_what_is_not_known_is_read_again(cgroup: Path, listed: str) -> None:
    (cgroup / "cgroup.procs").write_text(listed)
    assert not files(cgroup).are_as_read(10.0)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.binary(max_size=40), st.binary(max_size=8))
def test_arbitrary_bytes_never_raise(cgroup: Path, listed: bytes, score: bytes) -> None:
    (cgroup / "cgroup.procs").write_bytes(listed)
    (cgroup.parent / "proc" / "7" / "oom_score_adj").write_bytes(score)
    assert isinstance(read(cgroup), MainProcess)
