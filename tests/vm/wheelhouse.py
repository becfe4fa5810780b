"""The directory that a guest installs from: the wheel under test and its pinned dependencies."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Final

from host import ASK_SECONDS, HOST_SECONDS, run

# Prints the names of what the wheel, on a Kubernetes node too, and its tests need, as [project.dependencies]
# and the dependencies' own metadata say it. Run by the checkout's virtual environment, where all of it is
# installed.
_CLOSURE: Final = """
import json, sys
from importlib.metadata import requires
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
version = sys.argv[1]
environment = {"python_version": version, "python_full_version": version + ".0", "extra": "kubernetes"}
wanted, names = ["node-reactor", "pytest", "pytest-trio", "pytest-timeout", "pip"], set()
while wanted:
    name = canonicalize_name(wanted.pop())
    if name in names:
        continue
    names.add(name)
    for line in requires(name) or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate(environment):
            wanted.append(requirement.name)
print(json.dumps(sorted(names - {"node-reactor"})))
"""

# Debian 12's glibc is 2.36: whatever was built for one up to that runs on both suites.
_PLATFORMS: Final = tuple(
    f"manylinux{version}_x86_64" for version in ("_2_36", "_2_34", "_2_28", "_2_17", "2014")
)


def collect(root: Path, cache: Path, python: str) -> Path:
    """Return the directory of wheels for a guest's Python ("3.11"), downloaded once for each set of pins."""
    directory = cache / f"wheels-{python}"
    directory.mkdir(parents=True, exist_ok=True)
    requirements = _requirements(root, python)
    digest = hashlib.sha256(requirements.encode()).hexdigest()
    stamp = directory / "digest"
    if not (stamp.exists() and stamp.read_text() == digest):
        shutil.rmtree(directory)
        directory.mkdir()
        (directory / "requirements.txt").write_text(requirements)
        _download(root, directory, python)
        stamp.write_text(digest)
    _build(root, directory)
    return directory


def _requirements(root: Path, python: str) -> str:
    """Return the part of constraints.txt, hashes included, that a guest needs."""
    listed = run([root / ".venv/bin/python", "-c", _CLOSURE, python], limit_seconds=ASK_SECONDS)
    names = set(json.loads(listed.stdout))
    kept, keeping = [], False
    for line in (root / "constraints.txt").read_text().splitlines(keepends=True):
        if line[0].isalnum():
            name = line.partition("==")[0]
            keeping = name in names
            names.discard(name)
        if keeping:
            kept.append(line)
    if names:
        raise OSError(f"constraints.txt has no pin for {', '.join(sorted(names))}: run `make lock`")
    return "".join(kept)


def _download(root: Path, directory: Path, python: str) -> None:
    platforms = [argument for platform in _PLATFORMS for argument in ("--platform", platform)]
    requirements = directory / "requirements.txt"
    target = ["--only-binary=:all:", "--implementation", "cp", "--python-version", python, *platforms]
    _pip(root, "download", "--require-hashes", *target, "--dest", directory, "--requirement", requirements)


def _build(root: Path, directory: Path) -> None:
    """Build the wheel under test from the checkout, in place of the one of an earlier run."""
    for old in directory.glob("node_reactor-*.whl"):
        old.unlink()
    _pip(root, "wheel", "--no-build-isolation", "--wheel-dir", directory, root)


def _pip(root: Path, verb: str, *arguments: str | Path) -> None:
    # Twice quiet: once still tells of every empty place that an index or a configuration names.
    options = ("--quiet", "--quiet", "--disable-pip-version-check", "--no-deps")
    run([root / ".venv/bin/pip", verb, *options, *arguments], limit_seconds=HOST_SECONDS)
