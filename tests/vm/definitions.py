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
    """One machine: its Debian suite, that suite's Python, its kernel's command line."""

    name: str
    suite: str
    python: str
    arguments: str


MACHINES: Final = {
    name: Definition(
        name=name,
        suite=machine["suite"],
        python=machine["python"],
        arguments=f"{_DOCUMENT['arguments']} {machine['arguments']}".strip(),
    )
    for name, machine in _DOCUMENT["machines"].items()
}
