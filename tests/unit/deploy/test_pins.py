"""The pins of what is installed elsewhere: in an image, a package, a guest."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[3]


def show(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, CHECKOUT / "deploy/pins.py", "show", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("python", ["3.11", "3.13"])
def test_pins_are_those_of_the_daemon_and_of_what_is_named_beside_it_by_hash(python: str) -> None:
    shown = show(python, "pytest")
    pinned = set(re.findall(r"^([a-z0-9-]+)==", shown.stdout, re.MULTILINE))
    assert (0, "") == (shown.returncode, shown.stderr)
    assert {"trio", "h11", "pytest", "pluggy"} <= pinned
    assert not {"node-reactor", "mypy", "pytest-trio"} & pinned
    assert len(pinned) <= shown.stdout.count("--hash=sha256:")
    assert set(shown.stdout.splitlines()) <= set((CHECKOUT / "constraints.txt").read_text().splitlines())


def test_package_without_a_pin_is_named_with_what_to_do() -> None:
    shown = show("3.11", "node-reactor")
    assert (1, "") == (shown.returncode, shown.stdout)
    assert "pins: constraints.txt has no pin for node-reactor: run `make lock`\n" == shown.stderr
