"""The directory that a guest installs from: the wheel under test and its pinned dependencies."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Final

from definitions import Definition
from host import ASK_SECONDS, HOST_SECONDS, NATIVE, run

_TEST_TOOLS: Final = ("pytest", "pytest-trio", "pytest-timeout", "pip")


def collect(root: Path, cache: Path, guest: Definition) -> Path:
    """Return the directory of wheels for a guest, downloaded once for each set of pins."""
    python = guest.python
    directory = cache / (
        f"wheels-{python}" if guest.architecture == NATIVE else f"wheels-{python}-{guest.processor}"
    )
    directory.mkdir(parents=True, exist_ok=True)
    requirements = _pins(root, "show", python, *_TEST_TOOLS, limit_seconds=ASK_SECONDS)
    digest = hashlib.sha256(requirements.encode()).hexdigest()
    stamp = directory / "digest"
    if not (stamp.exists() and stamp.read_text() == digest):
        shutil.rmtree(directory)
        directory.mkdir()
        pinned = directory / "requirements.txt"
        pinned.write_text(requirements)
        wanted = (python, directory, pinned, "--machine", guest.processor)
        _pins(root, "fetch", *wanted, limit_seconds=HOST_SECONDS)
        stamp.write_text(digest)
    _build(root, directory)
    return directory


def _pins(root: Path, *arguments: str | Path, limit_seconds: float) -> str:
    """Return what deploy/pins.py prints, run by the checkout's virtual environment. Raises HostError."""
    return run(
        [root / ".venv/bin/python", root / "deploy/pins.py", *arguments], limit_seconds=limit_seconds
    ).stdout


def _build(root: Path, directory: Path) -> None:
    """Build the wheel under test from the checkout, in place of the one of an earlier run."""
    for old in directory.glob("node_reactor-*.whl"):
        old.unlink()
    # Twice quiet: once still tells of every empty place that an index or a configuration names.
    options = ("--quiet", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation")
    run(
        [root / ".venv/bin/pip", "wheel", *options, "--wheel-dir", directory, root],
        limit_seconds=HOST_SECONDS,
    )
