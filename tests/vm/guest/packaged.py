"""The Debian package in a machine, and the pages that are followed with it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Final

from guarded import HERE, SECONDS

PACKAGES: Final = HERE.parent / "packages"
SERVICE: Final = "reactor.service"
_DOCS: Final = HERE.parent / "docs"
_MARK: Final = "<!-- followed by tests/vm/guest/{file}: {name} -->\n"


class Page:
    """A page of docs; the blocks that name the test which follows them are its commands."""

    def __init__(self, name: str, followed_by: str) -> None:
        self._path = _DOCS / name
        self._test = followed_by

    @property
    def text(self) -> str:
        return self._path.read_text(encoding="utf-8")

    def commands(self, name: str) -> list[str]:
        """Return the commands of one block."""
        found = re.findall(r"^\$ (.*)$", self.block(name, "console"), re.MULTILINE)
        assert found, f"{self._path.name} has no commands in {name}"
        return found

    def block(self, name: str, language: str) -> str:
        """Return the text of one block."""
        marked = _MARK.format(file=self._test, name=name) + f"```{language}\n"
        _, found, rest = self.text.partition(marked)
        assert found, f"{self._path.name} has no block {name} for {self._test}"
        return rest.partition("```")[0]


def follow(command: str, directory: Path, *, check: bool = True) -> str:
    """Run a command as it is printed, the answer to apt's question being yes; return what it printed."""
    if command.startswith("sudo apt "):
        command = command.replace("sudo apt ", "sudo DEBIAN_FRONTEND=noninteractive apt --yes ")
    done = subprocess.run(
        ["sh", "-c", command], cwd=directory, capture_output=True, text=True, check=False, timeout=4 * SECONDS
    )
    print(f"$ {command}\n{done.stdout}{done.stderr}", flush=True)
    assert not check or done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def versions() -> tuple[Path, Path]:
    """Return the package and a later version of it."""
    (newer,) = PACKAGES.glob("reactor_*+later_*.deb")
    (older,) = set(PACKAGES.glob("reactor_*.deb")) - {newer}
    return older, newer
