"""The pins of what is installed elsewhere: in an image, a package, a guest."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[3]
RUNTIME = (CHECKOUT / "constraints.txt").read_text()
DEVELOPERS = (CHECKOUT / "constraints-dev.txt").read_text()


def names(constraints: str) -> list[str]:
    return re.findall(r"^([a-z0-9-]+)==", constraints, re.MULTILINE)


def unpinned(constraints: str) -> list[str]:
    """Return the lines of pins that have no hash in the next line."""
    return re.findall(r"^[a-z0-9-]+==(?!.*\\\n    --hash=sha256:[0-9a-f]{64}).*", constraints, re.MULTILINE)


def show(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, CHECKOUT / "deploy/pins.py", "show", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("python", ["3.11", "3.13"])
def test_pins_are_those_of_the_daemon_and_of_what_is_named_beside_it_by_hash(python: str) -> None:
    shown = show(python, "pytest")
    pinned = set(names(shown.stdout))
    assert (0, "") == (shown.returncode, shown.stderr)
    assert {"trio", "h11", "pytest", "pluggy"} <= pinned
    assert not {"node-reactor", "mypy", "pytest-trio"} & pinned
    assert len(pinned) <= shown.stdout.count("--hash=sha256:")
    assert set(shown.stdout.splitlines()) <= set((RUNTIME + DEVELOPERS).splitlines())


def test_runtime_pins_are_what_a_node_needs_and_no_package_is_pinned_twice() -> None:
    shown = {name for python in ("3.11", "3.12", "3.13") for name in names(show(python).stdout)}
    assert shown == set(names(RUNTIME))
    assert len(names(RUNTIME)) == len(shown)
    assert not shown & set(names(DEVELOPERS))
    assert {"pytest", "mypy", "matplotlib", "hatchling"} <= set(names(DEVELOPERS))
    assert [] == unpinned(RUNTIME) + unpinned(DEVELOPERS)


def test_what_developers_need_beside_is_a_lock_without_the_runtimes_packages(tmp_path: Path) -> None:
    whole = tmp_path / "constraints.txt"
    whole.write_text(RUNTIME + DEVELOPERS)
    command = [sys.executable, CHECKOUT / "deploy/pins.py", "rest", whole]
    assert DEVELOPERS == subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_packages_that_build_are_pinned_with_all_that_they_need() -> None:
    makefile = (CHECKOUT / "Makefile").read_text()
    (line,) = re.findall(r"^BUILDERS := (.*)$", makefile, re.MULTILINE)
    needed = set(names(show("3.11", "hatchling", "editables", "packaging").stdout)) - set(names(RUNTIME))
    assert needed == set(line.split())
    command = [sys.executable, "-S", CHECKOUT / "deploy/pins.py", "named", *line.split()]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert line.split() == names(shown)


def test_package_without_a_pin_is_named_with_what_to_do() -> None:
    shown = show("3.11", "node-reactor")
    assert (1, "") == (shown.returncode, shown.stdout)
    assert "pins: no pin for node-reactor: run `make lock`\n" == shown.stderr
