"""The machines that there are, as vagrant/machines.json names them for the Vagrantfile too."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from host import VAGRANT

_DOCUMENT: Final = json.loads((VAGRANT / "machines.json").read_text())
CPUS: Final[int] = _DOCUMENT["cpus"]
MEMORY_MIB: Final[int] = _DOCUMENT["memory_mib"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One machine: its Debian suite, that suite's Python, its kernel's command line.

    `tests` are pytest's arguments there, where not all of the tests are for it.
    """

    name: str
    suite: str
    python: str
    arguments: str
    tests: tuple[str, ...] = ()


MACHINES: Final = {
    name: Definition(
        name=name,
        suite=machine["suite"],
        python=machine["python"],
        arguments=f"{_DOCUMENT['arguments']} {machine['arguments']}".strip(),
        tests=tuple(machine.get("tests", "").split()),
    )
    for name, machine in _DOCUMENT["machines"].items()
}
