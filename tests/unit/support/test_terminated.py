"""A run of tests that is ended from outside."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import eventually

CHECKOUT = Path(__file__).resolve().parents[3]
CONFTEST = "from tests.support.terminated import pytest_sessionstart\n"
TESTS = """
import time
from pathlib import Path
import pytest
import trio

LEFT = Path(__file__).with_name("left")
RUNS = Path(__file__).with_name("runs")

@pytest.fixture
def left():
    LEFT.touch()
    yield
    LEFT.unlink()

def test_that_blocks(left):
    RUNS.touch()
    time.sleep(100)

async def test_that_waits(left):
    RUNS.touch()
    await trio.sleep(100)
"""


@pytest.mark.parametrize("shell", ["foreground", "background"])
@pytest.mark.parametrize("test", ["test_that_blocks", "test_that_waits"])
def test_a_run_that_is_terminated_tears_its_fixtures_down(tmp_path: Path, test: str, shell: str) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntrio_mode = true\n")
    left = tmp_path / "left"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-k",
        test,
        f"--basetemp={tmp_path / 'base'}",
        str(tmp_path),
    ]
    if shell == "background":  # what a shell starts there ignores SIGINT
        command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command]
    with subprocess.Popen(
        command, cwd=tmp_path, env={"PYTHONPATH": str(CHECKOUT)}, stdout=subprocess.PIPE, text=True
    ) as run:
        eventually((tmp_path / "runs").exists, "the test runs")
        run.send_signal(signal.SIGTERM)
        shown, _ = run.communicate(timeout=60)
    assert (2, False) == (run.returncode, left.exists()), shown
