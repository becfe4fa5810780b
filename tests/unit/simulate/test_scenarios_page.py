"""docs/scenarios.md: each command runs as it is printed, and prints what stands below it."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.this_machine import cgroup_tree

pytest.importorskip("matplotlib", reason="needs the extra: pip install '.[report]'")

ROOT: Final = Path(__file__).resolve().parents[3]
PAGE: Final = (ROOT / "docs/scenarios.md").read_text(encoding="utf-8")


def examples() -> list[tuple[str, str]]:
    """Return each command of the page, and what it is said to print."""
    found = []
    for block in re.findall(r"^```console\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        for example in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, printed = example.partition("\n")
            found.append((command, printed))
    return found


EXAMPLES: Final = examples()
RECORDINGS: Final = [command for command, _ in EXAMPLES if command.startswith("sudo reactor record ")]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a directory with the page's scenario, and `reactor` as a command."""
    (document,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "scenario.yaml").write_text(document)
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/reactor"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m reactor "$@"\n')
    program.chmod(0o755)
    return tmp_path


def run(command: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Return what a shell makes of a command, on a terminal of 80 columns."""
    path = f"{directory}/bin:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    return subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_the_page_has_commands_that_simulate_and_that_record() -> None:
    assert len(RECORDINGS) == 3
    assert len(EXAMPLES) - len(RECORDINGS) >= 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "printed"), [one for one in EXAMPLES if one[0] not in RECORDINGS], ids=lambda one: one[:60]
)
def test_a_command_prints_what_the_page_says(command: str, printed: str, directory: Path) -> None:
    done = run(command, directory)

    assert [line.rstrip() for line in printed.splitlines()] == [
        line.rstrip() for line in done.stdout.splitlines()
    ]
    assert done.returncode == 0
    assert all((directory / name).stat().st_size for name in re.findall(r"--(?:csv|report) (\S+)", command))


@pytest.mark.parametrize("command", RECORDINGS, ids=["of-the-node", "of-the-journal", "rotating"])
def test_a_recording_is_made_as_the_page_says(command: str, directory: Path) -> None:
    """Only paths are the test's own, root is root already, and a second stands for the hour."""
    cgroup_tree()
    seen = {"available": 4 << 30, "capacity": 8 << 30, "inactive_file_bytes": 0, "taken_at_seconds": 1.0}
    decision = {"kind": "decision", "time": "2026-01-01T00:00:00.000000Z", "threshold": None, "ranking": []}
    journal, config = directory / "journal.jsonl", directory / "config.yaml"
    journal.write_text(json.dumps({**decision, "observations": {"memory.available": seen}}) + "\n")
    config.write_text("evictionHard: {memory.available: 1Gi}\nreactor: {pods: {parents: []}}\n")
    for printed, own in (
        ("sudo ", ""),
        ("/etc/reactor/config.yaml", str(config)),
        ("/var/log/reactor/journal.jsonl", str(journal)),
        ("--seconds 3600", "--seconds 1"),
        ("--rotate-hours 24", "--rotate-hours 24 --seconds 1"),
        ("/var/lib/reactor/recording.json", "node.json"),
    ):
        command = command.replace(printed, own)

    recorded = run(command, directory)

    assert (recorded.returncode, recorded.stderr) == (0, "reactor: 1 step recorded\n")
    assert run("reactor simulate node.json", directory).returncode == 0
