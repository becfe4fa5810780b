"""A session of agents with their tools, all in one scope: who is who, and what is left of it."""

from __future__ import annotations

import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from reactor.errors import RefusedError
from reactor.kernel.cgroup import CgroupTree
from reactor.testbed.allocator import MIB

_AGENT: Final = "agent"  # what pressed.c calls it


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """So many agents, each with so many tools; `agent_bytes` are what each agent holds."""

    agents: int
    tools: int
    agent_bytes: int

    @property
    def processes(self) -> int:
        """Return how many it has: agents, their tools, and the shell that started them."""
        return 1 + self.agents * (1 + self.tools)

    @property
    def description(self) -> str:
        """Return what it is, in words."""
        held = f"{self.agents} agents of {self.agent_bytes // MIB} MiB"
        return f"{held} with {self.tools} tool{'s' * (self.tools > 1)} each, {self.processes:,} processes"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLeft:
    """What lives after a heat: of the other agents, of their tools, and of the runaway's tools."""

    is_alive: bool
    agents: int
    agents_alive: int
    tools: int
    tools_alive: int
    orphans: int


class SessionProcesses:
    """The processes of a session that is complete, by the ids that they have here.

    `runaway_inside` is the id of the one that is to run away, as it knows it itself. Raises RefusedError
    where they are not as many as they should be.
    """

    def __init__(
        self,
        tree: CgroupTree,
        cgroup: str,
        first: subprocess.Popen[bytes],
        session: Session,
        runaway_inside: int,
        proc: Path = Path("/proc"),
    ) -> None:
        self._tree = tree
        self._cgroup = cgroup
        self._first = first
        read = {pid: _read(proc, pid) for pid in tree.processes(cgroup)}
        self._agents = {pid: one.inside for pid, one in read.items() if one.name == _AGENT}
        self._tools = {pid: one.parent for pid, one in read.items() if one.parent in self._agents}
        runaway = [pid for pid, inside in self._agents.items() if inside == runaway_inside]
        counts = Counter(self._tools.values())
        expected = dict.fromkeys(self._agents, session.tools)
        if len(self._agents) != session.agents or counts != expected or len(runaway) != 1:
            raise RefusedError(
                f"{len(read)} processes in {cgroup}, {len(self._agents)} of them agents; "
                f"expected {session.processes} and {session.agents}"
            )
        self.runaway = runaway[0]

    def left(self) -> SessionLeft:
        """Return who of them lives."""
        alive = set(self._tree.processes(self._cgroup))
        agents = self._agents.keys() - {self.runaway}
        of_others = {pid for pid, parent in self._tools.items() if parent != self.runaway}
        return SessionLeft(
            is_alive=self._first.poll() is None,
            agents=len(agents),
            agents_alive=len(agents & alive),
            tools=len(of_others),
            tools_alive=len(of_others & alive),
            orphans=len((self._tools.keys() - of_others) & alive) if self.runaway not in alive else 0,
        )


def session_figures(left: SessionLeft | None, began_ns: int, dead_ns: int | None) -> dict[str, Any]:
    """Return a heat's figures about its session; none where it has none.

    `run_ms` is from the first page of the runaway to its end, None where it lives.
    """
    if left is None:
        return {}
    return {
        "run_ms": None if dead_ns is None else round((dead_ns - began_ns) / 1e6, 1),
        "session_alive": left.is_alive,
        "agents": left.agents,
        "agents_alive": left.agents_alive,
        "tools": left.tools,
        "tools_alive": left.tools_alive,
        "orphans": left.orphans,
    }


@dataclass(frozen=True, slots=True)
class _Process:
    name: str
    parent: int
    inside: int


def _read(proc: Path, pid: int) -> _Process:
    lines = (proc / str(pid) / "status").read_text(encoding="utf-8").splitlines()
    words = {key: value.split() for key, _, value in (line.partition(":") for line in lines)}
    return _Process(words["Name"][0], int(words["PPid"][0]), int(words["NSpid"][-1]))
