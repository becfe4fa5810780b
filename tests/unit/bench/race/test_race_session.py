"""The replays of a session: who is who in it, what is left of it, who runs them, what the table says."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.race import pressed_contestants as field
from bench.race.contestants import Programs, Role
from bench.race.pressed import AGENTS, REPLAYS, SESSION_MEMORY_BYTES, SESSION_SCOPE, SWAP_BYTES, TOOLS
from bench.race.results import report, table
from bench.race.session import Session, SessionLeft, SessionProcesses, session_figures
from reactor.config.settings import load_settings
from reactor.errors import RefusedError
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.kernel.swap import SwapSpace
from reactor.model.pod_lists import VictimUnit
from reactor.testbed.allocator import MIB, Record, compiled_tool
from tests.support.waiting import eventually

NODE = "/reactor-race-1"
SMALL = Session(agents=4, tools=3, agent_bytes=MIB)
LEFT = SessionLeft(is_alive=True, agents=19, agents_alive=18, tools=38, tools_alive=37, orphans=2)


class Tree:
    """The processes that descend from one, in the place of those of a cgroup."""

    def __init__(self, first: int) -> None:
        self._known = {first}

    def processes(self, _: str) -> list[int]:
        for _ in range(3):  # as deep as they are
            self._known |= {pid for pid, parent in alive() if parent in self._known}
        return [pid for pid, _ in alive() if pid in self._known]


def alive() -> Iterator[tuple[int, int]]:
    """Yield processes with their parents, without those that have ended."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if words[0] != "Z":
            yield int(path.parent.name), int(words[1])


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Tree, Record]]:
    """Yield a session of the race's own program; its usage never reaches the level."""
    usage = tmp_path / "usage"
    usage.write_text("0\n")
    tool = compiled_tool("pressed", "bench.race")
    amounts = (MIB, SMALL.agents, SMALL.tools, SMALL.agent_bytes, 8 * MIB, 1 << 40)
    with Record(tmp_path, "session") as record:
        command = [tool, "session", record.path, usage, *amounts]
        with subprocess.Popen([str(word) for word in command]) as child:
            tree = Tree(child.pid)
            try:
                eventually(lambda: record.words()[0] > 0, "the session")
                yield child, tree, record
            finally:
                for pid in tree.processes(""):
                    os.kill(pid, 9)


def processes(
    running: tuple[subprocess.Popen[bytes], Tree, Record], session: Session = SMALL
) -> SessionProcesses:
    child, tree, record = running
    return SessionProcesses(tree, "", child, session, record.words()[3])  # type: ignore[arg-type]


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_session_is_as_many_as_it_says_and_the_runaway_alone_grows(
    running: tuple[subprocess.Popen[bytes], Tree, Record],
) -> None:
    child, tree, record = running
    found = processes(running)
    assert SMALL.processes == len(tree.processes("")) == 17
    names = sorted(Path(f"/proc/{pid}/comm").read_text().strip() for pid in tree.processes(""))
    assert ["agent"] * 4 + ["bash"] + ["tool"] * 12 == names
    assert resident_bytes(found.runaway) < 4 * MIB
    record.go()
    eventually(lambda: resident_bytes(found.runaway) >= 8 * MIB, "the runaway's memory")
    others = set(tree.processes("")) - {found.runaway}
    assert max(map(resident_bytes, others)) < 4 * MIB
    assert child.poll() is None


def test_what_is_left_tells_agents_from_tools_and_orphans(
    running: tuple[subprocess.Popen[bytes], Tree, Record],
) -> None:
    child, tree, _ = running
    found = processes(running)
    everybody = SessionLeft(is_alive=True, agents=3, agents_alive=3, tools=9, tools_alive=9, orphans=0)
    assert everybody == found.left()
    os.kill(found.runaway, 9)
    eventually(lambda: found.runaway not in tree.processes(""), "the runaway's end")
    assert replace(everybody, orphans=3) == found.left()
    for pid in tree.processes(""):
        if pid != child.pid:
            os.kill(pid, 9)
    eventually(lambda: tree.processes("") == [child.pid], "their ends")
    assert replace(everybody, agents_alive=0, tools_alive=0) == found.left()
    child.kill()
    child.wait()
    assert not found.left().is_alive


@pytest.mark.parametrize(
    "other", [replace(SMALL, agents=5), replace(SMALL, tools=2)], ids=["an agent less", "a tool more"]
)
def test_a_session_that_is_not_complete_is_refused(
    running: tuple[subprocess.Popen[bytes], Tree, Record], other: Session
) -> None:
    with pytest.raises(RefusedError, match=f"17 processes .* expected {other.processes}"):
        processes(running, other)


