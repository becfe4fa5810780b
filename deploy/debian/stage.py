#!/usr/bin/env python3
"""Make the folder that dpkg-buildpackage builds the package in: the checkout, debian/, and the wheels, by hash.

usage: .venv/bin/python deploy/debian/stage.py DIRECTORY [--version VERSION] [--architecture ARCHITECTURE]

The build itself fetches nothing. A checkout that is not tagged with its version becomes a version before it
(0.1.0~20261122190000), a later commit a later one. DEBFULLNAME and DEBEMAIL name the package's maintainer, as for
Debian's other tools; without them it is the commit's author. Prints the version. Exit status 0, or 1 and a line on
standard error.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time
from email.utils import formatdate
from pathlib import Path
from typing import Final

CHECKOUT: Final = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(CHECKOUT), str(CHECKOUT / "deploy")]
import reactor  # noqa: E402
from pins import DISTRIBUTION, EXTRA, MACHINES, all_pins, closure, download, pins, target  # noqa: E402

PYTHONS: Final = ("3.11", "3.12", "3.13")  # those of debian/rules
TOOLS: Final = ("hatchling", "shtab", "pip")  # what the build itself needs
PARTS: Final = ("bpf", "deploy", "docs", "reactor", "CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml")
CACHE: Final = CHECKOUT / ".cache/deb"


def main() -> int:
    """Make it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--version", help="the package's version (the checkout's)")
    parser.add_argument("--architecture", choices=MACHINES, help="what the package is for (this machine's)")
    arguments = parser.parse_args()
    try:
        seconds = _commit_seconds()
        version = arguments.version or _version(seconds)
        stage(arguments.directory, version, seconds, arguments.architecture or _architecture())
    except (OSError, LookupError, subprocess.SubprocessError) as error:
        print(f"deb: {error}", file=sys.stderr)
        return 1
    print(version)
    return 0


def stage(directory: Path, version: str, seconds: int, architecture: str) -> None:
    """Make the folder afresh."""
    shutil.rmtree(directory, ignore_errors=True)
    for name in _files():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CHECKOUT / name, directory / name)
    debian, maintainer = directory / "debian", _maintainer()
    shutil.copytree(directory / "deploy/debian", debian)
    control = (debian / "control").read_text(encoding="utf-8")
    (debian / "control").write_text(control.replace("@MAINTAINER@", maintainer), encoding="utf-8")
    (debian / "changelog").write_text(
        f"reactor ({version}) unstable; urgency=medium\n\n"
        "  * See /usr/share/doc/reactor/changelog.gz.\n\n"
        f" -- {maintainer}  {formatdate(seconds)}\n",
        encoding="utf-8",
    )
    shutil.copytree(_wheels(MACHINES[architecture]), debian / "wheels")


def _files() -> list[str]:
    """Return what is of the checkout's: what git knows, or would add."""
    command = ["git", "-C", str(CHECKOUT), "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *PARTS]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return sorted(name for name in listed.split("\0") if name and (CHECKOUT / name).exists())


def _wheels(machine: str) -> Path:
    """Return the directory of the wheels for a kind of machine, downloaded once for each set of pins."""
    wanted = {
        "runtime": closure(DISTRIBUTION, EXTRA, PYTHONS[0]) - {DISTRIBUTION},
        "tools": {one for tool in TOOLS for one in closure(tool, "", PYTHONS[0])},
    }
    pinned = {name: pins(all_pins(), names) for name, names in wanted.items()}
    digest = hashlib.sha256(repr((pinned, PYTHONS, machine)).encode()).hexdigest()
    directory = CACHE / f"wheels-{machine}"
    stamp = directory / "digest"
    if not (stamp.exists() and stamp.read_text() == digest):
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        for name, text in pinned.items():
            (directory / f"{name}.txt").write_text(text)
        for python in PYTHONS:
            download(directory, directory / "runtime.txt", target(python, machine))
        download(directory, directory / "tools.txt", target(PYTHONS[0], machine))
        platforms = (option for option in target(PYTHONS[0], machine) if option.startswith("--platform"))
        (directory / "platforms").write_text("\n".join(platforms))
        stamp.write_text(digest)
    return directory


def _architecture() -> str:
    shown = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True).stdout.strip()
    if shown not in MACHINES:
        raise LookupError(f"no wheels for {shown}; accepted: {', '.join(MACHINES)}")
    return shown


def _version(seconds: int) -> str:
    """Return the version of a tagged checkout, else one before it that grows with the commits."""
    command = ["git", "-C", str(CHECKOUT), "describe", "--exact-match", "--tags", "HEAD"]
    tagged = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    if tagged == f"v{reactor.__version__}":
        return reactor.__version__
    return f"{reactor.__version__}~{time.strftime('%Y%m%d%H%M%S', time.gmtime(seconds))}"


def _maintainer() -> str:
    """Return who answers for the package: the one that the environment names, else the commit's author."""
    command = ["git", "-C", str(CHECKOUT), "log", "-1", "--format=%an%n%ae"]
    name, address = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return f"{os.environ.get('DEBFULLNAME', name)} <{os.environ.get('DEBEMAIL', address)}>"


def _commit_seconds() -> int:
    command = ["git", "-C", str(CHECKOUT), "log", "-1", "--format=%ct"]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


if __name__ == "__main__":
    sys.exit(main())
