"""The last line of `.ci/run`, and how often it runs what failed, on commands that play the machine's."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

CI = Path(__file__).resolve().parents[3] / ".ci" / "run"
WHY = "trixie: LOST: it stopped answering after 60 s of tests, 61 s"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Return the file that the runner of virtual machines leaves a line in at each of its runs."""
    return tmp_path / "runs"


def finished(
    directory: Path, runs: Path, status: int, said: str = "trixie: destroying"
) -> subprocess.CompletedProcess[str]:
    """Run it to its end, the runner of virtual machines ending with that status."""
    commands = {
        "dpkg-query": "printf installed",
        "make": ":",
        "python3": f'echo run >> {runs}; echo "vm: {said}"; echo "vm: {WHY}"; exit {status}',
    }
    for name, script in commands.items():
        (directory / name).write_text(f"#!/bin/sh\n{script}\n")
        (directory / name).chmod(0o755)
    path = f"{directory}:{os.environ['PATH']}"
    return subprocess.run(
        [CI], env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False, timeout=60
    )


EMULATED = "trixie: emulated: there is no KVM here"


@pytest.mark.parametrize(
    ("status", "said", "ends_with"),
    [(2, "trixie: destroying", 0), (3, EMULATED, 0), (124, EMULATED, 0), (3, "trixie: destroying", 3)],
)
def test_machine_that_is_lost_is_a_status_of_its_own_and_one_that_can_not_be_had_is_none(
    tmp_path: Path, runs: Path, status: int, said: str, ends_with: int
) -> None:
    ended = finished(tmp_path, runs, status, said)
    last = ended.stdout.splitlines()[-1]
    assert ends_with == ended.returncode
    assert "NOT TESTED in the virtual machine trixie" in last
    assert last.endswith("not done after 2700 s" if status == 124 else WHY)
    assert "run\n" == runs.read_text()


def test_test_that_fails_in_a_machine_fails_at_once(tmp_path: Path, runs: Path) -> None:
    ended = finished(tmp_path, runs, 1)
    assert 1 == ended.returncode
    assert "FAILED in the virtual machine trixie" in ended.stdout.splitlines()[-1]
    assert "run\n" == runs.read_text()


def test_what_passed_is_said_so(tmp_path: Path, runs: Path) -> None:
    ended = finished(tmp_path, runs, 0)
    assert (0, "ci: the quick tests in the virtual machine trixie passed") == (
        ended.returncode,
        ended.stdout.splitlines()[-1],
    )
