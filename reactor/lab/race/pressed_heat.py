"""One heat of a course under pressure, by the clocks of the C programs in the node and of an observer."""

from __future__ import annotations

import mmap
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import Final

from reactor.errors import RefusedError
from reactor.kernel.files import write_file
from reactor.kernel.oom import subtree_kills
from reactor.lab.daemon_process import wait_until
from reactor.lab.hog import MIB
from reactor.lab.race.enclosure import PAIR, zeroed
from reactor.lab.race.heat import Track, drop_cache
from reactor.lab.race.pressed import (
    GROW_BYTES_A_SECOND,
    IDLE_BYTES,
    INTERVAL_MS,
    PROBE_BYTES,
    PROBE_PAGES,
    READS_A_SECOND,
    RESIDENT_BYTES,
    SWAP,
    THRASH_BYTES,
    THRASH_LIMIT_BYTES,
    THREADS,
    Answer,
    Innocent,
    PressedCourse,
    PressedFinish,
    late_from_ns,
)
from reactor.lab.tool import Record, compiled_tool

_READY_SECONDS: Final = 120.0  # an emulated machine beside other load
_ANSWERS: Final = 1 << 14  # 320 s of them
_QUIET_ANSWERS: Final = 50  # before the trouble begins
_PROMPT_ANSWERS: Final = 50  # one after the other: the node has recovered
_SETTLE_SECONDS: Final = 60.0
_PROBE_FILE_BYTES: Final = 16 * MIB
_TROUBLE: Final = "trouble"
# The node is full that much before its limit: the kernel charges by batches.
_FULL_BYTES: Final = 4 * MIB
_RAMP_BYTES: Final = 32 * MIB
_ANY_USAGE: Final = 1 << 62


class PressedHeat:
    """The pods of a heat in a track's node, and their records, which are on a tmpfs."""

    def __init__(self, track: Track, stack: ExitStack) -> None:
        self._track = track
        self._stack = stack
        self._tool = str(compiled_tool("pressed", "reactor.lab.race"))

    def run(self, course: PressedCourse, pause_ms: int) -> PressedFinish:
        """Have the trouble begin; return what became of it. Raises RefusedError if a pod does not start."""
        self._slow_the_disk()
        node = self._track.node
        oom_kills = subtree_kills(node.tree, node.cgroup)
        probe = self._record("probe")
        answers = self._stack.enter_context(zeroed(self._in_memory("answers"), _ANSWERS))
        innocents = {
            "resident": (RESIDENT_BYTES, self._holds("resident", RESIDENT_BYTES)),
            "idle": (IDLE_BYTES, self._holds("idle", IDLE_BYTES)),
            "probe": (PROBE_BYTES, self._probe(probe)),
        }
        self._await(lambda: probe.words()[2] >= _QUIET_ANSWERS, "the probe's first answers")
        record = self._record(_TROUBLE)
        trouble = self._trouble(course, record)
        self._await(lambda: record.words()[0] > 0, "the pod that is the trouble")
        observed = self._record("observed")
        with self._observer(observed, trouble.pid, course.patience_seconds) as observer:
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
            oom_kills=subtree_kills(node.tree, node.cgroup) - oom_kills,
        )

    def _slow_the_disk(self) -> None:
        """Limit the node's reads. Raises RefusedError where the kernel can't."""
        tree, cgroup = self._track.node.tree, self._track.node.cgroup
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

    def _trouble(self, course: PressedCourse, record: Record) -> subprocess.Popen[bytes]:
        node = self._track.node
        limit_bytes = None if course is SWAP else THRASH_LIMIT_BYTES
        cgroup = self._add_pod(_TROUBLE, limit_bytes)
        if course is SWAP:
            usage, full_bytes = node.usage_path(), node.memory_bytes - _FULL_BYTES
            prefill_bytes = full_bytes - node.usage_bytes() - _RAMP_BYTES
            total_bytes = 2 * (node.memory_bytes + (node.swap_bytes or 0))
        else:
            usage, full_bytes = node.tree.path(cgroup) / "memory.current", THRASH_LIMIT_BYTES - _FULL_BYTES
            prefill_bytes, total_bytes = full_bytes - _RAMP_BYTES, THRASH_BYTES
        amounts = (full_bytes, prefill_bytes, total_bytes, GROW_BYTES_A_SECOND, THREADS)
        return self._spawn(cgroup, "grow", record.path, usage, *amounts)

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
