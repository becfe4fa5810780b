"""The machines that there are, as vagrant/machines.json names them for the Vagrantfile too."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from host import NATIVE, VAGRANT

_DOCUMENT: Final = json.loads((VAGRANT / "machines.json").read_text())
CPUS: Final[int] = _DOCUMENT["cpus"]
MEMORY_MIB: Final[int] = _DOCUMENT["memory_mib"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One machine: its Debian suite and architecture, that suite's Python, its kernel's command line.

    `tests` are pytest's arguments there, where not all of the tests are for it. A machine runs `on_request`,
    where it is named, if its suite changes every day, or if its architecture is another than the host's: it
    is emulated, and slow.
    """

    name: str
    suite: str
    architecture: str
    python: str
    arguments: str
    tests: tuple[str, ...] = ()
    on_request: bool = False

    @property
    def box(self) -> str:
        """Return the name of what it is booted from, which machines share."""
        return self.suite if self.architecture == NATIVE else f"{self.suite}-{self.architecture}"

    @property
    def processor(self) -> str:
        """Return its kind of processor, as uname and Python's wheels name it."""
        return {"amd64": "x86_64", "arm64": "aarch64"}[self.architecture]


MACHINES: Final = {
    name: Definition(
        name=name,
        suite=machine["suite"],
        architecture=machine.get("architecture", NATIVE),
        python=machine["python"],
        arguments=f"{_DOCUMENT['arguments']} {machine['arguments']}".strip(),
        tests=tuple(machine.get("tests", "").split()),
        on_request=machine.get("on_request", "architecture" in machine),
    )
    for name, machine in _DOCUMENT["machines"].items()
}
NATIVES: Final = [name for name, machine in MACHINES.items() if machine.architecture == NATIVE]
USUAL: Final = [name for name, machine in MACHINES.items() if not machine.on_request]
