"""Courses under pressure: a node with swap that stalls, and one beside a cgroup that thrashes in its limit.

A node of 256 MiB that may swap 256 MiB, and whose disk reads 300 times a second, so that page faults wait
as they do on a machine. Beside the pod that is the trouble there are a probe, which answers every 20 ms by
some of the memory that it holds, and two pods that hold memory: none of the three is ever to be killed.

Two more courses replay what happened to people: a session of agents with their tools in one scope, one of
which runs away, on a node of 768 MiB.
"""

from __future__ import annotations

import mmap
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from bench.race.enclosure import PAIR, zeroed
from bench.race.heat import Track, drop_cache
from bench.race.session import Session, SessionLeft, SessionProcesses, session_figures
from reactor.errors import RefusedError
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.kernel.files import write_file
from reactor.kernel.oom import kills_within
from reactor.testbed.allocator import MIB, Record, compiled_tool
from reactor.testbed.daemon_process import wait_until
from reactor.testbed.virtual_node import VirtualNode

MEMORY_BYTES: Final = 256 * MIB
SWAP_BYTES: Final = 256 * MIB
INTERVAL_MS: Final = 20  # of the probe's answers
PROBE_BYTES: Final = 32 * MIB
PROBE_PAGES: Final = 32  # of these, at random, for each answer
RESIDENT_BYTES: Final = 48 * MIB
IDLE_BYTES: Final = 16 * MIB
GROW_BYTES_A_SECOND: Final = 8 * MIB
THRASH_LIMIT_BYTES: Final = 64 * MIB
THRASH_BYTES: Final = 112 * MIB
THREADS: Final = 4
READS_A_SECOND: Final = 300
_LATE_MULTIPLE: Final = 10
_LATE_NS: Final = 50_000_000

Answer = tuple[int, int]  # begin and end, ns on CLOCK_MONOTONIC


@dataclass(frozen=True, slots=True, kw_only=True)
class PressedCourse:
    """One kind of heat. Without a kill it is over after `patience_seconds`.

    The node has `memory_bytes`. With a `session` the trouble is one of its agents.
    """

    name: str
    description: str
    patience_seconds: float
    memory_bytes: int = MEMORY_BYTES
    session: Session | None = None


SWAP: Final = PressedCourse(
    name="swap",
    description=f"a pod grows by {GROW_BYTES_A_SECOND // MIB} MiB/s beyond the memory of a node with "
    f"swap, and writes to all that it has in {THREADS} threads",
    patience_seconds=90.0,
)
THRASH: Final = PressedCourse(
    name="thrash",
    description=f"a pod with a limit of {THRASH_LIMIT_BYTES // MIB} MiB writes to {THRASH_BYTES // MIB} MiB "
    f"in {THREADS} threads; the node has memory and swap available",
    patience_seconds=60.0,
)
PRESSED: Final = (SWAP, THRASH)
SESSION_MEMORY_BYTES: Final = 768 * MIB
SESSION_BYTES_A_SECOND: Final = 32 * MIB


def _replay(name: str, session: Session, source: str) -> PressedCourse:
    rate = SESSION_BYTES_A_SECOND // MIB
    return PressedCourse(
        name=name,
        description=f"{session.description} in one scope, one of which runs away at {rate} MiB/s ({source})",
        patience_seconds=90.0,
        memory_bytes=SESSION_MEMORY_BYTES,
        session=session,
    )


