#!/usr/bin/env python3
"""The pins that something needs, hashes included, and the wheels they name.

usage: .venv/bin/python deploy/pins.py show PYTHON [NAME...]             print what the distribution needs on a
                                       Kubernetes node too, and these packages beside it, but not itself
       .venv/bin/python deploy/pins.py fetch PYTHON DIRECTORY FILE       fetch the wheels that FILE pins
       .venv/bin/python deploy/pins.py named NAME...                     print the pins of these packages alone
       .venv/bin/python deploy/pins.py rest FILE                         print FILE without what constraints.txt pins

constraints.txt has what runs on a node, constraints-dev.txt what developers need beside it: no package is in both.

By the checkout's virtual environment, where all of them are installed. Exit status 0, or 1 and a line on
standard error.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import requires
from pathlib import Path
from typing import Final

DISTRIBUTION: Final = "node-reactor"
EXTRA: Final = "kubernetes"
# Architectures as Debian and images name them, and as wheels and compilers do.
MACHINES: Final = {"amd64": "x86_64", "arm64": "aarch64"}
_CHECKOUT: Final = Path(__file__).resolve().parents[1]
RUNTIME: Final = _CHECKOUT / "constraints.txt"
DEVELOPERS: Final = _CHECKOUT / "constraints-dev.txt"
# Debian 12's glibc is 2.36: a wheel that was built for this or an older one runs there and on later ones.
_GLIBCS: Final = ("_2_36", "_2_34", "_2_28", "_2_17", "2014")


def pins(constraints: str, wanted: Iterable[str]) -> str:
    """Return the part of the constraints that has these names.

    Raises LookupError where a name has no pin.
    """
    of_each = by_name(constraints)
    names = set(wanted)
    if missing := names - set(of_each):
        raise LookupError(f"no pin for {', '.join(sorted(missing))}: run `make lock`")
    return "".join(text for name, text in of_each.items() if name in names)


def by_name(constraints: str) -> dict[str, str]:
    """Return each package's lines: its pin, its hashes, and comments on who needs it."""
    found: dict[str, str] = {}
    name = ""
    for line in constraints.splitlines(keepends=True):
        if line[0].isalnum():
            name = line.partition("==")[0]
        if name:
            found[name] = found.get(name, "") + line
    return found


def all_pins() -> str:
    """Return both files' pins. Raises OSError."""
    return RUNTIME.read_text() + DEVELOPERS.read_text()


def closure(name: str, extra: str, python: str) -> set[str]:
    """Return the names of all that a package needs, as the installed packages' own metadata says it."""
    # Here, since `named` has to work where the developers' packages are still to be installed.
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    found: set[str] = set()
    wanted = [(name, extra)]
    while wanted:
        name, extra = wanted.pop()
        if (key := canonicalize_name(name)) in found and not extra:
            continue
        found.add(key)
        for line in requires(name) or ():
            needed = Requirement(line)
            environment = {"python_version": python, "python_full_version": f"{python}.0"}
            extras = [extra, ""] if extra else [""]
            if needed.marker is None or any(
                needed.marker.evaluate({**environment, "extra": each}) for each in extras
            ):
                wanted += [(needed.name, each) for each in needed.extras] or [(needed.name, "")]
    return {str(each) for each in found}


def target(python: str, machine: str = "x86_64") -> tuple[str, ...]:
    """Return pip's options for wheels that run on Debian 12 and later with this Python."""
    platforms = [f"--platform=manylinux{glibc}_{machine}" for glibc in _GLIBCS]
    return ("--only-binary=:all:", "--implementation=cp", f"--python-version={python}", *platforms)


def download(directory: Path, requirements: Path, options: Sequence[str]) -> None:
    """Fetch the wheels that the requirements name by hash. Raises CalledProcessError."""
    command = ["download", "--quiet", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"]
    place = [f"--dest={directory}", f"--requirement={requirements}"]
    subprocess.run([sys.executable, "-m", "pip", *command, *options, *place], check=True, timeout=900)


def main() -> int:
    """Do what the arguments ask for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    show = commands.add_parser("show", help="print the pins")
    show.add_argument("python", help="the version that they are for, as 3.11")
    show.add_argument("names", nargs="*", help="packages beside the distribution")
    fetch = commands.add_parser("fetch", help="fetch the wheels")
    fetch.add_argument("python", help="the version that they are for, as 3.11")
    fetch.add_argument("directory", type=Path)
    fetch.add_argument("requirements", type=Path)
    fetch.add_argument("--machine", default="x86_64", help="the processor that they are for (x86_64)")
    named = commands.add_parser("named", help="print the pins of these packages alone")
    named.add_argument("names", nargs="+")
    rest = commands.add_parser("rest", help="print what constraints.txt has not")
    rest.add_argument("requirements", type=Path)
    arguments = parser.parse_args()
    try:
        if arguments.command == "show":
            names = closure(DISTRIBUTION, EXTRA, arguments.python) - {DISTRIBUTION}
            names |= {one for name in arguments.names for one in closure(name, "", arguments.python)}
            print(pins(all_pins(), names), end="")
        elif arguments.command == "named":
            print(pins(all_pins(), arguments.names), end="")
        elif arguments.command == "rest":
            runtime = by_name(RUNTIME.read_text())
            found = by_name(arguments.requirements.read_text())
            print(pins("".join(found.values()), set(found) - set(runtime)), end="")
        else:
            download(arguments.directory, arguments.requirements, target(arguments.python, arguments.machine))
    except (OSError, LookupError, subprocess.SubprocessError) as error:
        print(f"pins: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