def test_the_replays_are_of_as_many_processes_as_were_told_of() -> None:
    assert AGENTS.session is not None
    assert TOOLS.session is not None
    assert (41, 2101) == (AGENTS.session.processes, TOOLS.session.processes)
    assert "2,101 processes in one scope, one of which runs away at 32 MiB/s" in TOOLS.description


def test_figures_are_of_heats_with_a_session_alone() -> None:
    assert {} == session_figures(None, 0, 1)
    found = session_figures(LEFT, 1_000_000, 3_500_000)
    assert (2.5, True, 18, 2) == tuple(
        found[name] for name in ("run_ms", "session_alive", "agents_alive", "orphans")
    )
    assert session_figures(LEFT, 1, None)["run_ms"] is None


def test_the_tree_that_goes_is_named_for_the_sessions_scope_alone(tmp_path: Path) -> None:
    section = field.placed(NODE, field.TREE)
    config = tmp_path / "reactor.json"
    config.write_text(json.dumps({"evictionHard": {}, "reactor": {"nodeCgroup": NODE, **section}}))
    settings = load_settings(config)
    assert [NODE] == [str(parent) for parent in settings.pod_parents]
    (victim,) = settings.pod_lists.process_victims
    assert (SESSION_SCOPE, VictimUnit.TREE) == (victim.pods.unit, victim.unit)


def replaying(
    version: CgroupVersion, programs: Programs
) -> tuple[list[str], dict[str, str], set[int | None]]:
    taken, left_out = field.replay_field(version, programs)
    assert all(one.takes_part(course) for one in taken for course in REPLAYS)
    assert {SESSION_MEMORY_BYTES} == {one.ground.memory_bytes for one in taken}
    return [one.name for one in taken], left_out, {one.ground.swap_bytes for one in taken}


def test_everybody_is_there_as_shipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(field, "machine_swap", lambda: SwapSpace(total_bytes=SWAP_BYTES, free_bytes=0))
    monkeypatch.setattr(field, "_systemd_oomd_missing", lambda: None)
    (tmp_path / "usr/bin").mkdir(parents=True)
    for name in ("earlyoom", "nohang"):
        (tmp_path / "usr/bin" / name).touch()
    names, left_out, swap = replaying(CgroupVersion.V2, Programs(directory=tmp_path))
    assert ["reactor-tree", "reactor-default", "no-daemon", "earlyoom", "nohang", "systemd-oomd"] == names
    assert ({}, {SWAP_BYTES}) == (left_out, swap)


def test_without_cgroup_v2_the_replays_are_run_without_swap_and_systemd_oomd(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    names, left_out, swap = replaying(CgroupVersion.V1, Programs())
    assert ["reactor-tree", "reactor-default", "no-daemon"] == names
    assert {"earlyoom", "nohang", "systemd-oomd"} == set(left_out)
    assert {None} == swap


def heats(name: str, *run_ms: float | None, **others: Any) -> Sequence[dict[str, Any]]:
    plain = {"kill_ms": None, "early": False, "back_ms": None, "overshoot_mib": None, "answers_ms": None}
    plain |= {"stall_ms": 400.0, "wrong": [], "lost_mib": 0.0, "kernel_oom_kills": 0, "decisions": []}
    plain |= {"contestant": name, "course": "agents", "round": 1}
    end = [None if ms is None else int(ms * 1e6) for ms in run_ms]
    return [{**plain, **session_figures(LEFT, 0, dead_ns), **others} for dead_ns in end]


def test_table_says_how_many_agents_live_and_whether_the_session_does() -> None:
    about = {"role": Role.PEER, "settings": "", "rss_mib": None, "at_rest_cpu_percent": None, "problems": []}
    found = {
        "about": {"date": "", "kernel": "6.12", "cgroup": "v2", "cpu": "one", "cpus": 2, "level_mib": 1},
        "courses": {"agents": "20 agents"},
        "contestants": dict.fromkeys(("one", "never"), about),
        "left_out": {},
        "heats": [
            *heats("one", 2000.0, 4000.0, kernel_oom_kills=1),
            *heats("never", None, session_alive=False, wrong=["idle"]),
        ],
        "traces": {},
    }
    lines = list(table(found))
    assert "| one | 2, 2 by the kernel | 2 / 4 | 36 of 38 | 74 of 76 | 2 of 2 | 4 | 0.4 / 0.4 | 0 |" in lines
    assert "| never | 1, 1 never | - | 18 of 19 | 37 of 38 | 0 of 1 | 2 | 0.4 / 0.4 | 1 |" in lines
    assert "agents" in [one.heading for one in report(found).sections]
