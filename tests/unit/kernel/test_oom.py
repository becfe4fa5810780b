"""The counters of the OOM killer, as each version of cgroups has them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from reactor.errors import KernelInterfaceError
from reactor.kernel.cgroup import CgroupVersion
from reactor.kernel.files import LastingFile
from reactor.kernel.oom import (
    limit_was_met,
    machine_kills,
    open_process,
    own_kills,
    read_birth,
    read_score,
    subtree_kills,
    subtree_limits_met,
    write_score,
)
from reactor.kernel.procfs import read_start_ticks
from tests.support.waiting import eventually

EVENTS = "low 0\nhigh 7\nmax 40\noom {}\noom_kill {}\noom_group_kill 0\n"


def test_v2_counts_the_subtree(make_tree):
    fake = make_tree(CgroupVersion.V2)
    fake.add("/node")
    fake.file("/node", "memory.events", EVENTS.format(3, 2))

    assert subtree_kills(fake.tree, "/node") == 2
    assert subtree_limits_met(fake.tree, "/node") == 3


@pytest.mark.parametrize(("failcnt", "met"), [("0\n", False), ("12\n", True)])
def test_v1_counts_the_cgroups_own_and_remembers_whether_it_was_full(make_tree, failcnt, met):
    fake = make_tree(CgroupVersion.V1)
    fake.add("/node")
    fake.file("/node", "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n")
    fake.file("/node", "memory.failcnt", failcnt)

    with fake.tree.open("/node") as directory:
        assert own_kills(directory) == 5
    assert limit_was_met(fake.tree, "/node") is met


def test_machine_counts_every_kill(tmp_path: Path) -> None:
    (tmp_path / "vmstat").write_text("nr_free_pages 1\noom_kill 9\nnuma_pte_updates 0\n")

    assert machine_kills(LastingFile(tmp_path / "vmstat")) == 9


def test_kernel_that_does_not_count_is_reported_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "vmstat").write_text("nr_free_pages 1\n")

    with pytest.raises(KernelInterfaceError, match=r"vmstat.*a line 'oom_kill'"):
        machine_kills(LastingFile(tmp_path / "vmstat"))


def test_cgroup_that_is_gone_is_an_error_with_its_path(make_tree):
    fake = make_tree(CgroupVersion.V2)

    with pytest.raises(FileNotFoundError, match=r"memory\.events"):
        subtree_kills(fake.tree, "/gone")


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"])
    yield process
    process.kill()
    process.wait()


def test_score_that_was_raised_can_be_restored(child: subprocess.Popen[bytes]) -> None:
    process = open_process(child.pid)
    try:
        before = read_score(process)
        write_score(process, 1000)
        assert read_score(process) == 1000
        write_score(process, before)
        assert read_score(process) == before
    finally:
        os.close(process)


def test_process_is_known_by_its_start_and_its_parent(child: subprocess.Popen[bytes]) -> None:
    process = open_process(child.pid)
    try:
        start_ticks, parent, _, session = read_birth(process)
        assert (start_ticks, parent) == (read_start_ticks(pid=child.pid), os.getpid())
        assert session == os.getsid(child.pid)
        eventually(lambda: read_birth(process)[2] > 0, "the pages of a process that has just been started")
    finally:
        os.close(process)


def test_process_that_has_ended_is_neither_read_nor_written(child: subprocess.Popen[bytes]) -> None:
    process = open_process(child.pid)
    try:
        child.kill()
        child.wait()
        for call in (read_score, read_birth, lambda one: write_score(one, 1000)):
            with pytest.raises(OSError, match="No such process"):
                call(process)
    finally:
        os.close(process)


def test_stat_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/stat").write_text("7 (a) b) S 1 2")
    process = open_process(7, tmp_path)
    try:
        with pytest.raises(KernelInterfaceError):
            read_birth(process)
    finally:
        os.close(process)
