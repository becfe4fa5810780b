"""oom_score_adj is read and written of the process that was opened, and of no later one of its id."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from reactor.errors import KernelInterfaceError
from reactor.kernel.oom_score import open_process, read_birth, read_score, write_score
from reactor.kernel.procfs import read_start_ticks
from tests.support.waiting import eventually


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"])
    yield process
    process.kill()
    process.wait()


def test_score_that_was_raised_can_be_given_back(child: subprocess.Popen[bytes]) -> None:
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