# What happened to people, scaled down: 20 agents of 1.3 GB; 2,104 processes of one scope.
AGENTS: Final = _replay("agents", Session(agents=20, tools=1, agent_bytes=16 * MIB), "orca#16630")
TOOLS: Final = _replay("tools", Session(agents=20, tools=104, agent_bytes=4 * MIB), "omarchy#9799")
REPLAYS: Final = (AGENTS, TOOLS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Innocent:
    """A pod that is not to be killed: how it is called, what it holds, and whether it lived."""

    name: str
    held_bytes: int
    lives: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PressedFinish:
    """One heat's instants, in ns on CLOCK_MONOTONIC; None is what did not happen.

    `condition_ns` is before the page that filled the node's memory, or what the pod may have; `dead_ns` is
    when the pod that is the trouble, or of a session the runaway, had ended. `oom_kills` are those of the
    kernel's in the node, `session` is what is left of it.
    """

    began_ns: int
    condition_ns: int | None
    dead_ns: int | None
    ended_ns: int
    answers: Sequence[Answer]
    innocents: Sequence[Innocent]
    oom_kills: int = 0
    session: SessionLeft | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """The probe's: its longest answer, and the end of its last late one, None where none was late."""

    longest_ns: int
    last_late_ns: int | None


def late_from_ns(before: Sequence[Answer]) -> int:
    """Return how long an answer takes at least that is late: ten times what was usual, and 50 ms longer.

    Raises ValueError where there is no answer from before.
    """
    usual_ns = statistics.median(end - begin for begin, end in before)
    return int(max(_LATE_MULTIPLE * usual_ns, usual_ns + _LATE_NS))


def stall(answers: Sequence[Answer], began_ns: int, ended_ns: int) -> Stall:
    """Return how the probe fared from `began_ns` to `ended_ns`.

    An answer that was not given any more took until the end. Raises ValueError where there is no answer from
    before.
    """
    late_ns = late_from_ns([(begin, end) for begin, end in answers if end <= began_ns])
    after = [(begin, end) for begin, end in answers if began_ns < end <= ended_ns]
    last_ns = after[-1][1] if after else began_ns
    if ended_ns - last_ns > _LATE_NS:
        after.append((last_ns, ended_ns))
    return Stall(
        longest_ns=max((end - begin for begin, end in after), default=0),
        last_late_ns=max((end for begin, end in after if end - begin >= late_ns), default=None),
    )


def measured_under_pressure(finish: PressedFinish) -> dict[str, Any]:
    """Return a heat's figures, with the names of other heats where they mean the same.

    `answers_ms` is from the condition until the probe's last late answer is given, None where the trouble was
    not ended. A kill before the condition has no latency and is `early`: a threshold on memory, for example.
    """
    condition_ns, dead_ns = finish.condition_ns, finish.dead_ns
    fared = stall(finish.answers, finish.began_ns, finish.ended_ns)
    early = dead_ns is not None and (condition_ns is None or dead_ns < condition_ns)
    kill_ms = answers_ms = None
    if dead_ns is not None and condition_ns is not None and not early:
        kill_ms = round((dead_ns - condition_ns) / 1e6, 1)
        answers_ms = round(max(0, (fared.last_late_ns or 0) - condition_ns) / 1e6, 1)
    lost = [one for one in finish.innocents if not one.lives]
    return {
        "kill_ms": kill_ms,
        "early": early,
        "back_ms": None,
        "overshoot_mib": None,
        "stall_ms": round(fared.longest_ns / 1e6, 1),
        "answers_ms": answers_ms,
        "wrong": [one.name for one in lost],
        "lost_mib": round(sum(one.held_bytes for one in lost) / MIB, 1),
        "kernel_oom_kills": finish.oom_kills,
        **session_figures(finish.session, finish.began_ns, dead_ns),
    }


_READY_SECONDS: Final = 120.0  # an emulated machine beside other load
_ANSWERS: Final = 1 << 14  # 320 s of them
_QUIET_ANSWERS: Final = 50  # before the trouble begins
_PROMPT_ANSWERS: Final = 50  # one after the other: the node has recovered
_SETTLE_SECONDS: Final = 60.0
_AFTERMATH_SECONDS: Final = 5.0  # who kills one process after the other goes on
_PROBE_FILE_BYTES: Final = 16 * MIB
_TROUBLE: Final = "trouble"
SESSION_SCOPE: Final = "session-1.scope"
_RUNAWAY: Final = 3  # of the record's words: the process id that it has itself
# The node is full that much before its limit: the kernel charges by batches.
_FULL_BYTES: Final = 4 * MIB
_RAMP_BYTES: Final = 32 * MIB
_ANY_USAGE: Final = 1 << 62
_MOST_CGROUPS: Final = 64


class PressedHeat:
    """The pods of a heat in a track's node, and their records, which are on a tmpfs."""

    def __init__(self, track: Track, stack: ExitStack) -> None:
        self._track = track
        self._stack = stack
        self._tool = str(compiled_tool("pressed", "bench.race"))

    def run(self, course: PressedCourse, pause_ms: int) -> PressedFinish:
        """Have the trouble begin; return what became of it. Raises RefusedError if a pod does not start."""
        self._slow_the_disk()
        node = self._track.node
        oom_kills = _oom_kills(node)
        probe = self._record("probe")
        answers = self._stack.enter_context(zeroed(self._in_memory("answers"), _ANSWERS))
        innocents = {
            "resident": (RESIDENT_BYTES, self._holds("resident", RESIDENT_BYTES)),
            "idle": (IDLE_BYTES, self._holds("idle", IDLE_BYTES)),
            "probe": (PROBE_BYTES, self._probe(probe)),
        }
        self._await(lambda: probe.words()[2] >= _QUIET_ANSWERS, "the probe's first answers")
        record = self._record(_TROUBLE)
        cgroup, trouble = self._trouble(course, record)
        self._await(lambda: record.words()[0] > 0, "the pod that is the trouble")
        pid, session = trouble.pid, None
        if course.session is not None:
            session = SessionProcesses(node.tree, cgroup, trouble, course.session, record.words()[_RUNAWAY])
            pid = session.runaway
        observed = self._record("observed")
        with self._observer(observed, pid, course.patience_seconds) as observer:
            time.sleep(pause_ms / 1000)
            late_ns = late_from_ns(_answers(answers, probe.words()[2]))
            began_ns = time.monotonic_ns()
            record.go()
            observer.wait(course.patience_seconds + _READY_SECONDS)
        dead_ns = observed.words()[1] or None
        if dead_ns is not None:
            since_ns = dead_ns

            def has_recovered() -> bool:
                last = _answers(answers, probe.words()[2], _PROMPT_ANSWERS)
                return all(begin > since_ns and end - begin < late_ns for begin, end in last)

            wait_until(has_recovered, _SETTLE_SECONDS)
            if session is not None:
                time.sleep(_AFTERMATH_SECONDS)
        ended_ns = time.monotonic_ns()
        lives = {name: child.poll() is None for name, (_, child) in innocents.items()}
        return PressedFinish(
            began_ns=began_ns,
            condition_ns=record.words()[1] or None,
            dead_ns=dead_ns,
            ended_ns=ended_ns,
            answers=_answers(answers, probe.words()[2]),
            innocents=[
                Innocent(name=name, held_bytes=held_bytes, lives=lives[name])
                for name, (held_bytes, _) in innocents.items()
            ],
            oom_kills=_oom_kills(node) - oom_kills,
            session=None if session is None else session.left(),
        )

    def _slow_the_disk(self) -> None:
        """Limit the node's reads. Raises RefusedError where the kernel can't."""
        tree, cgroup = self._track.node.tree, self._track.node.cgroup
        if tree.version is not CgroupVersion.V2:  # nor is there swap, whose reads are meant
            return
        try:
            for above in [*PurePosixPath(cgroup).parents][::-1]:
                write_file(tree.path(str(above)) / "cgroup.subtree_control", "+io")
            limit = f"{disk_of(self._track.directory)} riops={READS_A_SECOND}"
            write_file(tree.path(cgroup) / "io.max", limit)
        except OSError as error:
            raise RefusedError(f"the node's disk can't be slowed down: {error}") from None

    def _in_memory(self, name: str) -> Path:
        return self._track.enclosure.in_memory / name

    def _record(self, name: str) -> Record:
        return self._stack.enter_context(Record(self._track.enclosure.in_memory, name))

    def _await(self, true: Callable[[], bool], what: str) -> None:
        if not wait_until(true, _READY_SECONDS):
            raise RefusedError(f"no sign of {what} after {_READY_SECONDS:g} s")

    def _add_pod(self, name: str, limit_bytes: int | None = None) -> str:
        node = self._track.node
        cgroup = node.add_pod(name, limit_bytes=limit_bytes)
        self._stack.callback(node.remove_pod, cgroup)
        return cgroup

    def _spawn(self, cgroup: str, *command: str | Path | int) -> subprocess.Popen[bytes]:
        with self._track.enclosure.births():
            return self._track.node.spawn(cgroup, [self._tool, *map(str, command)])

    def _holds(self, name: str, held_bytes: int) -> subprocess.Popen[bytes]:
        record = self._record(name)
        child = self._spawn(self._add_pod(name), "hold", record.path, held_bytes)
        self._await(lambda: record.words()[0] > 0, f"the memory of {name}")
        return child

    def _probe(self, record: Record) -> subprocess.Popen[bytes]:
        file = self._file("probed", _PROBE_FILE_BYTES)
        amounts = (PROBE_BYTES, PROBE_PAGES, INTERVAL_MS)
        return self._spawn(
            self._add_pod("probe"), "probe", record.path, self._in_memory("answers"), file, *amounts
        )

    def _trouble(self, course: PressedCourse, record: Record) -> tuple[str, subprocess.Popen[bytes]]:
        """Start it; return its cgroup, and its first process."""
        node = self._track.node
        limit_bytes = THRASH_LIMIT_BYTES if course is THRASH else None
        cgroup = self._add_pod(_TROUBLE if course.session is None else SESSION_SCOPE, limit_bytes)
        usage, full_bytes = node.usage_path(), node.memory_bytes - _FULL_BYTES
        total_bytes = 2 * (node.memory_bytes + (node.swap_bytes or 0))
        if course.session is not None:
            one = course.session
            amounts: tuple[int, ...] = (full_bytes, one.agents, one.tools, one.agent_bytes, total_bytes)
            amounts += (SESSION_BYTES_A_SECOND,)
            return cgroup, self._spawn(cgroup, "session", record.path, usage, *amounts)
        if course is THRASH:
            usage, full_bytes = node.tree.path(cgroup) / "memory.current", THRASH_LIMIT_BYTES - _FULL_BYTES
            prefill_bytes, total_bytes = full_bytes - _RAMP_BYTES, THRASH_BYTES
        else:
            prefill_bytes = full_bytes - node.usage_bytes() - _RAMP_BYTES
        amounts = (full_bytes, prefill_bytes, total_bytes, GROW_BYTES_A_SECOND, THREADS)
        return cgroup, self._spawn(cgroup, "grow", record.path, usage, *amounts)

    def _file(self, name: str, size_bytes: int) -> Path:
        """Return a file on the disk whose pages nobody has been charged for."""
        path = self._track.directory / name
        if not path.exists():
            path.write_bytes(bytes(size_bytes))
        drop_cache(path)
        return path

    @contextmanager
    def _observer(
        self, record: Record, pid: int, timeout_seconds: float
    ) -> Iterator[subprocess.Popen[bytes]]:
        usage = self._track.node.usage_path()
        amounts = (_ANY_USAGE, int(timeout_seconds * 1000), pid)
        command = [self._track.tool, "observe", record.path, usage, *amounts]
        with subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL) as observer:
            try:
                self._await(lambda: record.words()[0] > 0, "the observer")
                yield observer
            finally:
                observer.kill()


def pressed_heat(track: Track, course: PressedCourse, pause_ms: int) -> PressedFinish:
    """Have a heat in the track's node; nothing of it is left there."""
    with ExitStack() as stack:
        return PressedHeat(track, stack).run(course, pause_ms)


def _oom_kills(node: VirtualNode) -> int:
    with node.tree.open(node.cgroup) as directory:
        return kills_within(directory, node.tree.version, _MOST_CGROUPS)[0]


def disk_of(path: Path, sys: Path = Path("/sys")) -> str:
    """Return MAJOR:MINOR of the whole disk that a path lies on. Raises OSError where it lies on none."""
    device = path.stat().st_dev
    directory = (sys / f"dev/block/{os.major(device)}:{os.minor(device)}").resolve(strict=True)
    if (directory / "partition").exists():
        directory = directory.parent
    return (directory / "dev").read_text(encoding="ascii").strip()


def _answers(memory: mmap.mmap, count: int, most: int = _ANSWERS - 1) -> list[Answer]:
    """Return the last of the probe's answers, oldest first."""
    places = [place % _ANSWERS for place in range(max(0, count - most), count)]
    return [PAIR.unpack_from(memory, place * PAIR.size) for place in places]
